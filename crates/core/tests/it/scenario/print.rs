//! Prints what an entry caused: answers, pushes and events, one line each.
//!
//! Sessions and freezes are printed with the names of the scenario. Ids and tokens stay numbers, because their order is part
//! of the rules.

use std::collections::BTreeMap;

use fencepost_core::{
    ActFacts, Attached, AttachedJob, Busy, BusyWhy, Cycle, Event, FreezeId, GrantEnd, GrantId, Held, Holder, JobFact,
    JobKey, Late, Lock, Names, Outcome, OwnerName, Push, Refusal, Repeat, RequestFacts, Scope, SessionEnd, SessionId,
    Takes, Token,
};

use super::words::time;

/// The names that a scenario has for ids.
#[derive(Default)]
pub(crate) struct Spelling {
    pub(crate) sessions: BTreeMap<SessionId, String>,
    pub(crate) freezes: BTreeMap<FreezeId, String>,
}

impl Spelling {
    pub(crate) fn session(&self, id: SessionId) -> String {
        self.sessions.get(&id).cloned().unwrap_or(format!("{id:?}"))
    }

    /// `a`, or `a/task` for a named owner.
    pub(crate) fn owner(&self, session: SessionId, owner: Option<&OwnerName>) -> String {
        let session = self.session(session);
        owner.map_or(session.clone(), |owner| format!("{session}/{}", owner.as_str()))
    }

    pub(crate) fn freeze(&self, id: FreezeId) -> String {
        self.freezes.get(&id).cloned().unwrap_or(format!("{id:?}"))
    }

    /// The outcome in one line; lists follow in indented lines.
    pub(crate) fn outcome(&self, outcome: &Outcome) -> String {
        match outcome {
            Outcome::Opened { epoch } if epoch.0 == 1 => "opened".to_string(),
            Outcome::Opened { epoch } => format!("opened, epoch {}", epoch.0),
            Outcome::Renewed => "renewed".to_string(),
            Outcome::Attached(attached) => self.attached(attached),
            Outcome::Closed => "closed".to_string(),
            Outcome::Granted { grant, token, count } => {
                let count = if *count == 1 { String::new() } else { format!(", count {count}") };
                format!("granted, {}{count}", token_of(*grant, *token))
            }
            Outcome::Queued { arrival, unchecked } => {
                format!("queued, arrival {}{}", arrival.0, if *unchecked { ", unchecked" } else { "" })
            }
            Outcome::Busy(busy) => self.busy(busy),
            Outcome::TimedOut => "timed out".to_string(),
            Outcome::Cancelled => "cancelled".to_string(),
            Outcome::Deadlock(cycle) => self.deadlock(cycle),
            Outcome::SessionEnded(how) => format!("session ended: {}", session_end(how)),
            Outcome::GrantEnded(how) => format!("grant ended: {}", grant_end(how)),
            Outcome::Converted { grant, token } => format!("converted, {}", token_of(*grant, *token)),
            Outcome::Completed { token, succeeded } => completed(*token, *succeeded),
            Outcome::Begun { attempt } => format!("attempt {attempt} begun"),
            Outcome::Checkpointed { attempt } => format!("checkpoint of attempt {attempt} stored"),
            Outcome::Released { count_left } => format!("released{}", left(*count_left)),
            Outcome::NotOwner => "not owner".to_string(),
            Outcome::AlreadyReleased => "already released".to_string(),
            Outcome::Expired(how) => format!("expired: {}", grant_end(how)),
            Outcome::Extended { until } => format!("extended until {}", time(until.0)),
            Outcome::ValueSet => "value set".to_string(),
            Outcome::CancelTooLate(late) => match late {
                Late::Granted { grant, stands } => format!("too late: granted as grant {}{}", grant.0, still(*stands)),
                Late::Converted { grant, stands } => format!("too late: converted grant {}{}", grant.0, still(*stands)),
                Late::Ended => "too late: ended".to_string(),
            },
            Outcome::CancelReleased { grant, count_left } => {
                format!("cancelled, grant {} given back{}", grant.0, left(*count_left))
            }
            Outcome::Done => "done".to_string(),
            Outcome::NotFound => "not found".to_string(),
            Outcome::Refused(refusal) => format!("refused: {}", refusal_words(refusal)),
        }
    }

    /// What follows an answer that is a repeat.
    pub(crate) fn repeat(&self, outcome: &Outcome, repeat: Option<Repeat>) -> String {
        let Some(repeat) = repeat else { return String::new() };
        let stands = match outcome {
            Outcome::Granted { .. } | Outcome::Converted { .. } => still(repeat.stands),
            _ if repeat.stands => ", stands",
            _ => "",
        };
        format!(" (said at {}{stands})", time(repeat.answered_at.0))
    }

