//! Attacks on the guard by a role of an application: what it can run with the installer's rights, and what it can do to the marks.
//!
//! Each attack that worked on version 1 is first played on version 1, where it must succeed: an attack that fails for another
//! reason would prove nothing. Then the installation is upgraded, and the same attack must fail.

use std::collections::BTreeSet;

use fencepost_fence::{Error, Installed, postgres};
use tokio_postgres::Client;

use crate::postgres::{Connection, Database, balance, code, done, one, run};
use crate::suite::{block_on, stale, writer};

/// What `fence init` installed before version 2.
pub(crate) const VERSION_1: &str = include_str!("../../fixtures/postgres-version-1.sql");

/// The search path of every function that looks something up when it runs.
const PINNED: &str = "search_path=pg_catalog, pg_temp";

/// A database with a role that has the rights which the guide gives to an application, and a schema of its own.
struct Attacked {
    database: Database,
    owner: Client,
    role: String,
}

impl Attacked {
    /// A database with version 1 of the guard and a mark at 7.
    async fn with_version_1(database: Database) -> Attacked {
        let owner = database.open().await;
        run(&owner, VERSION_1).await;
        let role = format!("attacker_of_{}", database.name());
        run(
            &owner,
            &format!(
                "CREATE ROLE {role} LOGIN; CREATE SCHEMA own AUTHORIZATION {role};
                 GRANT USAGE ON SCHEMA fencepost TO {role}; SELECT fencepost.claim('wallet:7', 7)"
            ),
        )
        .await;
        Attacked { database, owner, role }
    }

    /// Undoes the effects of an attack, and upgrades to the current version.
    async fn upgrade(&mut self) {
        run(&self.owner, &format!("ALTER ROLE {} NOSUPERUSER", self.role)).await;
        run(&self.owner, "UPDATE fencepost.marks SET write_floor = 7 WHERE name = 'wallet:7'").await;
        let installed = postgres::install(&mut self.owner).await.expect("it is older");
        assert_eq!(installed, Installed::Upgraded { from: 1, to: postgres::VERSION });
    }

    async fn attacker(&self) -> Client {
        self.database.open_as(&self.role).await
    }

    /// What an attack tries to change: the mark, and whether the role is a superuser.
    async fn harm(&self) -> (i64, bool) {
        let mark = one(&self.owner, "SELECT write_floor FROM fencepost.marks WHERE name = 'wallet:7'").await;
        let superuser = format!("SELECT rolsuper FROM pg_roles WHERE rolname = '{}'", self.role);
        (mark, done(self.owner.query_one(&superuser, &[]).await).get(0))
    }

    /// What the attacker wants to run with the rights of the installer.
    fn harmful(&self) -> String {
        format!(
            "UPDATE fencepost.marks SET write_floor = 0 WHERE name = 'wallet:7'; ALTER ROLE {} SUPERUSER;",
            self.role
        )
    }
}

const UNHARMED: (i64, bool) = (7, false);
const HARMED: (i64, bool) = (0, true);

/// The attack by a row: a type of the attacker has a cast to json, and a trigger of version 1 called it with the installer's
/// rights.
#[test]
fn a_cast_of_the_caller_does_not_run_with_the_rights_of_the_installer() {
    let Some(database) = Database::bare() else { return };
    block_on(async {
        let mut attacked = Attacked::with_version_1(database).await;
        let attacker = attacked.attacker().await;
        run(
            &attacker,
            &format!(
                "CREATE TYPE own.bait AS ENUM ('7');
                 CREATE FUNCTION own.to_json(own.bait) RETURNS json LANGUAGE plpgsql AS
                     $$ BEGIN {} RETURN '\"7\"'; END $$;
                 CREATE CAST (own.bait AS json) WITH FUNCTION own.to_json(own.bait);
                 CREATE TABLE own.rows (id own.bait, fencing_token bigint);
                 CREATE TABLE own.columns (id own.bait, fencing_token bigint);
                 CREATE TRIGGER rows BEFORE INSERT ON own.rows
                     FOR EACH ROW EXECUTE FUNCTION fencepost.check_row('bait:', 'id');
                 CREATE TRIGGER note BEFORE INSERT ON own.columns
                     FOR EACH ROW EXECUTE FUNCTION fencepost.note_column('fencing_token');",
                attacked.harmful()
            ),
        )
        .await;
        let by_row = "BEGIN; SELECT fencepost.write('bait:7', 1); INSERT INTO own.rows VALUES ('7'); COMMIT";
        let by_column = "INSERT INTO own.columns VALUES ('7', 1)";
        for attack in [by_row, by_column] {
            run(&attacker, attack).await;
            assert_eq!(attacked.harm().await, HARMED, "works on version 1: {attack}");
            run(&attacked.owner, &format!("ALTER ROLE {} NOSUPERUSER", attacked.role)).await;
            run(&attacked.owner, "UPDATE fencepost.marks SET write_floor = 7 WHERE name = 'wallet:7'").await;
        }
        attacked.upgrade().await;
        for attack in [by_row, by_column] {
            assert_eq!(code(&attacker, attack).await, "42501", "{attack}");
            run(&attacker, "ROLLBACK").await;
            // On a connection that never used version 1.
            assert_eq!(code(&attacked.attacker().await, attack).await, "42501", "{attack}");
            assert_eq!(attacked.harm().await, UNHARMED);
        }
    });
}

