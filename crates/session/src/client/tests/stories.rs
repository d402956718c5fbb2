//! Short stories about one or two clients. Most open with the rule that they show.

use std::time::Duration;

use fencepost_core::{Action, GrantEnd, Metadata, Millis, Outcome, SessionEnd, SessionId, Terms, Ttl, Wait};

use super::world::{World, exclusive, up_to};
use crate::client::{Answer, Connection, Event, Failure, GrantState, LetGo, Lost, NewSession};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

/// `Debug` output reaches logs and panic messages.
#[test]
fn a_machine_shows_everything_of_its_session_but_the_secret() {
    let new = NewSession {
        id: SessionId(5),
        secret: [171; 32].into(),
        ttl: Ttl::new(5_000).unwrap(),
        metadata: Metadata::default(),
    };
    let mut machine = Connection::default();
    let before = format!("{new:?} {new:#?}");
    machine.open_session(new);
    let after = format!("{machine:?} {machine:#?}");
    for seen in [before, after] {
        assert!(seen.contains("SessionSecret(..)"), "{seen}");
        for part in ["171", "0xab", "abab"] {
            assert!(!seen.contains(part), "{part} in {seen}");
        }
    }
}

// Rule: exactly-once. However often the stream breaks between the acquire and its answer, the lock is granted once.
#[test]
fn an_acquire_whose_answer_is_lost_is_granted_once() {
    for lost_on_the_way_there in [true, false] {
        let mut world = World::new(1);
        world.connect(0);
        let key = world.acquire(0, "a", Wait::No, LONG);
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
        let grant = world.granted(key);
        assert!(world.believes(0, grant));
        assert_eq!(world.lone.state.counts().last_token.0, 1, "one grant was ever made");
        world.release(0, grant);
        world.settle();
        assert_eq!(world.lone.state.counts().grants, 0);
    }
}

// Rule: cancel. The caller drops the future while the grant is on its way. Nothing is left behind, at whatever point that happens.
#[test]
fn a_dropped_acquire_leaves_nothing_behind() {
    for steps_before_the_drop in 0..6 {
        let mut world = World::new(2);
        world.connect(0);
        world.connect(1);
        let held = world.acquire(0, "a", Wait::No, LONG);
        world.settle();
        let held = world.granted(held);
        let waits = world.acquire(1, "a", Wait::Forever, LONG);
        for step in 0..steps_before_the_drop {
            match step {
                0 | 2 => world.serve_one(0),
                1 => drop(world.release(0, held)),
                _ => world.hear_one(1),
            }
        }
        if world.answer(waits).is_none() {
            world.clients[1].machine.abandon(waits);
        } else {
            let granted = world.granted(waits);
            world.release(1, granted);
        }
        world.cut(1);
        world.connect(1);
        world.settle();
        world.release(0, held);
        world.settle();
        let counts = world.lone.state.counts();
        assert_eq!((counts.grants, counts.waiters), (0, 0), "dropped after {steps_before_the_drop} steps");
    }
}

// Rule: holder-stops-first, lost-is-final. A client without a connection stops before the cluster grants its lock to another client.
// When it is connected again, the lock stays lost.
#[test]
fn a_cut_off_holder_stops_first_and_never_comes_back() {
    let mut world = World::new(2);
    world.connect(0);
    world.connect(1);
    let held = world.acquire(0, "a", Wait::No, LONG);
    world.settle();
    let held = world.granted(held);
    let next = world.acquire(1, "a", Wait::Forever, LONG);
    world.settle();
    world.cut(0);
    let mut warned = false;
    while world.answer(next).is_none() {
        world.pass(Duration::from_millis(50));
        warned |= world.state_of(0, held) == GrantState::Jeopardy;
        let believed = world.believes(0, held);
        world.settle();
        assert!(world.answer(next).is_none() || !believed, "two holders");
    }
    assert!(warned, "a deadline is announced before it passes");
    assert_eq!(world.state_of(0, held), GrantState::Lost(Lost::DeadlinePassed));
    world.connect(0);
    world.settle();
    assert!(matches!(world.state_of(0, held), GrantState::Lost(_)));
    let granted = world.granted(next);
    assert!(world.believes(1, granted));
}