    pub(crate) fn push(&self, push: &Push) -> String {
        match push {
            Push::Ended { session, number, outcome } => {
                format!("{} <- #{} {}", self.session(*session), number.0, self.outcome(outcome))
            }
            Push::Lost { session, grant, how } => {
                format!("{} <- lost grant {}: {}", self.session(*session), grant.0, grant_end(how))
            }
            Push::Contended { session, grant } => format!("{} <- contended grant {}", self.session(*session), grant.0),
            Push::SessionEnded { session, how } => {
                format!("{} <- session ended: {}", self.session(*session), session_end(how))
            }
        }
    }

    pub(crate) fn event(&self, event: &Event) -> String {
        let kind = event.kind();
        let details = match event {
            Event::SessionOpened { session, principal, .. } => {
                format!("{} of {}", self.session(*session), principal.as_str())
            }
            Event::SessionEnded { session, how } => format!("{} {}", self.session(*session), session_end(how)),
            Event::Queued { request, arrival } => format!("{}, arrival {}", self.request(request), arrival.0),
            Event::Granted { request, grant, token, count } => {
                let count = if *count == 1 { String::new() } else { format!(", count {count}") };
                format!("{}, {}{count}", self.request(request), token_of(*grant, *token))
            }
            Event::NotGranted { request, outcome } => {
                let why = match outcome {
                    Outcome::Refused(refusal) => format!(", {}", refusal_words(refusal)),
                    Outcome::SessionEnded(how) => format!(", session {}", session_end(how)),
                    Outcome::GrantEnded(how) => format!(", {}", grant_end(how)),
                    Outcome::Completed { token, succeeded } => format!(", {}", completed(*token, *succeeded)),
                    _ => String::new(),
                };
                format!("{}{why}", self.request(request))
            }
            Event::Ended { grant, token, session, owner, held: what, count_left, how, rests_until } => {
                let how = if *how == GrantEnd::Released { String::new() } else { format!(", {}", grant_end(how)) };
                let rest = rests_until.map_or(String::new(), |until| format!(", rests until {}", time(until.0)));
                let of = self.owner(*session, owner.as_ref());
                format!("{} {} of {of}{how}{}{rest}", token_of(*grant, *token), held(what), left(*count_left))
            }
            Event::RestEnded { grant, names: about, waived } => {
                format!("grant {} {}{}", grant.0, names(about), if *waived { ", waived" } else { "" })
            }
            Event::Converted { grant, token, session, owner, held: what } => {
                format!("{} {} of {}", token_of(*grant, *token), held(what), self.owner(*session, owner.as_ref()))
            }
            Event::Contended { grant, names: about } => format!("grant {} {}", grant.0, names(about)),
            Event::ValueSet { grant, name, value } => {
                format!("grant {} {name} \"{}\"", grant.0, String::from_utf8_lossy(value.as_bytes()))
            }
            Event::Job { name, key, what } => {
                let what = match what {
                    JobFact::Begun { grant, attempt } | JobFact::Checkpointed { grant, attempt } => {
                        format!("attempt {attempt}, grant {}", grant.0)
                    }
                    JobFact::Completed { token, succeeded } => completed(*token, *succeeded),
                };
                format!("{name} {}, {what}", quoted(key))
            }
            Event::JobsFill { name, records, bytes } => {
                let whose = name.as_ref().map_or("all names".to_string(), |name| name.to_string());
                format!("{whose}: {records} records, {bytes} bytes")
            }
            Event::Administered { by, reason, act } => {
                let why = if reason.as_str().is_empty() {
                    String::new()
                } else {
                    format!(" because \"{}\"", reason.as_str())
                };
                format!("{} by {}{why}", self.act(act), by.as_str())
            }
        };
        format!("! {kind}: {details}")
    }

    pub(crate) fn scope(&self, scope: &Scope) -> String {
        match scope {
            Scope::Name(name) => format!("name {name}"),
            Scope::Prefix(bytes) => format!("prefix {}", String::from_utf8_lossy(bytes)),
        }
    }

