//! The store of a history: data with versions, and marks that admit accesses by the rules.
//!
//! It can be told to break one rule ([`Careless`]), so that a test can see that the histories notice it.

use std::collections::BTreeMap;

use fencepost_core::{Name, Token};
use fencepost_fence::rules::{MarkTable, Shown, Stale, Use};

use super::client::Work;
use super::{name, within};

/// How often a datum was written.
pub(crate) type Version = u64;

/// A rule that all clients and the store of a history break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Careless {
    /// Readers and new holders read without the guard. (Rule: claim-before-read)
    ReadsUnannounced,
    /// A write shows its own token, but nothing that it was decided from. (Rule: fence)
    ShowsOnlyWhatItWrites,
    /// A path is treated as a plain name. (Rule: fence-hierarchy)
    IgnoresPaths,
    /// Marks are dropped, and no base floor replaces them. (Rule: fence-gc)
    ForgetsWithoutBase,
    /// Marks of living tokens are dropped as well. (Rule: fence-gc)
    ForgetsTheLiving,
}

pub(crate) struct Store {
    marks: MarkTable,
    versions: BTreeMap<Name, Version>,
    careless: Option<Careless>,
}

impl Store {
    pub(crate) fn new(careless: Option<Careless>) -> Store {
        Store { marks: MarkTable::default(), versions: BTreeMap::new(), careless }
    }

    pub(crate) fn version(&self, datum: &Name) -> Version {
        self.versions.get(datum).copied().unwrap_or(0)
    }

    /// Reads a place and everything below it.
    pub(crate) fn read(&mut self, place: &Name, token: Token, claims: bool) -> Result<BTreeMap<Name, Version>, Stale> {
        let used_to = if claims { Use::Claim } else { Use::Read };
        if self.careless != Some(Careless::ReadsUnannounced) {
            self.admit(vec![Shown { name: place.clone(), token, used_to }])?;
        }
        Ok(within(place).into_iter().map(|datum| (datum.clone(), self.version(&datum))).collect())
    }

    /// Writes these data under the grant of the first work. The first datum is the name that is shown for the write. The decision
    /// came from what was read under all works.
    pub(crate) fn write(&mut self, data: &[Name], works: &[&Work]) -> Result<(), Stale> {
        let read = |work: &&Work| {
            let token = work.token;
            let places = work.read.keys();
            places.map(move |place| Shown { name: place.clone(), token, used_to: Use::Read }).collect::<Vec<_>>()
        };
        let mut shown: Vec<Shown> = works.iter().flat_map(read).collect();
        if self.careless == Some(Careless::ShowsOnlyWhatItWrites) {
            shown.clear();
        }
        shown.push(Shown { name: data[0].clone(), token: works[0].token, used_to: Use::Write });
        self.admit(shown)?;
        data.iter().for_each(|datum| *self.versions.entry(datum.clone()).or_default() += 1);
        Ok(())
    }

    /// Whether another client has written anything that was read, since it was read.
    pub(crate) fn has_changed(&self, work: &Work) -> bool {
        work.read.values().flatten().any(|(datum, version)| self.version(datum) != *version)
    }

    pub(crate) fn forget_below(&mut self, oldest_live: Token, last_token: Token) -> u64 {
        match self.careless {
            Some(Careless::ForgetsWithoutBase) => self.marks = MarkTable::default(),
            Some(Careless::ForgetsTheLiving) => return self.marks.forget_below(last_token) as u64,
            _ => return self.marks.forget_below(oldest_live) as u64,
        }
        0
    }

    fn admit(&mut self, mut shown: Vec<Shown>) -> Result<(), Stale> {
        if self.careless == Some(Careless::IgnoresPaths) {
            shown.iter_mut().for_each(|one| one.name = name(&one.name.as_str().replace('/', ":")));
        }
        self.marks.admit(&shown)
    }
}
