//! One run from beginning to end, random or of a scenario. A panic in it becomes a violation, with the seed that repeats it.
//!
//! It also searches a shorter run that still fails. It knows nothing about what happens inside a run.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::observer::Line;
use crate::scenario::{BadScenario, Scenario};
use crate::world::{Outcome, Plan, World};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A random run with this plan.
    Chance(Plan),
    /// A scenario.
    Scenario(&'a Scenario),
}

/// A completed run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its result.
    pub outcome: Outcome,
    /// The trace; empty if none was requested.
    pub lines: Vec<Line>,
}

thread_local! {
    static RUNS: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a subject, with or without a trace.
///
/// # Errors
/// [`BadScenario`] if the scenario cannot be played.
pub fn run(subject: Subject<'_>, seed: u64, traces: bool) -> Result<Run, BadScenario> {
    match subject {
        Subject::Chance(plan) => finish(World::new(seed, &plan, traces), |world| Ok(world.run(&plan))),
        Subject::Scenario(scenario) => {
            finish(World::of_scenario(seed, scenario, traces)?, |world| world.play(scenario))
        }
    }
}

fn finish(mut world: World, act: impl FnOnce(&mut World) -> Result<Outcome, BadScenario>) -> Result<Run, BadScenario> {
    listen_to_panics();
    RUNS.set(true);
    // After a panic the world is only read: its observations up to then are valid.
    let ran = catch_unwind(AssertUnwindSafe(|| act(&mut world)));
    RUNS.set(false);
    let outcome = match ran {
        Ok(outcome) => outcome?,
        Err(_) => {
            let (now, what) = (world.now, PANIC.take());
            world.observer.line(now, "world", || format!("PANIC: {what}"));
            world.observer.checkers.found("panic", now, what);
            world.outcome()
        }
    };
    Ok(Run { outcome, lines: world.observer.lines().to_vec() })
}

/// A number of seconds of faults with which this seed still fails, at most that of the plan. Found by bisection, where each step is a
/// run, so it is not always the least. A shorter run has the same beginning, but may fail in another way.
pub fn shortest_failing_seconds(plan: Plan, seed: u64) -> u64 {
    shortest(plan.seconds, |seconds| {
        let ran = run(Subject::Chance(Plan { seconds, ..plan }), seed, false);
        ran.is_ok_and(|run| !run.outcome.violations.is_empty())
    })
}

/// Bisects for the least number that fails. `known` is known to fail.
fn shortest(known: u64, mut fails: impl FnMut(u64) -> bool) -> u64 {
    let (mut passes, mut failing) = (0, known);
    while failing - passes > 1 {
        let half = passes + (failing - passes) / 2;
        match fails(half) {
            true => failing = half,
            false => passes = half,
        }
    }
    failing
}

/// Installs a panic hook, once: the text of a panic inside a run is kept for the report instead of being printed.
fn listen_to_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| match RUNS.get() {
            true => {
                let place = panic.location().map_or(String::new(), |at| format!(" at {}:{}", at.file(), at.line()));
                let what = panic.payload_as_str().unwrap_or("(not a text)");
                PANIC.set(format!("panicked{place}: {what}"));
            }
            false => others(panic),
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bisection_finds_the_least_number_that_fails() {
        for least in 1..=60 {
            let mut tried = 0;
            let found = shortest(60, |seconds| {
                tried += 1;
                seconds >= least
            });
            assert_eq!(found, least);
            assert!(tried <= 6, "{tried} runs for {least}");
        }
    }

    #[test]
    fn a_panic_becomes_a_violation_with_its_location() {
        let world = World::new(1, &Plan::of_seed(1), true);
        let run = finish(world, |_| panic!("an invariant is broken")).expect("no scenario, so no bad one");
        let [violation] = &run.outcome.violations[..] else { panic!("one violation: {:?}", run.outcome.violations) };
        assert_eq!(violation.invariant, "panic");
        assert!(violation.what.contains("run.rs") && violation.what.contains("an invariant is broken"));
        assert!(run.lines.last().is_some_and(|line| line.what.contains("an invariant is broken")));
    }
}
