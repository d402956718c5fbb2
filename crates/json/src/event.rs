//! Events: what happened, in the words that people and programs both read.

use fencepost_core::{
    ActFacts, Event, Held, JobFact, JobKey, Metadata, Name, OwnerName, PositionedEvent, RequestFacts, SessionId,
};
use serde_json::{Map, Value, json};

use crate::{client, lock, time, words};

/// The facts of an event, with the same words for people and programs.
#[derive(Default)]
pub struct Facts<'a> {
    /// The names that it is about, if they are not in `held`.
    pub names: Vec<&'a Name>,
    /// What is held or asked for.
    pub held: Option<&'a Held>,
    /// Whose it is.
    pub session: Option<SessionId>,
    /// The owner, if it has a name.
    pub owner: Option<&'a OwnerName>,
    /// The grant.
    pub grant: Option<u64>,
    /// The token.
    pub token: Option<u64>,
    /// Facts that only this kind of event has: a text, a number, or null for none.
    pub more: Vec<(&'static str, Value)>,
}

/// The facts of an event.
pub fn facts(event: &Event) -> Facts<'_> {
    let asked = |request: &'_ RequestFacts| -> (SessionId, Option<u64>) {
        (request.session, request.converts.map(|grant| grant.0))
    };
    match event {
        Event::SessionOpened { session, principal, .. } => {
            Facts { session: Some(*session), more: vec![("principal", principal.as_str().into())], ..Facts::default() }
        }
        Event::SessionEnded { session, how } => {
            Facts { session: Some(*session), more: vec![("how", words::session_end(how).into())], ..Facts::default() }
        }
        Event::Queued { request, arrival } => {
            let (session, grant) = asked(request);
            Facts {
                grant,
                held: Some(&request.wants),
                session: Some(session),
                owner: request.owner.as_ref(),
                more: vec![("arrival", arrival.0.into())],
                ..Facts::default()
            }
        }
        Event::Granted { request, grant, token, count } => Facts {
            held: Some(&request.wants),
            session: Some(request.session),
            owner: request.owner.as_ref(),
            grant: Some(grant.0),
            token: Some(token.0),
            more: if *count > 1 { vec![("count", json!(count))] } else { Vec::new() },
            ..Facts::default()
        },
        Event::NotGranted { request, .. } => {
            let (session, grant) = asked(request);
            Facts {
                grant,
                held: Some(&request.wants),
                session: Some(session),
                owner: request.owner.as_ref(),
                ..Facts::default()
            }
        }
        Event::Ended { grant, token, session, owner, held, count_left, how, .. } => {
            let mut more = vec![("how", words::grant_end(how).into())];
            if *count_left > 0 {
                more.push(("count_left", json!(count_left)));
            }
            Facts {
                held: Some(held),
                session: Some(*session),
                owner: owner.as_ref(),
                grant: Some(grant.0),
                token: Some(token.0),
                more,
                ..Facts::default()
            }
        }
        Event::Converted { grant, token, session, owner, held } => Facts {
            held: Some(held),
            session: Some(*session),
            owner: owner.as_ref(),
            grant: Some(grant.0),
            token: Some(token.0),
            ..Facts::default()
        },
        Event::RestEnded { grant, names, .. } | Event::Contended { grant, names } => {
            Facts { names: names.iter().collect(), grant: Some(grant.0), ..Facts::default() }
        }
        Event::ValueSet { grant, name, value } => Facts {
            names: vec![name],
            grant: Some(grant.0),
            more: vec![("value", String::from_utf8_lossy(value.as_bytes()).into())],
            ..Facts::default()
        },
        Event::Job { name, key, what } => job_facts(name, key, what),
        Event::JobsFill { name, records, bytes } => Facts {
            names: name.iter().collect(),
            more: vec![
                ("bound_of", if name.is_some() { "this name" } else { "the whole cluster" }.into()),
                ("records", (*records).into()),
                ("bytes", (*bytes).into()),
                (
                    "consequence",
                    "acquires with a job key are refused at the bound: forget jobs, or keep them for less time".into(),
                ),
            ],
            ..Facts::default()
        },
        Event::Administered { by, reason, act } => {
            let mut facts = act_facts(act);
            facts.more.push(("by", by.as_str().into()));
            facts.more.push(("reason", reason.as_str().into()));
            facts
        }
    }
}

fn job_facts<'a>(name: &'a Name, key: &JobKey, what: &JobFact) -> Facts<'a> {
    let mut facts = Facts { names: vec![name], more: vec![("key", key.as_str().into())], ..Facts::default() };
    match what {
        JobFact::Begun { grant, attempt } | JobFact::Checkpointed { grant, attempt } => {
            facts.grant = Some(grant.0);
            facts.more.push(("attempt", (*attempt).into()));
        }
        JobFact::Completed { token, succeeded } => {
            facts.token = token.map(|token| token.0);
            facts.more.push(("succeeded", (*succeeded).into()));
        }
    }
    facts
}

fn act_facts(act: &ActFacts) -> Facts<'_> {
    match act {
        ActFacts::Broke { grant, names } | ActFacts::WaivedRest { grant, names } => {
            Facts { names: names.iter().collect(), grant: Some(grant.0), ..Facts::default() }
        }
        ActFacts::Evicted(session) => Facts { session: Some(*session), ..Facts::default() },
        ActFacts::Froze { freeze, scope } | ActFacts::Thawed { freeze, scope } => Facts {
            more: vec![("scope", words::scope(scope).into()), ("freeze", words::freeze_id(*freeze).into())],
            ..Facts::default()
        },
        ActFacts::LimitChanged { name, limit } => Facts {
            names: vec![name],
            more: vec![("limit", limit.map(|limit| limit.get()).into())],
            ..Facts::default()
        },
        ActFacts::CompletedJob { name, key } | ActFacts::ForgotJob { name, key } => {
            Facts { names: vec![name], more: vec![("key", key.as_str().into())], ..Facts::default() }
        }
        ActFacts::AllowedJobs => Facts::default(),
    }
}

/// An event. `metadata` is what the session of the event says about itself.
pub fn event(event: &PositionedEvent, metadata: Option<&Metadata>) -> Value {
    let PositionedEvent { position, stamp, wall_clock_ms, event } = event;
    let facts = facts(event);
    let names: Vec<&str> = match facts.held {
        Some(held) => held.names().map(Name::as_str).collect(),
        None => facts.names.iter().map(|name| name.as_str()).collect(),
    };
    let mut json = Map::new();
    json.insert("position".to_owned(), format!("{}.{}", position.index, position.ordinal).into());
    json.insert("time".to_owned(), wall_clock_ms.map(time::rfc_3339).into());
    json.insert("stamp_ms".to_owned(), stamp.0.into());
    json.insert("event".to_owned(), event.kind().into());
    json.insert("names".to_owned(), names.into());
    if let Some(held) = facts.held {
        json.insert("locks".to_owned(), lock::held(held));
    }
    let optional = [
        ("session", facts.session.map(|session| json!(words::session_id(session)))),
        ("client", metadata.map(|metadata| client::client(&client::metadata(metadata.as_bytes())))),
        ("owner", facts.owner.map(|owner| json!(owner.as_str()))),
        ("grant", facts.grant.map(Value::from)),
        ("token", facts.token.map(Value::from)),
    ];
    json.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    json.extend(facts.more.into_iter().map(|(key, value)| (key.to_owned(), value)));
    json.into()
}
