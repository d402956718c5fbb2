//! Attacks on the guard by an account of an application: what it can run with the installer's rights, and what it can do to the
//! marks.
//!
//! Each attack that worked on version 1 is first played on version 1, where it must succeed. Then it is played on the current
//! version, where it must fail.

use fencepost_fence::{Access, Error, Installed, Once, Token, mysql};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use crate::mysql::{MySql, begin, state_of, with_store};
use crate::suite::{Connection, Store, block_on, stale, writer};

/// What `fence init` installed before version 2.
const VERSION_1: &str = include_str!("../../fixtures/mysql-version-1.sql");

const DENIED: &str = "42000";
const PROCEDURES: [&str; 6] = ["present", "claim", "write", "read", "once", "try_once"];

async fn run(connection: &mut impl Queryable, sql: &str) {
    connection.query_drop(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Installs version 1 as operators did it: by hand, as root.
async fn install_version_1(store: &MySql) {
    let mut root = store.open().await;
    let (_, statements) = VERSION_1.split_once("\nDELIMITER //\n").expect("the file names its delimiter");
    for statement in statements.split_terminator("\n//\n") {
        run(&mut root, statement).await;
    }
}

/// An account with the rights that the guide gives to an application, and no others but to create temporary tables.
async fn application(store: &MySql) -> String {
    application_with(store, &PROCEDURES).await
}

async fn application_with(store: &MySql, procedures: &[&str]) -> String {
    let account = store.account("app", "CREATE TEMPORARY TABLES").await;
    for procedure in procedures {
        let grant = format!("GRANT EXECUTE ON PROCEDURE {}.fencepost_{procedure} TO {account}", store.database);
        run(&mut store.open().await, &grant).await;
    }
    account
}

#[test]
fn an_application_needs_no_rights_but_to_call_six_procedures() {
    with_store(async |store| {
        let mut application = store.open_as(&application(store).await).await;
        for procedure in ["claim", "write", "read"] {
            let mut transaction = begin(&mut application).await;
            run(&mut transaction, &format!("CALL fencepost_{procedure}('wallet', 5)")).await;
            transaction.commit().await.expect("it serves");
        }
        let mut transaction = begin(&mut application).await;
        stale(mysql::admit(&mut transaction, &Access::write("wallet", writer(4))).await, 4, 5);
        mysql::admit(&mut transaction, &Access::write("wallet", writer(5))).await.expect("it is the newest");
        transaction.commit().await.expect("it serves");
        let mut transaction = begin(&mut application).await;
        mysql::once(&mut transaction, "wallet", "key", writer(5)).await.expect("the first");
        let found = mysql::try_once(&mut transaction, "wallet", "other", writer(5)).await.expect("it goes on");
        assert_eq!(found, Once::First);
        transaction.commit().await.expect("it serves");
        for forbidden in [
            "DELETE FROM fencepost_keys",
            "SELECT * FROM fencepost_keys",
            "INSERT INTO fencepost_keys (name, job_key, token) VALUES ('wallet', 'made up', 5)",
            "CALL fencepost_record('wallet', 'made up', 5, @before)",
            "DELETE FROM fencepost_marks",
            "SELECT * FROM fencepost_marks",
            "UPDATE fencepost_base SET base = 0",
            "DROP PROCEDURE fencepost_present",
            "ALTER PROCEDURE fencepost_write SQL SECURITY DEFINER",
            r#"CALL fencepost_lift_marks('{"name": "wallet", "token": 9, "use": "write"}')"#,
        ] {
            assert_eq!(state_of(&mut application, forbidden).await, DENIED, "{forbidden}");
        }
    });
}

#[test]
fn an_account_without_rights_is_told_what_it_needs() {
    with_store(async |store| {
        let mut stranger = store.open_as(&store.account("stranger", "SELECT").await).await;
        let mut transaction = begin(&mut stranger).await;
        let refused = mysql::admit(&mut transaction, &Access::write("wallet", writer(1))).await.expect_err("no rights");
        assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("GRANT EXECUTE")), "{refused:?}");
    });
}

