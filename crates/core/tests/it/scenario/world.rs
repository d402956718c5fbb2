//! Runs a scenario: holds the state under test, the stamp, and what each client knows about its own session.
//!
//! Every entry is applied to two replicas with different hash seeds. Both must return the same effects, have the same state
//! after it, and pass verification. Nothing here decides what a lock does.

use std::collections::{BTreeMap, BTreeSet};

use fencepost_core::{
    Act, Action, Admin, Batch, Effects, Epoch, EventRing, FreezeId, GrantId, Held, LockState, LogicalMs, Name, Open,
    Operation, Outcome, Position, Principal, Push, Record, Renewal, ReplyTo, Request, RequestNumber, Scope, SecretHash,
    Seen, SessionId,
};

use super::explain;
use super::parse::{AdminAct, Asks, Doing, GrantWord, Line, Opening, Question, Sees, Who};
use super::print::Spelling;
use super::show;
use super::words::time;

/// The state under test and the clients around it.
pub(crate) struct World {
    state: LockState,
    /// The same log on another node: only its hash seed differs.
    twin: LockState,
    stamp: LogicalMs,
    /// The index of the last entry.
    index: u64,
    clients: BTreeMap<String, Client>,
    spelling: Spelling,
    /// The newest grant of each session on each name, so that a scenario can name it after its end.
    newest_grants: BTreeMap<(SessionId, Name), GrantId>,
    events_shown: bool,
    ring: EventRing,
}

/// What a client knows about its own session.
struct Client {
    id: SessionId,
    epoch: Epoch,
    last_number: u64,
    actions: BTreeMap<u64, Action>,
    answered: BTreeSet<u64>,
}

/// An entry under construction, with the line for each reply.
#[derive(Default)]
struct Draft {
    batch: Batch,
    renewals: Vec<ReplyLine>,
    operations: Vec<ReplyLine>,
}

/// The client of a reply, and how its line begins.
#[derive(Clone)]
struct ReplyLine {
    label: String,
    client: Option<String>,
    number: Option<u64>,
    /// Whether equal replies in a row may share one line.
    groups: bool,
}

const RING_EVENTS: usize = 1_000;

impl World {
    pub(crate) fn new() -> World {
        World {
            state: LockState::new(1),
            twin: LockState::new(2),
            stamp: LogicalMs(0),
            index: 0,
            clients: BTreeMap::new(),
            spelling: Spelling::default(),
            newest_grants: BTreeMap::new(),
            events_shown: false,
            ring: EventRing::new(RING_EVENTS, Position::default()),
        }
    }

    /// Runs a step and returns its output.
    pub(crate) fn run(&mut self, doing: &Doing) -> Result<Vec<String>, String> {
        match doing {
            Doing::Ask(question) => self.ask(question),
            Doing::Entries { times, entries } => {
                let mut lines = Vec::new();
                for _ in 0..*times {
                    lines.clear();
                    for entry in entries {
                        lines.extend(self.enter(entry)?);
                    }
                }
                self.verify()?;
                Ok(if lines.is_empty() { vec!["nothing".to_string()] } else { lines })
            }
        }
    }

    fn enter(&mut self, entry: &[Line]) -> Result<Vec<String>, String> {
        let mut draft = Draft::default();
        for line in entry {
            self.draft(line, &mut draft)?;
        }
        let effects = self.state.apply(self.stamp, draft.batch.clone());
        let twins = self.twin.apply(self.stamp, draft.batch);
        if effects != twins {
            return Err(format!("two nodes with the same log differ:\n{effects:?}\n{twins:?}"));
        }
        if let Some(due) = self.state.next_deadline().filter(|due| *due <= self.stamp) {
            return Err(format!("something due at {} outlived the entry at {}", time(due.0), time(self.stamp.0)));
        }
        self.index += 1;
        self.ring.push(self.index, self.stamp, None, effects.events.iter().cloned());
        let lines = self.print(&effects, &draft.renewals, &draft.operations);
        self.learn(&effects, &draft.renewals, &draft.operations);
        Ok(lines)
    }

    fn verify(&mut self) -> Result<(), String> {
        self.state.verify().map_err(|what| format!("the state does not verify: {what}"))?;
        if self.state.state_hash() != self.twin.state_hash() || !self.state.records().eq(self.twin.records()) {
            return Err("two nodes with the same log have different states".to_string());
        }
        Ok(())
    }

