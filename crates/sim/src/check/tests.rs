//! A test for each invariant: the same facts are reported twice, once unchanged and once with one lie. The checkers must find nothing in
//! the first, and the checker of that invariant must find the lie in the second. The entries come from the real state machine; a lie
//! changes what it said.

mod door;
mod jobs;

use std::collections::BTreeMap;

use fencepost_core::{
    Acquire, Act, Action, Admin, Batch, Epoch, Event, GrantEnd, GrantId, Held, Lock, LockDelay, LockMode, LockState,
    Locks, LogPosition, LogicalMs, Metadata, Millis, Name, Open, Operation, Outcome, OwnerName, Permits, Position,
    PositionedEvent, Principal, Push, Reason, Renewal, Request, RequestNumber, SecretHash, Seen, SessionId,
    TakePermits, Terms, Token, ToldReason, Ttl, Wait,
};
use fencepost_replica::Hears;
use fencepost_session::client::{Answer, RequestKey};

use super::Checkers;
use crate::fact::{Access, AccessKind, Fact, LoggedEntry, WorldTime};

const ANN: SessionId = SessionId(1);
const BOB: SessionId = SessionId(2);
const CAT: SessionId = SessionId(3);

/// A lock state with three sessions, and the checkers that get its facts.
struct World {
    state: LockState,
    position: LogPosition,
    stamp: u64,
    numbers: BTreeMap<SessionId, u64>,
    checkers: Checkers,
}

impl World {
    fn new() -> World {
        let mut world = World {
            state: LockState::new(0),
            position: LogPosition { index: 1, term: 1 },
            stamp: 1_000,
            numbers: BTreeMap::new(),
            checkers: Checkers::new(false),
        };
        world.log([ANN, BOB, CAT].map(open));
        world
    }

    /// Applies an entry, without reporting it.
    fn apply(&mut self, operations: impl IntoIterator<Item = Operation>) -> LoggedEntry {
        self.apply_batch(Batch { operations: operations.into_iter().collect(), ..Batch::default() })
    }

    fn apply_batch(&mut self, batch: Batch) -> LoggedEntry {
        self.position.index += 1;
        let stamp = LogicalMs(self.stamp);
        let effects = self.state.apply(stamp, batch.clone());
        LoggedEntry { position: self.position, stamp, wall_clock_ms: None, batch, effects }
    }

    /// Applies an entry and reports it unchanged.
    fn log(&mut self, operations: impl IntoIterator<Item = Operation>) -> LoggedEntry {
        let entry = self.apply(operations);
        self.tell(&Fact::Logged(&entry));
        entry
    }

    /// Applies an entry and reports it, with this change if `lie` is set.
    fn log_or_lie(
        &mut self,
        operations: impl IntoIterator<Item = Operation>,
        lie: bool,
        change: impl FnOnce(&mut LoggedEntry),
    ) -> LoggedEntry {
        let mut entry = self.apply(operations);
        if lie {
            change(&mut entry);
        }
        self.tell(&Fact::Logged(&entry));
        entry
    }

    fn tell(&mut self, fact: &Fact<'_>) {
        self.checkers.see(WorldTime::default().after_ms(self.stamp), fact);
    }

    fn ask(&mut self, session: SessionId, action: Action) -> Operation {
        let number = self.numbers.entry(session).or_default();
        *number += 1;
        request(session, *number, action)
    }

    fn lock(&mut self, session: SessionId, names: &[&str], mode: LockMode) -> Operation {
        self.ask(session, acquire(names, mode, None, Terms::default()))
    }

    fn release(&mut self, session: SessionId, grant: GrantId) -> Operation {
        self.ask(session, Action::Release { grant, report: None })
    }

    fn acts(&mut self, session: SessionId, grant: GrantId) {
        self.tell(&Fact::Acts { session, grant, token: Token(grant.0) });
    }
}

fn breaks(grant: GrantId) -> Operation {
    Operation::Admin(Admin {
        by: Principal::new("root").expect("valid"),
        reason: Reason::new("stuck").expect("valid"),
        act: Act::Break { grant },
    })
}

fn open(session: SessionId) -> Operation {
    Operation::Open(Open {
        session,
        secret_hash: SecretHash([0; 32]),
        principal: Principal::new("tester").expect("valid"),
        ttl: Ttl::new(10_000).expect("valid"),
        metadata: Metadata::default(),
    })
}