/// An account that may call every procedure in the database calls the parts of a check by hand.
#[test]
fn the_parts_of_a_check_have_no_rights_of_their_own() {
    let Some(store) = MySql::empty() else { return };
    block_on(async {
        install_version_1(&store).await;
        let mut attacker = store.open_as(&store.account("attacker", "EXECUTE").await).await;
        let mut owner = Operator::of(&store).await;
        owner.write(7).await;
        // No token of the lock service can be as high, so the guard would refuse every holder from then on.
        let lift = r#"CALL fencepost_lift_marks('{"name": "wallet", "token": 9223372036854775807, "use": "write"}')"#;
        run(&mut attacker, lift).await;
        assert_eq!(owner.mark().await, i64::MAX, "the attack works on version 1");
        run(&mut owner.0, "UPDATE fencepost_marks SET write_floor = 7, read_floor = 7").await;

        let mut installer = store.open_as(&store.installer().await).await;
        mysql::install(&mut installer).await.expect("it is older");
        for part in [
            lift,
            r#"CALL fencepost_lock_marks('{"name": "wallet", "token": 9, "use": "write"}')"#,
            r#"CALL fencepost_check_marks('{"name": "wallet", "token": 9, "use": "write"}', 0)"#,
        ] {
            assert_eq!(state_of(&mut attacker, part).await, DENIED, "{part}");
        }
        // This part shows its token first, which every account may do in a transaction.
        let mut transaction = begin(&mut attacker).await;
        let record = "CALL fencepost_record('wallet', 'made up', 7, @before)";
        assert_eq!(state_of(&mut transaction, record).await, DENIED);
        transaction.rollback().await.expect("it serves");
        assert_eq!(owner.mark().await, 7);

        // Not prevented: a token that the lock service never gave shuts out every holder, until an operator repairs the mark.
        let highest: i64 = (1 << 53) - 1;
        let mut transaction = begin(&mut attacker).await;
        run(&mut transaction, &format!("CALL fencepost_claim('wallet', {highest})")).await;
        transaction.commit().await.expect("it serves");
        assert_eq!(owner.mark().await, highest);
        run(&mut owner.0, "DELETE FROM fencepost_marks WHERE name = 'wallet'").await;
        owner.write(8).await;
        // Nor prevented: a key of work that was not done. An operator forgets it.
        let mut transaction = begin(&mut attacker).await;
        run(&mut transaction, "CALL fencepost_once('wallet', 'made up', 8)").await;
        transaction.commit().await.expect("it serves");
        assert_eq!(mysql::forget(&mut owner.0, "wallet", "made up").await.expect("it is there"), Some(Token(8)));
    });
}

