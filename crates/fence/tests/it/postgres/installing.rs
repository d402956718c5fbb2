//! Installing and upgrading, by the library and by hand, and the errors where nothing is installed.

use fencepost_fence::{Access, Error, Installed, Status, Token, postgres};

use tokio_postgres::Client;

use crate::postgres::rights::VERSION_1;
use crate::postgres::{Database, begin, code, done, one, run};
use crate::suite::{Connection, block_on, writer};

#[test]
fn installing_again_changes_nothing_and_a_newer_form_is_refused() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        client.write("wallet", writer(5), 50).await.expect("the first");
        assert_eq!(postgres::install(&mut client).await.expect("it is there"), Installed::AlreadyThere);
        let expected = Status {
            version: postgres::VERSION,
            base: Token(0),
            names: 1,
            writes: 1,
            highest: Token(5),
            keys: Some(0),
        };
        assert_eq!(postgres::status(&client).await.expect("it is there"), expected);
        run(&client, "UPDATE fencepost.store SET version = 4").await;
        for refused in [postgres::install(&mut client).await.map(drop), postgres::status(&client).await.map(drop)] {
            let refused = refused.expect_err("a newer version has created it");
            assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("version 4")), "{refused}");
        }
        assert_eq!(code(&client, postgres::SCRIPT).await, "P0001", "by hand as well");
    });
}

/// The objects of an installation, one per line: functions with their rights and code, tables with their columns.
async fn installation(client: &Client) -> Vec<String> {
    let objects = "
        SELECT concat_ws(' ', oid::regprocedure, prosecdef, proconfig, proacl, pg_get_functiondef(oid)) FROM pg_proc
            WHERE pronamespace = 'fencepost'::regnamespace
        UNION ALL SELECT concat_ws(' ', oid::regclass, relkind, relacl, reloptions) FROM pg_class
            WHERE relnamespace = 'fencepost'::regnamespace
        UNION ALL SELECT concat_ws(' ', attrelid::regclass, attname, atttypid::regtype, attnotnull) FROM pg_attribute
            WHERE attnum > 0 AND attrelid IN ('fencepost.store'::regclass, 'fencepost.marks'::regclass, 'fencepost.keys'::regclass)
        ORDER BY 1";
    done(client.query(objects, &[]).await).iter().map(|row| row.get(0)).collect()
}

/// By the library and by hand. Afterwards the objects are those of a new installation, and the marks and settings are kept.
#[test]
fn version_1_is_upgraded_with_its_marks_settings_and_triggers() {
    let (Some(by_library), Some(by_hand), Some(fresh)) = (Database::bare(), Database::bare(), Database::fresh()) else {
        return;
    };
    block_on(async {
        let expected = installation(&fresh.open().await).await;
        for (database, by_the_library) in [(by_library, true), (by_hand, false)] {
            let mut client = database.open().await;
            run(&client, VERSION_1).await;
            run(
                &client,
                "SELECT fencepost.set_idle_timeout('30 s');
                 CREATE TABLE wallet (id integer PRIMARY KEY, balance bigint, fencing_token bigint NOT NULL DEFAULT 0);
                 CREATE TABLE purse (LIKE wallet INCLUDING ALL);
                 INSERT INTO wallet VALUES (7, 100); INSERT INTO purse VALUES (7, 100);
                 SELECT fencepost.guard_rows('wallet', 'wallet:', 'id'); SELECT fencepost.guard_column('purse');
                 BEGIN; SELECT fencepost.write('wallet:7', 5); UPDATE wallet SET balance = 50; COMMIT;
                 UPDATE purse SET balance = 50, fencing_token = 5; SELECT fencepost.forget_below(3)",
            )
            .await;
            let refused = postgres::status(&client).await.expect_err("it is of an older version");
            assert!(refused.to_string().contains("run `fencepost fence init"), "{refused}");

            if by_the_library {
                let upgraded = postgres::install(&mut client).await.expect("it is older");
                assert_eq!(upgraded, Installed::Upgraded { from: 1, to: postgres::VERSION });
            } else {
                run(&client, postgres::SCRIPT).await;
            }
            let status = Status {
                version: postgres::VERSION,
                base: Token(3),
                names: 1,
                writes: 1,
                highest: Token(5),
                keys: Some(0),
            };
            assert_eq!(postgres::status(&client).await.expect("it is there"), status);
            assert_eq!(one(&client, "SELECT extract(epoch FROM idle_timeout)::bigint FROM fencepost.store").await, 30);
            assert_eq!(installation(&client).await, expected);
            for (late, expected) in [
                ("SELECT fencepost.write('wallet:7', 4)", postgres::STALE),
                ("UPDATE wallet SET balance = 40", postgres::MISSING),
                ("UPDATE purse SET balance = 40, fencing_token = 4", postgres::STALE),
                ("UPDATE purse SET balance = 40", postgres::MISSING),
            ] {
                assert_eq!(code(&client, late).await, expected, "{late}");
            }
            run(&client, "BEGIN; SELECT fencepost.write('wallet:7', 6); UPDATE wallet SET balance = 60; COMMIT").await;
            run(&client, "UPDATE purse SET balance = 60, fencing_token = 6").await;
            assert_eq!(postgres::install(&mut client).await.expect("it is there"), Installed::AlreadyThere);
        }
    });
}