fn request(session: SessionId, number: u64, action: Action) -> Operation {
    let (epoch, number) = (Epoch(1), RequestNumber(number));
    Operation::Request(Request { session, epoch, number, seen: Seen::default(), action })
}

fn acquire(names: &[&str], mode: LockMode, owner: Option<&str>, terms: Terms) -> Action {
    let locks: Locks = names.iter().map(|text| Lock { name: name(text), mode }).collect();
    let owner = owner.map(|owner| OwnerName::new(owner).expect("valid"));
    Action::Acquire(Acquire { locks, owner, wait: Wait::Forever, terms })
}

fn name(text: &str) -> Name {
    Name::new(text).expect("valid")
}

fn granted(entry: &LoggedEntry) -> GrantId {
    let mut grants = entry.effects.events.iter().filter_map(|event| match event {
        Event::Granted { grant, .. } => Some(*grant),
        _ => None,
    });
    grants.next_back().expect("something was granted")
}

/// Changes the last event of the entry: its request was granted instead of queued.
fn grant_instead_of_queue(entry: &mut LoggedEntry) {
    let Some(Event::Queued { request, .. }) = entry.effects.events.pop() else {
        panic!("the last event is of a queued request")
    };
    let (grant, token) = (GrantId(500), Token(500));
    entry.effects.events.push(Event::Granted { request, grant, token, count: 1 });
    entry.effects.replies.last_mut().expect("an answer").outcome = Outcome::Granted { grant, token, count: 1 };
}

/// Reports the facts without and with the lie, and checks what is found.
fn story(invariant: &str, tell: impl Fn(&mut World, bool)) {
    let mut right = World::new();
    tell(&mut right, false);
    assert_eq!(right.checkers.violations(), [], "{invariant}: violations without a lie");
    let mut wrong = World::new();
    tell(&mut wrong, true);
    let found = wrong.checkers.violations();
    assert!(found.iter().any(|violation| violation.invariant == invariant), "{invariant} is not among {found:#?}");
}

#[test]
fn i1_two_holders_are_seen() {
    story("I1", |world, lie| {
        let (ann, bob) = (world.lock(ANN, &["/a"], LockMode::Exclusive), world.lock(BOB, &["/a/b"], LockMode::Shared));
        world.log([ann]);
        world.log_or_lie([bob], lie, grant_instead_of_queue);
    });
}

#[test]
fn i1_permits_beyond_the_limit_are_seen() {
    story("I1", |world, lie| {
        let permits = |count| Permits::new(count).expect("not zero");
        for (session, count) in [(ANN, 2), (BOB, 1)] {
            let take = world.ask(
                session,
                Action::TakePermits(TakePermits {
                    name: name("s"),
                    permits: permits(count),
                    limit: Some(permits(2)),
                    wait: Wait::Forever,
                    terms: Terms::default(),
                }),
            );
            world.log_or_lie([take], lie && session == BOB, grant_instead_of_queue);
        }
    });
}

#[test]
fn i1_a_missing_rest_is_seen() {
    story("I1", |world, lie| {
        let max_hold = Some(Millis::new(100).expect("short"));
        let terms = Terms { max_hold, lock_delay: LockDelay::new(50).expect("short"), ..Terms::default() };
        let ann = world.ask(ANN, acquire(&["a"], LockMode::Exclusive, None, terms));
        world.log([ann]);
        world.stamp += 100;
        world.log_or_lie([], lie, |entry| {
            if let Some(Event::Ended { rests_until, .. }) = entry.effects.events.first_mut() {
                *rests_until = None;
            }
        });
    });
}

#[test]
fn i2_a_reused_token_is_seen() {
    story("I2", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        let grant = granted(&world.log([ann]));
        let (release, bob) = (world.release(ANN, grant), world.lock(BOB, &["a"], LockMode::Exclusive));
        world.log_or_lie([release, bob], lie, |entry| {
            entry.effects.replies[1].outcome = Outcome::Granted { grant, token: Token(grant.0), count: 1 };
            if let Some(Event::Granted { grant: id, token, .. }) = entry.effects.events.last_mut() {
                (*id, *token) = (grant, Token(grant.0));
            }
        });
    });
}