    fn act(&self, act: &ActFacts) -> String {
        match act {
            ActFacts::Broke { grant, names: about } | ActFacts::WaivedRest { grant, names: about } => {
                format!("grant {} {}", grant.0, names(about))
            }
            ActFacts::Evicted(session) => self.session(*session),
            ActFacts::Froze { freeze, scope } | ActFacts::Thawed { freeze, scope } => {
                format!("{} {}", self.freeze(*freeze), self.scope(scope))
            }
            ActFacts::CompletedJob { name, key } | ActFacts::ForgotJob { name, key } => {
                format!("{name} {}", quoted(key))
            }
            ActFacts::AllowedJobs => "all".to_string(),
            ActFacts::LimitChanged { name, limit } => {
                format!("{name} {}", limit.map_or("none".to_string(), |limit| limit.get().to_string()))
            }
        }
    }

    fn request(&self, facts: &RequestFacts) -> String {
        let who = self.owner(facts.session, facts.owner.as_ref());
        let converts = facts.converts.map_or(String::new(), |grant| format!(" of grant {}", grant.0));
        format!("{who}#{} {}{converts}", facts.number.0, held(&facts.wants))
    }

    fn busy(&self, busy: &Busy) -> String {
        let why = match busy.why {
            BusyWhy::Frozen => "frozen",
            BusyWhy::Held => "held",
            BusyWhy::Resting => "resting",
            BusyWhy::Queued => "queued",
        };
        let mut holders: Vec<_> = busy.holders.iter().map(|holder| self.holder(holder)).collect();
        if busy.holder_count as usize != busy.holders.len() {
            holders.push(format!("{} in all", busy.holder_count));
        }
        let holders = if holders.is_empty() { String::new() } else { format!(" ({})", holders.join(", ")) };
        format!("busy: {} {why}{holders}", busy.name)
    }

    pub(crate) fn holder(&self, holder: &Holder) -> String {
        let who = match holder.session {
            Some(session) => self.owner(session, holder.owner.as_ref()),
            None => "rest".to_string(),
        };
        let takes = takes(holder.takes);
        format!("{who} {takes} {} since {}", token_of(holder.grant, holder.token), time(holder.since.0))
    }

    fn deadlock(&self, cycle: &Cycle) -> String {
        let mut text = "deadlock".to_string();
        for link in &cycle.links {
            let who = self.owner(link.session, link.owner.as_ref());
            let behind = match link.blocked_by {
                Some(grant) => format!("held by grant {}", grant.0),
                None => "behind the next".to_string(),
            };
            text += &format!("\n  {who}#{} wants {} {:?}, {behind}", link.number.0, link.waits_for, link.wants);
        }
        text
    }

    fn attached(&self, attached: &Attached) -> String {
        let mut text = format!("attached, epoch {}", attached.epoch.0);
        for grant in &attached.grants {
            let count = if grant.count == 1 { String::new() } else { format!(", count {}", grant.count) };
            let job = grant.job.as_ref().map_or(String::new(), attached_job);
            text += &format!("\n  holds {}, {}{count}{job}", held(&grant.held), token_of(grant.grant, grant.token));
        }
        for wait in &attached.waits {
            let job = wait.job_key.as_ref().map_or(String::new(), |key| format!(", job {}", quoted(key)));
            text += &format!("\n  waits #{}, arrival {}{job}", wait.number.0, wait.arrival.0);
        }
        for answer in &attached.unseen {
            let repeat = Repeat { answered_at: answer.answered_at, stands: answer.stands };
            let said = self.repeat(&answer.outcome, Some(repeat));
            text +=
                &format!("\n  unseen #{}: {}{said}", answer.number.0, self.outcome(&answer.outcome).replace('\n', ";"));
        }
        for (grant, how) in &attached.lost {
            text += &format!("\n  lost grant {}: {}", grant.0, grant_end(how));
        }
        text
    }
}

/// How a job was completed.
pub(crate) fn completed(token: Option<Token>, succeeded: bool) -> String {
    let how = if succeeded { "succeeded" } else { "failed" };
    match token {
        Some(token) => format!("completed: {how}, token {}", token.0),
        None => format!("completed: {how}, by an administrator"),
    }
}

pub(crate) fn quoted(key: &JobKey) -> String {
    format!("\"{key}\"")
}

fn attached_job(job: &AttachedJob) -> String {
    let begun = job.attempt.map_or("not begun".to_string(), |attempt| format!("attempt {attempt} begun"));
    format!(", job {}, {begun}", quoted(&job.key))
}

/// `token 3`; after an upgrade `token 5 of grant 3`.
pub(crate) fn token_of(grant: GrantId, token: Token) -> String {
    if grant.0 == token.0 { format!("token {}", token.0) } else { format!("token {} of grant {}", token.0, grant.0) }
}

