//! The records of jobs, with what is derived from them: room, the holder and the waiters of each job, and when records end.
//!
//! Every change of a record goes through `change`, so that the bytes, the state hash and the indexes always agree. This file
//! knows no rule; `job.rs` decides.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use crate::bounds::{self, Bound};
use crate::digest::{Digest, Term};
use crate::record::JobRecord;
use crate::words::{Arrival, GrantId, JobKey, LogicalMs, Name};

/// All jobs that are remembered, held or waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Jobs {
    by_name: BTreeMap<Name, JobsOfName>,
    /// The records that have an end, earliest first.
    ends: BTreeSet<(LogicalMs, Name, JobKey)>,
    /// The jobs that a grant completed, so that the holder's repeated completion finds its answer.
    completed_by: BTreeMap<GrantId, (Name, JobKey)>,
    room: Room,
}

/// The jobs of one name. Invariant: not empty.
#[derive(Clone, Debug, Default)]
struct JobsOfName {
    records: BTreeMap<JobKey, Box<Job>>,
    /// The grant with a job key that stands. There is at most one, because it is exclusive.
    held: Option<(GrantId, JobKey)>,
    /// The waiters for each key.
    waiting: BTreeMap<JobKey, BTreeSet<Arrival>>,
    bytes: u64,
}

/// A remembered job, with its term in the state hash.
#[derive(Clone, Debug)]
struct Job {
    record: JobRecord,
    term: Term,
}

/// How much all jobs take of the group's bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// The jobs that are held. Room for the largest record is reserved for each.
    pub(crate) held: u64,
}

/// What counts for one pair of bounds: records and bytes, with their limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    records_max: u64,
    bytes_max: u64,
}

impl Fill {
    /// Whether more than four fifths of a bound are in use.
    pub(crate) fn is_nearly_full(self) -> bool {
        self.records * 5 > self.records_max * 4 || self.bytes * 5 > self.bytes_max * 4
    }
}

impl JobRecord {
    /// The bytes that it counts for.
    pub fn bytes(&self) -> u64 {
        let checkpoint = self.checkpoint.as_ref().map_or(0, |it| it.bytes.as_bytes().len());
        let result = self.completion.as_ref().map_or(0, |it| it.result.as_bytes().len());
        let error = self.last.as_ref().and_then(|it| it.ended.as_ref()).map_or(0, |it| it.error.as_bytes().len());
        let texts = self.name.as_str().len() + self.key.as_str().len();
        (bounds::JOB_RECORD_BYTES + texts + checkpoint + result + error) as u64
    }
}

impl Jobs {
    /// The record of a job, unless its time is over.
    // Rule: keep
    pub(crate) fn get(&self, name: &Name, key: &JobKey, stamp: LogicalMs) -> Option<&JobRecord> {
        let record = &self.by_name.get(name)?.records.get(key)?.record;
        record.until.is_none_or(|until| stamp < until).then_some(record)
    }

    /// The grant with a job key that stands on a name, and its key.
    pub(crate) fn held(&self, name: &Name) -> Option<&(GrantId, JobKey)> {
        self.by_name.get(name)?.held.as_ref()
    }

    /// The job that a grant completed.
    pub(crate) fn completed_by(&self, grant: GrantId) -> Option<&(Name, JobKey)> {
        self.completed_by.get(&grant)
    }