#[test]
fn i2_a_restore_without_a_token_jump_is_seen() {
    story("I2", |world, lie| {
        let backup: Vec<_> = world.state.records().collect();
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        world.log([ann]);
        let jump = if lie { 0 } else { 1_000 };
        world.state = LockState::restore_backup(0, backup, jump).expect("a good backup");
        world.position = LogPosition { index: 1, term: 1 };
        world.tell(&Fact::Restored { cluster: 2 });
        let bob = world.lock(BOB, &["a"], LockMode::Exclusive);
        world.log([open(BOB), bob]);
    });
}

#[test]
fn i3_an_answer_that_is_not_in_the_log_is_seen() {
    story("I3", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        let entry = world.log([ann]);
        let grant = if lie { GrantId(7) } else { granted(&entry) };
        let outcome = Outcome::Granted { grant, token: Token(grant.0), count: 1 };
        world.tell(&Fact::Heard {
            cluster: 1,
            session: ANN,
            number: Some(RequestNumber(1)),
            position: entry.position,
            stamp: entry.stamp,
            outcome: &outcome,
            repeat: None,
        });
    });
}

#[test]
fn i3_an_end_of_a_grant_that_is_not_held_is_seen() {
    story("I3", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        let grant = granted(&world.log([ann]));
        let release = world.release(ANN, grant);
        let entry = world.log([release]);
        let release = world.release(ANN, grant);
        world.log_or_lie([release], lie, |again| {
            (again.effects.events, again.effects.replies) = (entry.effects.events, entry.effects.replies);
        });
    });
}

#[test]
fn i4_a_grant_without_a_request_is_seen() {
    story("I4", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        world.log_or_lie([ann], lie, |entry| {
            entry.batch.operations.clear();
            entry.effects.replies.clear();
        });
    });
}

#[test]
fn i4_a_grant_to_a_dead_session_is_seen() {
    story("I4", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        world.stamp += 9_999;
        world.log_or_lie([ann], lie, |entry| entry.stamp.0 += 1);
    });
}

#[test]
fn i5_a_waiter_that_is_passed_is_seen() {
    story("I5", |world, lie| {
        let [ann, bob, cat] = [ANN, BOB, CAT].map(|session| world.lock(session, &["a"], LockMode::Exclusive));
        let grant = granted(&world.log([ann]));
        world.log([bob]);
        let cats = world.log([cat]);
        let Some(Event::Queued { request: of_cat, .. }) = cats.effects.events.first() else { panic!("Cat waits") };
        let release = world.release(ANN, grant);
        world.log_or_lie([release], lie, |entry| {
            if let Some(Event::Granted { request, .. }) = entry.effects.events.last_mut() {
                *request = of_cat.clone();
            }
        });
    });
}

#[test]
fn i6_a_lost_wake_up_is_seen() {
    for invariant in ["I6", "I19"] {
        story(invariant, |world, lie| {
            let [ann, bob] = [ANN, BOB].map(|session| world.lock(session, &["a"], LockMode::Exclusive));
            let grant = granted(&world.log([ann]));
            world.log([bob]);
            let release = world.release(ANN, grant);
            world.log_or_lie([release], lie, |entry| {
                entry.effects.events.pop();
                entry.effects.pushes.clear();
            });
            world.tell(&Fact::Over);
        });
    }
}

#[test]
fn i7_what_outlives_its_session_is_seen() {
    story("I7", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        world.log([ann]);
        let close = world.ask(ANN, Action::Close);
        world.log_or_lie([close], lie, |entry| drop(entry.effects.events.pop()));
    });
}

#[test]
fn i8_half_a_multi_lock_is_seen() {
    story("I8", |world, lie| {
        let ann = world.lock(ANN, &["a", "b"], LockMode::Exclusive);
        world.log_or_lie([ann], lie, |entry| {
            if let Some(Event::Granted { request, .. }) = entry.effects.events.last_mut()
                && let Held::Locks(locks) = &mut request.wants
            {
                locks.pop();
            }
        });
    });
}

#[test]
fn i9_an_early_end_is_seen() {
    story("I9", |world, lie| {
        world.stamp += 10_000;
        world.log_or_lie([], lie, |entry| entry.stamp.0 -= 1);
    });
}

#[test]
fn i9_a_holder_that_acts_after_its_lock_expired_is_seen() {
    story("I9", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        let grant = granted(&world.log([ann]));
        world.acts(ANN, grant);
        world.stamp += 10_000;
        world.log([]);
        if lie {
            world.acts(ANN, grant);
        }
    });
}

