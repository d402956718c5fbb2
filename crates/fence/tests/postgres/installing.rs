//! Installing and upgrading, by the library and by hand, and what the guard says where nothing is installed.

use fencepost_fence::{Access, Error, Installed, Status, Token, postgres};

use crate::suite::{Connection, block_on, stale, writer};
use crate::{Database, begin, code, done, one, run};

#[test]
fn installing_again_changes_nothing_and_a_newer_form_is_refused() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        client.write("wallet", writer(5), 50).await.expect("the first");
        assert_eq!(postgres::install(&mut client).await.expect("it is there"), Installed::AlreadyThere);
        let expected = Status { version: 1, base: Token(0), names: 1, writes: 1, highest: Token(5) };
        assert_eq!(postgres::status(&client).await.expect("it is there"), expected);
        run(&client, "UPDATE fencepost.store SET version = 2").await;
        for refused in [postgres::install(&mut client).await.map(drop), postgres::status(&client).await.map(drop)] {
            let refused = refused.expect_err("somebody newer has made it");
            assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("version 2")), "{refused}");
        }
        assert_eq!(code(&client, postgres::SCRIPT).await, "P0001", "by hand as well");
    });
}

#[test]
fn an_older_form_is_upgraded_and_its_marks_stay() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        client.write("wallet", writer(5), 50).await.expect("the first");
        run(&client, "UPDATE fencepost.store SET version = 0; DROP FUNCTION fencepost.present CASCADE").await;
        assert_eq!(postgres::install(&mut client).await.expect("it is older"), Installed::UpgradedFrom(0));
        assert_eq!(postgres::status(&client).await.expect("it is there").version, 1);
        stale(client.write("wallet", writer(4), 40).await, 4, 5);
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

/// Whoever waits for another must then see what that one has made, even if the database gives everybody an old view.
#[test]
fn two_who_install_at_once_do_not_collide() {
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
        // What is missing of somebody else's is not ours to explain.
        let other = client.batch_execute("SELECT * FROM nothing_of_ours").await.expect_err("there is none");
        assert!(matches!(Error::from(other), Error::Store(_)));
    });
}

#[test]
fn a_role_that_was_not_let_in_is_told_what_it_needs() {
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

/// The functions run with the rights of who installs them, so they must not be somebody else's to change.
#[test]
fn a_schema_that_belongs_to_somebody_else_is_not_used() {
    let Some(database) = Database::bare() else { return };
    block_on(async {
        let mut client = database.open().await;
        let role = format!("squatter_of_{}", database.name());
        run(&client, &format!("CREATE ROLE {role}; CREATE SCHEMA fencepost AUTHORIZATION {role}")).await;
        let refused = postgres::install(&mut client).await.expect_err("it is not ours");
        assert!(refused.to_string().contains(&format!("belongs to {role}")), "{refused}");
    });
}