/// An account with all rights in the database, as many applications have, replaces a table by a view. The view calls a function
/// that runs with the rights of its caller, and the caller is the guard.
#[test]
fn an_account_with_all_rights_in_the_database_gets_none_outside_of_it() {
    let Some(store) = MySql::empty() else { return };
    block_on(async {
        install_version_1(&store).await;
        let mut root = store.open().await;
        let victim = format!("{}_victim", store.database);
        run(&mut root, &format!("CREATE DATABASE {victim}")).await;
        run(&mut root, &format!("CREATE TABLE {victim}.account (harmed_by TEXT)")).await;
        let harmed = async |root: &mut Conn| -> Option<String> {
            root.query_first(format!("SELECT harmed_by FROM {victim}.account")).await.expect("valid SQL")
        };
        let attacker = store.account("attacker", "ALL").await;
        let mut attacker = store.open_as(&attacker).await;
        let function = format!(
            "CREATE OR REPLACE FUNCTION harms() RETURNS BIGINT MODIFIES SQL DATA SQL SECURITY INVOKER
             BEGIN INSERT INTO {victim}.account VALUES (CURRENT_USER()); RETURN 0; END"
        );
        let view = "CREATE OR REPLACE SQL SECURITY INVOKER VIEW fencepost_base AS
            SELECT 1 AS only_row, 2 AS version, harms() AS base, 0 AS tidied, 0 AS idle_seconds";
        run(&mut attacker, &function).await;
        run(&mut attacker, "RENAME TABLE fencepost_base TO kept").await;
        run(&mut attacker, view).await;
        let attack = async |attacker: &mut Conn| {
            let mut transaction = begin(attacker).await;
            let outcome = transaction.query_drop("CALL fencepost_write('wallet', 5)").await;
            transaction.commit().await.expect("it serves");
            outcome
        };
        attack(&mut attacker).await.expect("it looks like an access");
        assert_eq!(harmed(&mut root).await.as_deref(), Some("root@localhost"), "the attack works on version 1");
        run(&mut root, &format!("DELETE FROM {victim}.account")).await;

        // The commands that root runs refuse before they read the view.
        let mut installer = store.open_as(&store.installer().await).await;
        for refused in [
            mysql::status(&mut root).await.map(drop),
            mysql::forget_below(&mut root, Token(1)).await.map(drop),
            mysql::install(&mut installer).await.map(drop),
        ] {
            let refused = refused.expect_err("there is a view");
            assert!(refused.to_string().contains("fencepost_base is a view"), "{refused}");
        }
        // `install` refuses root: a guard that root installed runs with the rights of root, so this attack would also work on
        // the current version of the guard.
        let refused = mysql::install(&mut root).await.expect_err("root has rights everywhere");
        assert!(
            refused.to_string().contains("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, CREATE ROUTINE"),
            "{refused}"
        );
        assert_eq!(harmed(&mut root).await, None);

        run(&mut attacker, "DROP VIEW fencepost_base").await;
        run(&mut attacker, "RENAME TABLE kept TO fencepost_base").await;
        let upgraded = mysql::install(&mut installer).await.expect("it is older");
        assert_eq!(upgraded, Installed::Upgraded { from: 1, to: mysql::VERSION });
        run(&mut attacker, "RENAME TABLE fencepost_base TO kept").await;
        run(&mut attacker, view).await;
        attack(&mut attacker).await.expect_err("the installer has no rights there");
        assert_eq!(harmed(&mut root).await, None);
    });
}

/// Rights in one other database are enough for a refusal. A grant with an escaped name of this database is not.
#[test]
fn an_account_with_rights_in_another_database_does_not_install() {
    let Some(store) = MySql::empty() else { return };
    block_on(async {
        let installer = store.installer().await;
        let mut root = store.open().await;
        let other = format!("{}_other", store.database);
        run(&mut root, &format!("CREATE DATABASE {other}")).await;
        run(&mut root, &format!("GRANT SELECT ON {other}.* TO {installer}")).await;
        let mut connection = store.open_as(&installer).await;
        let refused = mysql::install(&mut connection).await.expect_err("it has rights elsewhere");
        assert!(refused.to_string().contains("rights outside of the database"), "{refused}");
        run(&mut root, &format!("REVOKE SELECT ON {other}.* FROM {installer}")).await;
        let escaped = store.database.replace('_', r"\_");
        run(&mut root, &format!("GRANT SELECT ON `{escaped}`.* TO {installer}")).await;
        assert_eq!(mysql::install(&mut connection).await.expect("rights here alone"), Installed::New);
    });
}

#[test]
fn the_catalogue_shows_three_procedures_with_the_installers_rights() {
    with_store(async |store| {
        let mut root = store.open().await;
        let routines = "SELECT routine_name, routine_type, security_type, definer, routine_definition
            FROM information_schema.routines WHERE routine_schema = DATABASE() ORDER BY routine_name";
        let routines: Vec<(String, String, String, String, String)> = root.query(routines).await.expect("valid SQL");
        assert!(routines.len() >= 8, "{routines:?}");
        let as_installer = routines.iter().filter(|(_, _, security, _, _)| security == "DEFINER");
        let as_installer: Vec<&str> = as_installer.map(|(name, ..)| name.as_str()).collect();
        assert_eq!(as_installer, ["fencepost_once", "fencepost_present", "fencepost_try_once"]);
        for (name, kind, _, definer, code) in &routines {
            assert_eq!((kind.as_str(), definer), ("PROCEDURE", &format!("{}@%", store.installer().await)), "{name}");
            // No text of the caller is run as SQL.
            for word in ["PREPARE", "EXECUTE"] {
                assert!(!code.to_uppercase().contains(word), "{name} contains {word}");
            }
        }
    });
}

