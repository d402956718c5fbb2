//! The guard as an attacker with an account of the application sees it: what runs with the installer's rights, and what the
//! account can do to the marks.
//!
//! Each attack that worked on version 1 is first played there, and must succeed. Then it is played on today's guard, and fails.

use fencepost_fence::{Access, Error, Installed, Token, mysql};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use crate::mysql::{MySql, begin, state_of, with_store};
use crate::suite::{Connection, Store, block_on, stale, writer};

/// What `fence init` installed before version 2.
const VERSION_1: &str = include_str!("../../fixtures/mysql-version-1.sql");

const DENIED: &str = "42000";
const PROCEDURES: [&str; 4] = ["present", "claim", "write", "read"];

async fn run(connection: &mut impl Queryable, sql: &str) {
    connection.query_drop(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// As an operator did it: as root, by hand.
async fn install_version_1(store: &MySql) {
    let mut root = store.open().await;
    let (_, statements) = VERSION_1.split_once("\nDELIMITER //\n").expect("the file names its delimiter");
    for statement in statements.split_terminator("\n//\n") {
        run(&mut root, statement).await;
    }
}

/// An account that may call the guard as the guide has it, and do nothing else.
async fn application(store: &MySql) -> String {
    let account = store.account("app", "CREATE TEMPORARY TABLES").await;
    for procedure in PROCEDURES {
        let grant = format!("GRANT EXECUTE ON PROCEDURE {}.fencepost_{procedure} TO {account}", store.database);
        run(&mut store.open().await, &grant).await;
    }
    account
}

#[test]
fn an_application_needs_no_rights_but_to_call_four_procedures() {
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
        for forbidden in [
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
fn an_account_that_was_not_let_in_is_told_what_it_needs() {
    with_store(async |store| {
        let mut stranger = store.open_as(&store.account("stranger", "SELECT").await).await;
        let mut transaction = begin(&mut stranger).await;
        let refused = mysql::admit(&mut transaction, &Access::write("wallet", writer(1))).await.expect_err("no rights");
        assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("GRANT EXECUTE")), "{refused:?}");
    });
}

/// The parts of a check, called by hand by an account that may call everything in the database.
#[test]
fn the_parts_of_a_check_have_no_rights_of_their_own() {
    let Some(store) = MySql::empty() else { return };
    block_on(async {
        install_version_1(&store).await;
        let mut attacker = store.open_as(&store.account("attacker", "EXECUTE").await).await;
        let mut owner = Operator::of(&store).await;
        owner.write(7).await;
        // No token of the lock service is as high, and none could be: the guard would never again let a holder pass.
        let lift = r#"CALL fencepost_lift_marks('{"name": "wallet", "token": 9223372036854775807, "use": "write"}')"#;
        run(&mut attacker, lift).await;
        assert_eq!(owner.mark().await, i64::MAX, "version 1 falls to it");
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
        assert_eq!(owner.mark().await, 7);

        // Not prevented: a token that the lock service never gave shuts every holder out, until an operator repairs it.
        let highest: i64 = (1 << 53) - 1;
        let mut transaction = begin(&mut attacker).await;
        run(&mut transaction, &format!("CALL fencepost_claim('wallet', {highest})")).await;
        transaction.commit().await.expect("it serves");
        assert_eq!(owner.mark().await, highest);
        run(&mut owner.0, "DELETE FROM fencepost_marks WHERE name = 'wallet'").await;
        owner.write(8).await;
    });
}

/// An account that may do everything in the database, as applications often may, puts a view in the place of a table. The view
/// calls a function that runs with the rights of its caller, and the caller is the guard.
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
        assert_eq!(harmed(&mut root).await.as_deref(), Some("root@localhost"), "version 1 falls to it");
        run(&mut root, &format!("DELETE FROM {victim}.account")).await;

        // What root runs to look and to install does not read the view.
        let mut installer = store.open_as(&store.installer().await).await;
        for refused in [
            mysql::status(&mut root).await.map(drop),
            mysql::forget_below(&mut root, Token(1)).await.map(drop),
            mysql::install(&mut installer).await.map(drop),
        ] {
            let refused = refused.expect_err("a view stands there");
            assert!(refused.to_string().contains("fencepost_base is a view"), "{refused}");
        }
        // Root does not install: today's guard would fall to it as well.
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
        attack(&mut attacker).await.expect_err("the installer may do nothing there");
        assert_eq!(harmed(&mut root).await, None);
    });
}

/// A second database is enough to be refused, and a pattern that means this database alone is not.
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
fn the_catalogue_shows_one_procedure_with_the_installers_rights() {
    with_store(async |store| {
        let mut root = store.open().await;
        let routines = "SELECT routine_name, routine_type, security_type, definer, routine_definition
            FROM information_schema.routines WHERE routine_schema = DATABASE() ORDER BY routine_name";
        let routines: Vec<(String, String, String, String, String)> = root.query(routines).await.expect("valid SQL");
        assert!(routines.len() >= 8, "{routines:?}");
        let as_installer = routines.iter().filter(|(_, _, security, _, _)| security == "DEFINER");
        let as_installer: Vec<&str> = as_installer.map(|(name, ..)| name.as_str()).collect();
        assert_eq!(as_installer, ["fencepost_present"]);
        for (name, kind, _, definer, code) in &routines {
            assert_eq!((kind.as_str(), definer), ("PROCEDURE", &format!("{}@%", store.installer().await)), "{name}");
            // Nothing of the caller's is run as SQL.
            for word in ["PREPARE", "EXECUTE"] {
                assert!(!code.to_uppercase().contains(word), "{name} says {word}");
            }
        }
    });
}

/// Tables of the session's own hide the guard's from that session. It fools no other, and no code runs.
#[test]
fn a_temporary_table_fools_the_session_that_made_it_and_no_other() {
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
        let mut application = store.open_as(&application(&store).await).await;
        let refused = mysql::status(&mut owner.0).await.expect_err("it is of an older version");
        assert!(refused.to_string().contains("run `fencepost fence init"), "{refused}");

        let mut installer = store.open_as(&store.installer().await).await;
        let upgraded = mysql::install(&mut installer).await.expect("it is older");
        assert_eq!(upgraded, Installed::Upgraded { from: 1, to: 2 });
        assert_eq!(mysql::install(&mut installer).await.expect("it is there"), Installed::AlreadyThere);
        let status = mysql::status(&mut owner.0).await.expect("it is there");
        assert_eq!((status.version, status.base, status.highest), (2, Token(3), Token(7)));
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

    /// Writes under the name `wallet`, in whichever version of the guard.
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