/// The attack by a name: the attacker first calls a function of the guard under a search path where `text` is a type of its own.
/// In version 1 the function kept that meaning for the rest of the session, also when the guard called it with the installer's
/// rights.
#[test]
fn a_type_of_the_caller_does_not_get_into_the_functions_of_the_guard() {
    let Some(database) = Database::bare() else { return };
    block_on(async {
        let mut attacked = Attacked::with_version_1(database).await;
        let domain = |schema: &str| {
            format!(
                "CREATE DOMAIN {schema}.text AS pg_catalog.text CHECK (own.harms(VALUE));
                 SET search_path = {schema}, pg_catalog; SELECT fencepost.path('x'); SELECT fencepost.is_token(1)"
            )
        };
        let harms = format!(
            "CREATE FUNCTION own.harms(pg_catalog.text) RETURNS boolean LANGUAGE plpgsql AS
                 $$ BEGIN IF current_user <> '{}' THEN {} END IF; RETURN true; END $$",
            attacked.role,
            attacked.harmful()
        );
        let attacker = attacked.attacker().await;
        run(&attacker, &harms).await;
        run(&attacker, &domain("own")).await;
        run(&attacker, "SELECT fencepost.write('bait', 1)").await;
        assert_eq!(attacked.harm().await, HARMED, "the attack works on version 1");

        attacked.upgrade().await;
        let every_function = "
            SELECT fencepost.path('x'); SELECT fencepost.bound_idle_time(); SELECT fencepost.shown_token('x');
            BEGIN; SELECT fencepost.write('x', 1); SELECT fencepost.shown_token('x'); SELECT fencepost.once('x', 'a');
            SELECT fencepost.try_once('x', 'a'); SELECT fencepost.record_once('x', 'b'); SELECT fencepost.record('x', 'c'); ROLLBACK;
            SELECT fencepost.write('/bait/1', 1); SELECT fencepost.claim('bait', 1); SELECT fencepost.read('bait', 1);
            SELECT fencepost.admit('{a,b}', '{1,2}', '{write,read}')";
        for schema in ["own", "pg_temp"] {
            let attacker = attacked.attacker().await;
            if schema == "own" {
                run(&attacker, "DROP DOMAIN own.text").await;
            }
            run(&attacker, &domain(schema)).await;
            let meant = "SELECT count(*) FROM pg_type WHERE oid = 'text'::regtype AND typtype = 'd'";
            assert_eq!(one(&attacker, meant).await, 1, "outside of the guard, text is the attacker's type");
            for refusal in [
                "SELECT fencepost.refuse_token('x', 0)",
                "SELECT fencepost.refuse_stale('x', 1, 'x', 2)",
                "SELECT fencepost.refuse_unshown('x')",
            ] {
                code(&attacker, refusal).await;
            }
            run(&attacker, every_function).await;
            assert_eq!(code(&attacker, "SELECT fencepost.write('wallet:7', 6)").await, postgres::STALE);
            assert_eq!(attacked.harm().await, UNHARMED, "{schema}");
        }
    });
}

/// Another role has created the schema, with a view whose functions would run when the installer reads it.
#[test]
fn installing_runs_nothing_that_another_role_has_planted() {
    let Some(database) = Database::bare() else { return };
    block_on(async {
        let mut owner = database.open().await;
        let role = format!("squatter_of_{}", database.name());
        let grant = format!("CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE {} TO {role}", database.name());
        run(&owner, &grant).await;
        // A sequence keeps its count even if the transaction is rolled back.
        let planted = "CREATE SCHEMA fencepost;
             CREATE SEQUENCE fencepost.ran;
             CREATE FUNCTION fencepost.harms() RETURNS integer LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM nextval('fencepost.ran'); RETURN 1; END $$;
             CREATE VIEW fencepost.store AS SELECT fencepost.harms() AS version, 0::bigint AS base";
        run(&database.open_as(&role).await, planted).await;
        let refused = postgres::install(&mut owner).await.expect_err("the schema is not ours");
        assert!(refused.to_string().contains(&format!("belongs to {role}: install as that role")), "{refused}");
        assert_eq!(code(&owner, postgres::SCRIPT).await, "P0001", "by hand as well");
        assert_eq!(one(&owner, "SELECT count(*) FROM fencepost.ran WHERE is_called").await, 0);
    });
}

