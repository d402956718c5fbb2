//! Checks what a scenario expects against the log, the notes of its users, and the results at the stores.
//!
//! It only looks and words the result. An expectation that is not met becomes a violation in `play.rs`.

use fencepost_core::{Name, Outcome, Record, SessionId};
use fencepost_session::client::{Answer, GrantState};

use super::play::Player;
use crate::network::Endpoint;
use crate::scenario::{AnswerIs, BadScenario, Expectation, GuardSays, Guarded, Unguarded, lock_name};
use crate::scripted::ScriptedUser;

/// `Ok(description)` if the expectation is met, `Err(expected and actual)` if not.
type Found = Result<String, String>;

fn found(is_so: bool, so: String, but: impl FnOnce() -> String) -> Found {
    if is_so { Ok(so) } else { Err(format!("expected that {so}, but {}", but())) }
}

impl Player<'_> {
    /// Checks one expectation.
    pub(super) fn look(&mut self, expectation: &Expectation) -> Result<Found, BadScenario> {
        Ok(match expectation {
            Expectation::Holder { lock, who } => {
                let holders = self.holders(&lock_name(lock)?);
                let expected: Vec<Option<SessionId>> = self.notes_of(who)?.iter().map(|user| user.session()).collect();
                let is_so = holders.len() == 1 && expected.contains(&Some(holders[0]));
                found(is_so, format!("{who} holds {lock}"), || {
                    format!("it is held by {}", self.told_sessions(&holders))
                })
            }
            Expectation::Free { lock } => {
                let holders = self.holders(&lock_name(lock)?);
                let but = || format!("it is held by {}", self.told_sessions(&holders));
                found(holders.is_empty(), format!("no session holds {lock}"), but)
            }
            Expectation::Waiters { lock, count } => {
                let waiting = self.waiting(&lock_name(lock)?);
                found(waiting == *count, format!("the queue for {lock} is {count} long"), || {
                    format!("it is {waiting} long")
                })
            }
            Expectation::Guard { who, lock, says } => {
                let name = lock_name(lock)?;
                let users = self.notes_of(who)?;
                let seen: Vec<_> = users.iter().map(|user| user.notes.guard.get(&name).cloned().flatten()).collect();
                let is_so = seen.iter().all(|seen| match says {
                    GuardSays::Held => matches!(seen, Some(GrantState::Held | GrantState::Jeopardy)),
                    GuardSays::Lost => matches!(seen, Some(GrantState::Lost(_))),
                });
                let said = if *says == GuardSays::Held { "held" } else { "lost" };
                found(is_so, format!("the guard of {who} said that {lock} is {said}"), || format!("it said {seen:?}"))
            }
            Expectation::Answer { who, is } => {
                let users = self.notes_of(who)?;
                let answers: Vec<_> = users.iter().map(|user| user.notes.answer.as_ref()).collect();
                let is_so = answers.iter().all(|answer| answer_is(*answer) == Some(*is));
                found(is_so, told_answer(who, *is), || format!("it was {answers:?}"))
            }
            Expectation::Job { who, attempts, checkpoint, completed } => {
                let users = self.notes_of(who)?;
                let is_so = users.iter().filter_map(|user| user.notes.job.as_ref()).any(|job| {
                    let stored = job.checkpoint.as_ref().map(|it| it.bytes.as_bytes());
                    let same = stored == checkpoint.as_ref().map(|text| text.as_bytes());
                    same && job.attempts == *attempts && job.completion.is_some() == *completed
                });
                let stored =
                    checkpoint.as_ref().map_or("no checkpoint".to_owned(), |text| format!("the checkpoint \"{text}\""));
                let is = if *completed { "completed" } else { "open" };
                let so = format!("{who} read that the job is {is} after {attempts} attempts, with {stored}");
                found(is_so, so, || {
                    format!("it read {:?}", users.iter().map(|user| &user.notes.job).collect::<Vec<_>>())
                })
            }
            Expectation::Cycle { who, through } => {
                let mut expected = Vec::new();
                for who in through {
                    expected.extend(self.notes_of(who)?.iter().filter_map(|user| user.session()));
                }
                let users = self.notes_of(who)?;
                let cycle = users.iter().find_map(|user| match &user.notes.answer {
                    Some(Answer::Decided(Outcome::Deadlock(cycle))) => Some(cycle),
                    _ => None,
                });
                let cycle: Vec<SessionId> =
                    cycle.iter().flat_map(|cycle| &cycle.links).map(|link| link.session).collect();
                let so = format!("{who} was refused because of the cycle {}", through.join(", "));
                found(cycle == expected, so, || format!("the cycle was of {}", self.told_sessions(&cycle)))
            }
            Expectation::Store { who, did, guarded, unguarded } => {
                let users = self.notes_of(who)?;
                let replies = users.iter().flat_map(|user| &user.notes.store);
                let reply = replies.filter(|(visit, _)| visit == did).map(|(_, reply)| *reply).next_back();
                let is_so = reply.is_some_and(|reply| {
                    let guard_is_so = reply.accepted == (*guarded == Guarded::Accepted);
                    guard_is_so && unguarded.is_none_or(|it| reply.corrupted == (it == Unguarded::Corrupted))
                });
                let guard = if *guarded == Guarded::Accepted { "accepted" } else { "refused" };
                let other = match unguarded {
                    Some(Unguarded::Sound) => ", and the store without a guard is sound",
                    Some(Unguarded::Corrupted) => ", and the store without a guard is corrupted",
                    None => "",
                };
                let did = format!("{did:?}").to_lowercase();
                let so = format!("the guarded store {guard} the {did} of {who}{other}");
                found(is_so, so, || format!("what it said was {reply:?}"))
            }
            Expectation::TokenRose { lock, from, to } => {
                let name = lock_name(lock)?;
                let token = |users: Vec<&ScriptedUser>| {
                    users.iter().filter_map(|user| user.notes.tokens.get(&name)).max().copied()
                };
                let (one, other) = (token(self.notes_of(from)?), token(self.notes_of(to)?));
                let is_so = one.is_some() && one < other;
                let so = format!("the token of {to} on {lock} is above that of {from}");
                found(is_so, so, || format!("{from} had {one:?} and {to} {other:?}"))
            }
            Expectation::Served { who, count } => {
                let served: u64 = self.notes_of(who)?.iter().map(|user| user.notes.served).sum();
                found(served == *count, format!("{who} got {count} locks"), || format!("it got {served}"))
            }
            Expectation::HandOvers { entries, pushes } => {
                let (made, pushed) = (self.world.observer.hand_overs, self.world.observer.pushes);
                let so = format!("{entries} entries handed a lock over, with {pushes} pushes in all");
                found((made, pushed) == (*entries, *pushes), so, || {
                    format!("it was {made} entries and {pushed} pushes")
                })
            }
            Expectation::NewLeader => {
                let (old, new) = (self.old_leader, self.world.leader());
                let is_so = old.is_some() && new.is_some() && new != old;
                found(is_so, "another node leads".to_owned(), || format!("{new:?} leads, and {old:?} did"))
            }
            Expectation::DoesNotServe { who } => {
                let endpoints = self.endpoints(who)?;
                let serves = endpoints.iter().any(|endpoint| match endpoint {
                    Endpoint::Node(node) => {
                        self.world.nodes[node].replica.as_ref().is_some_and(|replica| replica.serves())
                    }
                    _ => false,
                });
                found(!serves, format!("the {who} does not serve"), || "it does".to_owned())
            }
            Expectation::RedlockHolders { lock, who } => {
                let name = lock_name(lock)?;
                let mut holding = Vec::new();
                for client in 0..self.world.clients.len() {
                    if self.world.redlock.holds(client, &name, self.world.now) {
                        holding.push(client);
                    }
                }
                let mut expected = Vec::new();
                for who in who {
                    expected.extend(self.users(who)?.into_iter().map(|(client, _)| client));
                }
                expected.sort_unstable();
                let verb = if who.len() == 1 { "believes" } else { "all believe" };
                let so = format!("{} {verb} to hold {lock} by Redlock", who.join(" and "));
                found(holding == expected, so, || format!("it is the clients {holding:?}"))
            }
            Expectation::RedlockCorrupted { count } => {
                let corrupted = self.world.redlock.corrupted;
                let so = format!("under Redlock {count} writes overwrote a newer value");
                found(corrupted == *count, so, || format!("it was {corrupted}"))
            }
        })
    }

    fn notes_of(&self, who: &str) -> Result<Vec<&ScriptedUser>, BadScenario> {
        let users = self.users(who)?;
        let users = users.into_iter().filter_map(|(client, user)| self.world.clients[client].scripted().nth(user));
        Ok(users.collect())
    }

    fn holders(&self, lock: &Name) -> Vec<SessionId> {
        let records = self.world.witness.records();
        let grants = records.filter_map(|record| if let Record::Grant(grant) = record { Some(grant) } else { None });
        grants.filter(|grant| grant.held.names().any(|name| name == lock)).map(|grant| grant.session).collect()
    }

    fn waiting(&self, lock: &Name) -> usize {
        let records = self.world.witness.records();
        let waits = records.filter_map(|record| if let Record::Waiter(waiter) = record { Some(waiter) } else { None });
        waits.filter(|waiter| waiter.wants.held().names().any(|name| name == lock)).count()
    }

    fn told_sessions(&self, sessions: &[SessionId]) -> String {
        let users: Vec<&ScriptedUser> = self.world.clients.iter().flat_map(|client| client.scripted()).collect();
        let name = |session: &SessionId| {
            let user = users.iter().find(|user| user.session() == Some(*session));
            user.map_or("an old session".to_owned(), |user| user.name.clone())
        };
        match sessions {
            [] => "no session".to_owned(),
            _ => sessions.iter().map(name).collect::<Vec<_>>().join(", "),
        }
    }
}