/// A mode, or a number of permits.
pub(crate) fn takes(takes: Takes) -> String {
    match takes {
        Takes::Mode(mode) => format!("{mode:?}"),
        Takes::Permits(permits) => permits.get().to_string(),
    }
}

/// `r:X s:S`, or `3 of pool`.
pub(crate) fn held(held: &Held) -> String {
    match held {
        Held::Locks(locks) => locks.iter().map(lock).collect::<Vec<_>>().join(" "),
        Held::Permits { name, permits } => format!("{} of {name}", permits.get()),
    }
}

pub(crate) fn lock(lock: &Lock) -> String {
    format!("{}:{:?}", lock.name, lock.mode.mode())
}

pub(crate) fn grant_end(how: &GrantEnd) -> String {
    match how {
        GrantEnd::Released => "released".to_string(),
        GrantEnd::Session(how) => format!("session {}", session_end(how)),
        GrantEnd::Ttl => "ttl".to_string(),
        GrantEnd::MaxHold => "max-hold".to_string(),
        GrantEnd::Broken(reason) => format!("broken{reason}"),
    }
}

pub(crate) fn session_end(how: &SessionEnd) -> String {
    match how {
        SessionEnd::Closed => "closed".to_string(),
        SessionEnd::Expired => "expired".to_string(),
        SessionEnd::Evicted(reason) => format!("evicted{reason}"),
        SessionEnd::Restored => "restored".to_string(),
    }
}

fn names(names: &Names) -> String {
    names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ")
}

fn left(count_left: u32) -> String {
    if count_left == 0 { String::new() } else { format!(", count left {count_left}") }
}

fn still(stands: bool) -> &'static str {
    if stands { ", stands" } else { ", no longer stands" }
}

/// Short words for a refusal. Its own text is for users, and may change without changing every scenario.
fn refusal_words(refusal: &Refusal) -> String {
    match refusal {
        Refusal::NoSession => "no session".to_string(),
        Refusal::SessionExists => "session exists".to_string(),
        Refusal::WrongSecret => "wrong secret".to_string(),
        Refusal::WrongEpoch { current } => format!("wrong epoch, now {}", current.0),
        Refusal::AlreadySeen => "already seen".to_string(),
        Refusal::SeenWhileWaiting(number) => format!("#{} still waits", number.0),
        Refusal::Bound(bound) => format!("bound {bound:?}"),
        Refusal::BadWord(word) => format!("bad word, {word}"),
        Refusal::BadNumber => "bad number".to_string(),
        Refusal::CancelsItself => "cancels itself".to_string(),
        Refusal::NamedTwice(name) => format!("{name} named twice"),
        Refusal::OwnerWaits => "owner waits".to_string(),
        Refusal::UseUpgrade { name, grant } => format!("use upgrade of {name}, grant {}", grant.0),
        Refusal::AlreadyHeld { name, grant } => format!("{name} already held, grant {}", grant.0),
        Refusal::CountAboveOne => "count above one".to_string(),
        Refusal::NotInGrant(name) => format!("{name} not in grant"),
        Refusal::UpgradeConflict(name) => format!("upgrade conflict on {name}"),
        Refusal::NotALock => "not a lock".to_string(),
        Refusal::NotAnElection => "not an election".to_string(),
        Refusal::NothingToExtend => "nothing to extend".to_string(),
        Refusal::IsSemaphore(name) => format!("{name} is a semaphore"),
        Refusal::IsLock(name) => format!("{name} is a lock"),
        Refusal::PathSemaphore(name) => format!("{name} is a path"),
        Refusal::NoLimit(name) => format!("{name} has no limit"),
        Refusal::LimitDiffers { name, live } => format!("{name} has limit {}", live.get()),
        Refusal::MoreThanLimit { name, limit } => format!("more than {name} has, {}", limit.get()),
        Refusal::LimitLowered { name, limit, reason } => format!("limit of {name} lowered to {}{reason}", limit.get()),
        Refusal::KeyNeedsExclusive => "a key needs one exclusive lock".to_string(),
        Refusal::KeyedReentry { name, grant } => format!("a key on {name}, held already, grant {}", grant.0),
        Refusal::KeyedGrant => "grant for a job".to_string(),
        Refusal::NoJob => "no job".to_string(),
        Refusal::JobsNotAllowed => "jobs not allowed".to_string(),
        Refusal::JobHeld { grant } => format!("job held, grant {}", grant.0),
        Refusal::FreezeExists => "freeze exists".to_string(),
        Refusal::NotYet { needs } => format!("not yet: needs version {needs}"),
    }
}
