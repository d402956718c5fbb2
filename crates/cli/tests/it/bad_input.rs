//! Wrong input is refused, and the message says what to write instead. Tables: the arguments, the exit code, a part of the message.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::harness::{Dev, Process, command, fencepost};

#[test]
fn wrong_arguments_are_refused_with_what_to_write() {
    let long = "n".repeat(513);
    let deep = "/n".repeat(17);
    let long_key = "k".repeat(257);
    let table: &[(&[&str], i32, &str)] = &[
        (&["run", "", "--", "true"], 2, "say at least one character"),
        (&["run", &long, "--", "true"], 2, "at most 512 bytes"),
        (&["run", &deep, "--", "true"], 2, "at most 16 levels"),
        (&["run", "/a//b", "--", "true"], 2, "no empty segment"),
        (&["run", "a\nb", "--", "true"], 2, "control characters"),
        (&["why", &long], 2, "at most 512 bytes"),
        (&["describe", ""], 2, "say at least one character"),
        (&["freeze", &long, "--reason", "x"], 2, "at most 512 bytes"),
        (&["run", "a"], 2, "the command is missing: write `fencepost run a -- COMMAND`"),
        (&["run", "a", "./job.sh", "b"], 2, "write `fencepost run a -- ./job.sh b`"),
        (&["run", "--", "true"], 2, "<LOCK>..."),
        (&["run", "a", "a", "--", "true"], 2, "a is named twice"),
        (&["run", "--permits", "0", "a", "--", "true"], 2, "0"),
        (&["run", "--permits", "1", "a", "b", "--", "true"], 2, "name one, and run another"),
        (&["run", "--permits", "1", "-s", "a", "--", "true"], 2, "leave -s out"),
        (&["run", "--limit", "1", "--owner", "me", "a", "--", "true"], 2, "leave --owner out"),
        (&["run", "--limit", "1", "--tier", "efficiency", "a", "--", "true"], 2, "leave --tier out"),
        (&["run", "--limit", "1", "/a", "--", "true"], 2, "does not begin with /"),
        (&["run", "--limit", "1", "--permits", "2", "a", "--", "true"], 2, "--permits is more than --limit"),
        (&["run", "--owner", "", "a", "--", "true"], 2, "choose another name"),
        (&["run", "--tier", "eficiency", "a", "--", "true"], 2, "a similar value exists: 'efficiency'"),
        (&["run", "-w", "1h30", "a", "--", "true"], 2, "the unit of 30 is missing"),
        (&["run", "-w=-5s", "a", "--", "true"], 2, "cannot be negative"),
        (&["run", "-w", "99999999h", "a", "--", "true"], 2, "longer than a year"),
        (&["run", "-w", "soon", "a", "--", "true"], 2, "like 500ms"),
        (&["run", "--ttl", "10ms", "a", "--", "true"], 2, "1s or more"),
        (&["run", "--max-hold", "0s", "a", "--", "true"], 2, "1s or more"),
        (&["run", "-n", "-w", "1s", "a", "--", "true"], 2, "cannot be used with"),
        (&["run", "-E", "256", "a", "--", "true"], 2, "256"),
        (&["run", "--once", "", "a", "--", "true"], 2, "say at least one character"),
        (&["run", "--once", &long_key, "a", "--", "true"], 2, "a job's key has at most 256 bytes"),
        (&["run", "--once", "a\nb", "a", "--", "true"], 2, "control characters"),
        (&["run", "--once", "k", "-s", "a", "--", "true"], 2, "a job is done by one command at a time: leave -s out"),
        (&["run", "--once", "k", "a", "b", "--", "true"], 2, "a job is the key of one lock: name one"),
        (&["run", "--once", "k", "--limit", "2", "a", "--", "true"], 2, "leave --permits and --limit out"),
        (&["run", "--once-per", "day", "--permits", "2", "a", "--", "true"], 2, "leave --permits and --limit out"),
        (&["run", "--once", "k", "--tier", "efficiency", "a", "--", "true"], 2, "it cannot know what is done"),
        (&["run", "--once", "k", "--at-least", "5s", "a", "--", "true"], 2, "A job that succeeded is never run again"),
        (&["run", "--once", "k", "--once-per", "day", "a", "--", "true"], 2, "cannot be used with"),
        (&["run", "--once", "k", "--attempts", "0", "a", "--", "true"], 2, "0"),
        (&["run", "--once", "k", "--keep", "59s", "a", "--", "true"], 2, "write 1m or more"),
        (&["run", "--once", "k", "--keep", "366d", "a", "--", "true"], 2, "longer than a year"),
        (&["run", "--once", "k", "--done-exit", "256", "a", "--", "true"], 2, "256"),
        (&["run", "--once", "k", "a", "true"], 2, "there is no -- before the command"),
        (
            &["run", "--once-per", "daily", "a", "--", "true"],
            2,
            "write hour, day, week, month or a duration such as 15m",
        ),
        (&["run", "--once-per", "7h", "a", "--", "true"], 2, "7h does not divide a day"),
        (&["run", "--once-per", "0.5s", "a", "--", "true"], 2, "write 1s or more"),
        (&["run", "--attempts", "2", "a", "--", "true"], 2, "--attempts is for jobs: give --once KEY"),
        (&["run", "--keep", "1h", "a", "--", "true"], 2, "--keep is for jobs"),
        (&["run", "--quiet", "a", "--", "true"], 2, "--quiet is for jobs"),
        (&["run", "--done-exit", "9", "a", "--", "true"], 2, "--done-exit is for jobs"),
        (
            &["run", "--at-least", "2h", "--max-hold", "1h", "a", "--", "true"],
            2,
            "--at-least is longer than --max-hold",
        ),
        (&["job", "show", "a"], 2, "<KEY>"),
        (&["job", "show", "a", &long_key], 2, "at most 256 bytes"),
        (&["job", "show", "a", "k", "--result", "--error"], 2, "cannot be used with"),
        (&["job", "wait", &long, "k"], 2, "at most 512 bytes"),
        (&["job", "check", "a"], 2, "--within"),
        (&["job", "check", "a", "--within", "soon"], 2, "like 500ms"),
        (&["job", "forget", "a", "k"], 2, "--reason"),
        (&["job", "complete", "a", "k"], 2, "--reason"),
        (&["job", "allow"], 2, "--reason"),
        (&["job", "shw"], 2, "a similar subcommand exists: 'show'"),
        (&["job"], 2, "Usage"),
        (&["checkpoint"], 2, "not the command of a job"),
        (&["locks", "--server", "host:99999"], 2, "\"host:99999\" is not a node: write one like localhost"),
        (&["locks", "--server", "redis://host"], 2, "\"redis\" is not a scheme of Fencepost"),
        (&["locks", "--server", "https://a,http://b"], 2, "use one of them"),
        (&["locks", "--server", "https://host"], 2, "set ca to its PEM file"),
        (&["locks", "--server", ","], 2, "no node is named"),
        (&["locks", "-o", "xml"], 2, "table"),
        (&["watch", "--after", "soon"], 2, "like 17.0"),
        (&["break", "a"], 2, "--reason"),
        (&["break", "--reason", "x"], 2, "--grant"),
        (&["evict", "zz", "--reason", "x", "--server", "127.0.0.1:1"], 125, "fencepost dev"),
        (&["limit", "a", "0"], 2, "0"),
        (&["dev", "--nodes", "2"], 2, "choose 1, 3, 5 or 7"),
        (&["dev", "--listen", "192.0.2.1:7420"], 2, "loopback only"),
        (&["serve", "--new-cluster", "--join", "a:1"], 2, "use one of them"),
        (&["serve", "--join", "a:b"], 2, "join = \"a:b\" (flag --join): \"a:b\" is not a node"),
        (&["serve", "--join", "https://a"], 2, "give --tls-cert and --tls-key, too"),
        (&["serve", "--advertise-client", "a,b"], 2, "a node has one address"),
        (&["serve", "--listen-client", "127.0.0.1:0", "--advertise-client", "a"], 2, "the port is missing"),
        (&["member", "add", "1", "--name", "n", "--peer", "a b", "--client", "a"], 2, "is not a node"),
        (&["serve", "--listen-client", "here"], 2, "not an IP:PORT"),
        (&["serve", "--listen-client", "0.0.0.0:7420"], 2, "--insecure"),
        (&["serve", "--listen-client", "0.0.0.0:7420", "--insecure"], 2, "--advertise-client"),
        (&["serve", "--snapshot-every-entries", "many"], 2, "not a whole number"),
        (&["serve", "--snapshot-every-entries", "0"], 2, "at least 1"),
        (&["serve", "--log-format", "xml"], 2, "write text or json"),
        (&["serve", "--log-level", "=loud="], 2, "write error, warn"),
        (&["serve", "--config", "no-such-file.toml"], 2, "FENCEPOST_CONFIG"),
        (&["restore", "no-such-file", "--data", "d"], 125, "name the file of a backup"),
        (&["backup", "no-such-directory/file", "--server", "127.0.0.1:1"], 125, "a directory that exists"),
        (&["fence", "init", "oracle://db/shop"], 2, "sqlite:FILE"),
        (&["fence", "init", "sqlite:"], 2, "sqlite:FILE"),
        (&["fence", "init", "postgres://[::1"], 2, "postgres://USER@HOST/DATABASE"),
        (&["fence", "init", "mysql://root@host/"], 2, "no database is named"),
        (&["fence", "init", "--print", "redis://host/"], 2, "needs no SQL"),
        (&["fence", "status", "postgres://u@127.0.0.1:1/shop"], 125, "FENCEPOST_STORE_PASSWORD"),
        (&["fence", "gc", "sqlite:no-such-file"], 125, "name an existing file"),
        (&["bench", "--contenders", "0"], 2, "from 1 to 100000"),
        (&["bench", "--contenders", "many"], 2, "from 1 to 100000"),
        (&["bench", "--seconds", "0"], 2, "1..=86400"),
        (&["bench", "--efficiency", "--separate-connections"], 2, "cannot be used with"),
        (&["bench", "--server", "127.0.0.1:1"], 125, "fencepost dev"),
        (&["bench", "compare"], 2, "unexpected argument 'compare'"),
        (&["nonsense"], 2, "--help"),
        (&["lokcs"], 2, "a similar subcommand exists: 'locks'"),
        (&["locks", "--sever", "a"], 2, "a similar argument exists: '--server'"),
        (&["locks", "-o", "jsn"], 2, "a similar value exists: 'json'"),
        (&["backends", "redsi"], 2, "do you mean `redis`?"),
        (&[], 2, "Usage"),
    ];
    for (args, code, said) in table {
        eprintln!("fencepost {args:?}");
        fencepost(args).with_code(*code).says(said);
    }
}

