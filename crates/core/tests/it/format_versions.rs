//! The active format version: only a raise changes it, it is part of the state, and rules, operations and records follow it.
//!
//! Uses the made-up version 2, because there is only one real version so far.

#![cfg(feature = "made-up-version")]

use fencepost_core::{
    Acquire, Action, Batch, Epoch, FormatVersion, Lock, LockMode, LockState, LogicalMs, Metadata, Name, Open,
    Operation, Outcome, Principal, Reason, Record, Refusal, Request, RequestNumber, SecretHash, Seen, SessionId, Terms,
    Ttl, Wait,
};

const FIRST: FormatVersion = FormatVersion::FIRST;
const MADE_UP: FormatVersion = FormatVersion::MADE_UP;

fn open(session: u128) -> Operation {
    Operation::Open(Open {
        session: SessionId(session),
        secret_hash: SecretHash([0; 32]),
        principal: Principal::new("payments").unwrap(),
        ttl: Ttl::new(30_000).unwrap(),
        metadata: Metadata::default(),
    })
}

fn lock(session: u128, number: u64, mode: LockMode) -> Operation {
    let locks = [Lock { name: Name::new("r").unwrap(), mode }].into_iter().collect();
    let action = Action::Acquire(Acquire { locks, owner: None, wait: Wait::No, terms: Terms::default() });
    let (session, epoch, number) = (SessionId(session), Epoch(1), RequestNumber(number));
    Operation::Request(Request { session, epoch, number, seen: Seen::default(), action })
}

fn remark() -> Operation {
    Operation::MadeUp(Reason::new("upgraded").unwrap())
}

fn apply(state: &mut LockState, raise_to: Option<FormatVersion>, operations: &[Operation]) -> Vec<Outcome> {
    let batch = Batch { raise_to, operations: operations.to_vec(), ..Batch::default() };
    let effects = state.apply(LogicalMs(state.stamp().0 + 1), batch);
    effects.replies.into_iter().map(|reply| reply.outcome).collect()
}

/// The number of holders that a busy answer names.
fn named(outcome: &Outcome) -> usize {
    let Outcome::Busy(busy) = outcome else { panic!("{outcome:?}") };
    assert_eq!(busy.holder_count, 2, "the number of all holders does not change");
    busy.holders.len()
}

#[test]
fn rules_operations_and_records_follow_the_active_version() {
    let mut state = LockState::new(1);
    let shared = [lock(1, 1, LockMode::Shared), lock(2, 1, LockMode::Shared)];
    apply(&mut state, None, &[open(1), open(2), open(3)]);
    apply(&mut state, None, &shared);
    assert_eq!(state.version(), FIRST);
    let before = apply(&mut state, None, &[lock(3, 1, LockMode::Exclusive), remark()]);
    assert_eq!(named(&before[0]), 2);
    assert_eq!(before[1], Outcome::Refused(Refusal::NotYet { needs: MADE_UP }));
    let Outcome::Refused(refusal) = &before[1] else { unreachable!("compared above") };
    assert!(refusal.to_string().contains("not before every node is upgraded"), "{refusal}");
    assert!(!state.records().any(|record| matches!(record, Record::Remark(_))), "a refusal changes nothing");

    // The raise takes effect before everything else in its entry.
    let after = apply(&mut state, Some(MADE_UP), &[lock(3, 2, LockMode::Exclusive), remark()]);
    assert_eq!((state.version(), named(&after[0]), &after[1]), (MADE_UP, 1, &Outcome::Done));
    let repeat = apply(&mut state, None, &[lock(3, 1, LockMode::Exclusive)]);
    assert_eq!(named(&repeat[0]), 2, "a remembered answer does not change");

    apply(&mut state, Some(FIRST), &[]);
    assert_eq!(state.version(), MADE_UP, "the version never falls");
}

#[test]
fn the_version_is_in_the_hash_and_survives_a_snapshot() {
    let (mut one, mut other) = (LockState::new(1), LockState::new(1));
    apply(&mut one, None, &[]);
    apply(&mut other, Some(MADE_UP), &[]);
    assert_ne!(one.state_hash(), other.state_hash());
    apply(&mut other, None, &[remark()]);
    apply(&mut other, None, &[remark()]);
    let restored = LockState::restore(2, other.records()).unwrap();
    assert_eq!((restored.version(), restored.state_hash()), (MADE_UP, other.state_hash()));
    assert_eq!(restored.verify(), Ok(()));

    let older = other.records().map(|record| match record {
        Record::Header(header) => Record::Header(fencepost_core::Header { version: FIRST, ..header }),
        other => other,
    });
    assert!(LockState::restore(2, older).is_err(), "a record of a newer version than the header's");
}