#[test]
fn i9_a_holder_of_a_broken_grant_may_act_until_it_hears_of_it() {
    let mut world = World::new();
    let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
    let grant = granted(&world.log([ann]));
    world.log([breaks(grant)]);
    world.acts(ANN, grant);
    assert_eq!(world.checkers.violations(), []);
}

#[test]
fn i9_a_fail_over_extends_deadlines() {
    // The session ends exactly at its extended deadline; with the lie, 1 ms before it.
    story("I9", |world, lie| {
        world.stamp += 9_000;
        world.position.term += 1;
        let mut entry = world.apply_batch(Batch { failover_grace: true, ..Batch::default() });
        world.tell(&Fact::Logged(&entry));
        world.stamp += 3_000;
        entry = world.apply([]);
        assert!(
            entry.effects.events.iter().any(|event| matches!(event, Event::SessionEnded { .. })),
            "the deadline is 3 s after the fail-over"
        );
        entry.stamp.0 -= u64::from(lie);
        world.tell(&Fact::Logged(&entry));
    });
}

#[test]
fn i10_an_overdue_session_that_stays_is_seen() {
    story("I10", |world, lie| {
        world.stamp += 10_000;
        world.log_or_lie([], lie, |entry| entry.effects = Default::default());
    });
}

#[test]
fn i10_a_late_end_in_an_undisturbed_world_is_seen() {
    story("I10", |world, lie| {
        world.stamp = 0;
        world.tell(&Fact::Healed);
        world.stamp = 11_000 + if lie { 1_501 } else { 1_500 };
        world.log([]);
    });
}

#[test]
fn i9_a_stamp_that_runs_ahead_of_a_request_is_seen() {
    story("I9", |world, lie| {
        let ask = world.lock(ANN, &["a"], LockMode::Exclusive);
        let Operation::Request(Request { session, number, action, .. }) = ask.clone() else { panic!("a request") };
        let request = RequestKey { session, number };
        world.tell(&Fact::Asked { request, action: &action });
        // Logical time is two seconds behind real time when the request enters the log. That only makes leases longer.
        let real_ms = world.stamp + 2_000;
        let entry = world.apply([ask]);
        world.checkers.see(WorldTime::default().after_ms(real_ms), &Fact::Logged(&entry));
        // The next entry catches up these two seconds, which is the most that the request allows. With the lie its stamp is too late.
        let later_ms = 1_000;
        world.stamp += later_ms + if lie { 2_020 } else { 2_000 };
        let entry = world.apply([]);
        world.checkers.see(WorldTime::default().after_ms(real_ms + later_ms), &Fact::Logged(&entry));
    });
}

/// The violations in a world with a leader and sessions of ten seconds, after more facts.
fn led(tell: impl Fn(&mut World)) -> Vec<String> {
    let mut world = World::new();
    let lead = |world: &mut World, leader, planned| world.tell(&Fact::Leads { leader, planned });
    lead(&mut world, Some((1, 1)), false);
    world.log([]);
    tell(&mut world);
    world.checkers.violations().iter().map(|violation| violation.what.clone()).collect()
}

/// A leader change: when, the new leader and term, and whether it was planned.
type LeadAt = (u64, Option<(u64, u64)>, bool);

#[test]
fn i22_a_lease_that_lasts_too_long_in_real_time_is_seen() {
    let max_hold = |ms| Terms { max_hold: Some(Millis::new(ms).expect("valid")), ..Terms::default() };
    // After a leader change stamps and real time differ. The stamp of the end is right; `real_ms` is the real time of the end.
    let ends_after = |real_ms: u64, changes: &[LeadAt]| {
        let changes = changes.to_vec();
        led(move |world| {
            let begun = world.stamp;
            let ask = world.ask(ANN, acquire(&["a"], LockMode::Exclusive, None, max_hold(6_000)));
            world.log([ask]);
            for (at, leader, planned) in &changes {
                let at = WorldTime::default().after_ms(begun + at);
                world.checkers.see(at, &Fact::Leads { leader: *leader, planned: *planned });
            }
            world.stamp = begun + 6_000;
            let entry = world.apply([]);
            world.checkers.see(WorldTime::default().after_ms(begun + real_ms), &Fact::Logged(&entry));
        })
    };
    let is_fine = |real_ms, changes: &[_]| assert_eq!(ends_after(real_ms, changes), Vec::<String>::new());
    let is_late = |real_ms, changes: &[_]| {
        let found = ends_after(real_ms, changes);
        assert!(found.iter().any(|what| what.contains("MaxHold")), "{real_ms} {changes:?}: {found:?}");
    };
    is_fine(6_550, &[]);
    is_late(6_650, &[]);
    // A planned change allows only the time without a leader.
    is_fine(6_600, &[(1_000, None, false), (1_050, Some((2, 2)), true)]);
    is_late(6_700, &[(1_000, None, false), (1_050, Some((2, 2)), true)]);
    is_late(7_500, &[(1_000, Some((2, 2)), true)]);
    // An unplanned change allows one second more.
    is_fine(9_500, &[(1_000, None, false), (3_000, Some((2, 2)), false)]);
    is_late(9_700, &[(1_000, None, false), (3_000, Some((2, 2)), false)]);
    // The same leader continues, so no logical time is lost: only the time without a leader is allowed.
    is_fine(8_500, &[(1_000, None, false), (3_000, Some((1, 1)), false)]);
    is_late(8_700, &[(1_000, None, false), (3_000, Some((1, 1)), false)]);
}