#[test]
fn a_long_value_is_not_repeated_whole() {
    let dev = Dev::start();
    let huge = "h".repeat(5_000);
    let wrong: &[&[&str]] = &[
        &["run", &huge, "--", "true"],
        &["why", &huge],
        &["freeze", &huge, "--reason", "x"],
        &["locks", "--server", &huge],
        &["locks", "--timeout", &huge],
        &["run", "-w", &huge, "a", "--", "true"],
        &["run", "--once", &huge, "a", "--", "true"],
        &["run", "--once-per", &huge, "a", "--", "true"],
        &["job", "show", "a", &huge],
        &["evict", &huge, "--reason", "x", "--yes"],
        &["thaw", &huge],
        &["member", "remove", &huge, "--yes"],
        &["member", "add", &huge, "--name", "n", "--peer", "h:1", "--client", "h:1"],
        &["serve", "--listen-client", &huge],
        &["dev", "--listen", &huge],
        &[&huge],
    ];
    for args in wrong {
        let refused = dev.fencepost(args);
        assert!([1, 2].contains(&refused.code), "{refused:?}");
        assert!(refused.stderr.len() < 1_500 && !refused.stderr.contains(&"h".repeat(200)), "{refused:?}");
        assert!(refused.stderr.contains("(5000 bytes)"), "{refused:?}");
    }
}

