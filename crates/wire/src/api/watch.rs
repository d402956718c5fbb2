//! Events for watchers: the core's events, to the messages of `observe.proto` and back.
//!
//! An unknown event is an error: a watcher that skips an event has a wrong picture of the state. The server decides which events are
//! kept, where a watch resumes, and who may watch.

use fencepost_core::{
    ActFacts, Arrival, Event, GrantId, JobFact, LogicalMs, Names, Position, PositionedEvent, RequestFacts,
    RequestNumber, SessionId, Token,
};

use crate::error::WireError;
use crate::from_wire::{self, Read, known};
use crate::to_wire;
use crate::v1;

/// The position of an event or of a watcher.
pub fn position_to_wire(Position { index, ordinal }: Position) -> v1::EventPosition {
    v1::EventPosition { index, ordinal }
}

/// The position of an event or of a watcher.
pub fn position_from_wire(v1::EventPosition { index, ordinal }: v1::EventPosition) -> Position {
    Position { index, ordinal }
}

/// An event, as a watcher receives it.
pub fn event_to_wire(event: &PositionedEvent) -> v1::WatchEvent {
    let PositionedEvent { position, stamp, wall_clock_ms, event } = event;
    v1::WatchEvent {
        position: Some(position_to_wire(*position)),
        stamp_ms: stamp.0,
        wall_clock_ms: *wall_clock_ms,
        what: Some(what_to_wire(event)),
    }
}

/// An event, as a watcher receives it.
///
/// # Errors
/// [`WireError`] names what is missing, not known or not valid.
pub fn event_from_wire(
    v1::WatchEvent { position, stamp_ms, wall_clock_ms, what }: v1::WatchEvent,
) -> Result<PositionedEvent, WireError> {
    Ok(PositionedEvent {
        position: position_from_wire(known("the position of an event", position)?),
        stamp: LogicalMs(stamp_ms),
        wall_clock_ms,
        event: what_from_wire(known("an event", what)?)?,
    })
}

fn what_to_wire(event: &Event) -> v1::watch_event::What {
    use v1::watch_event::What;
    match event {
        Event::SessionOpened { session, principal, metadata } => What::SessionOpened(v1::SessionOpenedEvent {
            session: Some(to_wire::session_id(*session)),
            principal: principal.as_str().to_owned(),
            metadata: metadata.as_bytes().to_vec(),
        }),
        Event::SessionEnded { session, how } => What::SessionEnded(v1::SessionEndedEvent {
            session: Some(to_wire::session_id(*session)),
            how: Some(to_wire::session_end(how)),
        }),
        Event::Queued { request, arrival } => {
            What::Queued(v1::QueuedEvent { request: Some(request_to_wire(request)), arrival: arrival.0 })
        }
        Event::Granted { request, grant, token, count } => What::Granted(v1::GrantedEvent {
            request: Some(request_to_wire(request)),
            grant: grant.0,
            token: token.0,
            count: *count,
        }),
        Event::NotGranted { request, outcome } => What::NotGranted(v1::NotGrantedEvent {
            request: Some(request_to_wire(request)),
            outcome: Some(to_wire::outcome(outcome)),
        }),
        Event::Ended { grant, token, session, owner, held, count_left, how, rests_until } => {
            What::Ended(v1::EndedEvent {
                grant: grant.0,
                token: token.0,
                session: Some(to_wire::session_id(*session)),
                owner: to_wire::owner_name(owner),
                held: Some(to_wire::held(held)),
                count_left: *count_left,
                how: Some(to_wire::grant_end(how)),
                rests_until_ms: rests_until.map(|until| until.0),
            })
        }
        Event::RestEnded { grant, names, waived } => {
            What::RestEnded(v1::RestEndedEvent { grant: grant.0, names: texts(names), waived: *waived })
        }
        Event::Converted { grant, token, session, owner, held } => What::Converted(v1::ConvertedEvent {
            grant: grant.0,
            token: token.0,
            session: Some(to_wire::session_id(*session)),
            owner: to_wire::owner_name(owner),
            held: Some(to_wire::held(held)),
        }),
        Event::Contended { grant, names } => {
            What::Contended(v1::ContendedEvent { grant: grant.0, names: texts(names) })
        }
        Event::ValueSet { grant, name, value } => What::ValueSet(v1::ValueSetEvent {
            grant: grant.0,
            name: to_wire::text(name),
            value: value.as_bytes().to_vec(),
        }),
        Event::Job { name, key, what } => {
            use v1::job_event::What as Of;
            let attempt = |grant: &GrantId, attempt: &u64| v1::AttemptFacts { grant: grant.0, attempt: *attempt };
            let what = match what {
                JobFact::Begun { grant, attempt: number } => Of::Begun(attempt(grant, number)),
                JobFact::Checkpointed { grant, attempt: number } => Of::Checkpointed(attempt(grant, number)),
                JobFact::Completed { token, succeeded } => Of::Completed(to_wire::completed(*token, *succeeded)),
            };
            What::Job(v1::JobEvent { name: to_wire::text(name), key: key.as_str().to_owned(), what: Some(what) })
        }
        Event::JobsFill { name, records, bytes } => What::JobsFill(v1::JobsFillEvent {
            name: name.as_ref().map(to_wire::text),
            records: *records,
            bytes: *bytes,
        }),
        Event::Administered { by, reason, act } => {
            let (names, act) = act_to_wire(act);
            What::Administered(v1::AdministeredEvent {
                by: by.as_str().to_owned(),
                reason: reason.as_str().to_owned(),
                names,
                act: Some(act),
            })
        }
    }
}

