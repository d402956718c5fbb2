//! HTTP and gRPC services: the token comes in a header, and the service's own store keeps the marks.
//!
//! A client sends its tokens in the header `Fencing-Token`, which for gRPC is metadata of the same name. First comes the token of
//! the lock on what the request is about, then a token and a name for everything else that the request was decided from.
//!
//! ```text
//! Fencing-Token: 42, 17;read="price:3"
//! ```
//!
//! [`FencingLayer`] refuses requests that need the header and have none, or one that cannot be read. It keeps no marks and compares
//! nothing: a check in front of the service could be out of date when the write happens. // Rule: same-transaction
//! The handler finds the tokens as [`Presented`] among the request's extensions, makes an [`Access`](crate::Access) from them
//! for the names that it serves, and asks the guard of its own store. A refusal of the guard becomes the answer.
//!
//! | | HTTP | gRPC |
//! |---|---|---|
//! | missing | 428 | `FAILED_PRECONDITION` |
//! | cannot be read | 400 | `INVALID_ARGUMENT` |
//! | stale | 412, the highest seen in `Fencing-Token-Highest` | `FAILED_PRECONDITION`, the highest seen in `fencing-token-highest` |
//! | the work was done before (`once`) | 409 | `ALREADY_EXISTS` |
//!
//! The service trusts the sender: a number that the lock service has not given out yet shuts out all other holders. So let in only
//! clients that you trust with the lock itself.
//!
//! ```
//! # use std::sync::{Arc, Mutex};
//! # use fencepost_fence::{Access, Error, Writes, rules::MarkTable};
//! use axum::extract::{Path, State};
//! use axum::{Extension, Router, routing};
//! use fencepost_fence::http::{FencingLayer, Presented, Refused};
//!
//! # type Store = Arc<Mutex<MarkTable>>;
//! # fn transfer(store: &Store, access: &Access<Writes>) -> Result<(), Error> {
//! #     Ok(store.lock().expect("no thread panics here").admit(access.shown()?)?)
//! # }
//! type Tokens = Extension<Presented>;
//!
//! async fn pay(State(store): State<Store>, Path(id): Path<u64>, presented: Tokens) -> Result<&'static str, Refused> {
//!     // Begins a transaction, lets its guard admit the access, pays, and commits. A refusal of the guard becomes the answer.
//!     transfer(&store, &presented.write(&format!("wallet:{id}")))?;
//!     Ok("paid")
//! }
//!
//! # let store = Store::default();
//! let service: Router = Router::new()
//!     .route("/wallets/{id}/pay", routing::post(pay))
//!     .with_state(store)
//!     .layer(FencingLayer::new());
//! ```

mod header;
mod layer;
mod refusal;

pub use header::{FENCING_TOKEN, FENCING_TOKEN_HIGHEST, Presented, header};
pub use layer::{Fencing, FencingLayer};
pub use refusal::{Refusal, Refused};