#[test]
fn text_that_is_not_utf_8_is_refused_where_it_must_be() {
    let strange = OsStr::from_bytes(b"\xff\xfe");
    let mut name = command(&["why"]);
    name.arg(strange);
    Process::start(name).finish().with_code(2).says("UTF-8");
    let mut variable = command(&["config", "view"]);
    variable.env("FENCEPOST_NAME", strange);
    Process::start(variable).finish().with_code(2).says("FENCEPOST_NAME").says("not UTF-8");
    // Arguments that are only passed on to the command may be any bytes.
    let dev = Dev::start();
    let mut handed_on = dev.command(&["run", "a", "--", "test"]);
    handed_on.arg(strange).arg("=").arg(strange);
    Process::start(handed_on).finish().ok();
}

#[test]
fn a_wrong_configuration_is_refused_with_its_source() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fencepost.toml");
    let table = [
        ("colour = 'red'", "unknown key `colour`; the keys are: name, data"),
        ("listen_client = 'x'", "do you mean `listen-client`?"),
        ("listen-client = 'x'", "not an IP:PORT"),
        ("insecure = 'perhaps'", "neither true nor false"),
        ("name = ", "not valid TOML"),
    ];
    for (text, said) in table {
        std::fs::write(&file, text).unwrap();
        let shown = file.to_str().unwrap();
        for args in [["serve", "--config", shown], ["locks", "--config", shown]] {
            // A client does not check the settings of a node.
            let is_for_nodes = said.contains("IP:PORT") || said.contains("neither");
            if !(is_for_nodes && args[0] == "locks") {
                fencepost(&args).with_code(2).says(said).says(shown);
            }
        }
    }
    let mut unknown = command(&["config", "view"]);
    unknown.env("FENCEPOST_COLOUR", "red");
    unknown.env("FENCEPOST_SERVR", "a");
    let seen = Process::start(unknown).finish().ok().says("FENCEPOST_COLOUR is set, but there is no such setting\n");
    seen.says("FENCEPOST_SERVR is set, but there is no such setting; do you mean `FENCEPOST_SERVER`?");
}

#[test]
fn a_file_that_is_not_a_backup_is_refused_and_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("noise"), b"not a backup").unwrap();
    fencepost(&["restore", &path("noise"), "--data", &path("data")]).with_code(125).says("cannot be restored");
    fencepost(&["backup", &path("file"), "--server", "127.0.0.1:1"]).with_code(125);
    let left = std::fs::read_dir(&directory).unwrap().map(|it| it.unwrap().file_name()).collect::<Vec<_>>();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("file")), "{left:?}");
}
