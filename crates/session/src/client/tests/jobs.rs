//! Short stories about jobs: a completion is sent until it is answered, and a client that has lost its lock sends none.

use std::time::Duration;

use fencepost_core::{Action, JobBytes, JobKey, JobReport, JobTerms, Keep, Name, Outcome, Terms, Verdict, Wait};

use super::world::{World, exclusive};
use crate::client::{Answer, GrantKey, LetGo, RequestKey};

const LONG: Duration = Duration::from_secs(60);

fn keyed() -> Action {
    let job = Some(JobTerms { key: JobKey::new("2026-11").unwrap(), keep: Keep::default() });
    exclusive("billing", Wait::Forever, Terms { job, ..Terms::default() })
}

fn report(verdict: Verdict) -> JobReport {
    JobReport { verdict, bytes: JobBytes::new(b"result").unwrap() }
}

fn holder(world: &mut World, client: usize) -> GrantKey {
    let asked = world.ask(client, keyed(), LONG);
    world.settle();
    world.granted(asked)
}

fn complete(world: &mut World, client: usize, grant: GrantKey) -> RequestKey {
    let now = world.now;
    match world.clients[client].machine.report(grant, report(Verdict::Succeeded), now) {
        LetGo::Asked(key) => key,
        LetGo::Lost(why) => panic!("it is held: {why:?}"),
    }
}

fn attempts_and_token(world: &World) -> Option<(u64, Option<u64>)> {
    let (name, key) = (Name::new("billing").unwrap(), JobKey::new("2026-11").unwrap());
    let record = world.lone.state.job(&name, &key).record?;
    Some((record.attempts, record.completion.and_then(|it| it.token).map(|token| token.0)))
}

// Rule: completion. However often the stream breaks between the completion and its answer, it is carried out once.
#[test]
fn a_completion_whose_answer_is_lost_is_carried_out_once() {
    for lost_on_the_way_there in [true, false] {
        let mut world = World::new(2);
        world.connect(0);
        world.connect(1);
        let grant = holder(&mut world, 0);
        let waits = world.ask(1, keyed(), LONG);
        world.settle();
        let key = complete(&mut world, 0, grant);
        world.transmit(0);
        for _ in 0..3 {
            if lost_on_the_way_there {
                world.lose_what_is_under_way(0);
            }
            while !world.to_server.is_empty() {
                world.serve_one(0);
            }
            world.cut(0);
            world.connect(0);
        }
        world.settle();
        let token = Some(fencepost_core::Token(grant.grant.0));
        let completed = Answer::Decided(Outcome::Completed { token, succeeded: true });
        assert_eq!(world.answer(key), Some(&completed));
        assert_eq!(world.answer(waits), Some(&completed), "a waiter of the job is told at the same position");
        assert_eq!(attempts_and_token(&world), Some((1, Some(grant.grant.0))));
        assert_eq!(world.lone.state.counts().grants, 0);
    }
}

// Rule: completion. The client is cut off, completes its job, and shuts down. The completion is its last word.
#[test]
fn a_client_that_shuts_down_still_sends_its_completion() {
    let mut world = World::new(1);
    world.connect(0);
    let grant = holder(&mut world, 0);
    complete(&mut world, 0, grant);
    world.clients[0].machine.handle_farewell();
    world.transmit(0);
    while !world.to_server.is_empty() {
        world.serve_one(0);
    }
    assert_eq!(attempts_and_token(&world), Some((1, Some(grant.grant.0))));
    assert_eq!(world.lone.state.counts().sessions, 0, "and then it closed its session");
}

// Rule: completion. A holder that was cut off past its deadline sends no completion: the next holder may be at work.
#[test]
fn a_client_that_has_lost_its_lock_completes_nothing() {
    let mut world = World::new(2);
    world.connect(0);
    world.connect(1);
    let grant = holder(&mut world, 0);
    let next = world.ask(1, keyed(), LONG);
    world.settle();
    world.cut(0);
    while world.answer(next).is_none() {
        world.pass(Duration::from_millis(500));
        world.settle();
    }
    let now = world.now;
    let late = world.clients[0].machine.report(grant, report(Verdict::Succeeded), now);
    assert!(matches!(late, LetGo::Lost(_)), "{late:?}");
    world.connect(0);
    world.settle();
    assert_eq!(attempts_and_token(&world), None, "nothing was begun, and nothing completed");
}

// Rule: completion. The owner has entered the lock again, so the completion is refused. The count is given back all the same: its guard
// is gone.
#[test]
fn a_refused_completion_gives_its_count_back() {
    let mut world = World::new(1);
    world.connect(0);
    let mut first = keyed();
    let mut again = exclusive("billing", Wait::No, Terms::default());
    for action in [&mut first, &mut again] {
        let Action::Acquire(acquire) = action else { panic!() };
        acquire.owner = Some(fencepost_core::OwnerName::new("one").unwrap());
    }
    let asked = world.ask(0, first, LONG);
    world.settle();
    let grant = world.granted(asked);
    let entered = world.ask(0, again, LONG);
    world.settle();
    world.granted(entered);
    let key = complete(&mut world, 0, grant);
    world.settle();
    let refused = world.answer(key).cloned();
    assert!(matches!(refused, Some(Answer::Decided(Outcome::Refused(_)))), "{refused:?}");
    assert_eq!(world.lone.state.grant_view(grant.grant).map(|view| view.record.count), Some(1));
    world.release(0, grant);
    world.settle();
    assert_eq!(world.lone.state.counts().grants, 0);
}