    /// The requests that wait for a job.
    pub(crate) fn waiting(&self, name: &Name, key: &JobKey) -> impl Iterator<Item = Arrival> + '_ {
        let waiting = self.by_name.get(name).and_then(|jobs| jobs.waiting.get(key));
        waiting.into_iter().flatten().copied()
    }

    /// All records of names that begin with a prefix, by name and key, after a job. Includes those whose time is over.
    pub(crate) fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a (Name, JobKey)>,
    ) -> impl Iterator<Item = &'a JobRecord> + 'a {
        let first = after.map_or(prefix, |(name, _)| name.as_str());
        let names = self.by_name.range::<str, _>((Included(first), Unbounded));
        let names = names.take_while(move |(name, _)| name.as_str().starts_with(prefix));
        names.flat_map(move |(name, jobs)| {
            let keys = match after {
                Some((last, key)) if last == name => jobs.records.range((Excluded(key.clone()), Unbounded)),
                _ => jobs.records.range::<JobKey, _>(..),
            };
            keys.map(|(_, job)| &job.record)
        })
    }

    /// All records, those whose time is over included, in canonical order.
    pub(crate) fn records(&self) -> impl Iterator<Item = &JobRecord> {
        self.by_name.values().flat_map(|jobs| jobs.records.values().map(|job| &job.record))
    }

    /// What all jobs take together.
    pub(crate) fn room(&self) -> Room {
        self.room
    }

    /// What counts for the bounds of the group.
    pub(crate) fn fill(&self) -> Fill {
        Fill {
            records: self.room.records + self.room.held,
            bytes: self.room.bytes + self.room.held * bounds::JOB_ROOM_BYTES as u64,
            records_max: bounds::JOBS_MAX as u64,
            bytes_max: bounds::JOB_BYTES_TOTAL_MAX as u64,
        }
    }

    /// What counts for the bounds of a name.
    pub(crate) fn fill_of(&self, name: &Name) -> Fill {
        let jobs = self.by_name.get(name);
        let held = u64::from(jobs.is_some_and(|jobs| jobs.held.is_some()));
        Fill {
            records: jobs.map_or(0, |jobs| jobs.records.len() as u64) + held,
            bytes: jobs.map_or(0, |jobs| jobs.bytes) + held * bounds::JOB_ROOM_BYTES as u64,
            records_max: bounds::JOBS_PER_NAME_MAX as u64,
            bytes_max: bounds::JOB_BYTES_PER_NAME_MAX as u64,
        }
    }

    /// The bound that one more held job under a name would exceed.
    pub(crate) fn full(&self, name: &Name) -> Option<Bound> {
        let exceeds = |fill: Fill| {
            let room = bounds::JOB_ROOM_BYTES as u64;
            (fill.records + 1 > fill.records_max, fill.bytes + room > fill.bytes_max)
        };
        match (exceeds(self.fill_of(name)), exceeds(self.fill())) {
            ((true, _), _) => Some(Bound::JobsPerName),
            ((_, true), _) => Some(Bound::JobBytesPerName),
            (_, (true, _)) => Some(Bound::Jobs),
            (_, (_, true)) => Some(Bound::JobBytesTotal),
            _ => None,
        }
    }

    /// Changes the record of a job. A job without a record, or whose record is past its time, gets a new one first.
    pub(crate) fn change<T>(
        &mut self,
        name: &Name,
        key: &JobKey,
        stamp: LogicalMs,
        digest: &mut Digest,
        change: impl FnOnce(&mut JobRecord) -> T,
    ) -> T {
        let mut record = match self.remove(name, key, digest) {
            Some(record) if record.until.is_none_or(|until| stamp < until) => record,
            _ => JobRecord {
                name: name.clone(),
                key: key.clone(),
                attempts: 0,
                last: None,
                checkpoint: None,
                completion: None,
                until: None,
            },
        };
        let result = change(&mut record);
        self.insert(record, digest);
        result
    }

    /// Puts a record into the table, new, changed or from a snapshot.
    pub(crate) fn insert(&mut self, record: JobRecord, digest: &mut Digest) {
        if let Some(until) = record.until {
            self.ends.insert((until, record.name.clone(), record.key.clone()));
        }
        if let (Some(last), Some(_)) = (&record.last, record.completion.as_ref().and_then(|it| it.token)) {
            self.completed_by.insert(last.grant, (record.name.clone(), record.key.clone()));
        }
        let bytes = record.bytes();
        self.room.records += 1;
        self.room.bytes += bytes;
        let jobs = self.by_name.entry(record.name.clone()).or_default();
        jobs.bytes += bytes;
        let key = record.key.clone();
        let mut job = Box::new(Job { record, term: Term::default() });
        digest.put(&mut job.term, &("job", &job.record));
        let replaced = jobs.records.insert(key, job);
        assert!(replaced.is_none(), "a job has two records");
    }

    /// Removes the record of a job.
    pub(crate) fn remove(&mut self, name: &Name, key: &JobKey, digest: &mut Digest) -> Option<JobRecord> {
        let jobs = self.by_name.get_mut(name)?;
        let Job { record, term } = *jobs.records.remove(key)?;
        digest.take(term);
        let bytes = record.bytes();
        self.room.records -= 1;
        self.room.bytes -= bytes;
        jobs.bytes -= bytes;
        self.forget_name_if_unused(name);
        if let Some(until) = record.until {
            self.ends.remove(&(until, record.name.clone(), record.key.clone()));
        }
        if let Some(last) = &record.last {
            self.completed_by.remove(&last.grant);
        }
        Some(record)
    }

    /// Forgets the records whose time is over, those that ended first, up to as many as one entry may.
    // Rule: keep
    pub(crate) fn forget_ended(&mut self, stamp: LogicalMs, digest: &mut Digest) {
        for _ in 0..bounds::JOBS_FORGOTTEN_PER_ENTRY_MAX {
            let Some((until, name, key)) = self.ends.first() else { return };
            if *until > stamp {
                return;
            }
            let (name, key) = (name.clone(), key.clone());
            self.remove(&name, &key, digest);
        }
    }

    /// Notes that a grant for a job stands. Its record, if there is one, has no end while it does.
    pub(crate) fn hold(&mut self, name: &Name, key: &JobKey, grant: GrantId, stamp: LogicalMs, digest: &mut Digest) {
        let jobs = self.by_name.entry(name.clone()).or_default();
        assert!(jobs.held.is_none(), "two grants stand for jobs of one name");
        jobs.held = Some((grant, key.clone()));
        self.room.held += 1;
        match self.get(name, key, stamp) {
            Some(_) => self.change(name, key, stamp, digest, |record| record.until = None),
            None => drop(self.remove(name, key, digest)),
        }
    }

    /// Notes that the grant for a job ended.
    pub(crate) fn unhold(&mut self, name: &Name) {
        let jobs = self.by_name.get_mut(name).expect("a name with a held job is known");
        assert!(jobs.held.take().is_some(), "the grant of a job ends once");
        self.room.held -= 1;
        self.forget_name_if_unused(name);
    }

    pub(crate) fn join(&mut self, name: &Name, key: &JobKey, arrival: Arrival) {
        let waiting = &mut self.by_name.entry(name.clone()).or_default().waiting;
        waiting.entry(key.clone()).or_default().insert(arrival);
    }

    pub(crate) fn leave(&mut self, name: &Name, key: &JobKey, arrival: Arrival) {
        let jobs = self.by_name.get_mut(name).expect("a name with a waiter for a job is known");
        let waiting = jobs.waiting.get_mut(key).expect("a job with a waiter is known");
        waiting.remove(&arrival);
        if waiting.is_empty() {
            jobs.waiting.remove(key);
        }
        self.forget_name_if_unused(name);
    }

    // Rule: free-names
    fn forget_name_if_unused(&mut self, name: &Name) {
        let unused = |jobs: &JobsOfName| jobs.records.is_empty() && jobs.held.is_none() && jobs.waiting.is_empty();
        if self.by_name.get(name).is_some_and(unused) {
            self.by_name.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_has_at_most_a_million_records_with_those_of_held_jobs() {
        let name = Name::new("billing").expect("valid");
        let room = Room { records: bounds::JOBS_MAX as u64 - 2, bytes: 0, held: 1 };
        let mut jobs = Jobs { room, ..Jobs::default() };
        assert_eq!(jobs.full(&name), None);
        assert!(jobs.fill().is_nearly_full() && !jobs.fill_of(&name).is_nearly_full());
        jobs.room.held += 1;
        assert_eq!(jobs.full(&name), Some(Bound::Jobs));
    }

    #[test]
    fn a_bound_is_nearly_full_above_four_fifths_of_its_records_or_bytes() {
        let fill = |records, bytes| Fill { records, bytes, records_max: 10, bytes_max: 100 };
        assert!(!fill(8, 80).is_nearly_full());
        assert!(fill(9, 0).is_nearly_full());
        assert!(fill(0, 81).is_nearly_full());
    }
}
