//! The work of a job: a shell that does one transaction in a real store with the store's own client, and meets the faults that are planned
//! for it. Nothing of Fencepost's library is in it.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use fencepost_testbed::Server;

use super::fencepost;

/// The moments at which a planned fault happens. Each is planned for some keys, and happens to the first process that comes there.
pub(super) const MOMENTS: [&str; 6] = [
    // The job's shell is killed.
    "job-before-work",
    // The store's client is killed. Its transaction is rolled back.
    "client-in-transaction",
    // `run` is killed, and so is the job's shell. The store's client goes on and commits.
    "run-in-transaction",
    // The store's client is killed at a random time.
    "client-at-random",
    // The job's shell is killed between COMMIT and the completion.
    "job-after-commit",
    // `run` and the job's shell are killed between COMMIT and the completion.
    "run-after-commit",
];

/// The job. `$1` is the directory of planned faults: removing a file succeeds for one process. `$2` is the time of the random kill, `$3`
/// the file in which jobs of this host note their clock. The rest is the store's client. The kernel kills this shell with its `run`; where
/// `run` is killed, the shell also kills itself, because not every kernel does.
const JOB: &str = r#"
faults=$1/$FENCEPOST_LOCK.$FENCEPOST_JOB_KEY random=$2 run=$PPID
echo $FENCEPOST_DEADLINE >>$3
shift 3
planned() { rm "$faults.$1" 2>/dev/null; }
if planned job-before-work; then kill -KILL $$; fi
if planned client-at-random; then set -- timeout -s KILL "$random" "$@"; fi
said=$("$@" 2>&1 <<SQL
WORK
SQL
)
code=$?
case "$code $said" in
    "0 "*) ;;
    # Committed by an earlier attempt, which could not say so: complete the job.
    *FP208*) ;;
    *) printf '%s: exit code %s: %s\n' "$FENCEPOST_JOB_KEY" "$code" "$said" >&2; exit 1 ;;
esac
if planned job-after-commit; then kill -KILL $$; fi
if planned run-after-commit; then kill -KILL $run $$; fi
"#;

/// Faults of the open transaction: both clients run the rest of such a line in a shell, whose parent is the client.
const IN_TRANSACTION: &str = r"\! rm $faults.client-in-transaction 2>/dev/null && kill -KILL \$PPID
\! rm $faults.run-in-transaction 2>/dev/null && kill -KILL $run
";

/// A store with its own command line.
pub(super) struct Store {
    pub(super) title: &'static str,
    /// The store's client, which reads SQL from its input.
    pub(super) client: Vec<String>,
    begin: &'static str,
    /// Shows the token, and records nothing.
    write: &'static str,
    /// Shows the token and records the key.
    once: &'static str,
}

impl Store {
    pub(super) fn postgres(server: &Server) -> Store {
        let admin = server.url();
        let url = format!("{}/jobs", admin.trim_end_matches("/postgres"));
        let psql = |url: &str| {
            let options =
                ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-d", url];
            options.map(str::to_owned).to_vec()
        };
        ask(&psql(&admin), "CREATE DATABASE jobs;");
        install_guard(&url);
        Store {
            title: "Postgres",
            client: psql(&url),
            begin: "BEGIN;",
            write: "SELECT fencepost.write('$FENCEPOST_LOCK', $FENCEPOST_TOKEN);",
            once: "SELECT fencepost.write('$FENCEPOST_LOCK', $FENCEPOST_TOKEN);
                   SELECT fencepost.once('$FENCEPOST_LOCK', '$FENCEPOST_JOB_KEY');",
        }
        .with_table()
    }

    pub(super) fn mariadb(server: &Server) -> Store {
        let mariadb = |database: &str| {
            let port = format!("--port={}", server.port());
            let options = ["mariadb", "--no-defaults", "--host=127.0.0.1", &port, "--user=root", "--batch"];
            options.into_iter().chain(["--skip-column-names", database]).map(str::to_owned).collect::<Vec<_>>()
        };
        let rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, CREATE ROUTINE, ALTER ROUTINE, EXECUTE";
        let prepare = format!("CREATE DATABASE jobs; CREATE USER guard_jobs; GRANT {rights} ON jobs.* TO guard_jobs;");
        ask(&mariadb("mysql"), &prepare);
        install_guard(&format!("mysql://guard_jobs@127.0.0.1:{}/jobs", server.port()));
        Store {
            title: "MariaDB",
            client: mariadb("jobs"),
            begin: "START TRANSACTION;",
            write: "CALL fencepost_write('$FENCEPOST_LOCK', $FENCEPOST_TOKEN);",
            once: "CALL fencepost_once('$FENCEPOST_LOCK', '$FENCEPOST_JOB_KEY', $FENCEPOST_TOKEN);",
        }
        .with_table()
    }

    fn with_table(self) -> Store {
        ask(&self.client, "CREATE TABLE effects (lock_name VARCHAR(64) NOT NULL, job_key VARCHAR(64) NOT NULL);");
        self
    }

    /// The script of the job, with the key recorded by the store or not.
    // Rule: same-transaction
    pub(super) fn job(&self, records_key: bool) -> String {
        let guard = if records_key { self.once } else { self.write };
        let effect = "INSERT INTO effects VALUES ('$FENCEPOST_LOCK', '$FENCEPOST_JOB_KEY');";
        JOB.replace("WORK", &format!("{}\n{guard}\n{effect}\n{IN_TRANSACTION}COMMIT;", self.begin))
    }

    /// How often the effect stands, for each lock and key.
    pub(super) fn effects(&self) -> BTreeMap<(String, String), usize> {
        let rows = "SELECT CONCAT(lock_name, ' ', job_key, ' ', COUNT(*)) FROM effects GROUP BY lock_name, job_key;";
        let effect = |row: &str| {
            let mut words = row.split(' ').map(str::to_owned);
            let mut word = || words.next().expect("the row has three words");
            ((word(), word()), word().parse().expect("a count"))
        };
        ask(&self.client, rows).lines().map(effect).collect()
    }
}

/// Runs SQL with a store's client. Returns what it prints.
fn ask(client: &[String], sql: &str) -> String {
    use std::io::Write;
    let mut command = Command::new(&client[0]);
    command.args(&client[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the client of the store is installed");
    child.stdin.take().expect("piped").write_all(sql.as_bytes()).expect("the client reads its input");
    let output = child.wait_with_output().expect("it is our child");
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the rows are text")
}

fn install_guard(url: &str) {
    let output = fencepost().args(["fence", "init", url]).output().expect("the binary is built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