    fn draft(&mut self, line: &Line, draft: &mut Draft) -> Result<(), String> {
        match line {
            Line::After(duration) => self.stamp = self.stamp.after(*duration),
            Line::At(stamp) if *stamp < self.stamp => return Err(format!("it is {} already", time(self.stamp.0))),
            Line::At(stamp) => self.stamp = *stamp,
            Line::Grace => draft.batch.failover_grace = true,
            Line::Open(opening) => self.draft_opening(opening, draft),
            Line::KeepAlive { who, seen } => {
                let client = self.client(&who.session)?;
                let epoch = who.epoch.map_or(client.epoch, Epoch);
                draft.batch.renewals.push(Renewal::KeepAlive { session: client.id, epoch, seen: client.seen(seen) });
                draft.renewals.push(ReplyLine::of(&who.session));
            }
            Line::Attach { who, right_secret, seen } => {
                let client = self.client(&who.session)?;
                let (session, secret_hash) = (client.id, secret_of(client.id, *right_secret));
                draft.batch.renewals.push(Renewal::Attach { session, secret_hash, seen: client.seen(seen) });
                draft.renewals.push(ReplyLine::of(&who.session));
            }
            Line::Request { who, seen, asks } => self.draft_request(who, seen, asks, draft)?,
            Line::Admin { act, reason } => {
                let act = self.act(act)?;
                let by = Principal::new("admin").map_err(|bad| bad.to_string())?;
                draft.batch.operations.push(Operation::Admin(Admin { by, reason: reason.clone(), act }));
                draft.operations.push(ReplyLine::of_admin());
            }
        }
        Ok(())
    }

    fn draft_opening(&mut self, opening: &Opening, draft: &mut Draft) {
        for name in &opening.sessions {
            let fresh = SessionId(self.clients.len() as u128 + 1);
            let client = self.clients.entry(name.clone()).or_insert_with(|| Client::new(fresh));
            self.spelling.sessions.insert(client.id, name.clone());
            draft.batch.operations.push(Operation::Open(Open {
                session: client.id,
                secret_hash: secret_of(client.id, opening.right_secret),
                principal: opening.principal.clone(),
                ttl: opening.ttl,
                metadata: opening.metadata.clone(),
            }));
            draft.operations.push(ReplyLine::of(name));
        }
    }

    fn draft_request(&mut self, who: &Who, seen: &Sees, asks: &Asks, draft: &mut Draft) -> Result<(), String> {
        let session = self.client(&who.session)?.id;
        let grant = |word: &GrantWord| self.grant(word, Some(session));
        let action = match asks {
            Asks::Lock(acquire) => Some(Action::Acquire(acquire.clone())),
            Asks::Take(take) => Some(Action::TakePermits(take.clone())),
            Asks::Cancel { request, release_if_granted } => {
                Some(Action::Cancel { request: *request, release_if_granted: *release_if_granted })
            }
            Asks::Release(word, report) => {
                Some(Action::Release { grant: grant(word)?, report: report.clone().map(Box::new) })
            }
            Asks::Begin(word) => Some(Action::Begin { grant: grant(word)? }),
            Asks::Checkpoint(word, bytes) => Some(Action::Checkpoint { grant: grant(word)?, bytes: bytes.clone() }),
            Asks::Extend(word, max_hold) => Some(Action::Extend { grant: grant(word)?, max_hold: *max_hold }),
            Asks::Convert(word, name, mode, wait) => {
                Some(Action::Convert { grant: grant(word)?, name: name.clone(), mode: *mode, wait: *wait })
            }
            Asks::SetValue(word, value) => Some(Action::SetValue { grant: grant(word)?, value: value.clone() }),
            Asks::Close => Some(Action::Close),
            Asks::Again => None,
        };
        let client = self.clients.get_mut(&who.session).expect("found above");
        let number = who.number.unwrap_or(client.last_number + 1);
        client.last_number = client.last_number.max(number);
        let action = match action {
            Some(action) => action,
            None => client.actions.get(&number).cloned().ok_or(format!("#{number} was never asked"))?,
        };
        client.actions.insert(number, action.clone());
        draft.batch.operations.push(Operation::Request(Request {
            session,
            epoch: who.epoch.map_or(client.epoch, Epoch),
            number: RequestNumber(number),
            seen: client.seen(seen),
            action,
        }));
        draft.operations.push(ReplyLine {
            label: format!("{}#{number}", who.session),
            client: Some(who.session.clone()),
            number: Some(number),
            groups: false,
        });
        Ok(())
    }

