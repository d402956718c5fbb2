//! Object stores: the marks are the first line of the object itself, and both change in one conditional put.
//!
//! An object store has no transactions. It has one atomic step: a put that names the version that it replaces. So the marks must
//! be part of what that step replaces. They are in the body, because the ETag of S3 does not change with an object's metadata.
//!
//! Two limits follow. One access is about one object: several names, or a path with names above it, are refused. And marks live
//! and die with their object, so marks are never forgotten: a deleted object leaves its marks behind in a body of one line.
//!
//! Every program must use the guard. A program that puts or deletes without it removes the marks together with the object.

use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use fencepost_core::{Name, Token};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion};

use crate::access::{Access, Claims, Reads, Writes};
use crate::error::Error;
use crate::rules::{MarkTable, Marks, Shown, Use};
use crate::upkeep::{SCHEMA_VERSION, Status};

/// The first word of every guarded object.
const MAGIC: &str = "fencepost-marks";
/// Upper bound of the first line: the magic, a version, a word and three numbers.
const HEAD_BYTES_MAX: usize = 128;
/// The guard's own object, with which it finds out what the store can do.
const PROBE: &str = "fencepost-probe";
/// How often an access tries its put. A lost race means that another access was admitted. If that one is newer, this access is
/// stale and ends; accesses that are older or of the same lock are few. So an access loses this often only if the store never
/// recognises its own ETags.
const RACES_MAX: u32 = 100;

const ONE_NAME: &str = "an object keeps its own marks only, so an access shows one name here: keep what belongs together in one object, or use \
     a store with transactions";
const NO_PATHS: &str =
    "an object does not see the marks of the names above it: use a name that does not begin with a slash";
const NO_EMPTY_SEGMENTS: &str = "an object store drops empty segments, so two names would share one object: use a name without // and without a slash at its end";
const NO_CONDITIONAL_PUT: &str = "this object store has no conditional put, and without it no check of a token holds: use a store that has it, or for local \
     files the guard for files";
const IGNORES_CONDITIONS: &str = "this object store accepts a conditional put whose condition does not hold, so no check of a token holds: use another store";

/// Reads and writes objects. The name of an access is the location of its object.
///
/// ```
/// # use fencepost_fence::{Access, FencingToken, object};
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// # let store = std::sync::Arc::new(object_store::memory::InMemory::new());
/// # let token: FencingToken = "7".parse().unwrap();
/// let guard = object::Guard::open(store).await?;
/// let before = guard.claim(&Access::claim("reports/today", token)).await?;
/// assert_eq!(before, None);
/// guard.write(&Access::write("reports/today", token), "all is well".into()).await?;
/// # Ok::<(), fencepost_fence::Error>(())
/// # }).unwrap();
/// ```
///
/// # Cancellation
/// A write whose future is dropped may still take place, until a newer token is admitted.
#[derive(Clone, Debug)]
pub struct Guard {
    store: Arc<dyn ObjectStore>,
}

impl Guard {
    /// A guard for the objects of a store, after a test that the store has a conditional put.
    ///
    /// The test uses a small object of its own, `fencepost-probe`, because some stores accept the condition, ignore it, and put
    /// anyway.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store has no conditional put or ignores the condition.
    pub async fn open(store: Arc<dyn ObjectStore>) -> Result<Guard, Error> {
        let guard = Guard { store };
        guard.probe().await?;
        Ok(guard)
    }

    /// Claims an object and reads it; `None` if there is no object. From here on no older holder can write it.
    ///
    /// # Errors
    /// [`Error::Stale`] if the object has seen a newer token. [`Error::Unsupported`] for several names or a path.
    // Rule: claim-before-read
    pub async fn claim(&self, access: &Access<Claims>) -> Result<Option<Bytes>, Error> {
        self.admit(access, Change::Keep).await
    }

    /// Reads an object as one reader among others; `None` if there is no object.
    ///
    /// # Errors
    /// As [`Guard::claim`].
    pub async fn read(&self, access: &Access<Reads>) -> Result<Option<Bytes>, Error> {
        self.admit(access, Change::Keep).await
    }

    /// Writes an object.
    ///
    /// # Errors
    /// As [`Guard::claim`]. After [`Error::Store`] the outcome is unknown: the same token may write again. A first put that is
    /// still in flight then takes effect before the second one, or not at all.
    // Rule: same-transaction
    pub async fn write(&self, access: &Access<Writes>, payload: Bytes) -> Result<(), Error> {
        self.admit(access, Change::Replace(Some(payload))).await.map(drop)
    }

