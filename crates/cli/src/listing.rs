//! Reads whole listings, page by page, and the clients behind the sessions in them.
//!
//! The pages are read one after the other, so a listing is not a snapshot of one moment. `shown.rs` decides how it is shown.

use std::collections::BTreeSet;

use fencepost::{Client, GrantView, ReadAt, SessionId, SessionView, WaiterRecord};

use crate::failure::Result;
use crate::shown::People;

/// How many sessions are looked up, with one request each.
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
