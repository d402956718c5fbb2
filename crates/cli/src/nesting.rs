//! `fencepost run` inside `fencepost run`: a command that asks for what it runs under would wait for itself for ever.
//!
//! Each `run` tells its command the sessions that it runs under. If one of them blocks an inner `run`, that is refused at once,
//! because the outer `run` keeps its lock until its command ends. Session ids are random and never used again, in both tiers. So a
//! command in the background, whose outer `run` has ended, does not block itself.
//!
//! The efficiency tier cannot be asked who holds and who waits. There only the holders in the busy answer are known: those of
//! the first name that is not free.

use fencepost::{Busy, Client, Error, Explanation, GrantId, LockMode, Name, SessionId, Tier};
use fencepost_core::{Mode, Takes};

/// The variable that holds the ids of the sessions in hex, outermost first, separated by commas.
pub(crate) const VARIABLE: &str = "FENCEPOST_SESSIONS";

/// How many sessions are passed on: the innermost ones. The environment has a limited size, and no script nests this deep on purpose.
const SESSIONS_MAX: usize = 64;

/// What a `run` asks for.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Locks { names: Vec<Name>, mode: LockMode, tier: Tier },
    Permits { name: Name, permits: u32 },
}

/// The sessions that this process runs under.
#[derive(Debug, Default)]
pub(crate) struct Outer(Vec<SessionId>);

impl Outer {
    pub(crate) fn of_environment() -> Outer {
        Outer::read(&std::env::var(VARIABLE).unwrap_or_default())
    }

    /// Skips parts that are not a session: the variable may have been set by hand.
    fn read(text: &str) -> Outer {
        let session = |part: &str| u128::from_str_radix(part, 16).ok().map(SessionId);
        Outer(text.rsplit(',').take(SESSIONS_MAX).filter_map(session).collect::<Vec<_>>().into_iter().rev().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The variable's value for a command that runs under one more session.
    pub(crate) fn and(&self, session: SessionId) -> String {
        let kept = &self.0[self.0.len().saturating_sub(SESSIONS_MAX - 1)..];
        let all = kept.iter().copied().chain([session]);
        all.map(|session| format!("{:032x}", session.0)).collect::<Vec<_>>().join(",")
    }

    /// The grant of one of them for which this request would wait for ever, if there is one.
    ///
    /// # Errors
    /// [`Error`] if the cluster could not be asked who holds the names.
    pub(crate) async fn in_the_way(
        &self,
        client: &Client,
        wanted: &Wanted,
        busy: &Busy,
    ) -> Result<Option<GrantId>, Error> {
        if self.is_empty() {
            return Ok(None);
        }
        match wanted {
            Wanted::Permits { name, permits } => {
                Ok(self.keeps_permits(&client.explain(name.as_str()).await?.what, *permits))
            }
            Wanted::Locks { names, mode, tier } => {
                let listed = busy.holders.iter().find(|holder| self.is_outer(holder.session));
                if listed.is_some() || *tier == Tier::Efficiency {
                    return Ok(listed.map(|holder| holder.grant));
                }
                // The answer lists some holders of one name. An outer `run` may hold another name, or the request is behind
                // a waiter that waits for an outer `run`. The name in the answer can also be a path above the wanted ones.
                let above = Some(&busy.name).filter(|name| !names.contains(name));
                let wants =
                    names.iter().map(|name| (name, mode.mode())).chain(above.map(|name| (name, mode.intention())));
                for (name, mode) in wants {
                    let held = self.keeps_lock(&client.explain(name.as_str()).await?.what, mode);
                    if held.is_some() {
                        return Ok(held);
                    }
                }
                Ok(None)
            }
        }
    }

    fn is_outer(&self, session: Option<SessionId>) -> bool {
        session.is_some_and(|session| self.0.contains(&session))
    }

    /// The outer grant that conflicts with this mode, or with a waiter that does.
    fn keeps_lock(&self, explained: &Explanation, wanted: Mode) -> Option<GrantId> {
        let conflicts = |takes: Takes, mode: Mode| matches!(takes, Takes::Mode(it) if !it.compatible(mode));
        let waits_between =
            |held: Mode| explained.queue.iter().any(|it| conflicts(it.wants, wanted) && conflicts(it.wants, held));
        let holders = explained.holders.iter().map(|it| &it.holder).filter(|it| self.is_outer(it.session));
        let blocks = |takes| matches!(takes, Takes::Mode(held) if !held.compatible(wanted) || waits_between(held));
        holders.filter(|holder| blocks(holder.takes)).map(|holder| holder.grant).next()
    }

    /// An outer grant of permits, if the outer grants leave too few permits for `wanted` more, or too few for a waiter that is ahead
    /// in the queue and is granted first.
    fn keeps_permits(&self, explained: &Explanation, wanted: u32) -> Option<GrantId> {
        let (semaphore, _) = explained.semaphore.as_ref()?;
        let permits = |takes| match takes {
            Takes::Permits(permits) => permits.get(),
            Takes::Mode(_) => 0,
        };
        let outer = || explained.holders.iter().map(|it| &it.holder).filter(|it| self.is_outer(it.session));
        let kept: u32 = outer().map(|holder| permits(holder.takes)).sum();
        let left = semaphore.limit.get().saturating_sub(kept);
        let most_wanted = explained.queue.iter().map(|it| permits(it.wants)).max().unwrap_or(0).max(wanted);
        outer().map(|holder| holder.grant).next().filter(|_| most_wanted > left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_passed_on_and_other_text_is_skipped() {
        let (one, two) = (SessionId(7), SessionId(u128::MAX));
        let told = Outer::default().and(one);
        let told = Outer::read(&told).and(two);
        assert_eq!(Outer::read(&told).0, [one, two]);
        for text in ["", ":", "x", ",,,", "-7", "a:7"] {
            assert!(Outer::read(text).is_empty(), "{text}");
        }
        assert_eq!(Outer::read("junk,7,").0, [one]);
    }

    #[test]
    fn deep_nesting_passes_on_the_innermost_sessions() {
        let mut told = String::new();
        for session in 1..=1_000 {
            told = Outer::read(&told).and(SessionId(session));
        }
        let sessions: Vec<u128> = Outer::read(&told).0.iter().map(|session| session.0).collect();
        assert_eq!(sessions, (1_000 - SESSIONS_MAX as u128 + 1..=1_000).collect::<Vec<_>>());
        assert!(told.len() < 4_096);
    }
}
