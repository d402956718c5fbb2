//! Applies one log to the state machine and to the model, and compares everything that comes out.
//!
//! A log that fails is shortened: entries and commands are taken out while it still fails in the same way.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fencepost_core::*;

use super::Model;
use super::deadlock::Asker;
use super::invariants::{Invariants, Step};
use super::random::World;
use super::tally::Tally;

/// One log entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Whether the group is first restored from a backup of its present state.
    pub restores: bool,
    pub stamp: LogicalMs,
    pub batch: Batch,
}

/// Entries in one run of a seed.
pub const ENTRIES_PER_SEED: usize = 300;
const ENTRIES_PER_SNAPSHOT: u64 = 50;
const ENTRIES_PER_VERIFY: u64 = 4;

/// The model and the state machines that must agree with it.
pub struct Runner {
    pub model: Model,
    /// The state machine under test, and others with the same log and other hash seeds. If empty, the model runs alone.
    pub states: Vec<LockState>,
    invariants: Invariants,
    entries: u64,
    entries_per_verify: u64,
    entries_per_snapshot: u64,
    pub tally: Tally,
}

impl Runner {
    pub fn new(states: Vec<LockState>) -> Runner {
        Runner::from(Model::new(), states)
    }

    /// Goes on from a state whose earlier events are unknown.
    pub fn from(model: Model, states: Vec<LockState>) -> Runner {
        let invariants = Invariants::of(&model);
        let (entries_per_verify, entries_per_snapshot) = (ENTRIES_PER_VERIFY, ENTRIES_PER_SNAPSHOT);
        Runner {
            model,
            states,
            invariants,
            entries: 0,
            entries_per_verify,
            entries_per_snapshot,
            tally: Tally::default(),
        }
    }

    /// Carries out an entry, and before it the restore that it asks for.
    pub fn enter(&mut self, entry: &Entry) -> Result<(), String> {
        if entry.restores {
            self.restore_backup()?;
        }
        self.step(entry.stamp, &entry.batch)
    }

    /// Goes on from a backup of the present state.
    // Rule: restore
    fn restore_backup(&mut self) -> Result<(), String> {
        self.check_backup(bounds::RESTORE_TOKEN_JUMP)?;
        for (state, hash_seed) in self.states.iter_mut().zip(1..) {
            let restored = LockState::restore_backup(hash_seed, state.records(), bounds::RESTORE_TOKEN_JUMP);
            *state = restored.map_err(|bad| bad.to_string())?;
        }
        self.model = Model::from_backup(self.model.records(), bounds::RESTORE_TOKEN_JUMP);
        self.invariants = Invariants::of(&self.model);
        Ok(())
    }

    /// Applies one entry to the model and to all state machines, and runs every check.
    pub fn step(&mut self, stamp: LogicalMs, batch: &Batch) -> Result<(), String> {
        self.entries += 1;
        let before = self.model.clone();
        let effects = self.model.apply(stamp, batch);
        let mut raw = None;
        if let Some(state) = self.states.first_mut() {
            raw = Some(agree(state, &self.model, &effects, stamp, batch)?);
        }
        let raw = raw.as_ref().unwrap_or(&effects);
        let step = Step { stamp, batch, effects: &effects, raw, before: &before, after: &self.model };
        self.invariants.check(&step)?;
        self.tally.count(&effects);
        if let [state, others @ ..] = self.states.as_mut_slice() {
            for other in others {
                if other.apply(stamp, batch.clone()) != *raw || other.state_hash() != state.state_hash() {
                    return Err("I16: another hash seed gives other effects or another state hash".to_string());
                }
            }
            if self.entries.is_multiple_of(self.entries_per_verify) {
                state.verify()?;
            }
            if self.entries.is_multiple_of(self.entries_per_snapshot) {
                *state = i15_snapshot_and_restore(state, self.entries)?;
            }
        }
        Ok(())
    }

    /// Restores the present state as a backup and compares the result with the model's.
    pub fn check_backup(&self, token_jump: u64) -> Result<(), String> {
        let expected = Model::from_backup(self.model.records(), token_jump);
        if let Some(state) = self.states.first() {
            let restored = LockState::restore_backup(self.entries, state.records(), token_jump);
            let restored = restored.map_err(|bad| bad.to_string())?;
            let records: Vec<Record> = restored.records().collect();
            equal("records of the restored backup", &records, &expected.records())?;
            restored.verify()?;
        }
        let is_empty = expected.sessions.is_empty() && expected.grants.is_empty() && expected.waiters.is_empty();
        let raised = expected.header.last_token >= self.model.header.last_token + token_jump.min(1);
        if is_empty && raised { Ok(()) } else { Err("a restored backup has sessions or old tokens".to_string()) }
    }
}

