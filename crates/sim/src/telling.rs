//! The words of a trace: turns facts into readable lines, with short names for sessions.
//!
//! It decides nothing, and its texts are not part of a run's hash. It runs only when a trace was requested.

use std::collections::BTreeMap;

use fencepost_core::{
    Act, ActFacts, Action, Busy, BusyWhy, Cycle, Event, GrantEnd, Held, JobFact, Lock, LockMode, Names, Outcome,
    OwnerName, RequestFacts, Scope, SessionEnd, SessionId, TakePermits, Takes, Token, Verdict, Wait,
};
use fencepost_session::client::{Answer, Failure};

use crate::fact::{Access, AccessKind, Fact};

/// The words of one trace, and its names for sessions.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    names: BTreeMap<SessionId, String>,
    /// How many sessions each scenario user has introduced, by the user's name.
    given: BTreeMap<String, u64>,
}

impl Telling {
    /// Names a session after its user. Later sessions of the same user get a number: `first#2`.
    pub(crate) fn introduce(&mut self, session: SessionId, name: &str) {
        let times = self.given.entry(name.to_owned()).or_default();
        *times += 1;
        let name = if *times == 1 { name.to_owned() } else { format!("{name}#{times}") };
        self.names.insert(session, name);
    }

    /// The name of a session: that of its user if it was introduced, otherwise `s1`, `s2`, ... in order of appearance.
    pub(crate) fn session(&mut self, session: SessionId) -> String {
        let next = self.names.len() + 1;
        self.names.entry(session).or_insert_with(|| format!("s{next}")).clone()
    }

    /// The lines for a fact, each as who and what: none for most facts, one for each event of an entry.
    pub(crate) fn tell(&mut self, fact: &Fact<'_>) -> Vec<(String, String)> {
        match fact {
            Fact::Logged(entry) => {
                let index = entry.position.index;
                let grace = entry.batch.failover_grace.then(|| {
                    let term = entry.position.term;
                    (
                        "log".to_owned(),
                        format!("[{index}] a new leader begins term {term}; every lease gets the fail-over grace"),
                    )
                });
                let events = entry.effects.events.iter();
                let told = events.map(|event| ("log".to_owned(), format!("[{index}] {}", self.event(event))));
                let told: Vec<_> = told.collect();
                grace.into_iter().chain(told).collect()
            }
            Fact::Asked { request, action } => {
                let number = request.number.0;
                vec![(self.session(request.session), format!("asks (#{number}) {}", asked(action)))]
            }
            Fact::Told { request, answer } => {
                let number = request.number.0;
                vec![(self.session(request.session), format!("is told (#{number}): {}", self.answer(answer)))]
            }
            Fact::Acts { session, grant, token } => {
                let what = format!("looks at its guard and acts under grant {} with token {}", grant.0, token.0);
                vec![(self.session(*session), what)]
            }
            Fact::JobRead { name, key, record, .. } => {
                let what = record.map_or("nothing is remembered".to_owned(), |record| {
                    let checkpoint =
                        record.checkpoint.as_ref().map(|it| format!(", a checkpoint of attempt {}", it.attempt));
                    let completion = record.completion.as_ref().map(|it| completed(it.token, it.succeeded));
                    let completion = completion.map(|how| format!(", completed{how}"));
                    let (checkpoint, completion) = (checkpoint.unwrap_or_default(), completion.unwrap_or_default());
                    format!("{} attempts{checkpoint}{completion}", record.attempts)
                });
                vec![("world".to_owned(), format!("a read of {name} {key} shows: {what}"))]
            }
            Fact::JobConcluded { name, key, token, completed } => {
                let what = if *completed { "completed" } else { "did not complete" };
                vec![("world".to_owned(), format!("a user concludes that token {} {what} {name} {key}", token.0))]
            }
            Fact::Store(access) => vec![("store".to_owned(), self.access(access))],
            Fact::Leads { leader, planned } => {
                let what = match (leader, planned) {
                    (None, _) => "no node leads".to_owned(),
                    (Some((node, term)), false) => format!("node {node} leads in term {term}"),
                    (Some((node, term)), true) => {
                        format!("node {node} leads in term {term}, after a planned hand-over")
                    }
                };
                vec![("world".to_owned(), what)]
            }
            Fact::InMemory { fact, .. } => {
                let told = self.tell(fact).into_iter();
                told.map(|(who, what)| (who, format!("{what}, in the efficiency tier"))).collect()
            }
            Fact::Restored { .. } => vec![("world".to_owned(), "the cluster was restored from a backup".to_owned())],
            _ => Vec::new(),
        }
    }