    /// Deletes the content of an object. Its marks stay.
    ///
    /// # Errors
    /// As [`Guard::write`].
    pub async fn delete(&self, access: &Access<Writes>) -> Result<(), Error> {
        self.admit(access, Change::Replace(None)).await.map(drop)
    }

    /// Adds marks to an object that was written without a guard. Its content stays. First stop the programs that write it
    /// without the guard.
    ///
    /// # Errors
    /// As [`Guard::write`].
    pub async fn adopt(&self, access: &Access<Writes>) -> Result<(), Error> {
        self.admit(access, Change::Adopt).await.map(drop)
    }

    /// Reads an object without a token: the result may be out of date already. `None` if there is no object.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] if the object was written without a guard.
    pub async fn peek(&self, name: &str) -> Result<Option<Bytes>, Error> {
        let location = location(&Name::new(name)?)?;
        Ok(self.load(&location, &Change::Keep).await?.0.payload)
    }

    /// The state of the marks of one object. To count all marks, the guard would have to read the whole store.
    ///
    /// # Errors
    /// As [`Guard::peek`].
    pub async fn status(&self, name: &str) -> Result<Status, Error> {
        let location = location(&Name::new(name)?)?;
        let (Envelope { marks, writes, .. }, _) = self.load(&location, &Change::Keep).await?;
        let names = u64::from(marks != Marks::default());
        Ok(Status { version: SCHEMA_VERSION, base: Token(0), names, writes, highest: marks.write_floor, keys: None })
    }

    /// Admits one access. Puts the object if the access lifts a mark or changes the content.
    async fn admit<Kind>(&self, access: &Access<Kind>, change: Change) -> Result<Option<Bytes>, Error> {
        let one = only_name(access)?;
        let location = location(&one.name)?;
        for _ in 0..RACES_MAX {
            let (before, mode) = self.load(&location, &change).await?;
            let mut table = MarkTable::default();
            table.restore(one.name.clone(), before.marks);
            table.admit(slice::from_ref(one))?;
            let marks = table.marks(&one.name);
            let payload = match &change {
                Change::Replace(payload) => payload.clone(),
                // Nothing to put. So readers that lift no mark do not disturb each other.
                Change::Keep | Change::Adopt if marks == before.marks => return Ok(before.payload),
                Change::Keep | Change::Adopt => before.payload,
            };
            let writes = before.writes + u64::from(one.used_to == Use::Write);
            let after = Envelope { marks, writes, payload };
            match self.store.put_opts(&location, after.seal(), mode.into()).await {
                Ok(_) => return Ok(after.payload),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {}
                Err(error) => return Err(store_error(error)),
            }
        }
        Err(Error::store(format!(
            "{location} was changed {RACES_MAX} times by others before this put: try again later"
        )))
    }

    /// The object at a location, and the put mode that replaces exactly this version.
    async fn load(&self, location: &Path, change: &Change) -> Result<(Envelope, PutMode), Error> {
        // An access that replaces the content need not fetch it.
        let found = match change {
            Change::Replace(_) => match self.store.get_opts(location, head()).await {
                found @ (Ok(_) | Err(object_store::Error::NotFound { .. })) => found,
                // An empty object has no first bytes, and each store reports that differently: fetch the whole object.
                Err(_) => self.store.get(location).await,
            },
            Change::Keep | Change::Adopt => self.store.get(location).await,
        };
        let found = match found {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok((Envelope::default(), PutMode::Create)),
            Err(error) => return Err(store_error(error)),
        };
        let mode =
            PutMode::Update(UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() });
        let body = found.bytes().await.map_err(store_error)?;
        match Envelope::open(location, body.clone())? {
            Some(envelope) => Ok((envelope, mode)),
            None if matches!(change, Change::Adopt) => {
                Ok((Envelope { payload: Some(body), ..Envelope::default() }, mode))
            }
            None => Err(Error::NotInstalled(format!(
                "the object at {location} was written without this guard and has no marks: make every program use the \
                 guard, then take the object over with `adopt`"
            ))),
        }
    }

    async fn probe(&self) -> Result<(), Error> {
        let location = Path::from(PROBE);
        let put = |mode: PutMode| self.store.put_opts(&location, PutPayload::from_static(b""), mode.into());
        let another = UpdateVersion { e_tag: Some("\"another\"".to_owned()), version: Some("1".to_owned()) };
        let other = || PutMode::Update(another.clone());
        // First the operation that some stores do not have, so that no object is left behind there.
        must_not_hold(put(other()).await)?;
        match put(PutMode::Create).await {
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(store_error(error)),
        }
        must_not_hold(put(PutMode::Create).await)?;
        must_not_hold(put(other()).await)
    }
}

