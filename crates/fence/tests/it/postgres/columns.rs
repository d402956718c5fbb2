//! Rows that keep their own token in a column: by hand in one statement, and with triggers that refuse a statement without a
//! token.

use fencepost_fence::{Error, Token, postgres};
use tokio_postgres::Client;

use crate::postgres::{Database, balance, code, done, one, run};
use crate::suite::block_on;

/// A wallet of 100 under token 5.
async fn wallet(database: &Database, guarded: bool) -> Client {
    let client = database.open().await;
    run(
        &client,
        "ALTER TABLE wallet ADD COLUMN fencing_token bigint NOT NULL DEFAULT 0; UPDATE wallet SET fencing_token = 5",
    )
    .await;
    if guarded {
        run(&client, "SELECT fencepost.guard_column('wallet')").await;
    }
    client
}

async fn token(client: &Client) -> i64 {
    one(client, "SELECT fencing_token FROM wallet WHERE id = 7").await
}

// Rule: fence, claim-before-read
#[test]
fn by_hand_the_condition_of_the_statement_is_the_guard() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = wallet(&database, false).await;
        let update = "UPDATE wallet SET balance = $1, fencing_token = $2 WHERE id = 7 AND fencing_token <= $2";
        for (token, rows) in [(5i64, 1), (7, 1), (7, 1), (6, 0)] {
            assert_eq!(done(client.execute(update, &[&(token * 10), &token]).await), rows, "{token}");
        }
        assert_eq!(balance(&client).await, 70);
        let claim = "UPDATE wallet SET fencing_token = $1 WHERE id = 7 AND fencing_token <= $1 RETURNING balance";
        let claimed = done(client.query_opt(claim, &[&9i64]).await).expect("newer");
        assert_eq!(claimed.get::<_, i64>(0), 70);
        assert_eq!(done(client.execute(update, &[&80i64, &8i64]).await), 0, "shut out by the claim");
    });
}

// Rule: fence, claim-before-read
#[test]
fn the_triggers_refuse_an_older_token_and_let_equal_and_newer_pass() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = wallet(&database, true).await;
        run(&client, "UPDATE wallet SET balance = 50, fencing_token = 5 WHERE id = 7").await;
        assert_eq!(
            one(&client, "UPDATE wallet SET fencing_token = 7 WHERE id = 7 RETURNING balance").await,
            50,
            "a claim"
        );
        let late = "UPDATE wallet SET balance = 51, fencing_token = 5 WHERE id = 7";
        let error = client.batch_execute(late).await.expect_err("it is older");
        let error = Error::from(error);
        let stale = error.stale().expect("it is stale");
        assert_eq!((stale.name.as_str(), stale.token, stale.highest), ("public.wallet", Token(5), Token(7)));
        run(&client, "UPDATE wallet SET balance = 70, fencing_token = 7 WHERE id = 7").await;
        assert_eq!((balance(&client).await, token(&client).await), (70, 7));
    });
}

#[test]
fn the_triggers_refuse_a_statement_without_a_token() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = wallet(&database, true).await;
        for (statement, expected) in [
            ("UPDATE wallet SET balance = 1", "FP428"),
            ("UPDATE wallet SET balance = 1, fencing_token = NULL", "FP428"),
            ("UPDATE wallet SET balance = 1, fencing_token = 0", "FP400"),
            ("UPDATE wallet SET balance = 1, fencing_token = -7", "FP400"),
            ("UPDATE wallet SET balance = 1, fencing_token = 9007199254740992", "FP400"),
            ("INSERT INTO wallet VALUES (8, 1)", "FP428"),
            ("INSERT INTO wallet VALUES (8, 1, NULL)", "FP428"),
            ("INSERT INTO wallet VALUES (8, 1, -7)", "FP400"),
            ("INSERT INTO wallet VALUES (7, 1, 9) ON CONFLICT (id) DO UPDATE SET balance = 1", "FP428"),
            (
                "INSERT INTO wallet VALUES (7, 1, 4) ON CONFLICT (id) DO UPDATE SET balance = 1, fencing_token = 4",
                "FP412",
            ),
            ("DELETE FROM wallet", "FP428"),
            ("TRUNCATE wallet", "FP428"),
        ] {
            assert_eq!(code(&client, statement).await, expected, "{statement}");
        }
        assert_eq!((balance(&client).await, token(&client).await), (100, 5));
        run(
            &client,
            "INSERT INTO wallet VALUES (8, 1, 3); UPDATE wallet SET balance = 2, fencing_token = 3 WHERE id = 8",
        )
        .await;
        let upsert = "INSERT INTO wallet VALUES (7, 1, 9)
            ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, fencing_token = excluded.fencing_token";
        run(&client, upsert).await;
        assert_eq!((balance(&client).await, token(&client).await), (1, 9));
        run(&client, "SELECT fencepost.unguard_column('wallet'); UPDATE wallet SET balance = 2; DELETE FROM wallet")
            .await;
    });
}

#[test]
fn the_column_may_have_another_name_and_must_be_there() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        assert_eq!(code(&client, "SELECT fencepost.guard_column('wallet')").await, "FP400");
        run(&client, r#"ALTER TABLE wallet ADD COLUMN "its ""own""" bigint, ADD COLUMN "text" text"#).await;
        assert_eq!(code(&client, "SELECT fencepost.guard_column('wallet', 'text')").await, "FP400");
        run(&client, r#"SELECT fencepost.guard_column('wallet', 'its "own"')"#).await;
        assert_eq!(code(&client, "UPDATE wallet SET balance = 1").await, postgres::MISSING);
        run(&client, r#"UPDATE wallet SET "its ""own""" = 5, balance = 1"#).await;
        assert_eq!(code(&client, r#"UPDATE wallet SET "its ""own""" = 4"#).await, postgres::STALE);
    });
}

/// The triggers limit how long the role's transaction may idle, as the guard's functions do.
#[test]
fn a_plain_role_is_guarded_as_well_and_its_idle_time_is_bounded() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let owner = wallet(&database, true).await;
        let role = format!("app_of_{}", database.name());
        run(&owner, &format!("CREATE ROLE {role} LOGIN; GRANT SELECT, UPDATE ON wallet TO {role}; GRANT USAGE ON SCHEMA fencepost TO {role}")).await;
        let client = database.open_as(&role).await;
        assert_eq!(code(&client, "UPDATE wallet SET balance = 1").await, postgres::MISSING);
        assert_eq!(code(&client, "UPDATE wallet SET balance = 1, fencing_token = 4").await, postgres::STALE);
        assert_eq!(code(&client, "UPDATE wallet SET balance = 1, fencing_token = 0").await, "FP400");
        run(&client, "BEGIN; UPDATE wallet SET balance = 1, fencing_token = 7").await;
        let row = done(client.query_one("SHOW idle_in_transaction_session_timeout", &[]).await);
        assert_eq!(row.get::<_, String>(0), "1min");
        run(&client, "COMMIT").await;
        assert_eq!(balance(&client).await, 1);
    });
}
