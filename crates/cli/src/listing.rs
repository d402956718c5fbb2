//! Reads whole listings, page by page, and the clients behind the sessions in them.
//!
//! The pages are read one after the other, so a listing is not a snapshot of one moment. `shown.rs` decides how it is shown.

use std::collections::{BTreeMap, BTreeSet};

use crate::failure::Result;
use crate::shown::People;
use fencepost::{Client, GrantId, GrantView, JobKey, JobRecord, Name, ReadAt, SessionId, SessionView, WaiterRecord};

/// How many sessions or jobs are looked up, with one request each.
const LOOKUPS_MAX: usize = 20;
/// How many pages of sessions a join reads: 100,000 sessions. Those on later pages are shown by id only.
const SESSION_PAGES_MAX: usize = 100;

/// Every grant that holds a name with this prefix, and the position and time of the last page.
pub(crate) async fn grants(client: &Client, prefix: &str) -> Result<(Vec<GrantView>, ReadAt)> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = client.grants(prefix, after).await?;
        rows.extend(page.what.rows);
        after = page.what.next;
        if after.is_none() {
            return Ok((rows, page.at));
        }
    }
}

/// The requests that wait for a name with this prefix, from at most `pages_max` pages.
pub(crate) async fn waiters(client: &Client, prefix: &str, pages_max: usize) -> Result<Vec<WaiterRecord>> {
    let (mut rows, mut after) = (Vec::new(), None);
    for _ in 0..pages_max {
        let page = client.waiters(prefix, after).await?;
        rows.extend(page.what.rows);
        after = page.what.next;
        if after.is_none() {
            break;
        }
    }
    Ok(rows)
}

/// Every job that is remembered of a name with this prefix, and the position and time of the last page.
pub(crate) async fn jobs(client: &Client, prefix: &str) -> Result<(Vec<JobRecord>, ReadAt)> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = client.jobs(prefix, after.as_ref()).await?;
        rows.extend(page.what.rows);
        after = page.what.next;
        if after.is_none() {
            return Ok((rows, page.at));
        }
    }
}

/// The numbers of the attempts that these grants of jobs have begun: looked up if they are few, else read from the listing of all jobs.
pub(crate) async fn attempts(
    client: &Client,
    jobs: impl IntoIterator<Item = (GrantId, &Name, &JobKey)>,
) -> Result<BTreeMap<GrantId, u64>> {
    let wanted: BTreeMap<GrantId, (&Name, &JobKey)> =
        jobs.into_iter().map(|(grant, name, key)| (grant, (name, key))).collect();
    let records = if wanted.len() <= LOOKUPS_MAX {
        let mut records = Vec::new();
        for (name, key) in wanted.values() {
            records.extend(client.job(name.as_str(), key.as_str()).await?.what.record);
        }
        records
    } else {
        self::jobs(client, "").await?.0
    };
    let attempt = |job: JobRecord| Some((job.last?.grant, job.attempts));
    Ok(records.into_iter().filter_map(attempt).filter(|(grant, _)| wanted.contains_key(grant)).collect())
}

/// The attempts of those among these grants that are for jobs.
pub(crate) async fn attempts_of(client: &Client, grants: &[GrantView]) -> Result<BTreeMap<GrantId, u64>> {
    let jobs = grants.iter().filter_map(|grant| {
        let (name, terms) = grant.record.job()?;
        Some((grant.record.id, name, &terms.key))
    });
    attempts(client, jobs).await
}

/// Every session, and the position and time of the last page.
pub(crate) async fn sessions(client: &Client) -> Result<(Vec<SessionView>, ReadAt)> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = client.sessions(after).await?;
        rows.extend(page.what.rows);
        after = page.what.next;
        if after.is_none() {
            return Ok((rows, page.at));
        }
    }
}

/// The clients behind these sessions: looked up if they are few, else joined with the listing of all sessions.
pub(crate) async fn people(client: &Client, sessions: impl IntoIterator<Item = SessionId>) -> Result<People> {
    let mut wanted: BTreeSet<SessionId> = sessions.into_iter().collect();
    let mut people = People::default();
    if wanted.len() <= LOOKUPS_MAX {
        learn(client, &mut people, wanted).await?;
        return Ok(people);
    }
    let mut after = None;
    for _ in 0..SESSION_PAGES_MAX {
        let page = client.sessions(after).await?;
        for session in page.what.rows.iter().filter(|session| wanted.remove(&session.id)) {
            people.learn(session.id, session.metadata.as_bytes());
        }
        after = page.what.next;
        if after.is_none() || wanted.is_empty() {
            break;
        }
    }
    Ok(people)
}

/// Looks up the clients behind those sessions that are not known yet, a few at a time.
pub(crate) async fn learn(
    client: &Client,
    people: &mut People,
    sessions: impl IntoIterator<Item = SessionId>,
) -> Result<()> {
    let unknown: BTreeSet<SessionId> = sessions.into_iter().filter(|session| !people.knows(*session)).collect();
    for session in unknown.into_iter().take(LOOKUPS_MAX) {
        if let Some(found) = client.find_session(session).await?.what {
            people.learn(session, found.metadata.as_bytes());
        }
    }
    Ok(())
}
