//! `fencepost run` inside `fencepost run`: a command that asks for the lock that it runs under would wait for itself for ever.
//!
//! Each `run` tells its command the grants that it runs under. If one of them blocks an inner `run`, that is refused at once, because
//! the outer `run` keeps its lock until its command ends. Grant ids are never used again. So a command in the background, whose
//! outer `run` has ended, does not block itself.

use fencepost::{Busy, BusyWhy, Client, Error, GrantId};

/// The variable that holds the grants, outermost first: `CLUSTER:GRANT,CLUSTER:GRANT`.
pub(crate) const VARIABLE: &str = "FENCEPOST_GRANTS";

/// How many grants are passed on: the innermost ones. The environment has a limited size, and no script nests this deep on purpose.
const GRANTS_MAX: usize = 64;

/// The grants that this process runs under.
#[derive(Debug, Default)]
pub(crate) struct Outer(Vec<(u128, GrantId)>);

impl Outer {
    pub(crate) fn of_environment() -> Outer {
        Outer::read(&std::env::var(VARIABLE).unwrap_or_default())
    }

    /// Skips parts that are not a grant: the variable may have been set by hand.
    fn read(text: &str) -> Outer {
        let grant = |part: &str| {
            let (cluster, grant) = part.split_once(':')?;
            Some((u128::from_str_radix(cluster, 16).ok()?, GrantId(grant.parse().ok()?)))
        };
        Outer(text.rsplit(',').take(GRANTS_MAX).filter_map(grant).collect::<Vec<_>>().into_iter().rev().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The variable's value for a command that runs under one more grant.
    pub(crate) fn and(&self, cluster: u128, grant: GrantId) -> String {
        let kept = &self.0[self.0.len().saturating_sub(GRANTS_MAX - 1)..];
        let all = kept.iter().copied().chain([(cluster, grant)]);
        all.map(|(cluster, grant)| format!("{cluster:032x}:{}", grant.0)).collect::<Vec<_>>().join(",")
    }

    /// The grant among them that blocks this request, if there is one.
    ///
    /// # Errors
    /// [`Error`] if the cluster could not be asked who holds the name.
    pub(crate) async fn in_the_way(&self, client: &Client, busy: &Busy) -> Result<Option<GrantId>, Error> {
        let cluster = client.cluster();
        let is_ours = |grant: &GrantId| self.0.iter().any(|(of, it)| Some(*of) == cluster && it == grant);
        if self.is_empty() || matches!(busy.why, BusyWhy::Frozen | BusyWhy::Resting) {
            return Ok(None);
        }
        if let Some(holder) = busy.holders.iter().find(|holder| is_ours(&holder.grant)) {
            return Ok(Some(holder.grant));
        }
        // The answer may list only some holders, or this request is behind an earlier one, which waits for the holders of the name.
        let is_listed = busy.why == BusyWhy::Held && busy.holders.len() as u64 >= u64::from(busy.holder_count);
        if is_listed {
            return Ok(None);
        }
        let explained = client.explain(busy.name.as_str()).await?;
        Ok(explained.holders.iter().map(|it| it.holder.grant).find(is_ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_passed_on_and_other_text_is_skipped() {
        let (one, two) = ((0xA, GrantId(7)), (u128::MAX, GrantId(u64::MAX)));
        let told = Outer::default().and(one.0, one.1);
        let told = Outer::read(&told).and(two.0, two.1);
        assert_eq!(Outer::read(&told).0, [one, two]);
        for text in ["", "7", ":", "x:7", "a:", ",,,", "a:7x", "a:-7"] {
            assert!(Outer::read(text).is_empty(), "{text}");
        }
        assert_eq!(Outer::read("junk,a:7,").0, [one]);
    }

    #[test]
    fn deep_nesting_passes_on_the_innermost_grants() {
        let mut told = String::new();
        for grant in 1..=1_000 {
            told = Outer::read(&told).and(0xA, GrantId(grant));
        }
        let grants: Vec<u64> = Outer::read(&told).0.iter().map(|(_, grant)| grant.0).collect();
        assert_eq!(grants, (1_000 - GRANTS_MAX as u64 + 1..=1_000).collect::<Vec<_>>());
        assert!(told.len() < 4_096);
    }
}
