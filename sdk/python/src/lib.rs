//! The extension module `fencepost._core`: the Rust library for Python. The public API is written in Python, in `python/fencepost`.
//!
//! The rule of this crate: the runtime thread never attaches to the interpreter. A Python program can hold the interpreter's lock for as long
//! as it likes (a C extension, a regular expression), and keep-alives must still be sent. So the runtime thread leaves its results in
//! slots and queues of this crate. A thread that waits looks into the slot; one bridge thread calls Python functions.
//!
//! The second rule: memory of another process is not touched. After a fork the child has the parent's objects and none of its threads.
//! So each object carries the [`fork::Birth`] of its process and compares it before it takes a lock, also in its `Drop`.
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | this page, and the names that Python sees |
//! | `fork.rs` | which process this is |
//! | `process.rs` | what a process has once: the runtime thread, the bridge thread, the held locks; and its orderly end |
//! | `bridge.rs` | the queue to the bridge thread, which alone calls Python functions in the background |
//! | `logs.rs` | warnings of the library, on their way to `logging` |
//! | `op.rs` | one started request: waiting for it, taking its result, giving it up |
//! | `settings.rs` | where to connect, and how |
//! | `client.rs` | the client: its connection in this process, and the requests that begin with it |
//! | `ask.rs` | a request for a lock, from the words of Python to a held lock |
//! | `held.rs` | a held lock: its state, its tokens, its loss, its release, its change of mode |
//! | `grip.rs` | the guards of the library behind a held lock |
//! | `job.rs` | jobs that run once |
//! | `watch.rs` | events, and changes of a leader |
//! | `shown.rs` | what observers read, as Python values |
//! | `problem.rs` | the errors of the library as exceptions |

mod ask;
mod bridge;
mod client;
mod fork;
mod grip;
mod held;
mod job;
mod logs;
mod op;
mod problem;
mod process;
mod settings;
mod shown;
mod watch;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

#[pymodule(name = "_core")]
mod core {
    use super::*;

    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::held::Block;
    #[pymodule_export]
    use super::held::Held;
    #[pymodule_export]
    use super::op::Op;
    #[pymodule_export]
    use super::process::shutdown;
    #[pymodule_export]
    use super::process::thread_count;
    #[pymodule_export]
    use super::watch::Watch;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        if !super::fork::is_main_interpreter(module.py()) {
            return Err(PyImportError::new_err(
                "fencepost cannot be used in a subinterpreter: import it in the main interpreter, or in a process of its own",
            ));
        }
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        super::fork::watch();
        Ok(())
    }
}