#[test]
fn the_script_does_the_same_by_hand() {
    let Some(database) = Database::bare() else { return };
    block_on(async {
        let mut client = database.open().await;
        run(&client, postgres::SCRIPT).await;
        run(&client, postgres::SCRIPT).await;
        assert_eq!(postgres::install(&mut client).await.expect("it is there"), Installed::AlreadyThere);
        let idle_seconds = "SELECT extract(epoch FROM idle_timeout)::bigint FROM fencepost.store";
        assert_eq!(one(&client, idle_seconds).await, 5);
        run(&client, "SELECT fencepost.write('wallet', 5)").await;
        assert_eq!(code(&client, "SELECT fencepost.write('wallet', 4)").await, postgres::STALE);
    });
}

/// An installation that waited for another one must see what that one has created, even if the default isolation level of the
/// database would give it an old view.
#[test]
fn two_installations_at_once_do_not_collide() {
    let Some(database) = Database::bare() else { return };
    block_on(async {
        let name = database.name();
        let isolation = format!("ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'");
        run(&database.open().await, &isolation).await;
        let (mut one, mut other) = (database.open().await, database.open().await);
        let (one, other) = tokio::join!(postgres::install(&mut one), postgres::install(&mut other));
        let mut outcomes = [one, other].map(|outcome| format!("{:?}", outcome.expect("both are served")));
        outcomes.sort();
        assert_eq!(outcomes, ["AlreadyThere", "New"]);
    });
}

#[test]
fn without_the_schema_it_says_what_to_run() {
    let Some(database) = Database::bare() else { return };
    block_on(async {
        let mut client = database.open().await;
        let refused = [
            client.write("wallet", writer(1), 1).await,
            postgres::status(&client).await.map(drop),
            client.forget_below(Token(1)).await.map(drop),
        ];
        for refused in refused {
            let refused = refused.expect_err("there is no schema");
            assert!(matches!(refused, Error::NotInstalled(_)), "{refused:?}");
            assert!(refused.to_string().contains("fencepost fence init postgres://"), "{refused}");
        }
        // An error about a table that is not the guard's is passed on unchanged.
        let other = client.batch_execute("SELECT * FROM nothing_of_ours").await.expect_err("there is none");
        assert!(matches!(Error::from(other), Error::Store(_)));
    });
}

#[test]
fn a_role_without_rights_is_told_what_it_needs() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let role = format!("stranger_of_{}", database.name());
        run(&database.open().await, &format!("CREATE ROLE {role} LOGIN")).await;
        let mut client = database.open_as(&role).await;
        let transaction = begin(&mut client).await;
        let refused = postgres::admit(&transaction, &Access::write("wallet", writer(1))).await.expect_err("no rights");
        assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("GRANT USAGE")), "{refused:?}");
        done(transaction.rollback().await);
    });
}

/// Some functions run with the rights of the installer, so no other role may be able to change them.
#[test]
fn a_schema_that_belongs_to_another_role_is_refused() {
    let Some(database) = Database::bare() else { return };
    block_on(async {
        let mut client = database.open().await;
        let role = format!("squatter_of_{}", database.name());
        run(&client, &format!("CREATE ROLE {role}; CREATE SCHEMA fencepost AUTHORIZATION {role}")).await;
        let refused = postgres::install(&mut client).await.expect_err("it is not ours");
        assert!(refused.to_string().contains(&format!("belongs to {role}")), "{refused}");
    });
}