    fn event(&mut self, event: &Event) -> String {
        match event {
            Event::SessionOpened { session, .. } => format!("session {} opened", self.session(*session)),
            Event::SessionEnded { session, how } => {
                format!("session {} ended: {}", self.session(*session), session_end(how))
            }
            Event::Queued { request, arrival } => {
                format!("{} waits for {} as arrival {}", self.asker(request), held(&request.wants), arrival.0)
            }
            Event::Granted { request, token, count, .. } => {
                let times = if *count > 1 { format!(", entered {count} times now") } else { String::new() };
                format!("granted {} to {}, token {}{times}", held(&request.wants), self.asker(request), token.0)
            }
            Event::NotGranted { request, outcome } => {
                let (asker, wanted) = (self.asker(request), held(&request.wants));
                format!("{asker} does not get {wanted}: {}", self.outcome(outcome))
            }
            Event::Ended { token, session, owner, held: what, count_left, how, rests_until, .. } => {
                let (what, whose) = (held(what), self.owner(*session, owner.as_ref()));
                let how = grant_end(how);
                let left = if *count_left > 0 { format!(", but {count_left} more to release") } else { String::new() };
                let rests = if rests_until.is_some() { ", and rests" } else { "" };
                format!("{what} of {whose} ended, token {}: {how}{left}{rests}", token.0)
            }
            Event::RestEnded { names, waived, .. } => {
                let why = if *waived { " (waived)" } else { "" };
                format!("{} no longer rests{why}", list(names))
            }
            Event::Converted { token, session, owner, held: what, .. } => {
                let whose = self.owner(*session, owner.as_ref());
                format!("{whose} now holds {}, token {}", held(what), token.0)
            }
            Event::Contended { grant, names } => format!("a request waits for {} of grant {}", list(names), grant.0),
            Event::ValueSet { name, value, .. } => {
                format!("the value of {name} is now \"{}\"", String::from_utf8_lossy(value.as_bytes()).escape_debug())
            }
            Event::Job { name, key, what } => match what {
                JobFact::Begun { grant, attempt } => {
                    format!("attempt {attempt} at {name} {key} begins, under grant {}", grant.0)
                }
                JobFact::Checkpointed { attempt, .. } => {
                    format!("attempt {attempt} at {name} {key} stores a checkpoint")
                }
                JobFact::Completed { token, succeeded } => {
                    format!("{name} {key} is completed{}", completed(*token, *succeeded))
                }
            },
            Event::JobsFill { name, records, .. } => {
                let whose = name.as_ref().map_or("all names".to_owned(), |name| name.to_string());
                format!("the {records} jobs of {whose} fill their bound")
            }
            Event::Administered { by, act, .. } => format!("{} {}", by.as_str(), self.act_facts(act)),
        }
    }

    fn act_facts(&mut self, act: &ActFacts) -> String {
        match act {
            ActFacts::Broke { grant, names } => format!("broke grant {} on {}", grant.0, list(names)),
            ActFacts::Evicted(session) => format!("evicted {}", self.session(*session)),
            ActFacts::Froze { scope: what, .. } => format!("froze {}", scope(what)),
            ActFacts::Thawed { scope: what, .. } => format!("thawed {}", scope(what)),
            ActFacts::LimitChanged { name, limit: Some(limit) } => {
                format!("set the limit of {name} to {}", limit.get())
            }
            ActFacts::LimitChanged { name, limit: None } => format!("removed the limit of {name}"),
            ActFacts::WaivedRest { names, .. } => format!("waived the rest of {}", list(names)),
            ActFacts::CompletedJob { name, key } => format!("completed {name} {key}"),
            ActFacts::ForgotJob { name, key } => format!("forgot {name} {key}"),
            ActFacts::AllowedJobs => "allowed jobs".to_owned(),
        }
    }

    /// The line for an administrator's request.
    pub(crate) fn act(&mut self, act: &Act) -> String {
        match act {
            Act::Break { grant } => format!("asks to break grant {}", grant.0),
            Act::Evict { session } => format!("asks to evict {}", self.session(*session)),
            Act::WaiveRest { grant } => format!("asks to waive the rest of grant {}", grant.0),
            Act::Freeze { scope: what, .. } => format!("asks to freeze {}", scope(what)),
            Act::Thaw { .. } => "asks to thaw".to_owned(),
            Act::SetLimit { name, limit: Some(limit) } => format!("asks to set the limit of {name} to {}", limit.get()),
            Act::SetLimit { name, limit: None } => format!("asks to remove the limit of {name}"),
            Act::CompleteJob { name, key, .. } => format!("asks to complete {name} {key}"),
            Act::ForgetJob { name, key } => format!("asks to forget {name} {key}"),
            Act::AllowJobs => "asks to allow jobs".to_owned(),
        }
    }

    fn owner(&mut self, session: SessionId, owner: Option<&OwnerName>) -> String {
        let session = self.session(session);
        owner.map_or(session.clone(), |owner| format!("{session} ({})", owner.as_str()))
    }

