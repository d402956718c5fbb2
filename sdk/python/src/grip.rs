//! The guards of the library behind a held lock, without their types: Python has types of its own.
//!
//! A [`Grip`] owns the lock and gives it back. A [`View`] only shows it, so that it can be asked while the grip is away for a change of mode.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use fencepost::{Efficiency, Exclusive, GrantState, Job, JobHold, Leadership, Lost, Permit, Shared, Token, Update};
use fencepost_backends as other;
use futures_util::future::select_all;

use crate::problem::Problem;

pub(crate) type Future<T> = Pin<Box<dyn std::future::Future<Output = T> + Send>>;

/// What is held. Its methods release it, or change its mode.
pub(crate) enum Grip {
    Exclusive(fencepost::Guard<Exclusive>),
    Shared(fencepost::Guard<Shared>),
    Update(fencepost::Guard<Update>),
    Permits(fencepost::Guard<Permit>),
    Efficiency(fencepost::Guard<Efficiency>),
    Leadership(Leadership),
    Job(Job),
    OtherExclusive(other::Guard<Exclusive>),
    OtherShared(other::Guard<Shared>),
    OtherEfficiency(other::Guard<Efficiency>),
    OtherSeveral(other::GuardAll<Exclusive>),
    OtherSeveralEfficiency(other::GuardAll<Efficiency>),
}

/// The tokens of a held lock.
#[derive(Clone, Debug)]
pub(crate) enum Tokens {
    /// Permits and the efficiency tier.
    None,
    /// One for all names.
    One(u64),
    /// One for each name: locks that were acquired one by one.
    Each(BTreeMap<String, u64>),
}

/// A view of a held lock.
pub(crate) enum View {
    Exclusive(fencepost::Hold<Exclusive>),
    Shared(fencepost::Hold<Shared>),
    Update(fencepost::Hold<Update>),
    Permits(fencepost::Hold<Permit>),
    Efficiency(fencepost::Hold<Efficiency>),
    Job(JobHold),
    OtherExclusive(other::Hold<Exclusive>),
    OtherShared(other::Hold<Shared>),
    OtherEfficiency(other::Hold<Efficiency>),
    OtherSeveral(Vec<other::Hold<Exclusive>>),
    OtherSeveralEfficiency(Vec<other::Hold<Efficiency>>),
}

impl Grip {
    pub(crate) fn view(&self) -> View {
        match self {
            Grip::Exclusive(guard) => View::Exclusive(guard.hold()),
            Grip::Shared(guard) => View::Shared(guard.hold()),
            Grip::Update(guard) => View::Update(guard.hold()),
            Grip::Permits(guard) => View::Permits(guard.hold()),
            Grip::Efficiency(guard) => View::Efficiency(guard.hold()),
            Grip::Leadership(leadership) => View::Exclusive(leadership.hold()),
            Grip::Job(job) => View::Job(job.hold()),
            Grip::OtherExclusive(guard) => View::OtherExclusive(guard.hold()),
            Grip::OtherShared(guard) => View::OtherShared(guard.hold()),
            Grip::OtherEfficiency(guard) => View::OtherEfficiency(guard.hold()),
            Grip::OtherSeveral(guards) => View::OtherSeveral(guards.holds().collect()),
            Grip::OtherSeveralEfficiency(guards) => View::OtherSeveralEfficiency(guards.holds().collect()),
        }
    }

    pub(crate) fn tokens(&self) -> Tokens {
        let one = |token: Token| Tokens::One(token.0);
        match self {
            Grip::Exclusive(guard) => one(guard.token().into()),
            Grip::Shared(guard) => one(guard.token().into()),
            Grip::Update(guard) => one(guard.token().into()),
            Grip::Leadership(leadership) => one(leadership.epoch().into()),
            Grip::Job(job) => one(job.token().into()),
            Grip::OtherExclusive(guard) => one(guard.token().into()),
            Grip::OtherShared(guard) => one(guard.token().into()),
            Grip::OtherSeveral(guards) => {
                let named = |hold: other::Hold<Exclusive>| {
                    let token = Token::from(hold.token()).0;
                    hold.names().map(|name| (name.to_string(), token)).collect::<Vec<_>>()
                };
                Tokens::Each(guards.holds().flat_map(named).collect())
            }
            Grip::Permits(_) | Grip::Efficiency(_) | Grip::OtherEfficiency(_) | Grip::OtherSeveralEfficiency(_) => {
                Tokens::None
            }
        }
    }

    /// Releases it. The release is under way after the first step of the future, and goes on if the future is dropped then. The number is how
    /// often the owner still holds the lock.
    pub(crate) fn release(self) -> Future<Result<u32, Problem>> {
        macro_rules! release {
            ($release:expr) => {
                Box::pin(async move { Ok($release.await?.count_left) })
            };
        }
        match self {
            Grip::Exclusive(guard) => release!(guard.release()),
            Grip::Shared(guard) => release!(guard.release()),
            Grip::Update(guard) => release!(guard.release()),
            Grip::Permits(guard) => release!(guard.release()),
            Grip::Efficiency(guard) => release!(guard.release()),
            Grip::Leadership(leadership) => release!(leadership.resign()),
            Grip::OtherExclusive(guard) => release!(guard.release()),
            Grip::OtherShared(guard) => release!(guard.release()),
            Grip::OtherEfficiency(guard) => release!(guard.release()),
            Grip::OtherSeveral(guards) => Box::pin(async move { Ok(guards.release().await.map(|()| 0)?) }),
            Grip::OtherSeveralEfficiency(guards) => Box::pin(async move { Ok(guards.release().await.map(|()| 0)?) }),
            // Dropped without a report, so the job stays open.
            Grip::Job(job) => {
                drop(job);
                Box::pin(std::future::ready(Ok(0)))
            }
        }
    }