    fn act(&mut self, act: &AdminAct) -> Result<Act, String> {
        Ok(match act {
            AdminAct::Break(word) => Act::Break { grant: self.grant(word, None)? },
            AdminAct::Evict(session) => Act::Evict { session: self.client(session)?.id },
            AdminAct::Waive(word) => Act::WaiveRest { grant: self.resting(word)? },
            AdminAct::FreezeName(freeze, name) => {
                Act::Freeze { freeze: self.freeze(freeze), scope: Scope::Name(name.clone()) }
            }
            AdminAct::FreezePrefix(freeze, prefix) => {
                Act::Freeze { freeze: self.freeze(freeze), scope: Scope::Prefix(prefix.as_bytes().into()) }
            }
            AdminAct::Thaw(freeze) => Act::Thaw { freeze: self.freeze(freeze) },
            AdminAct::CompleteJob(name, key, keep) => {
                Act::CompleteJob { name: name.clone(), key: key.clone(), keep: *keep }
            }
            AdminAct::ForgetJob(name, key) => Act::ForgetJob { name: name.clone(), key: key.clone() },
            AdminAct::AllowJobs => Act::AllowJobs,
            AdminAct::Limit(name, limit) => Act::SetLimit { name: name.clone(), limit: *limit },
        })
    }

    fn client(&self, name: &str) -> Result<&Client, String> {
        self.clients.get(name).ok_or(format!("no session '{name}' was opened"))
    }

    fn freeze(&mut self, name: &str) -> FreezeId {
        let known = self.spelling.freezes.iter().find(|(_, known)| *known == name).map(|(id, _)| *id);
        known.unwrap_or_else(|| {
            let id = FreezeId(self.spelling.freezes.len() as u128 + 1);
            self.spelling.freezes.insert(id, name.to_string());
            id
        })
    }

    /// The grant that a word of the scenario means: the one that holds the name, or else the last one that did.
    fn grant(&self, word: &GrantWord, session: Option<SessionId>) -> Result<GrantId, String> {
        let name = match word {
            GrantWord::Id(id) => return Ok(GrantId(*id)),
            GrantWord::On(name) => name,
        };
        let of_session = |id: SessionId| session.is_none_or(|session| session == id);
        let held: Vec<_> = (self.state.records())
            .filter_map(|record| match record {
                Record::Grant(grant) if of_session(grant.session) && grant.held.names().any(|held| held == name) => {
                    Some(grant.id)
                }
                _ => None,
            })
            .collect();
        let ended = || {
            let grants = self.newest_grants.iter().filter(|((id, about), _)| of_session(*id) && about == name);
            grants.map(|(_, grant)| *grant).max()
        };
        match held[..] {
            [grant] => Ok(grant),
            [] => ended().ok_or(format!("there was no grant on {name}: say 'grant N'")),
            _ => Err(format!("several grants on {name}: say 'grant N'")),
        }
    }

    fn resting(&self, word: &GrantWord) -> Result<GrantId, String> {
        let name = match word {
            GrantWord::Id(id) => return Ok(GrantId(*id)),
            GrantWord::On(name) => name,
        };
        let mut rests = self.state.records().filter_map(|record| match record {
            Record::Rest(rest) if rest.held.names().any(|held| held == name) => Some(rest.grant),
            _ => None,
        });
        rests.next().ok_or(format!("nothing rests on {name}: say 'grant N'"))
    }