    fn asker(&mut self, request: &RequestFacts) -> String {
        let owner = self.owner(request.session, request.owner.as_ref());
        format!("{owner} #{}", request.number.0)
    }

    fn answer(&mut self, answer: &Answer) -> String {
        match answer {
            Answer::Decided(outcome) => self.outcome(outcome),
            Answer::Failed(Failure::Unreachable) => "failed, no node can be reached".to_owned(),
            Answer::Failed(Failure::NotTaken { message, .. }) => {
                format!("failed, the cluster did not accept it: {message}")
            }
            Answer::Failed(Failure::GrantedTooLate) => "failed, the grant had expired when the answer came".to_owned(),
            Answer::Failed(Failure::TooManyPending) => "failed, too many requests are pending".to_owned(),
            Answer::Failed(Failure::ShutDown) => "failed, the client is shut down".to_owned(),
            Answer::Unknown => "the outcome is unknown".to_owned(),
            Answer::SessionEnded { how: Some(how), .. } => format!("the session has ended: {}", session_end(how)),
            Answer::SessionEnded { how: None, .. } => "the session has ended".to_owned(),
        }
    }

    fn outcome(&mut self, outcome: &Outcome) -> String {
        match outcome {
            Outcome::Opened { .. } => "the session is open".to_owned(),
            Outcome::Renewed => "renewed".to_owned(),
            Outcome::Attached(_) => "the session is attached".to_owned(),
            Outcome::Closed => "the session is closed".to_owned(),
            Outcome::Granted { grant, token, .. } => format!("granted, grant {}, token {}", grant.0, token.0),
            Outcome::Queued { arrival, .. } => format!("waits as arrival {}", arrival.0),
            Outcome::Busy(busy) => self.busy(busy),
            Outcome::TimedOut => "the wait timed out".to_owned(),
            Outcome::Cancelled => "cancelled".to_owned(),
            Outcome::Deadlock(cycle) => self.cycle(cycle),
            Outcome::SessionEnded(how) => format!("the session has ended: {}", session_end(how)),
            Outcome::GrantEnded(how) => format!("the grant has ended: {}", grant_end(how)),
            Outcome::Converted { token, .. } => format!("converted, token {}", token.0),
            Outcome::Released { count_left: 0 } => "released".to_owned(),
            Outcome::Released { count_left } => format!("released once, {count_left} more to release"),
            Outcome::NotOwner => "not the owner".to_owned(),
            Outcome::AlreadyReleased => "already released".to_owned(),
            Outcome::Expired(how) => format!("the grant had ended: {}", grant_end(how)),
            Outcome::Extended { .. } => "extended".to_owned(),
            Outcome::ValueSet => "the value is set".to_owned(),
            Outcome::CancelTooLate(_) => "too late to cancel".to_owned(),
            Outcome::CancelReleased { .. } => "cancelled after the grant, which was released".to_owned(),
            Outcome::Done => "done".to_owned(),
            Outcome::NotFound => "not found".to_owned(),
            Outcome::Completed { token, succeeded } => format!("the job is completed{}", completed(*token, *succeeded)),
            Outcome::Begun { attempt } => format!("attempt {attempt} has begun"),
            Outcome::Checkpointed { attempt } => format!("the checkpoint of attempt {attempt} is stored"),
            Outcome::Refused(why) => format!("refused, {why}"),
        }
    }