/// Applies an entry that the model has applied, and compares effects, records and the next deadline. Returns the effects of
/// the state machine.
pub fn agree(
    state: &mut LockState,
    model: &Model,
    effects: &Effects,
    stamp: LogicalMs,
    batch: &Batch,
) -> Result<Effects, String> {
    let raw = state.apply(stamp, batch.clone());
    let comparable = without_cycles(&raw);
    equal("replies", &comparable.replies, &effects.replies)?;
    equal("pushes", &comparable.pushes, &effects.pushes)?;
    equal("events", &comparable.events, &effects.events)?;
    equal("waits that ended with a grant", &comparable.waited_ms, &effects.waited_ms)?;
    let records: Vec<Record> = state.records().map(record_without_cycle).collect();
    equal("records", &records, &model.records())?;
    let (due, expected) = (state.next_deadline(), model.next_deadline());
    if due != expected {
        return Err(format!("next deadline: the state says {due:?}, the model {expected:?}"));
    }
    Ok(raw)
}

/// I15: snapshot and restore give the same records and the same state hash.
fn i15_snapshot_and_restore(state: &LockState, hash_seed: u64) -> Result<LockState, String> {
    let restored = LockState::restore(hash_seed, state.records()).map_err(|why| format!("I15: {why}"))?;
    let (after, before): (Vec<Record>, Vec<Record>) = (restored.records().collect(), state.records().collect());
    equal("I15: records of the snapshot", &after, &before)?;
    if restored.state_hash() != state.state_hash() {
        return Err("I15: the restored state has another hash".to_string());
    }
    restored.verify().map_err(|why| format!("I15: {why}"))?;
    Ok(restored)
}

/// Compares two lists. The error says from which index on they differ.
fn equal<T: PartialEq + std::fmt::Debug>(what: &str, state: &[T], model: &[T]) -> Result<(), String> {
    if state == model {
        return Ok(());
    }
    let at = state.iter().zip(model).take_while(|(a, b)| a == b).count();
    Err(format!(
        "{what} differ from index {at} on (lengths {} and {})\n  state: {:#?}\n  model: {:#?}",
        state.len(),
        model.len(),
        state.get(at),
        model.get(at)
    ))
}

/// The effects without deadlock cycles, which the model does not report.
fn without_cycles(effects: &Effects) -> Effects {
    let mut effects = effects.clone();
    for reply in &mut effects.replies {
        take_cycle_out(&mut reply.outcome);
    }
    for push in &mut effects.pushes {
        if let Push::Ended { outcome, .. } = push {
            take_cycle_out(outcome);
        }
    }
    for event in &mut effects.events {
        if let Event::NotGranted { outcome, .. } = event {
            take_cycle_out(outcome);
        }
    }
    effects
}

fn take_cycle_out(outcome: &mut Outcome) {
    match outcome {
        Outcome::Deadlock(cycle) => cycle.links.clear(),
        Outcome::Attached(attached) => {
            attached.unseen.iter_mut().for_each(|answer| take_cycle_out(&mut answer.outcome));
        }
        _ => {}
    }
}

fn record_without_cycle(mut record: Record) -> Record {
    if let Record::Answer(answer) = &mut record {
        take_cycle_out(&mut answer.outcome);
    }
    record
}

/// A run that failed.
#[derive(Debug)]
pub struct Failure {
    pub why: String,
    pub entries: Vec<Entry>,
    /// The number of commands until it failed.
    pub commands: u64,
}

pub fn commands_in(batch: &Batch) -> u64 {
    (batch.renewals.len() + batch.operations.len()) as u64
}

fn caught<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}

/// Runs one seed from an empty state and returns the number of commands.
pub fn run_seed(seed: u64, states: Vec<LockState>, tally: &mut Tally) -> Result<u64, Failure> {
    let mut world = World::new(seed);
    let mut runner = Runner::new(states);
    runner.tally = std::mem::take(tally);
    let mut entries = Vec::new();
    let mut commands = 0;
    let mut check = |runner: &mut Runner| {
        for _ in 0..ENTRIES_PER_SEED {
            let entry = world.next_entry(&runner.model);
            commands += commands_in(&entry.batch);
            entries.push(entry);
            runner.enter(entries.last().expect("pushed above"))?;
        }
        runner.check_backup(bounds::RESTORE_TOKEN_JUMP)
    };
    let result = caught(|| check(&mut runner));
    *tally = std::mem::take(&mut runner.tally);
    match result {
        Ok(()) => Ok(commands),
        Err(why) => Err(Failure { why, entries, commands }),
    }
}

/// Applies a given log to the model and these state machines.
pub fn replay(entries: &[Entry], states: Vec<LockState>) -> Result<(), String> {
    caught(|| {
        let mut runner = Runner::new(states);
        // More often than usual, so that a shortened log still reaches a verification and a snapshot.
        (runner.entries_per_verify, runner.entries_per_snapshot) = (1, 3);
        entries.iter().try_for_each(|entry| runner.enter(entry))?;
        runner.check_backup(bounds::RESTORE_TOKEN_JUMP)
    })
}

/// Takes entries, then commands, out of a failing log while it still fails.
pub fn shorten(mut entries: Vec<Entry>, fails: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
    loop {
        let commands: u64 = entries.iter().map(|entry| 1 + commands_in(&entry.batch)).sum();
        entries = with_fewer_commands(with_fewer_entries(entries, &fails), &fails);
        if commands == entries.iter().map(|entry| 1 + commands_in(&entry.batch)).sum::<u64>() {
            return entries;
        }
    }
}

