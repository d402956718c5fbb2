//! What observers read, as Python values: dictionaries, from which `python/fencepost/_observe.py` makes objects with types.

use fencepost::{
    AsOf, Event, Explanation, FreezeRecord, Held, HolderView, Leader, LogicalMs, Lost, OwnerName, Position,
    PositionedEvent, QueueView, SessionId,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::problem::{Kind, Problem};

/// How many requests of a queue are shown.
const QUEUE_MAX: usize = 16;

/// A position as text: `17.0`. A program keeps it as it is.
pub(crate) fn position(text: &str) -> Result<Position, Problem> {
    let parts = text.split_once('.').and_then(|(index, ordinal)| Some((index.parse().ok()?, ordinal.parse().ok()?)));
    let wrong = || Problem::new(Kind::Value, format!("{text:?} is not a position: take it from an event or a watch"));
    let (index, ordinal) = parts.ok_or_else(wrong)?;
    Ok(Position { index, ordinal })
}

fn session(session: SessionId) -> String {
    format!("{:032x}", session.0)
}

fn owner_text(owner: Option<&OwnerName>) -> Option<String> {
    owner.map(|owner| owner.as_str().to_owned())
}

/// The facts that an event may have.
#[derive(Default)]
struct Facts {
    names: Vec<String>,
    session: Option<SessionId>,
    owner: Option<String>,
    grant: Option<u64>,
    token: Option<u64>,
    how: Option<String>,
    key: Option<String>,
}

fn held(held: &Held) -> Vec<String> {
    held.names().map(ToString::to_string).collect()
}

fn texts<'a>(names: impl IntoIterator<Item = &'a fencepost::Name>) -> Vec<String> {
    names.into_iter().map(ToString::to_string).collect()
}

fn facts(event: &Event) -> Facts {
    let none = Facts::default;
    match event {
        Event::SessionOpened { session, .. } => Facts { session: Some(*session), ..none() },
        Event::SessionEnded { session, how } => {
            let how = Lost::Ended(fencepost::GrantEnd::Session(how.clone())).to_string();
            Facts { session: Some(*session), how: Some(how), ..none() }
        }
        Event::Queued { request, .. } => Facts {
            names: held(&request.wants),
            session: Some(request.session),
            owner: owner_text(request.owner.as_ref()),
            ..none()
        },
        Event::Granted { request, grant, token, .. } => Facts {
            names: held(&request.wants),
            session: Some(request.session),
            owner: owner_text(request.owner.as_ref()),
            grant: Some(grant.0),
            token: Some(token.0),
            ..none()
        },
        Event::NotGranted { request, .. } => Facts {
            names: held(&request.wants),
            session: Some(request.session),
            owner: owner_text(request.owner.as_ref()),
            ..none()
        },
        Event::Ended { grant, token, session, owner, held: what, how, .. } => Facts {
            names: held(what),
            session: Some(*session),
            owner: owner_text(owner.as_ref()),
            grant: Some(grant.0),
            token: Some(token.0),
            how: Some(Lost::Ended(how.clone()).to_string()),
            ..none()
        },
        Event::Converted { grant, token, session, owner, held: what } => Facts {
            names: held(what),
            session: Some(*session),
            owner: owner_text(owner.as_ref()),
            grant: Some(grant.0),
            token: Some(token.0),
            ..none()
        },
        Event::RestEnded { grant, names, .. } | Event::Contended { grant, names } => {
            Facts { names: texts(names), grant: Some(grant.0), ..none() }
        }
        Event::ValueSet { grant, name, .. } => Facts { names: texts([name]), grant: Some(grant.0), ..none() },
        Event::Job { name, key, .. } => Facts { names: texts([name]), key: Some(key.as_str().to_owned()), ..none() },
        Event::JobsFill { name, .. } => Facts { names: texts(name), ..none() },
        Event::Administered { reason, .. } => Facts { how: Some(reason.as_str().to_owned()), ..none() },
    }
}

/// An event: the fields of `fencepost.Event`.
pub(crate) fn event(py: Python<'_>, positioned: &PositionedEvent) -> PyResult<Py<PyAny>> {
    let PositionedEvent { position, wall_clock_ms, event, .. } = positioned;
    let Facts { names, session: of, owner, grant, token, how, key } = facts(event);
    let fields = PyDict::new(py);
    fields.set_item("position", format!("{}.{}", position.index, position.ordinal))?;
    fields.set_item("kind", event.kind())?;
    fields.set_item("time", wall_clock_ms.map(|ms| ms as f64 / 1_000.0))?;
    fields.set_item("names", names)?;
    fields.set_item("session", of.map(session))?;
    fields.set_item("owner", owner)?;
    fields.set_item("grant", grant)?;
    fields.set_item("token", token)?;
    fields.set_item("how", how)?;
    fields.set_item("key", key)?;
    Ok(fields.into_any().unbind())
}

/// Who leads: the fields of `fencepost.Leader`, or `None`.
pub(crate) fn leader(py: Python<'_>, leader: Option<Leader>) -> PyResult<Py<PyAny>> {
    let Some(Leader { epoch, session: of, owner, value, .. }) = leader else { return Ok(py.None()) };
    let fields = PyDict::new(py);
    fields.set_item("epoch", fencepost::Token::from(epoch).0)?;
    fields.set_item("session", of.map(session))?;
    fields.set_item("owner", owner_text(owner.as_ref()))?;
    fields.set_item("value", PyBytes::new(py, value.as_ref().map_or(&[], |value| value.as_bytes())))?;
    Ok(fields.into_any().unbind())
}

/// The state of a name: the fields of `fencepost.Explanation`.
pub(crate) fn explanation(py: Python<'_>, explained: &AsOf<Explanation>) -> PyResult<Py<PyAny>> {
    let AsOf { at, what: Explanation { name, stamp, holders, rests, freezes, queue, queue_len, .. } } = explained;
    let age = |since: LogicalMs| at.age(since).map(|age| age.as_secs_f64());
    let holder = |view: &HolderView| -> PyResult<Py<PyAny>> {
        let fields = PyDict::new(py);
        fields.set_item("session", view.holder.session.map(session))?;
        fields.set_item("owner", owner_text(view.holder.owner.as_ref()))?;
        fields.set_item("grant", view.holder.grant.0)?;
        fields.set_item("token", view.holder.token.0)?;
        fields.set_item("held_for", age(view.holder.since))?;
        fields.set_item("ends_in", view.deadline.0.saturating_sub(stamp.0) as f64 / 1_000.0)?;
        fields.set_item("covers_from", view.covers_from.as_ref().map(ToString::to_string))?;
        Ok(fields.into_any().unbind())
    };
    let waiter = |view: &QueueView| -> PyResult<Py<PyAny>> {
        let fields = PyDict::new(py);
        fields.set_item("session", session(view.waiter.session))?;
        fields.set_item("owner", owner_text(view.waiter.owner.as_ref()))?;
        Ok(fields.into_any().unbind())
    };
    let frozen = |freeze: &FreezeRecord| freeze.by.as_str().to_owned();
    let fields = PyDict::new(py);
    fields.set_item("name", name.as_str())?;
    fields.set_item("holders", holders.iter().map(holder).collect::<PyResult<Vec<_>>>()?)?;
    fields.set_item("queue", queue.iter().take(QUEUE_MAX).map(waiter).collect::<PyResult<Vec<_>>>()?)?;
    fields.set_item("waiting", *queue_len)?;
    fields.set_item("frozen_by", freezes.iter().map(frozen).collect::<Vec<_>>())?;
    fields.set_item("rests", rests.len())?;
    Ok(fields.into_any().unbind())
}