#[test]
fn i22_a_lease_that_never_ends_is_seen_when_the_run_is_over() {
    let over_after = |ms| {
        led(move |world| {
            let ask = world.lock(ANN, &["a"], LockMode::Exclusive);
            world.log([ask]);
            let at = WorldTime::default().after_ms(world.stamp + ms);
            world.checkers.see(at, &Fact::Over);
        })
    };
    // 10 s of TTL, 3 s of grace, and about 0.6 s of lateness and drift.
    assert_eq!(over_after(13_500), Vec::<String>::new());
    assert!(over_after(13_700).iter().any(|what| what.contains("still there")), "{:?}", over_after(13_700));
}

#[test]
fn i11_a_release_by_another_session_is_seen() {
    story("I11", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        let grant = granted(&world.log([ann]));
        let release = world.release(ANN, grant);
        world.log_or_lie([release], lie, |entry| {
            if let Operation::Request(request) = &mut entry.batch.operations[0] {
                request.session = BOB;
            }
        });
    });
}

#[test]
fn i11_a_holder_that_is_told_another_reason_is_seen() {
    story("I11", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        let grant = granted(&world.log([ann]));
        world.log_or_lie([breaks(grant)], lie, |entry| {
            for event in &mut entry.effects.events {
                if let Event::Ended { how, .. } = event {
                    *how = GrantEnd::Broken(ToldReason::new("no reason").expect("valid"));
                }
            }
        });
    });
}

#[test]
fn i11_an_accepted_request_with_an_older_epoch_is_seen() {
    story("I11", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        world.log_or_lie([ann], lie, |entry| {
            if let Operation::Request(request) = &mut entry.batch.operations[0] {
                request.epoch = Epoch(0);
            }
        });
    });
}

#[test]
fn i12_another_answer_to_a_repeat_is_seen() {
    story("I12", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        world.log([ann.clone()]);
        world.log_or_lie([ann], lie, |entry| entry.effects.replies[0].outcome = Outcome::Cancelled);
    });
}

#[test]
fn i12_a_second_performance_is_seen() {
    story("I12", |world, lie| {
        let ann = world.ask(ANN, acquire(&["a"], LockMode::Exclusive, Some("o"), Terms::default()));
        let first = world.log([ann.clone()]);
        world.log_or_lie([ann], lie, |entry| {
            entry.effects = first.effects;
            let (reply, event) = (&mut entry.effects.replies[0].outcome, &mut entry.effects.events[0]);
            if let (Outcome::Granted { count: said, .. }, Event::Granted { count: told, .. }) = (reply, event) {
                (*said, *told) = (2, 2);
            }
        });
    });
}

/// Ann holds a and waits for b, and Bob holds b. Returns Bob's request for a, which closes the cycle.
fn closes_a_cycle(world: &mut World) -> Operation {
    for (session, text) in [(ANN, "a"), (BOB, "b"), (ANN, "b")] {
        let ask = world.ask(session, acquire(&[text], LockMode::Exclusive, Some("o"), Terms::default()));
        world.log([ask]);
    }
    world.ask(BOB, acquire(&["a"], LockMode::Exclusive, Some("o"), Terms::default()))
}