#[test]
fn an_object_of_another_role_in_the_schema_is_refused() {
    let Some(database) = Database::bare() else { return };
    block_on(async {
        let mut owner = database.open().await;
        let role = format!("squatter_of_{}", database.name());
        for planted in [
            "CREATE TABLE fencepost.marks (name text)",
            "CREATE FUNCTION fencepost.path(text) RETURNS text[] LANGUAGE sql RETURN ARRAY['x']",
        ] {
            run(&owner, &format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA fencepost")).await;
            run(&owner, &format!("GRANT CREATE, USAGE ON SCHEMA fencepost TO {role}")).await;
            run(&database.open_as(&role).await, planted).await;
            let refused = postgres::install(&mut owner).await.expect_err("not all of it is ours");
            assert!(refused.to_string().contains("another role owns"), "{refused}");
            run(&owner, &format!("DROP SCHEMA fencepost CASCADE; DROP OWNED BY {role}; DROP ROLE {role}")).await;
        }
        assert_eq!(postgres::install(&mut owner).await.expect("nothing is in the way"), Installed::New);
    });
}

/// What the guide says that a role with USAGE cannot do, and what it can.
#[test]
fn a_role_can_lift_marks_and_the_owner_repairs_them_and_nothing_lowers_them() {
    const HIGHEST: u64 = (1 << 53) - 1;
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut owner = database.open().await;
        let role = format!("attacker_of_{}", database.name());
        run(
            &owner,
            &format!(
                "CREATE ROLE {role} LOGIN; CREATE SCHEMA own AUTHORIZATION {role};
                 GRANT USAGE ON SCHEMA fencepost TO {role}; GRANT SELECT, UPDATE ON wallet TO {role};
                 SELECT fencepost.guard_rows('wallet', 'wallet:', 'id'); SELECT fencepost.write('wallet:7', 7)"
            ),
        )
        .await;
        let marks = async |client: &Client| -> Vec<(String, [i64; 4])> {
            let rows = "SELECT name, write_floor, read_floor, write_floor_below, read_floor_below
                FROM fencepost.marks ORDER BY name";
            let rows = done(client.query(rows, &[]).await);
            rows.iter().map(|row| (row.get(0), [1, 2, 3, 4].map(|column| row.get(column)))).collect()
        };
        let before = marks(&owner).await;
        let attacker = database.open_as(&role).await;
        for (attack, expected) in [
            // Direct calls of the functions that run with the installer's rights (SECURITY DEFINER).
            ("SELECT fencepost.admit('{wallet:7}', '{6}', '{write}')", postgres::STALE),
            ("SELECT fencepost.admit('{wallet:7}', '{0}', '{write}')", "FP400"),
            ("SELECT fencepost.admit('{wallet:7}', '{-1}', '{write}')", "FP400"),
            ("SELECT fencepost.admit('{wallet:7}', '{9007199254740992}', '{write}')", "FP400"),
            ("SELECT fencepost.admit('{wallet:7}', NULL, '{write}')", postgres::MISSING),
            ("SELECT fencepost.admit('{wallet:7}', '{8}', '{drop}')", "FP400"),
            ("SELECT fencepost.admit('{/a//b}', '{8}', '{write}')", "FP400"),
            ("SELECT fencepost.admit(NULL, NULL, NULL)", postgres::MISSING),
            ("SELECT fencepost.shown_token(NULL)", "FP400"),
            // The triggers rely on a column of the marks, not on a setting of the session.
            ("UPDATE fencepost.marks SET written_by = pg_current_xact_id()", "42501"),
            ("SELECT * FROM fencepost.marks", "42501"),
            ("SELECT * FROM fencepost.marks FOR UPDATE", "42501"),
            ("DO $$ BEGIN LOCK TABLE fencepost.marks; END $$", "42501"),
            ("UPDATE fencepost.store SET base = 0", "42501"),
            (
                "CREATE TRIGGER own BEFORE UPDATE ON fencepost.marks FOR EACH ROW EXECUTE FUNCTION fencepost.check_row()",
                "42501",
            ),
            ("CREATE FUNCTION fencepost.path(varchar) RETURNS text[] LANGUAGE sql RETURN ARRAY['x']", "42501"),
            ("ALTER FUNCTION fencepost.admit RESET search_path", "42501"),
            ("ALTER TABLE wallet DISABLE TRIGGER ALL", "42501"),
            ("SET session_replication_role = replica", "42501"),
            ("UPDATE wallet SET balance = 1", postgres::MISSING),
        ] {
            assert_eq!(code(&attacker, attack).await, expected, "{attack}");
        }
        // A table of the attacker with the guard's trigger, whose rows get the names of rows of another table.
        run(
            &attacker,
            "CREATE TABLE own.rows (id text);
             CREATE TRIGGER own BEFORE INSERT OR UPDATE ON own.rows
                FOR EACH ROW EXECUTE FUNCTION fencepost.check_row('wallet:', 'id')",
        )
        .await;
        assert_eq!(code(&attacker, "INSERT INTO own.rows VALUES ('7')").await, postgres::MISSING);
        // Temporary tables with the names of the guard's tables.
        run(
            &attacker,
            "CREATE TEMPORARY TABLE marks (name text, write_floor bigint, written_by xid8);
             CREATE TEMPORARY TABLE store (idle_timeout interval); SET search_path = pg_temp, public",
        )
        .await;
        assert_eq!(code(&attacker, "SELECT fencepost.write('wallet:7', 6)").await, postgres::STALE);
        assert_eq!(code(&attacker, "UPDATE public.wallet SET balance = 1").await, postgres::MISSING);
        assert_eq!((marks(&owner).await, balance(&owner).await), (before, 100), "nothing has moved");

        // Not prevented: a token that the lock service never gave shuts out every holder, until the owner repairs the mark.
        run(&attacker, &format!("SELECT fencepost.admit('{{wallet:7}}', '{{{HIGHEST}}}', '{{claim}}')")).await;
        stale(owner.write("wallet:7", writer(8), 80).await, 8, HIGHEST);
        run(&owner, "DELETE FROM fencepost.marks WHERE name = 'wallet:7'").await;
        owner.write("wallet:7", writer(8), 80).await.expect("the mark is repaired");
        // Not prevented: its transaction may idle without a limit, because the setting belongs to its session.
        run(&attacker, "BEGIN; SELECT fencepost.write('wallet:7', 8); SET idle_in_transaction_session_timeout = 0")
            .await;
        run(&attacker, "ROLLBACK").await;
    });
}