// The holder of two locks is cut off. One of them has a short longest hold. Each danger and each loss is told once, with the names.
#[test]
fn jeopardy_and_loss_are_told_once_with_the_names_of_the_locks() {
    let mut world = World::new(1);
    world.connect(0);
    let held = world.acquire(0, "a", Wait::No, LONG);
    let terms = Terms { max_hold: Some(Millis::new(1_500).unwrap()), ..Terms::default() };
    let session = world.clients[0].session;
    world.clients[0].machine.request(session, exclusive("short", Wait::No, terms), None);
    world.transmit(0);
    world.settle();
    let held = world.granted(held);
    world.cut(0);
    for _ in 0..200 {
        world.pass(Duration::from_millis(50));
    }
    let told = |event: &Event| match event {
        Event::Jeopardy(jeopardy) => {
            let names = jeopardy.grants.iter().flat_map(|grant| grant.held.names()).map(ToString::to_string);
            Some(format!("jeopardy of {}, max-hold {}", names.collect::<Vec<_>>().join(" "), jeopardy.is_max_hold))
        }
        Event::Lost(grant, why) => Some(format!("lost {}: {why}", grant.held.names().next().expect("a name"))),
        Event::SessionEnded(..) => Some("session ended".to_owned()),
        _ => None,
    };
    let late = "its deadline passed before a renewal was confirmed";
    let mut expected = vec![
        "jeopardy of short, max-hold true".to_owned(),
        format!("lost short: {late}"),
        "jeopardy of a, max-hold false".to_owned(),
        format!("lost a: {late}"),
    ];
    assert_eq!(world.clients[0].news.iter().filter_map(told).collect::<Vec<_>>(), expected);

    // The cluster has forgotten the session meanwhile. Its locks are lost already.
    world.beat();
    world.connect(0);
    world.settle();
    expected.push("session ended".to_owned());
    assert_eq!(world.clients[0].news.iter().filter_map(told).collect::<Vec<_>>(), expected);
    assert_eq!(world.release(0, held), LetGo::Lost(Lost::DeadlinePassed));
}

#[test]
fn a_keep_alive_is_told_with_its_time_and_a_close_is_no_loss() {
    let mut world = World::new(1);
    world.connect(0);
    let held = world.acquire(0, "a", Wait::No, LONG);
    world.settle();
    world.pass(2 * SECOND);
    world.settle();
    assert_eq!(world.clients[0].news, [Event::KeptAlive(Duration::ZERO)], "messages take no time in this world");
    let held = world.granted(held);
    assert!(world.clients[0].machine.held_by_last_guard_since(held).is_some());
    let session = world.clients[0].session;
    world.clients[0].news.clear();
    world.clients[0].machine.close_session(session, None);
    world.transmit(0);
    world.settle();
    let closed = Lost::Ended(GrantEnd::Session(SessionEnd::Closed));
    assert!(matches!(&world.clients[0].news[..], [Event::Lost(_, why)] if *why == closed), "no session ended unasked");
    assert_eq!(world.clients[0].machine.held_by_last_guard_since(held), None);
}

// Rule: lost-is-final. The leader's clock stood still, so the holder stops believing before the grant ends. It gives the grant back.
#[test]
fn a_grant_that_was_called_lost_is_given_back() {
    let mut world = World::new(1);
    world.connect(0);
    let held = world.acquire(0, "a", Wait::No, LONG);
    world.settle();
    let held = world.granted(held);
    world.cut(0);
    world.pass(LONG);
    assert_eq!(world.state_of(0, held), GrantState::Lost(Lost::DeadlinePassed));
    // No entry was written meanwhile, and the attach takes effect before anything expires.
    assert_eq!(world.lone.state.counts().grants, 1);
    world.connect(0);
    world.settle();
    assert_eq!(world.lone.state.counts().grants, 0);
    assert_eq!(world.state_of(0, held), GrantState::Lost(Lost::DeadlinePassed), "the grant stays lost");
    assert_eq!(world.release(0, held), LetGo::Lost(Lost::DeadlinePassed));
}

// Rule: session-ttl. Keep-alives keep a session and a lock with a shorter TTL alive for as long as the network works.
#[test]
fn keep_alives_follow_the_least_ttl() {
    let mut world = World::with_ttl(1, 30_000);
    world.connect(0);
    let terms = Terms { ttl: Some(Ttl::new(2_000).unwrap()), ..Terms::default() };
    let short = world.ask(0, exclusive("short", Wait::No, terms), LONG);
    world.settle();
    let short = world.granted(short);
    for _ in 0..200 {
        world.pass(Duration::from_millis(100));
        world.settle();
        assert_eq!(world.state_of(0, short), GrantState::Held);
    }
    assert_eq!(world.lone.state.counts().grants, 1);
    world.release(0, short);
    world.settle();
    let mut quiet = 0;
    for _ in 0..80 {
        world.pass(Duration::from_millis(100));
        quiet += usize::from(world.to_server.is_empty());
        world.settle();
    }
    assert!(quiet > 75, "without the lock the session's own TTL sets the keep-alives: {quiet}");
}