#[test]
fn i13_a_cycle_that_is_left_is_seen() {
    story("I13", |world, lie| {
        let closes = closes_a_cycle(world);
        world.log_or_lie([closes], lie, |entry| {
            let arrival = fencepost_core::Arrival(50);
            if let Some(Event::NotGranted { request, .. }) = entry.effects.events.pop() {
                entry.effects.events.push(Event::Queued { request, arrival });
            }
            entry.effects.replies[0].outcome = Outcome::Queued { arrival, unchecked: false };
        });
    });
}

#[test]
fn i13_a_false_cycle_is_seen() {
    story("I13", |world, lie| {
        let closes = closes_a_cycle(world);
        world.log_or_lie([closes], lie, |entry| {
            if let Some(Event::NotGranted { outcome: Outcome::Deadlock(cycle), .. }) = entry.effects.events.last_mut() {
                cycle.links[1].waits_for = name("c");
            }
        });
    });
}

#[test]
fn i14_a_gap_a_repeat_and_a_changed_event_are_seen() {
    for kind in 0..3 {
        story("I14", |world, lie| {
            let entries: Vec<LoggedEntry> = ["a", "ab", "ac", "b"]
                .map(|text| {
                    let ask = world.lock(ANN, &[text], LockMode::Exclusive);
                    world.log([ask])
                })
                .into();
            let mut events: Vec<PositionedEvent> = entries[..3]
                .iter()
                .map(|entry| PositionedEvent {
                    position: Position { index: entry.position.index, ordinal: 0 },
                    stamp: entry.stamp,
                    wall_clock_ms: entry.wall_clock_ms,
                    event: entry.effects.events[0].clone(),
                })
                .collect();
            match kind {
                0 if lie => drop(events.pop()),
                1 if lie => events.push(events[1].clone()),
                2 if lie => events[2].event = events[1].event.clone(),
                _ => {}
            }
            for event in &events {
                world.tell(&Fact::Watched { watcher: 1, prefix: "a", event });
            }
            world.tell(&Fact::WatchedThrough { watcher: 1, prefix: "a", index: entries[3].position.index });
        });
    }
}

#[test]
fn i14_a_watcher_that_is_sent_back_is_seen() {
    story("I14", |world, lie| {
        let index = world.position.index;
        world.tell(&Fact::WatchedThrough { watcher: 1, prefix: "", index });
        let ask = world.lock(ANN, &["a"], LockMode::Exclusive);
        let index = world.log([ask]).position.index;
        world.tell(&Fact::WatchCompacted {
            watcher: 1,
            oldest: Position { index: if lie { 1 } else { index }, ordinal: 0 },
        });
    });
}

#[test]
fn i15_and_i16_a_diverged_state_is_seen() {
    for (invariant, node) in [("I15", 1), ("I16", 2)] {
        story(invariant, |world, lie| {
            let position = world.position;
            world.tell(&Fact::Applied { node: 1, position, state_hash: 5 });
            world.tell(&Fact::Applied { node, position, state_hash: 5 + u64::from(lie) });
        });
    }
}

#[test]
fn i17_a_stale_read_is_seen() {
    story("I17", |world, lie| {
        let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
        let entry = world.log([ann]);
        world.tell(&Fact::Heard {
            cluster: 1,
            session: ANN,
            number: Some(RequestNumber(1)),
            position: entry.position,
            stamp: entry.stamp,
            outcome: &entry.effects.replies[0].outcome,
            repeat: None,
        });
        world.tell(&Fact::ReadAsked { read: 1 });
        let index = entry.position.index - u64::from(lie);
        world.tell(&Fact::ReadAnswered { read: 1, position: LogPosition { index, term: 1 } });
    });
}

#[test]
fn i18_a_request_that_is_decided_before_it_is_sent_is_seen() {
    story("I18", |world, lie| {
        let action = acquire(&["a"], LockMode::Exclusive, None, Terms::default());
        let asked = Fact::Asked { request: RequestKey { session: ANN, number: RequestNumber(1) }, action: &action };
        let ann = world.ask(ANN, action.clone());
        if !lie {
            world.tell(&asked);
        }
        world.log([ann]);
        if lie {
            world.tell(&asked);
        }
    });
}

#[test]
fn i19_a_node_that_does_not_serve_is_seen() {
    story("I19", |world, lie| world.tell(&Fact::Serves { node: 1, ready: !lie }));
}

#[test]
fn i19_a_dead_node_shown_as_up_and_a_live_node_shown_as_down_are_seen() {
    let hears = |up| if up { Hears::Yes } else { Hears::Silent { ms: 8_000 } };
    for lives in [true, false] {
        story("I19", |world, lie| world.tell(&Fact::Shown { node: 1, lives, hears: hears(lives != lie) }));
    }
}