    fn print(&self, effects: &Effects, renewals: &[ReplyLine], operations: &[ReplyLine]) -> Vec<String> {
        let mut lines: Vec<(String, String)> = Vec::new();
        for reply in &effects.replies {
            let line = reply_line(reply.to, renewals, operations);
            let text = self.spelling.outcome(&reply.outcome) + &self.spelling.repeat(&reply.outcome, reply.repeat);
            match lines.last_mut() {
                // Equal replies to several sessions share one line.
                Some((labels, same)) if *same == text && line.groups => {
                    *labels += &format!(", {}", line.label);
                }
                _ => lines.push((line.label.clone(), text)),
            }
        }
        let replies = lines.into_iter().map(|(labels, text)| format!("{labels}: {text}"));
        let pushes = effects.pushes.iter().map(|push| self.spelling.push(push));
        let shown = if self.events_shown { &effects.events[..] } else { &[] };
        let events = shown.iter().map(|event| self.spelling.event(event));
        replies
            .chain(pushes)
            .chain(events)
            .flat_map(|text| text.lines().map(str::to_string).collect::<Vec<_>>())
            .collect()
    }

    /// Updates what the clients know from the effects: epochs, and which of their requests are answered.
    fn learn(&mut self, effects: &Effects, renewals: &[ReplyLine], operations: &[ReplyLine]) {
        for reply in &effects.replies {
            let line = reply_line(reply.to, renewals, operations);
            let Some(client) = line.client.as_ref().and_then(|name| self.clients.get_mut(name)) else { continue };
            match &reply.outcome {
                Outcome::Opened { epoch } if reply.repeat.is_none() => {
                    *client = Client { epoch: *epoch, ..Client::new(client.id) };
                }
                Outcome::Attached(attached) => client.epoch = attached.epoch,
                Outcome::Queued { .. } | Outcome::Refused(_) => {}
                _ => client.answered.extend(line.number),
            }
            // A refusal is an answer like any other, unless the request was not admitted at all.
            if let (Outcome::Refused(_), Some(number)) = (&reply.outcome, line.number)
                && answer_is_kept(&self.state, client.id, number)
            {
                client.answered.insert(number);
            }
        }
        for push in &effects.pushes {
            if let Push::Ended { session, number, .. } = push
                && let Some(client) = self.clients.values_mut().find(|client| client.id == *session)
            {
                client.answered.insert(number.0);
            }
        }
        for record in self.state.records() {
            if let Record::Grant(grant) = record {
                let names: Vec<_> = match &grant.held {
                    Held::Locks(locks) => locks.iter().map(|lock| lock.name.clone()).collect(),
                    Held::Permits { name, .. } => vec![name.clone()],
                };
                self.newest_grants.extend(names.into_iter().map(|name| ((grant.session, name), grant.id)));
            }
        }
    }

    fn ask(&mut self, question: &Question) -> Result<Vec<String>, String> {
        let before = self.state.state_hash();
        let lines = match question {
            Question::Show => show::names(&records_of(&self.state), &self.spelling),
            Question::ShowSession(name) => {
                show::session(&records_of(&self.state), self.client(name)?.id, &self.spelling)
            }
            Question::ShowJob(name, key) => show::job(&self.state.job(name, key), &self.spelling),
            Question::ShowJobs(prefix) => {
                let page = self.state.list_jobs(prefix, None, usize::MAX);
                page.rows.iter().map(|job| show::job_line(job, &self.spelling)).collect()
            }
            Question::Deadline => vec![match self.state.next_deadline() {
                Some(due) => format!("next deadline {}", time(due.0)),
                None => "no deadline".to_string(),
            }],
            Question::Snapshot => return self.snapshot(),
            Question::RestoreBackup { token_jump } => return self.restore_backup(*token_jump),
            Question::Check(name, token) => vec![explain::check(self.state.check(name, *token))],
            Question::Why { name, queue_max } => {
                explain::resource(&self.state.explain(name, *queue_max), &self.spelling)
            }
            Question::WhyWaits { session, number } => {
                let chain = self.state.explain_wait(self.client(session)?.id, RequestNumber(*number));
                chain.map_or(vec!["does not wait".to_string()], |chain| explain::chain(&chain, &self.spelling))
            }
            Question::Events(shown) => {
                self.events_shown = *shown;
                Vec::new()
            }
            Question::Watch { prefix, after } => match self.ring.after(*after, prefix, RING_EVENTS) {
                Ok(events) => events
                    .map(|event| {
                        let at =
                            format!("{}.{} at {}", event.position.index, event.position.ordinal, time(event.stamp.0));
                        format!("{at} {}", self.spelling.event(&event.event))
                    })
                    .collect(),
                Err(compacted) => {
                    vec![format!("compacted up to {}.{}", compacted.oldest.index, compacted.oldest.ordinal)]
                }
            },
            Question::Ring(events_max) => {
                // A new ring has no events of earlier entries.
                self.ring = EventRing::new(*events_max, Position { index: self.index, ordinal: u32::MAX });
                Vec::new()
            }
        };
        if self.state.state_hash() != before {
            return Err("a question changed the state".to_string());
        }
        Ok(if lines.is_empty() { vec!["nothing".to_string()] } else { lines })
    }

