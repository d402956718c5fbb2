//! Jobs in the world: reads of jobs by their users, and what administrators do to jobs.
//!
//! A read goes to the node that leads, as the client library's does, and is linearizable. What a user does with the answer is decided in
//! `runner.rs`.

use fencepost_core::{Act, JobKey, Keep, Name, Record};

use super::{Happening, World};
use crate::fact::{Fact, WorldTime};
use crate::network::Endpoint;
use crate::process::Arrival;

/// A user's read of a job.
#[derive(Clone, Debug)]
pub(super) struct JobRead {
    pub(super) client: usize,
    pub(super) user: usize,
    /// The user's number for this read.
    pub(super) call: u64,
    pub(super) name: Name,
    pub(super) key: JobKey,
}

impl World {
    /// Sends a read to the node that leads. It may be lost on the way; users ask again.
    pub(super) fn ask_for_job(&mut self, read: JobRead) {
        let Some(node) = self.leader() else { return };
        let (from, to) = (Endpoint::Client(read.client), Endpoint::Node(node));
        if !self.network.is_cut(from, to) {
            let at = WorldTime(self.now.0 + self.network.delay(from, to, &mut self.random));
            self.agenda.put(at, Happening::JobRead { node, read: Box::new(read) });
        }
    }

    pub(super) fn job_read_arrives(&mut self, id: u64, read: JobRead) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.runs()) else { return };
        if let Some(Ok(ticket)) = node.replica.as_mut().map(|replica| replica.submit_read()) {
            let number = self.read_asked(id, ticket);
            self.job_reads.insert(number, read);
            self.turn(id);
        }
    }

    /// A read was answered. If it is a read of a job, the job is sent to its user.
    pub(super) fn job_read_ready(&mut self, id: u64, number: u64) {
        let Some(JobRead { client, user, call, name, key }) = self.job_reads.remove(&number) else { return };
        let replica = self.nodes[&id].replica.as_ref().expect("it answered");
        let (position, view) = (replica.applied(), replica.state().job(&name, &key));
        let record = view.record.as_ref();
        self.observer.fact(self.now, &Fact::JobRead { position, stamp: view.stamp, name: &name, key: &key, record });
        let (from, to) = (Endpoint::Node(id), Endpoint::Client(client));
        if !self.network.is_cut(from, to) {
            let at = WorldTime(self.now.0 + self.network.delay(from, to, &mut self.random));
            let arrival = Box::new(Arrival::Job { user, call, record: view.record.map(Box::new) });
            self.agenda.put(at, Happening::ToClient { client, arrival });
        }
    }

    /// A random act on a job.
    pub(super) fn act_on_job(&mut self) -> Option<Act> {
        let jobs: Vec<(Name, JobKey)> = self.witness.records().filter_map(job).collect();
        let (name, key) = (!jobs.is_empty()).then(|| self.random.pick(&jobs).clone())?;
        Some(match self.random.below(3) {
            0 => Act::ForgetJob { name, key },
            _ => Act::CompleteJob { name, key, keep: Keep::new(60_000).expect("in bounds") },
        })
    }

    /// Allows jobs again, if they are refused since a restore.
    pub(super) fn allow_jobs(&mut self) {
        if self.witness.counts().jobs_refused {
            self.act(Act::AllowJobs);
        }
    }
}

/// A job that is remembered or held.
fn job(record: Record) -> Option<(Name, JobKey)> {
    match record {
        Record::Job(job) => Some((job.name, job.key)),
        Record::Grant(grant) => grant.job().map(|(name, terms)| (name.clone(), terms.key.clone())),
        _ => None,
    }
}