// Rule: max-hold. The longest hold ends a grant even if keep-alives arrive; only an extend moves it.
#[test]
fn a_longest_hold_ends_in_time_unless_it_is_extended() {
    let mut world = World::new(1);
    world.connect(0);
    let terms = Terms { max_hold: Some(Millis::new(3_000).unwrap()), ..Terms::default() };
    let key = world.ask(0, exclusive("a", Wait::No, terms), LONG);
    world.settle();
    let held = world.granted(key);
    for _ in 0..25 {
        world.pass(Duration::from_millis(100));
        world.settle();
    }
    assert_eq!(world.state_of(0, held), GrantState::Jeopardy);
    world.ask(0, Action::Extend { grant: held.grant, max_hold: Millis::new(3_000).unwrap() }, LONG);
    world.settle();
    assert_eq!(world.state_of(0, held), GrantState::Held);
    for _ in 0..40 {
        world.pass(Duration::from_millis(100));
        world.settle();
    }
    assert!(matches!(world.state_of(0, held), GrantState::Lost(Lost::DeadlinePassed)));
    assert_eq!(world.lone.state.counts().grants, 0);
}

// Rule: wait, unknown-is-said. The client limits its own wait: it sends a cancel. If the cancel is not answered, it reports unknown.
#[test]
fn a_wait_that_cannot_be_cancelled_is_unknown() {
    let mut world = World::new(2);
    world.connect(0);
    world.connect(1);
    world.acquire(0, "a", Wait::No, LONG);
    world.settle();
    let answered = world.acquire(1, "a", Wait::Forever, SECOND);
    world.settle();
    world.pass(SECOND);
    world.settle();
    assert_eq!(world.answer(answered), Some(&Answer::Decided(Outcome::TimedOut)));
    assert_eq!(world.lone.state.counts().waiters, 0);

    let unheard = world.acquire(1, "a", Wait::Forever, SECOND);
    world.settle();
    world.cut(1);
    world.pass(SECOND);
    assert_eq!(world.answer(unheard), None, "the cancel may yet be answered");
    world.pass(3 * SECOND);
    assert_eq!(world.answer(unheard), Some(&Answer::Unknown));
    world.connect(1);
    world.settle();
    assert_eq!(world.lone.state.counts().waiters, 0, "the cancel is sent all the same");
}

// Rule: unknown-is-said. A request that was never sent has failed; one that was sent is unknown.
#[test]
fn a_dead_cluster_fails_what_was_not_sent() {
    let mut world = World::new(1);
    world.connect(0);
    world.settle();
    let sent = world.acquire(0, "a", up_to(1_000), SECOND);
    world.cut(0);
    let unsent = world.acquire(0, "b", up_to(1_000), LONG);
    world.clients[0].machine.handle_reachable(false);
    world.transmit(0);
    assert_eq!(world.answer(unsent), Some(&Answer::Failed(Failure::Unreachable)));
    let at_once = world.acquire(0, "c", up_to(1_000), LONG);
    assert_eq!(world.answer(at_once), Some(&Answer::Failed(Failure::Unreachable)));
    world.pass(SECOND);
    world.pass(3 * SECOND);
    assert_eq!(world.answer(sent), Some(&Answer::Unknown));
}

// Rule: session-end. Every guard and every wait of the session ends exactly once, and says how.
#[test]
fn a_session_that_ends_takes_guards_and_waits_with_it() {
    let mut world = World::new(2);
    world.connect(0);
    world.connect(1);
    let held = world.acquire(0, "a", Wait::No, LONG);
    let other = world.acquire(1, "b", Wait::No, LONG);
    world.settle();
    let (held, _) = (world.granted(held), world.granted(other));
    let waits = world.acquire(0, "b", Wait::Forever, LONG);
    world.settle();
    let session = world.clients[0].session;
    let close = world.clients[0].machine.close_session(session, None);
    world.settle();
    assert_eq!(world.answer(close), Some(&Answer::Decided(Outcome::Closed)));
    let closed = Answer::SessionEnded { how: Some(SessionEnd::Closed), queued: true };
    // The end of the wait may come on its own, before the end of the session.
    assert!(
        [Answer::Decided(Outcome::SessionEnded(SessionEnd::Closed)), closed].contains(world.answer(waits).unwrap())
    );
    let ended = GrantState::Lost(Lost::Ended(GrantEnd::Session(SessionEnd::Closed)));
    assert_eq!(world.state_of(0, held), ended);
    assert_eq!(world.lone.state.counts().grants, 1);
}

// Rule: attach. The cluster has forgotten a session. All its requests and grants end, and none hangs.
#[test]
fn an_expired_session_is_noticed_on_the_next_stream() {
    let mut world = World::new(1);
    world.connect(0);
    let held = world.acquire(0, "a", Wait::No, LONG);
    world.settle();
    let held = world.granted(held);
    world.cut(0);
    world.pass(LONG);
    world.beat();
    let late = world.acquire(0, "b", Wait::No, LONG);
    world.connect(0);
    world.settle();
    assert_eq!(world.answer(late), Some(&Answer::SessionEnded { how: None, queued: false }));
    assert!(!world.clients[0].machine.is_alive(held.session));
    assert!(matches!(world.state_of(0, held), GrantState::Lost(_)));
}

