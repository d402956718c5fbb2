//! The answer to a completion is lost. `run` finds out that its own completion was carried out, and exits as if the answer had come.

use std::fs::File;

use super::{Process, TTL, assert_completed, fencepost};
use crate::cluster::Cluster;
use crate::patience::wait_until;

#[test]
fn a_completion_whose_answer_is_lost_is_sent_again_and_gets_the_first_answer() {
    completes_although_the_answer_is_lost(false);
}

#[test]
fn a_completion_whose_answer_and_session_are_lost_is_found_in_the_job() {
    completes_although_the_answer_is_lost(true);
}

// Rule: completion
fn completes_although_the_answer_is_lost(until_the_session_ends: bool) {
    // One node: all answers pass its door, and the test itself asks it without the door.
    let cluster = Cluster::start_with_doors(1);
    let [begun, go, log] = ["begun", "go", "run.log"].map(|name| cluster.directory().join(name));
    let mut command = fencepost();
    // A client in need of an answer asks for longer than the session lives.
    let options = ["--ttl", if until_the_session_ends { TTL } else { "1m" }, "--timeout", "1m", "--once", "2026-11"];
    command.args(["run", "--server", &cluster.doors().join(",")]).args(options).args(["billing", "--", "sh", "-c"]);
    command.args([r#": >"$1"; while [ ! -e "$2" ]; do sleep 0.02; done"#, "job"]).arg(&begun).arg(&go);
    let mut run = Process::start(command, &log);
    wait_until("the attempt begins", || begun.exists().then_some(()));
    let door = cluster.door(0);
    door.hold_answers_back();
    File::create(go).expect("the test owns the directory");
    let record = wait_until("the job is completed", || {
        let view = cluster.ask(async |client| client.job("billing", "2026-11").await.ok())?;
        view.what.record.filter(|record| record.completion.is_some())
    });
    door.close();
    if until_the_session_ends {
        let session = record.last.as_ref().expect("an attempt has begun").session;
        wait_until("the session ends", || {
            let found = cluster.ask(async |client| client.find_session(session).await.ok())?;
            found.what.is_none().then_some(())
        });
    }
    assert_eq!(run.ended(), None, "`run` waits for the answer");
    door.open();
    let status = wait_until("the run ends", || run.ended());
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(status.success(), "{status}: {said}");
    assert_eq!(record.attempts, 1);
    assert_completed(&cluster, "billing", "2026-11");
}