fn what_from_wire(what: v1::watch_event::What) -> Read<Event> {
    use v1::watch_event::What;
    Ok(match what {
        What::SessionOpened(v1::SessionOpenedEvent { session: whose, principal, metadata }) => Event::SessionOpened {
            session: session(whose)?,
            principal: from_wire::principal(&principal)?,
            metadata: from_wire::metadata(&metadata)?,
        },
        What::SessionEnded(v1::SessionEndedEvent { session: whose, how }) => {
            Event::SessionEnded { session: session(whose)?, how: from_wire::session_end(how)? }
        }
        What::Queued(v1::QueuedEvent { request, arrival }) => {
            Event::Queued { request: request_from_wire(request)?, arrival: Arrival(arrival) }
        }
        What::Granted(v1::GrantedEvent { request, grant, token, count }) => {
            Event::Granted { request: request_from_wire(request)?, grant: GrantId(grant), token: Token(token), count }
        }
        What::NotGranted(v1::NotGrantedEvent { request, outcome }) => {
            Event::NotGranted { request: request_from_wire(request)?, outcome: from_wire::outcome(outcome)? }
        }
        What::Ended(ended) => Event::Ended {
            grant: GrantId(ended.grant),
            token: Token(ended.token),
            session: session(ended.session)?,
            owner: from_wire::owner_name(ended.owner)?,
            held: from_wire::held(ended.held)?,
            count_left: ended.count_left,
            how: from_wire::grant_end(ended.how)?,
            rests_until: ended.rests_until_ms.map(LogicalMs),
        },
        What::RestEnded(v1::RestEndedEvent { grant, names: kept, waived }) => {
            Event::RestEnded { grant: GrantId(grant), names: names(&kept)?, waived }
        }
        What::Converted(v1::ConvertedEvent { grant, token, session: whose, owner, held }) => Event::Converted {
            grant: GrantId(grant),
            token: Token(token),
            session: session(whose)?,
            owner: from_wire::owner_name(owner)?,
            held: from_wire::held(held)?,
        },
        What::Contended(v1::ContendedEvent { grant, names: held }) => {
            Event::Contended { grant: GrantId(grant), names: names(&held)? }
        }
        What::ValueSet(v1::ValueSetEvent { grant, name, value }) => {
            Event::ValueSet { grant: GrantId(grant), name: from_wire::name(&name)?, value: from_wire::value(&value)? }
        }
        What::Job(v1::JobEvent { name, key, what }) => {
            use v1::job_event::What as Of;
            let what = match known("what happened to a job", what)? {
                Of::Begun(v1::AttemptFacts { grant, attempt }) => JobFact::Begun { grant: GrantId(grant), attempt },
                Of::Checkpointed(v1::AttemptFacts { grant, attempt }) => {
                    JobFact::Checkpointed { grant: GrantId(grant), attempt }
                }
                Of::Completed(v1::Completed { token, succeeded }) => {
                    JobFact::Completed { token: token.map(Token), succeeded }
                }
            };
            Event::Job { name: from_wire::name(&name)?, key: from_wire::job_key(&key)?, what }
        }
        What::JobsFill(v1::JobsFillEvent { name, records, bytes }) => {
            Event::JobsFill { name: name.as_deref().map(from_wire::name).transpose()?, records, bytes }
        }
        What::Administered(v1::AdministeredEvent { by, reason, names, act }) => Event::Administered {
            by: from_wire::principal(&by)?,
            reason: from_wire::reason(&reason)?,
            act: act_from_wire(&names, known("the act of an event", act)?)?,
        },
    })
}