#[test]
fn thousands_of_pipelined_requests_are_all_answered() {
    let mut world = World::new(1);
    world.connect(0);
    let keys: Vec<_> = (0..5_000).map(|at| world.acquire(0, &format!("name {at}"), Wait::No, LONG)).collect();
    world.settle();
    for key in keys {
        let grant = world.granted(key);
        world.release(0, grant);
    }
    world.settle();
    assert_eq!(world.lone.state.counts().grants, 0);
    // The next keep-alive acknowledges the answers; then the cluster forgets them.
    world.pass(4 * SECOND);
    world.settle();
    let records = world.lone.state.records();
    let answers = records.filter(|record| matches!(record, fencepost_core::Record::Answer(_))).count();
    assert_eq!(answers, 0);
}

// The node accepts every message and answers none, so the client gives up the stream.
#[test]
fn a_stream_without_answers_is_given_up() {
    let mut world = World::new(1);
    world.connect(0);
    world.settle();
    world.acquire(0, "a", Wait::No, LONG);
    world.pass(2 * SECOND);
    assert!(!world.clients[0].machine.is_stalled());
    world.pass(2 * SECOND);
    assert!(world.clients[0].machine.is_stalled());
    world.cut(0);
    world.connect(0);
    world.settle();
    world.pass(6 * SECOND);
    assert!(!world.clients[0].machine.is_stalled(), "a stream with answers is not stalled");
}

#[test]
fn what_does_not_fit_into_one_message_goes_with_the_next() {
    let mut world = World::new(3);
    let metadata = Metadata::new(&[7; 4_096]).unwrap();
    let terms = Terms { metadata, ..Terms::default() };
    let acquire = |at: usize| exclusive(&format!("name {at}"), Wait::No, terms.clone());
    let keys: Vec<_> = (0..300).map(|at| world.ask(at % 3, acquire(at), LONG)).collect();
    for client in 0..3 {
        world.connect(client);
    }
    assert!(world.to_server.len() > 3);
    world.settle();
    for key in keys {
        world.granted(key);
    }
}

// A program ends, and its driver can write once more. A lock without a guard is given back; a lock with a guard keeps its deadline.
#[test]
fn the_farewell_gives_back_everything_but_what_is_still_held() {
    for guard_is_dropped in [true, false] {
        let mut world = World::new(2);
        world.connect(0);
        world.connect(1);
        let elsewhere = world.acquire(1, "elsewhere", Wait::No, LONG);
        let held = world.acquire(0, "held", Wait::No, LONG);
        world.settle();
        let (elsewhere, held) = (world.granted(elsewhere), world.granted(held));
        world.acquire(0, "elsewhere", Wait::Forever, LONG);
        world.settle();
        world.acquire(0, "sent and not heard", Wait::No, LONG);
        if guard_is_dropped {
            world.release(0, held);
        }
        world.clients[0].machine.handle_farewell();
        world.transmit(0);
        while !world.to_server.is_empty() {
            world.serve_one(0);
        }
        world.release(1, elsewhere);
        world.settle();
        let counts = world.lone.state.counts();
        assert_eq!(counts.waiters, 0, "no wait is left to be granted to a program that is gone");
        assert_eq!(counts.grants, usize::from(!guard_is_dropped), "the holder of a guard may be at work");
        assert_eq!(counts.sessions, if guard_is_dropped { 1 } else { 2 });
        if !guard_is_dropped {
            // A thread outside of the runtime drops its guard later.
            let machine = &mut world.clients[0].machine;
            machine.handle_shut_down();
            assert!(machine.awaits_farewell() && machine.poll_farewell().is_none());
            machine.let_go(held, None, false, world.now);
            let close = machine.poll_farewell().expect("the last guard is gone");
            assert!(!machine.awaits_farewell());
            world.to_server.push_back((world.clients[0].stream, close));
            world.serve_one(0);
            assert_eq!((world.lone.state.counts().grants, world.lone.state.counts().sessions), (0, 1));
        }
    }
}

// Rule: exactly-once. The farewell does not send a request that was never sent: its answer would reach no caller.
#[test]
fn the_farewell_sends_no_new_request() {
    let mut world = World::new(1);
    world.connect(0);
    let held = world.acquire(0, "held", Wait::No, LONG);
    world.settle();
    let held = world.granted(held);
    let session = held.session;
    let now = world.now;
    let late =
        world.clients[0].machine.request(session, exclusive("late", Wait::No, Terms::default()), Some(now.after(LONG)));
    world.clients[0].machine.handle_farewell();
    world.transmit(0);
    world.settle();
    assert_eq!(world.answer(late), Some(&Answer::Failed(Failure::ShutDown)));
    assert_eq!(world.lone.state.counts().grants, 1);
}