/// What happens to the content.
enum Change {
    /// It stays.
    Keep,
    /// It stays, even if it was written without a guard.
    Adopt,
    /// It is replaced, or deleted.
    Replace(Option<Bytes>),
}

/// A guarded object, parsed.
#[derive(Default)]
struct Envelope {
    /// The two marks for names below are never used.
    marks: Marks,
    /// How often the object was written. This number makes every body different, so the object never has the same ETag twice. A
    /// put that was believed lost may arrive late: its condition then fails, even if the object has the same content again.
    writes: u64,
    /// `None` if the object was deleted, or only claimed so far.
    payload: Option<Bytes>,
}

impl Envelope {
    fn seal(&self) -> PutPayload {
        let Envelope { marks: Marks { write_floor, read_floor, .. }, writes, payload } = self;
        let there = if payload.is_some() { "object" } else { "nothing" };
        let head = format!("{MAGIC} {SCHEMA_VERSION} {there} {} {} {writes}\n", write_floor.0, read_floor.0);
        PutPayload::from_iter([Bytes::from(head), payload.clone().unwrap_or_default()])
    }

    /// Parses a body. `None` if it is not a guarded object.
    fn open(location: &Path, mut body: Bytes) -> Result<Option<Envelope>, Error> {
        let Some(end) = body.iter().take(HEAD_BYTES_MAX).position(|byte| *byte == b'\n') else { return Ok(None) };
        let payload = body.split_off(end + 1);
        let Ok(head) = std::str::from_utf8(&body[..end]) else { return Ok(None) };
        let Some(head) = head.strip_prefix(MAGIC) else { return Ok(None) };
        let (version, head) = head.trim_start().split_once(' ').unwrap_or_default();
        if version != SCHEMA_VERSION.to_string() {
            return Err(Error::NotInstalled(format!(
                "the guard's marks in {location} have format version {version:?}, and this release knows {SCHEMA_VERSION}: \
                 use a newer release of Fencepost"
            )));
        }
        let numbers = head.split(' ').skip(1).map(str::parse).collect::<Result<Vec<u64>, _>>();
        let (Some(there @ ("object" | "nothing")), Ok([write_floor, read_floor, writes])) =
            (head.split(' ').next(), numbers.as_deref())
        else {
            return Err(Error::store(format!(
                "the guard's marks in {location} are damaged: restore the object from a backup"
            )));
        };
        let marks = Marks { write_floor: Token(*write_floor), read_floor: Token(*read_floor), ..Marks::default() };
        Ok(Some(Envelope { marks, writes: *writes, payload: (there == "object").then_some(payload) }))
    }
}

fn only_name<Kind>(access: &Access<Kind>) -> Result<&Shown, Error> {
    match access.shown()? {
        [one] => Ok(one),
        _ => Err(Error::Unsupported(ONE_NAME)),
    }
}

/// The location of the object of a name. No two names share a location: what a location cannot contain is encoded or refused.
fn location(name: &Name) -> Result<Path, Error> {
    if name.is_path() {
        return Err(Error::Unsupported(NO_PATHS));
    }
    if name.as_str().split('/').any(str::is_empty) {
        return Err(Error::Unsupported(NO_EMPTY_SEGMENTS));
    }
    Ok(Path::from(name.as_str()))
}

/// Asks for the beginning of an object, which has the marks.
fn head() -> GetOptions {
    GetOptions { range: Some((0..HEAD_BYTES_MAX as u64).into()), ..GetOptions::default() }
}

fn must_not_hold<Done>(put: Result<Done, object_store::Error>) -> Result<(), Error> {
    match put {
        Ok(_) => Err(Error::Unsupported(IGNORES_CONDITIONS)),
        Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(()),
        Err(error) => Err(store_error(error)),
    }
}

fn store_error(error: object_store::Error) -> Error {
    match error {
        object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. } => {
            Error::Unsupported(NO_CONDITIONAL_PUT)
        }
        error => Error::store(error),
    }
}