/// A role that writes to a guarded table and may not use the guard is refused, and told what it needs.
#[test]
fn without_usage_on_the_schema_a_guarded_table_is_not_written_to() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let owner = database.open().await;
        let role = format!("stranger_of_{}", database.name());
        run(&owner, &format!("CREATE ROLE {role} LOGIN; GRANT SELECT, UPDATE ON wallet TO {role}")).await;
        run(&owner, "ALTER TABLE wallet ADD COLUMN fencing_token bigint NOT NULL DEFAULT 5").await;
        let stranger = database.open_as(&role).await;
        for (guard, unguard) in [
            ("guard_rows('wallet', 'wallet:', 'id')", "unguard_rows('wallet')"),
            ("guard_column('wallet')", "unguard_column('wallet')"),
        ] {
            run(&owner, &format!("SELECT fencepost.{guard}")).await;
            let write = stranger.batch_execute("UPDATE wallet SET balance = 1, fencing_token = 7").await;
            let refused = Error::from(write.expect_err("it may not use the guard"));
            assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("GRANT USAGE")), "{refused}");
            run(&owner, &format!("SELECT fencepost.{unguard}")).await;
        }
        assert_eq!(balance(&owner).await, 100);
    });
}

/// A function of the guard, as the catalogue has it.
struct Function {
    name: String,
    as_installer: bool,
    settings: Vec<String>,
    language: String,
    /// Its names were looked up when it was created, by the installer.
    bound_at_creation: bool,
    returns: String,
    /// Types of its arguments and results that are not plain types of Postgres: rows, polymorphic types, types of users.
    strange_types: Vec<String>,
    source: String,
}