    fn busy(&mut self, busy: &Busy) -> String {
        let why = match busy.why {
            BusyWhy::Frozen => "frozen",
            BusyWhy::Held => "held",
            BusyWhy::Resting => "resting",
            BusyWhy::Queued => "waited for",
        };
        let holder = busy.holders.first().map(|holder| {
            let who = holder
                .session
                .map_or("an ended grant".to_owned(), |session| self.owner(session, holder.owner.as_ref()));
            let takes = match holder.takes {
                Takes::Mode(mode) => format!("{mode:?}"),
                Takes::Permits(permits) => format!("{} permits", permits.get()),
            };
            format!(" by {who} ({takes}, token {})", holder.token.0)
        });
        let others = match busy.holder_count {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        format!("busy, {} is {why}{}{others}", busy.name, holder.unwrap_or_default())
    }

    /// The links of a deadlock cycle: each request waits for the next one, and the last for the first.
    fn cycle(&mut self, cycle: &Cycle) -> String {
        let next = cycle.links.iter().cycle().skip(1);
        let links = cycle.links.iter().zip(next).map(|(link, next)| {
            let who = self.owner(link.session, link.owner.as_ref());
            let whom = self.owner(next.session, next.owner.as_ref());
            let has = if link.blocked_by.is_some() { "holds" } else { "queued for earlier" };
            format!("{who} waits for {}, which {whom} {has}", link.waits_for)
        });
        format!("refused as a deadlock: {}", links.collect::<Vec<_>>().join("; "))
    }

    fn access(&mut self, access: &Access) -> String {
        let Access { name, token, .. } = access;
        let who = self.session(access.session);
        let said = if access.accepted { "accepted" } else { "REFUSED, a higher token came before" };
        let what = match access.what {
            AccessKind::Read => format!("{who} reads {name}"),
            AccessKind::Claim => format!("{who} claims {name}"),
            AccessKind::Write { based_on, .. } => format!("{who} writes {name}, based on version {based_on}"),
            AccessKind::Once { is_new } => {
                let key = access.key.as_ref().map_or(String::new(), |key| format!(" {key}"));
                let stood = if access.accepted && !is_new { ", whose row stands already" } else { "" };
                format!("{who} does the work of {name}{key}{stood}")
            }
        };
        format!("{what}, with token {}: guarded {said}", token.0)
    }
}

fn asked(action: &Action) -> String {
    match action {
        Action::Acquire(acquire) => {
            let locks: Vec<String> = acquire.locks.iter().map(lock).collect();
            let owner = acquire.owner.as_ref().map_or(String::new(), |owner| format!(" as {}", owner.as_str()));
            let job = acquire.terms.job.as_ref().map_or(String::new(), |job| format!(" for the job {}", job.key));
            format!("for {}{owner}{job}{}", locks.join(" and "), waits(acquire.wait))
        }
        Action::TakePermits(TakePermits { name, permits, wait, .. }) => {
            format!("for {} permits of {name}{}", permits.get(), waits(*wait))
        }
        Action::Cancel { request, .. } => format!("to cancel #{}", request.0),
        Action::Release { grant, report: None } => format!("to release grant {}", grant.0),
        Action::Release { grant, report: Some(report) } => {
            let how = match report.verdict {
                Verdict::Succeeded => "to complete its job as succeeded",
                Verdict::Failed => "to complete its job as failed",
                Verdict::Open => "and to leave its job open",
            };
            format!("to release grant {} {how}", grant.0)
        }
        Action::Begin { grant } => format!("to begin an attempt under grant {}", grant.0),
        Action::Checkpoint { grant, .. } => format!("to store a checkpoint under grant {}", grant.0),
        Action::Extend { grant, max_hold } => format!("to extend grant {} by {} ms", grant.0, max_hold.get()),
        Action::Convert { grant, name, mode: to, wait } => {
            format!("to make grant {} on {name} {}{}", grant.0, mode(*to), waits(*wait))
        }
        Action::SetValue { grant, .. } => format!("to set the value of grant {}", grant.0),
        Action::Close => "to close the session".to_owned(),
    }
}

fn completed(token: Option<Token>, succeeded: bool) -> String {
    let how = if succeeded { "" } else { " as failed" };
    token.map_or(format!("{how}, by an administrator"), |token| format!("{how}, with token {}", token.0))
}

fn waits(wait: Wait) -> String {
    match wait {
        Wait::No => ", without waiting".to_owned(),
        Wait::UpTo(ms) => format!(", and waits up to {} ms", ms.get()),
        Wait::Forever => ", and waits".to_owned(),
    }
}

fn mode(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Shared => "shared",
        LockMode::Update => "for update",
        LockMode::Exclusive => "exclusive",
    }
}

fn lock(lock: &Lock) -> String {
    format!("{} {}", lock.name, mode(lock.mode))
}

fn held(held: &Held) -> String {
    match held {
        Held::Locks(locks) => locks.iter().map(lock).collect::<Vec<_>>().join(" and "),
        Held::Permits { name, permits } => format!("{} permits of {name}", permits.get()),
    }
}

fn list(names: &Names) -> String {
    names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" and ")
}

fn scope(scope: &Scope) -> String {
    match scope {
        Scope::Name(name) => name.as_str().to_owned(),
        Scope::Prefix(prefix) => format!("every name that begins with \"{}\"", prefix.escape_ascii()),
    }
}

fn session_end(how: &SessionEnd) -> &'static str {
    match how {
        SessionEnd::Closed => "closed",
        SessionEnd::Expired => "expired",
        SessionEnd::Evicted(_) => "evicted",
        SessionEnd::Restored => "the cluster was restored from a backup",
    }
}

fn grant_end(how: &GrantEnd) -> &'static str {
    match how {
        GrantEnd::Released => "released",
        GrantEnd::Session(SessionEnd::Closed) => "its session was closed",
        GrantEnd::Session(SessionEnd::Expired) => "its session expired",
        GrantEnd::Session(SessionEnd::Evicted(_)) => "its session was evicted",
        GrantEnd::Session(SessionEnd::Restored) => "the cluster was restored from a backup",
        GrantEnd::Ttl => "its own TTL ran out",
        GrantEnd::MaxHold => "its maximum hold time was over",
        GrantEnd::Broken(_) => "broken by an administrator",
    }
}
