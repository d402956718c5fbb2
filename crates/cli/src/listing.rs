//! Reads whole listings, page by page, and the clients behind the sessions in them.
//!
//! The pages are read one after the other, so a listing is not a snapshot of one moment. `shown.rs` decides how it is shown.

use std::collections::BTreeSet;

use fencepost::{Client, GrantView, ReadAt, SessionId, SessionView, WaiterRecord};

use crate::failure::Result;
use crate::shown::People;

/// How many sessions are looked up, with one request each. The others are shown by id only.
const PEOPLE_MAX: usize = 200;

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

/// Looks up the clients behind these sessions.
pub(crate) async fn people(client: &Client, sessions: impl IntoIterator<Item = SessionId>) -> Result<People> {
    let sessions: BTreeSet<SessionId> = sessions.into_iter().collect();
    let mut people = People::default();
    for session in sessions.into_iter().take(PEOPLE_MAX) {
        if let Some(found) = client.find_session(session).await?.what {
            people.learn(session, found.metadata.as_bytes());
        }
    }
    Ok(people)
}