async fn functions(client: &Client) -> Vec<Function> {
    let rows = "
        SELECT proname::text, prosecdef, coalesce(proconfig, '{}'), lanname::text, prosqlbody IS NOT NULL,
            prorettype::regtype::text, prosrc,
            ARRAY(
                SELECT format_type(seen.oid, NULL) FROM pg_type AS seen
                LEFT JOIN pg_type AS element ON element.oid = seen.typelem AND seen.typcategory = 'A'
                WHERE seen.oid = ANY (coalesce(proallargtypes, proargtypes::oid[]) || prorettype)
                    AND (coalesce(element.typnamespace, seen.typnamespace) <> 'pg_catalog'::regnamespace
                        OR coalesce(element.typtype, seen.typtype) <> 'b')
                    AND seen.oid <> 'void'::regtype
            )
        FROM pg_proc JOIN pg_language ON pg_language.oid = prolang
        WHERE pronamespace = 'fencepost'::regnamespace ORDER BY proname";
    let rows = done(client.query(rows, &[]).await);
    let function = |row: &tokio_postgres::Row| Function {
        name: row.get(0),
        as_installer: row.get(1),
        settings: row.get(2),
        language: row.get(3),
        bound_at_creation: row.get(4),
        returns: row.get(5),
        source: row.get(6),
        strange_types: row.get(7),
    };
    rows.iter().map(function).collect()
}

/// The words of the code in lower case, without comments and string literals.
fn words(source: &str) -> Vec<String> {
    let lines = source.lines().map(|line| line.split("--").next().expect("a first part"));
    let code: String = lines.collect::<Vec<_>>().join("\n");
    let without_texts: String = code.split('\'').step_by(2).collect::<Vec<_>>().join(" ");
    let boundary = |letter: char| !(letter.is_alphanumeric() || matches!(letter, '_' | '.' | '%'));
    without_texts.to_lowercase().split(boundary).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The types of the variables that a function in plpgsql declares.
fn declared_types(source: &str) -> Vec<&str> {
    let Some((_, declared)) = source.split_once("DECLARE\n") else { return Vec::new() };
    let (declared, _) = declared.split_once("\nBEGIN").expect("a body follows");
    let lines = declared.lines().map(str::trim).filter(|line| !line.starts_with("--"));
    let starts = lines.filter(|line| line.ends_with(';') && !line.starts_with(')'));
    starts.map(|line| line.trim_end_matches(';').split_whitespace().nth(1).expect("a type")).collect()
}

/// The functions with the installer's rights, and all functions that they call, use no row, no polymorphic type and no type of a
/// user.
#[test]
fn the_catalogue_shows_no_function_with_the_installers_rights_that_touches_the_callers_types() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        let functions = functions(&client).await;
        let names = |which: &dyn Fn(&Function) -> bool| -> BTreeSet<String> {
            functions.iter().filter(|one| which(one)).map(|one| one.name.clone()).collect()
        };
        let as_installer = names(&|one| one.as_installer);
        assert_eq!(as_installer, BTreeSet::from(["admit", "record", "shown_token"].map(str::to_owned)));
        // Only triggers handle rows, and triggers run as their caller.
        assert!(names(&|one| one.returns == "trigger").is_disjoint(&as_installer));

        let mut reached: Vec<&Function> = functions.iter().filter(|one| one.as_installer).collect();
        let mut next = 0;
        while let Some(one) = reached.get(next) {
            let calls = |other: &&Function| words(&one.source).contains(&format!("fencepost.{}", other.name));
            let called: Vec<&Function> = functions.iter().filter(calls).collect();
            for called in called {
                if !reached.iter().any(|one| one.name == called.name) {
                    reached.push(called);
                }
            }
            next += 1;
        }
        let reached_names: BTreeSet<&str> = reached.iter().map(|one| one.name.as_str()).collect();
        assert!(
            reached_names.is_superset(&BTreeSet::from(["path", "refuse_stale", "refuse_token"])),
            "{reached_names:?}"
        );
        for one in reached {
            assert_eq!(one.strange_types, [""; 0], "{}", one.name);
            for declared in declared_types(&one.source) {
                let plain = ["bigint", "boolean", "integer", "text", "text[]"];
                assert!(plain.contains(&declared), "{} has a variable of type {declared}", one.name);
            }
            let forbidden =
                ["new", "old", "record", "execute", "to_json", "to_jsonb", "row_to_json", "regclass", "set_config"];
            for word in words(&one.source) {
                assert!(!forbidden.contains(&word.as_str()) && !word.contains('%'), "{} contains {word}", one.name);
            }
        }
    });
}

/// Also the functions that run as their caller: admit calls some of them, and plpgsql looks up types once in a session.
#[test]
fn every_function_that_looks_names_up_when_it_runs_has_a_pinned_search_path() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let functions = functions(&database.open().await).await;
        let (bound, pinned): (Vec<_>, Vec<_>) = functions.iter().partition(|one| one.bound_at_creation);
        assert!(pinned.len() > 10 && bound.iter().all(|one| one.language == "sql" && !one.as_installer));
        for one in pinned {
            assert_eq!(one.settings, [PINNED], "{}", one.name);
        }
    });
}
