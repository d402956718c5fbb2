//! Jobs that run once: the values that Python sees, and the reports that end a job.

use fencepost::{Checkpoint, Completion, Job, JobBytes};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::grip::Grip;
use crate::op::{Outcome, Value};
use crate::problem::{Kind, Problem};

/// Fails if the result of a job is too long.
pub(crate) fn check_result(result: &[u8]) -> Result<(), Problem> {
    let too_long = |why| Problem::new(Kind::Value, format!("the result of a job is not valid: {why}"));
    JobBytes::new(result).map(drop).map_err(too_long)
}

/// Completes a job, and gives its lock back.
pub(crate) async fn complete(grip: Option<Grip>, result: Vec<u8>, succeeded: bool) -> Outcome {
    let mut job = job(grip)?;
    let completion = match succeeded {
        true => job.complete(result).await?,
        false => job.complete_failed(result).await?,
    };
    Ok(completed(completion))
}

/// Ends an attempt, and gives the lock back.
pub(crate) async fn fail(grip: Option<Grip>, text: String) -> Outcome {
    job(grip)?.fail(text).await?;
    Ok(Value::Nothing)
}

fn job(grip: Option<Grip>) -> Result<Job, Problem> {
    match grip {
        Some(Grip::Job(job)) => Ok(job),
        Some(_) => Err(Problem::misused("this lock is not a job")),
        None => Err(Problem::already_released()),
    }
}

/// A completion: a dictionary with the fields of `fencepost.Completion`.
pub(crate) fn completed(completion: Completion) -> Value {
    Value::made(move |py| {
        let Completion { succeeded, result, token, by, attempts } = completion;
        let fields = PyDict::new(py);
        fields.set_item("succeeded", succeeded)?;
        fields.set_item("result", PyBytes::new(py, &result))?;
        fields.set_item("token", token.map(|token| token.0))?;
        fields.set_item("by", by.map(|by| by.as_str().to_owned()))?;
        fields.set_item("attempts", attempts)?;
        Ok(fields.into_any().unbind())
    })
}

/// A checkpoint, as `(attempt, bytes)`.
pub(crate) fn checkpoint(py: Python<'_>, last: Option<Checkpoint>) -> PyResult<Py<PyAny>> {
    match last {
        None => Ok(py.None()),
        Some(Checkpoint { attempt, bytes, .. }) => {
            Ok((attempt, PyBytes::new(py, &bytes)).into_pyobject(py)?.into_any().unbind())
        }
    }
}