fn with_fewer_entries(mut entries: Vec<Entry>, fails: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
    let mut size = entries.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < entries.len() {
            let mut fewer = entries.clone();
            fewer.drain(at..(at + size).min(entries.len()));
            let fewer = renumbered(&entries, fewer);
            if fails(&fewer) {
                entries = fewer;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    entries
}

fn with_fewer_commands(mut entries: Vec<Entry>, fails: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
    for at in (0..entries.len()).rev() {
        let batch = &entries[at].batch;
        let (renewals, operations) = (batch.renewals.len(), batch.operations.len());
        let try_without = |entries: &mut Vec<Entry>, change: &dyn Fn(&mut Entry)| {
            let mut fewer = entries.clone();
            change(&mut fewer[at]);
            let fewer = renumbered(entries, fewer);
            if fails(&fewer) {
                *entries = fewer;
            }
        };
        for place in (0..renewals).rev() {
            try_without(&mut entries, &|entry| drop(entry.batch.renewals.remove(place)));
        }
        for place in (0..operations).rev() {
            try_without(&mut entries, &|entry| drop(entry.batch.operations.remove(place)));
        }
        try_without(&mut entries, &|entry| entry.batch.failover_grace = false);
        try_without(&mut entries, &|entry| entry.restores = false);
    }
    entries
}

/// Corrects the grant ids in a shortened log, so that its commands name the grants of the same requests as before.
fn renumbered(original: &[Entry], mut fewer: Vec<Entry>) -> Vec<Entry> {
    let granted = |effects: Effects| {
        effects.events.into_iter().filter_map(|event| match event {
            Event::Granted { request, grant, count: 1, .. } => Some((grant, (request.session, request.number))),
            _ => None,
        })
    };
    let apply = |model: &mut Model, entry: &Entry| {
        if entry.restores {
            *model = Model::from_backup(model.records(), bounds::RESTORE_TOKEN_JUMP);
        }
        granted(model.apply(entry.stamp, &entry.batch))
    };
    let mut asker_of: BTreeMap<GrantId, Asker> = BTreeMap::new();
    let mut model = Model::new();
    for entry in original {
        asker_of.extend(apply(&mut model, entry));
    }
    let mut grant_of: BTreeMap<Asker, GrantId> = BTreeMap::new();
    let mut model = Model::new();
    for entry in &mut fewer {
        for operation in &mut entry.batch.operations {
            if let Some(named) = named_grant(operation)
                && let Some(grant) = asker_of.get(named).and_then(|asker| grant_of.get(asker))
            {
                *named = *grant;
            }
        }
        grant_of.extend(apply(&mut model, entry).map(|(grant, asker)| (asker, grant)));
    }
    fewer
}

fn named_grant(operation: &mut Operation) -> Option<&mut GrantId> {
    match operation {
        Operation::Request(request) => match &mut request.action {
            Action::Release { grant, .. }
            | Action::Begin { grant }
            | Action::Checkpoint { grant, .. }
            | Action::Extend { grant, .. }
            | Action::Convert { grant, .. }
            | Action::SetValue { grant, .. } => Some(grant),
            _ => None,
        },
        Operation::Admin(Admin { act: Act::Break { grant } | Act::WaiveRest { grant }, .. }) => Some(grant),
        _ => None,
    }
}

/// A failure as text: the seed to replay, the shortest log that was found, and what is wrong.
pub fn report(seed: u64, failure: Failure, make_states: impl Fn() -> Vec<LockState>) -> String {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found_at = failure.entries.len();
    let why = failure.why;
    // The first word is the kind of failure. A shorter log must fail in the same way.
    let kind = |why: &str| why.split([' ', ':']).next().map(str::to_string);
    let short = shorten(failure.entries, |entries| {
        replay(entries, make_states()).is_err_and(|shorter| kind(&shorter) == kind(&why))
    });
    let short_why = replay(&short, make_states()).err().unwrap_or_else(|| "does not fail when replayed".to_string());
    std::panic::set_hook(hook);
    let lines: Vec<String> = short.iter().map(|entry| format!("{entry:?},")).collect();
    format!(
        "seed {seed} fails at entry {found_at} (replay: FENCEPOST_SEED={seed}):\n{why}\n\n\
         shortened to {} entries:\n{}\n\n{short_why}",
        lines.len(),
        lines.join("\n")
    )
}

/// The number of commands until a difference between a state machine and the model is found; `None` if it takes more than
/// `commands_max`.
pub fn commands_until_caught(make_state: impl Fn() -> LockState, commands_max: u64) -> Option<u64> {
    let mut commands = 0;
    let mut tally = Tally::default();
    for seed in 1.. {
        match run_seed(seed, vec![make_state()], &mut tally) {
            Ok(run) => commands += run,
            Err(failure) => return Some(commands + failure.commands),
        }
        if commands >= commands_max {
            break;
        }
    }
    None
}