fn request_to_wire(RequestFacts { session, number, owner, wants, converts }: &RequestFacts) -> v1::RequestFacts {
    v1::RequestFacts {
        session: Some(to_wire::session_id(*session)),
        number: number.0,
        owner: to_wire::owner_name(owner),
        wants: Some(to_wire::held(wants)),
        converts: converts.map(|grant| grant.0),
    }
}

fn request_from_wire(request: Option<v1::RequestFacts>) -> Read<RequestFacts> {
    let v1::RequestFacts { session: whose, number, owner, wants, converts } =
        known("the request of an event", request)?;
    Ok(RequestFacts {
        session: session(whose)?,
        number: RequestNumber(number),
        owner: from_wire::owner_name(owner)?,
        wants: from_wire::held(wants)?,
        converts: converts.map(GrantId),
    })
}

/// The act, and the names that the event carries beside it.
fn act_to_wire(act: &ActFacts) -> (Vec<String>, v1::administered_event::Act) {
    use v1::administered_event::Act;
    match act {
        ActFacts::Broke { grant, names } => (texts(names), Act::BrokeGrant(grant.0)),
        ActFacts::Evicted(session) => (Vec::new(), Act::Evicted(to_wire::session_id(*session))),
        ActFacts::Froze { freeze, scope } => (Vec::new(), Act::Froze(to_wire::freeze(*freeze, scope))),
        ActFacts::Thawed { freeze, scope } => (Vec::new(), Act::Thawed(to_wire::freeze(*freeze, scope))),
        ActFacts::LimitChanged { name, limit } => (Vec::new(), Act::LimitChanged(to_wire::set_limit(name, *limit))),
        ActFacts::WaivedRest { grant, names } => (texts(names), Act::WaivedRest(grant.0)),
        ActFacts::CompletedJob { name, key } => (Vec::new(), Act::CompletedJob(to_wire::job_id(name, key))),
        ActFacts::ForgotJob { name, key } => (Vec::new(), Act::ForgotJob(to_wire::job_id(name, key))),
        ActFacts::AllowedJobs => (Vec::new(), Act::AllowedJobs(v1::Nothing {})),
    }
}

fn act_from_wire(held: &[String], act: v1::administered_event::Act) -> Read<ActFacts> {
    use v1::administered_event::Act;
    Ok(match act {
        Act::BrokeGrant(grant) => ActFacts::Broke { grant: GrantId(grant), names: names(held)? },
        Act::Evicted(session) => ActFacts::Evicted(from_wire::session_id(session)),
        Act::Froze(freeze) => {
            let (freeze, scope) = from_wire::freeze(freeze)?;
            ActFacts::Froze { freeze, scope }
        }
        Act::Thawed(freeze) => {
            let (freeze, scope) = from_wire::freeze(freeze)?;
            ActFacts::Thawed { freeze, scope }
        }
        Act::LimitChanged(change) => {
            let (name, limit) = from_wire::set_limit(change)?;
            ActFacts::LimitChanged { name, limit }
        }
        Act::WaivedRest(grant) => ActFacts::WaivedRest { grant: GrantId(grant), names: names(held)? },
        Act::CompletedJob(job) => {
            let (name, key) = from_wire::job_id(&job)?;
            ActFacts::CompletedJob { name, key }
        }
        Act::ForgotJob(job) => {
            let (name, key) = from_wire::job_id(&job)?;
            ActFacts::ForgotJob { name, key }
        }
        Act::AllowedJobs(v1::Nothing {}) => ActFacts::AllowedJobs,
    })
}

fn session(session: Option<v1::SessionId>) -> Read<SessionId> {
    known("a session's id", session).map(from_wire::session_id)
}

fn texts(names: &Names) -> Vec<String> {
    names.iter().map(to_wire::text).collect()
}

fn names(texts: &[String]) -> Read<Names> {
    texts.iter().map(|text| from_wire::name(text)).collect()
}