    fn snapshot(&mut self) -> Result<Vec<String>, String> {
        let records = records_of(&self.state);
        let restored = LockState::restore(3, records.clone()).map_err(|bad| bad.to_string())?;
        if records_of(&restored) != records {
            return Err(format!("restored records differ:\n{records:?}\n{:?}", records_of(&restored)));
        }
        if restored.state_hash() != self.state.state_hash() {
            return Err("the restored state has another hash".to_string());
        }
        // The twin is not restored: from here on, a restored replica is compared with one that was not.
        self.state = restored;
        self.verify()?;
        Ok(vec![format!("restored from {} records", records.len())])
    }

    fn restore_backup(&mut self, token_jump: u64) -> Result<Vec<String>, String> {
        let records = records_of(&self.state);
        self.state = LockState::restore_backup(3, records.clone(), token_jump).map_err(|bad| bad.to_string())?;
        self.twin = LockState::restore_backup(4, records, token_jump).map_err(|bad| bad.to_string())?;
        self.verify()?;
        let left = self.state.records().count();
        Ok(vec![format!("restored, {left} record{} left", if left == 1 { "" } else { "s" })])
    }
}

impl Client {
    fn new(id: SessionId) -> Client {
        Client { id, epoch: Epoch(1), last_number: 0, actions: BTreeMap::new(), answered: BTreeSet::new() }
    }

    fn seen(&self, sees: &Sees) -> Seen {
        match sees {
            Sees::These(seen) => seen.clone(),
            Sees::All => seen_of(&self.answered),
        }
    }
}

impl ReplyLine {
    fn of(name: &str) -> ReplyLine {
        ReplyLine { label: name.to_string(), client: Some(name.to_string()), number: None, groups: true }
    }

    fn of_admin() -> ReplyLine {
        ReplyLine { label: "admin".to_string(), client: None, number: None, groups: false }
    }
}

fn reply_line<'a>(to: ReplyTo, renewals: &'a [ReplyLine], operations: &'a [ReplyLine]) -> &'a ReplyLine {
    match to {
        ReplyTo::Renewal(at) => &renewals[at],
        ReplyTo::Operation(at) => &operations[at],
    }
}

fn records_of(state: &LockState) -> Vec<Record> {
    state.records().collect()
}

fn answer_is_kept(state: &LockState, session: SessionId, number: u64) -> bool {
    state.records().any(
        |record| matches!(record, Record::Answer(answer) if answer.session == session && answer.number.0 == number),
    )
}

/// A mark up to the first gap, and ranges above it.
fn seen_of(answered: &BTreeSet<u64>) -> Seen {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in answered {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let mark = ranges.first().filter(|(first, _)| *first == 1).map_or(0, |(_, last)| *last);
    Seen { mark, ranges: ranges.into_iter().filter(|(first, _)| *first > mark).collect() }
}

/// A made-up hash of a session's secret. The core cannot tell it from a real one.
fn secret_of(session: SessionId, right: bool) -> SecretHash {
    let mut hash = [u8::from(right); 32];
    hash[..16].copy_from_slice(&session.0.to_le_bytes());
    SecretHash(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_a_mark_and_ranges() {
        let seen = |numbers: &[u64]| {
            let seen = seen_of(&numbers.iter().copied().collect());
            (seen.mark, seen.ranges.to_vec())
        };
        assert_eq!(seen(&[]), (0, vec![]));
        assert_eq!(seen(&[1, 2, 3]), (3, vec![]));
        assert_eq!(seen(&[2, 3, 5]), (0, vec![(2, 3), (5, 5)]));
        assert_eq!(seen(&[1, 3]), (1, vec![(3, 3)]));
    }
}