    /// Whether closing its session ends it, so that it need not be released by itself.
    pub(crate) fn is_of_a_session(&self) -> bool {
        !matches!(
            self,
            Grip::OtherExclusive(_)
                | Grip::OtherShared(_)
                | Grip::OtherEfficiency(_)
                | Grip::OtherSeveral(_)
                | Grip::OtherSeveralEfficiency(_)
        )
    }

    /// Becomes exclusive. `Err` has the lock as it was, unless it is not certain which mode it has: then it was given back.
    pub(crate) fn upgrade(self, wait: Duration) -> Future<Result<Grip, (Option<Grip>, Problem)>> {
        macro_rules! upgrade {
            ($guard:expr, $back:path) => {
                Box::pin(async move {
                    match $guard.upgrade(wait).await {
                        Ok(guard) => Ok(Grip::Exclusive(guard)),
                        Err(not) => Err((not.guard.map($back), not.error.into())),
                    }
                })
            };
        }
        match self {
            Grip::Update(guard) => upgrade!(guard, Grip::Update),
            Grip::Shared(guard) => upgrade!(guard, Grip::Shared),
            other => {
                let problem = match other {
                    Grip::Exclusive(_) => Problem::misused("this lock is exclusive already"),
                    _ => Problem::unsupported("only a shared or an update lock of Fencepost can be upgraded"),
                };
                Box::pin(std::future::ready(Err((Some(other), problem))))
            }
        }
    }
}

/// Runs an expression with the view of one lock. Several locks of other systems are treated by the second expression.
macro_rules! each_view {
    ($view:expr, $one:ident => $do:expr, $all:ident => $do_all:expr) => {
        match $view {
            View::Exclusive($one) => $do,
            View::Shared($one) => $do,
            View::Update($one) => $do,
            View::Permits($one) => $do,
            View::Efficiency($one) => $do,
            View::Job($one) => $do,
            View::OtherExclusive($one) => $do,
            View::OtherShared($one) => $do,
            View::OtherEfficiency($one) => $do,
            View::OtherSeveral($all) => $do_all,
            View::OtherSeveralEfficiency($all) => $do_all,
        }
    };
}

/// Runs an expression with the view of a lock of Fencepost; `None` for a lock of another system.
macro_rules! native_view {
    ($view:expr, $one:ident => $do:expr) => {
        match $view {
            View::Exclusive($one) => Some($do),
            View::Shared($one) => Some($do),
            View::Update($one) => Some($do),
            View::Permits($one) => Some($do),
            View::Efficiency($one) => Some($do),
            View::Job($one) => Some($do),
            _ => None,
        }
    };
}

impl View {
    pub(crate) fn state(&self) -> GrantState {
        each_view!(self, one => one.state(), all => {
            let states = all.iter().map(|one| one.state());
            // The worst one counts.
            states.max_by_key(|state| match state {
                GrantState::Lost(_) => 2,
                GrantState::Jeopardy => 1,
                _ => 0,
            }).unwrap_or(GrantState::Held)
        })
    }

    pub(crate) fn remaining(&self) -> Duration {
        each_view!(self, one => one.remaining(), all => all.iter().map(|one| one.remaining()).min().unwrap_or_default())
    }

    pub(crate) async fn lost(&self) -> Lost {
        each_view!(self, one => one.lost().await, all => {
            select_all(all.iter().map(|one| Box::pin(one.lost()))).await.0
        })
    }

    pub(crate) fn names(&self) -> Vec<String> {
        each_view!(self, one => one_names(one.names()), all => {
            all.iter().flat_map(|one| one_names(one.names())).collect()
        })
    }

    /// The id of its session, and the number of its grant.
    pub(crate) fn ids(&self) -> Option<(String, u64)> {
        native_view!(self, one => (format!("{:032x}", one.session().0), one.grant().0))
    }

    pub(crate) async fn extend(&self, max_hold: Duration) -> Result<(), Problem> {
        let extended = native_view!(self, one => one.extend(max_hold).await);
        Ok(extended.ok_or_else(|| Problem::unsupported("only Fencepost has `max_hold`, which `extend` moves"))??)
    }

    pub(crate) async fn set_value(&self, value: Vec<u8>) -> Result<(), Problem> {
        match self {
            View::Exclusive(hold) => Ok(hold.set_value(value).await?),
            _ => Err(Problem::misused("only a leadership has a value")),
        }
    }

    pub(crate) fn job(&self) -> Result<JobHold, Problem> {
        match self {
            View::Job(hold) => Ok(hold.clone()),
            _ => Err(Problem::misused("this lock is not a job")),
        }
    }
}

fn one_names<'a>(names: impl Iterator<Item = &'a fencepost::Name>) -> Vec<String> {
    names.map(ToString::to_string).collect()
}