fn answer_is(answer: Option<&Answer>) -> Option<AnswerIs> {
    Some(match answer {
        None => AnswerIs::None,
        Some(Answer::Unknown) => AnswerIs::Unknown,
        Some(Answer::Failed(_)) => AnswerIs::Failed,
        Some(Answer::SessionEnded { .. }) => AnswerIs::SessionEnded,
        Some(Answer::Decided(outcome)) => match outcome {
            Outcome::Granted { .. } => AnswerIs::Granted,
            Outcome::Busy(_) => AnswerIs::Busy,
            Outcome::TimedOut => AnswerIs::TimedOut,
            Outcome::Completed { .. } => AnswerIs::Completed,
            Outcome::Deadlock(_) => AnswerIs::Deadlock,
            Outcome::SessionEnded(_) => AnswerIs::SessionEnded,
            _ => return None,
        },
    })
}

fn told_answer(who: &str, is: AnswerIs) -> String {
    let was = match is {
        AnswerIs::Granted => "got what it asked for",
        AnswerIs::Busy => "was told that it is busy",
        AnswerIs::TimedOut => "was told that its wait timed out",
        AnswerIs::Completed => "was told that the job is completed",
        AnswerIs::Deadlock => "was refused as a deadlock",
        AnswerIs::Unknown => "was told that the outcome is unknown",
        AnswerIs::Failed => "was told that nothing was done",
        AnswerIs::SessionEnded => "was told that its session is over",
        AnswerIs::None => "still waits for an answer",
    };
    format!("{who} {was}")
}