/// A temporary table hides the guard's table from the session that created it. Other sessions are not affected, and no code of
/// the attacker runs.
#[test]
fn a_temporary_table_affects_only_the_session_that_created_it() {
    with_store(async |store| {
        let mut owner = Operator::of(store).await;
        owner.write(7).await;
        let mut application = store.open_as(&application(store).await).await;
        let hide = "CREATE TEMPORARY TABLE fencepost_marks (name VARBINARY(512) NOT NULL PRIMARY KEY, write_floor BIGINT DEFAULT 0,
            read_floor BIGINT DEFAULT 0, write_floor_below BIGINT DEFAULT 0, read_floor_below BIGINT DEFAULT 0,
            writes BIGINT DEFAULT 0, writes_below BIGINT DEFAULT 0)";
        run(&mut application, hide).await;
        let mut transaction = begin(&mut application).await;
        run(&mut transaction, "CALL fencepost_write('wallet', 5)").await;
        transaction.commit().await.expect("it serves");
        assert_eq!(owner.mark().await, 7);
        stale(store.connect().await.write("wallet", writer(5), 50).await, 5, 7);
    });
}

#[test]
fn version_1_is_upgraded_with_its_marks_settings_and_grants() {
    let Some(store) = MySql::empty() else { return };
    block_on(async {
        install_version_1(&store).await;
        let mut owner = Operator::of(&store).await;
        owner.write(7).await;
        run(&mut owner.0, "UPDATE fencepost_base SET base = 3, tidied = 1, idle_seconds = 30").await;
        let in_version_1 = &PROCEDURES[..4];
        let mut application = store.open_as(&application_with(&store, in_version_1).await).await;
        let refused = mysql::status(&mut owner.0).await.expect_err("it is of an older version");
        assert!(refused.to_string().contains("run `fencepost fence init"), "{refused}");

        let mut installer = store.open_as(&store.installer().await).await;
        let upgraded = mysql::install(&mut installer).await.expect("it is older");
        assert_eq!(upgraded, Installed::Upgraded { from: 1, to: mysql::VERSION });
        assert_eq!(mysql::install(&mut installer).await.expect("it is there"), Installed::AlreadyThere);
        let status = mysql::status(&mut owner.0).await.expect("it is there");
        assert_eq!((status.version, status.base, status.highest), (mysql::VERSION, Token(3), Token(7)));
        let idle: Option<i64> =
            owner.0.query_first("SELECT idle_seconds FROM fencepost_base").await.expect("valid SQL");
        assert_eq!(idle, Some(30));
        let mut transaction = begin(&mut application).await;
        stale(mysql::admit(&mut transaction, &Access::write("wallet", writer(6))).await, 6, 7);
    });
}

/// An operator with every right.
struct Operator(Conn);

impl Operator {
    async fn of(store: &MySql) -> Operator {
        Operator(store.open().await)
    }

    /// Writes under the name `wallet`. Works with every version of the guard.
    async fn write(&mut self, token: u64) {
        let mut transaction = begin(&mut self.0).await;
        run(&mut transaction, &format!("CALL fencepost_write('wallet', {token})")).await;
        transaction.commit().await.expect("it serves");
    }

    async fn mark(&mut self) -> i64 {
        let select = "SELECT write_floor FROM fencepost_marks WHERE name = 'wallet'";
        self.0.query_first(select).await.expect("valid SQL").expect("it has a mark")
    }
}
