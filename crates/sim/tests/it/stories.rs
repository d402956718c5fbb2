//! Every built-in scenario meets its expectations, with any delays of messages and disks. Other scenarios, made for these tests, show
//! that the simulation reports an expectation that is not met, and refuses a scenario that cannot be played, with a reason.

use fencepost_sim::run::{Subject, run};
use fencepost_sim::scenario::{SCENARIOS, Scenario};

const SEEDS: u64 = 20;

fn plays(name: &str) {
    let scenario = Scenario::named(name).expect("a scenario that can be read");
    for seed in 1..=SEEDS {
        let run = run(Subject::Scenario(&scenario), seed, false).expect("a scenario that can be played");
        assert!(run.outcome.violations.is_empty(), "{name} with seed {seed}: {:?}", run.outcome.violations);
    }
}

#[test]
fn a_paused_holder_corrupts_only_the_store_without_a_guard() {
    plays("paused-holder");
}

#[test]
fn a_delayed_write_corrupts_only_the_store_without_a_guard() {
    plays("delayed-write");
}

#[test]
fn a_fail_over_keeps_the_holder_the_queue_and_the_order_of_tokens() {
    plays("leader-fail-over");
}

#[test]
fn frequent_leader_changes_do_not_keep_a_lock_longer() {
    plays("restless-lead");
}

#[test]
fn a_leader_in_a_minority_grants_nothing() {
    plays("minority-partition");
}

#[test]
fn wall_clocks_decide_nothing() {
    plays("clock-jump");
}

#[test]
fn a_hand_over_costs_one_entry_and_one_push_however_many_wait() {
    plays("thundering-herd");
}

#[test]
fn the_request_that_closes_a_cycle_is_refused_and_told_the_cycle() {
    plays("circular-wait");
}

#[test]
fn a_job_goes_on_from_its_checkpoint_and_runs_once() {
    plays("job-runs-once");
}

#[test]
fn one_clock_jump_gives_redlock_two_holders_and_fencepost_one() {
    plays("redlock-clock-jump");
}

#[test]
fn every_scenario_is_played_above() {
    let played = include_str!("stories.rs");
    for (name, _) in SCENARIOS {
        assert!(played.contains(&format!("plays(\"{name}\")")), "no test plays {name}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let scenario = Scenario::named("minority-partition").expect("a scenario that can be read");
    let once = || run(Subject::Scenario(&scenario), 7, true).expect("a scenario that can be played");
    let (one, other) = (once(), once());
    assert_eq!(one.outcome.trace_hash, other.outcome.trace_hash);
    let words = |run: &fencepost_sim::run::Run| run.lines.iter().map(|line| line.what.clone()).collect::<Vec<_>>();
    assert_eq!(words(&one), words(&other));
}

/// A scenario with two clients and these steps.
fn story(steps: &str) -> Result<Scenario, String> {
    let text = format!(
        "title = \"a test\"\ntells = \"nothing\"\nnodes = 3\n\
         [[client]]\nname = \"first\"\nttl-ms = 4000\n[[client]]\nname = \"second\"\nttl-ms = 4000\n{steps}"
    );
    Scenario::parse(&text).map_err(|wrong| wrong.to_string())
}

/// The violations in a scenario with these steps.
fn found(steps: &str) -> Vec<String> {
    let scenario = story(steps).expect("a story");
    let run = run(Subject::Scenario(&scenario), 1, false).expect("a story that can be played");
    run.outcome.violations.iter().map(|violation| violation.what.clone()).collect()
}

#[test]
fn an_expectation_that_is_not_met_is_a_violation() {
    let acquire = "[[step]]\nat-ms = 0\ndo.acquire = { who = \"first\", lock = \"account\" }\n[[step]]\nat-ms = 1000\n";
    let not_met = [
        ("expect.holder = { lock = \"account\", who = \"second\" }", "it is held by first"),
        ("expect.free = { lock = \"account\" }", "it is held by first"),
        ("expect.waiters = { lock = \"account\", count = 1 }", "it is 0 long"),
        ("expect.answer = { who = \"first\", is = \"busy\" }", "it was [Some(Decided(Granted"),
        ("expect.served = { who = \"first\", count = 2 }", "it got 1"),
        ("expect.hand-overs = { entries = 1, pushes = 1 }", "it was 0 entries and 0 pushes"),
        ("expect.guard = { who = \"first\", lock = \"account\", says = \"lost\" }", "it said [None]"),
        ("expect.store = { who = \"first\", did = \"write\", guarded = \"refused\" }", "what it said was None"),
        ("expect.token-rose = { lock = \"account\", from = \"first\", to = \"second\" }", "second None"),
        ("expect.cycle = { who = \"first\", through = [\"first\"] }", "the cycle was of no session"),
        ("expect.job = { who = \"first\", attempts = 1, completed = true }", "it read [None]"),
        ("expect = \"new-leader\"", "leads, and None did"),
        ("expect.does-not-serve = { who = \"leader\" }", "it does"),
        ("expect.redlock-holders = { lock = \"account\", who = [\"first\"] }", "it is the clients []"),
        ("expect.redlock-corrupted = { count = 1 }", "it was 0"),
    ];
    for (expectation, instead) in not_met {
        let found = found(&format!("{acquire}{expectation}"));
        assert!(found.len() == 1 && found[0].contains(instead), "{expectation}: {found:?}");
    }
}

#[test]
fn a_bad_scenario_is_refused_with_a_reason() {
    let unknown =
        story("[[step]]\nat-ms = 0\ndo.aquire = { who = \"first\", lock = \"account\" }").expect_err("a typo");
    assert!(unknown.contains("aquire") && unknown.contains("acquire"), "{unknown}");
    let unsorted = story("[[step]]\nat-ms = 2\n[[step]]\nat-ms = 1\n").expect_err("not sorted");
    assert!(unsorted.contains("sort them"), "{unsorted}");
    let stranger = story("[[step]]\nat-ms = 0\ndo.pause = { who = \"third\" }").expect("names are looked up later");
    let stranger = run(Subject::Scenario(&stranger), 1, false).expect_err("no client has that name").to_string();
    assert!(stranger.contains("third") && stranger.contains("first, second"), "{stranger}");
}

#[test]
fn the_story_in_the_guide_plays() {
    let guide = include_str!("../../../../docs/simulation.md");
    let (_, behind) = guide.split_once("```toml\n").expect("a story in the guide");
    let (text, _) = behind.split_once("```").expect("its end");
    let scenario = Scenario::parse(text).expect("a story");
    let run = run(Subject::Scenario(&scenario), 1, false).expect("a story that can be played");
    assert!(run.outcome.violations.is_empty(), "{:?}", run.outcome.violations);
    for (name, _) in SCENARIOS {
        assert!(guide.contains(&format!("| `{name}` |")), "the guide does not list {name}");
    }
}
