//! A job of 100 steps that is killed ten times: each attempt goes on where the last checkpoint is.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::File;
use std::time::Instant;

use super::{Process, TRIES_MAX, TTL, assert_completed, fencepost};
use crate::clients::Random;
use crate::cluster::{Cluster, say};
use crate::patience::wait_until;

/// What kills an attempt of the job of 100 steps, between a step and its checkpoint or at any time after the step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kill {
    /// The job's shell.
    Job,
    /// `run` and the job's shell.
    Run,
    /// `run`, by the test, as soon as the test sees the step.
    RunFromOutside,
}

/// `$1` is the directory of planned kills, `$2` the program, `$3` the file of steps.
const STEPS: &str = r#"
kills=$1 fencepost=$2 steps=$3 run=$PPID
planned() { [ -e "$kills/$1" ] && rm "$kills/$1"; }
step=$(cat "$FENCEPOST_LAST_CHECKPOINT")
step=${step:-0}
while [ "$step" -lt 100 ]; do
    step=$((step + 1))
    echo "$step" >>"$steps"
    if planned "job.$step"; then kill -KILL $$; fi
    if planned "run.$step"; then kill -KILL $run $$; fi
    # 125: it is not known whether the checkpoint is stored, try again.
    until "$fencepost" checkpoint "$step"; do [ $? -eq 125 ] || exit 1; done
done
"#;

#[test]
fn a_job_of_100_steps_survives_10_kills_and_repeats_10_steps_at_most() {
    let began = Instant::now();
    let cluster = Cluster::start_on(3, None);
    let [kills, temporary, steps, log] =
        ["kills", "tmp", "steps", "run.log"].map(|name| cluster.directory().join(name));
    for directory in [&kills, &temporary] {
        std::fs::create_dir(directory).expect("the test owns the directory");
    }
    let mut random = Random(100);
    let mut from_outside = Vec::new();
    for number in 0..10 {
        // One step in each ten, so that all kills differ.
        let step = 10 * number + 1 + random.below(10);
        let kill = [Kill::Job, Kill::Run, Kill::Job, Kill::RunFromOutside, Kill::Job][number as usize % 5];
        let file = match kill {
            Kill::Job => format!("job.{step}"),
            Kill::Run => format!("run.{step}"),
            Kill::RunFromOutside => {
                from_outside.push(step);
                continue;
            }
        };
        File::create(kills.join(file)).expect("the test owns the directory");
    }
    let planned_outside = from_outside.len();
    let done = || -> Vec<u64> {
        let text = std::fs::read_to_string(&steps).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    let start = || {
        let mut command = fencepost();
        command.args(["run", "--server", &cluster.endpoints().join(","), "--ttl", TTL, "--once", "v2", "migration"]);
        command.args(["--", "sh", "-c", STEPS, "job"]).arg(&kills).arg(env!("CARGO_BIN_EXE_fencepost")).arg(&steps);
        command.env("TMPDIR", &temporary);
        Process::start(command, &log)
    };
    let mut interruptions = Vec::new();
    loop {
        let mut run = start();
        let status = wait_until("the run ends", || {
            // A kill that comes too late for this run is for the next one.
            let ended = run.ended();
            if ended.is_none() && from_outside.first().is_some_and(|step| done().contains(step)) {
                from_outside.remove(0);
                run.kill();
            }
            ended
        });
        if status.success() {
            break;
        }
        interruptions.push(status.to_string());
        assert!(interruptions.len() < TRIES_MAX, "the job is not done: {interruptions:?}");
    }
    let done = done();
    let left = std::fs::read_dir(&kills).expect("the test owns the directory").count() + from_outside.len();
    let mut ends = String::new();
    interruptions.iter().for_each(|end| write!(ends, " {end},").expect("a string has room"));
    say(&format!(
        "a job of 100 steps: {} steps done, {} interruptions ({planned_outside} from outside):{ends} {:.1} s",
        done.len(),
        interruptions.len(),
        began.elapsed().as_secs_f64()
    ));
    assert_eq!(left, 0, "all 10 kills happened");
    assert_eq!(done.iter().copied().collect::<BTreeSet<u64>>(), (1..=100).collect(), "every step was done");
    // A busy machine can lose a lease, which is one interruption more. A kill from outside can meet a run that has just ended.
    let interruptions_min = 10 - planned_outside;
    assert!(interruptions.len() >= interruptions_min, "{interruptions:?}");
    assert!(done.len() <= 100 + interruptions.len(), "each interruption repeats one step at most: {done:?}");
    assert_completed(&cluster, "migration", "v2");
}