#[test]
fn i20_a_stale_write_and_a_lost_update_are_seen() {
    let access =
        |token, what| Access { name: name("a"), session: ANN, token: Token(token), key: None, what, accepted: true };
    let write = |based_on, makes| AccessKind::Write { based_on, makes };
    story("I20", |world, lie| {
        for access in
            [access(1, write(0, 1)), access(2, AccessKind::Claim), access(if lie { 1 } else { 2 }, write(1, 2))]
        {
            world.tell(&Fact::Store(&access));
        }
    });
    story("I20", |world, lie| {
        for access in [access(1, write(0, 1)), access(2, write(1, 2)), access(3, write(if lie { 1 } else { 2 }, 3))] {
            world.tell(&Fact::Store(&access));
        }
    });
    story("I20", |world, lie| {
        for access in
            [access(3, AccessKind::Read), access(2, AccessKind::Read), access(if lie { 2 } else { 3 }, write(0, 1))]
        {
            world.tell(&Fact::Store(&access));
        }
    });
}

#[test]
fn black_box_acts_out_of_token_order_are_seen() {
    story("black box", |world, lie| {
        let action = acquire(&["a"], LockMode::Exclusive, None, Terms::default());
        let mut grants = Vec::new();
        for session in [ANN, BOB] {
            let key = RequestKey { session, number: RequestNumber(1) };
            world.tell(&Fact::Asked { request: key, action: &action });
            let ask = world.ask(session, action.clone());
            let entry = world.log([ask]);
            let grant = granted(&entry);
            world
                .tell(&Fact::Told { request: key, answer: &Answer::Decided(entry.effects.replies[0].outcome.clone()) });
            world.acts(session, grant);
            grants.push(grant);
            let release = world.release(session, grant);
            world.log([release]);
        }
        if lie {
            world.acts(ANN, grants[0]);
        }
    });
}

#[test]
fn after_a_restore_old_sessions_and_grants_do_not_count() {
    let mut world = World::new();
    let [ann, bob] = [ANN, BOB].map(|session| world.lock(session, &["a"], LockMode::Exclusive));
    world.log([ann]);
    world.log([bob]);
    let backup: Vec<_> = world.state.records().collect();
    world.state = LockState::restore_backup(0, backup, 1_000).expect("a good backup");
    world.position = LogPosition { index: 1, term: 1 };
    world.tell(&Fact::Restored { cluster: 2 });
    world.numbers.clear();
    let cat = world.lock(CAT, &["a"], LockMode::Exclusive);
    let grant = granted(&world.log([open(CAT), cat]));
    world.acts(CAT, grant);
    world.tell(&Fact::Over);
    assert_eq!(world.checkers.violations(), []);
}

#[test]
fn at_most_a_hundred_violations_are_kept() {
    let mut world = World::new();
    for _ in 0..1_000 {
        world.tell(&Fact::Serves { node: 1, ready: false });
    }
    assert_eq!(world.checkers.violations().len(), 100);
    assert_eq!(world.checkers.report().serves, 1_000);
}

#[test]
fn the_ledger_follows_a_keep_alive_and_an_attach() {
    let mut world = World::new();
    world.stamp += 9_000;
    let keep_alive = Renewal::KeepAlive { session: ANN, epoch: Epoch(1), seen: Seen::default() };
    let attach = Renewal::Attach { session: BOB, secret_hash: SecretHash([0; 32]), seen: Seen::default() };
    let entry = world.apply_batch(Batch { renewals: vec![keep_alive, attach], ..Batch::default() });
    world.tell(&Fact::Logged(&entry));
    world.stamp += 9_000;
    // Cat sent no keep-alive and has expired. The others live, and requests in Bob's first epoch are refused.
    let bob = world.lock(BOB, &["a"], LockMode::Exclusive);
    let ann = world.lock(ANN, &["a"], LockMode::Exclusive);
    let entry = world.log([bob, ann]);
    assert!(entry.effects.pushes.iter().all(|push| matches!(push, Push::SessionEnded { session: CAT, .. })));
    assert!(!entry.effects.events.iter().any(|event| matches!(event, Event::Ended { how: GrantEnd::Ttl, .. })));
    assert_eq!(world.checkers.violations(), []);
    assert_eq!(world.checkers.report().expiries, 1);
}
