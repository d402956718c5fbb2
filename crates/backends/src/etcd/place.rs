//! The recipe: a place in the queue of a name is a key under a lease of its own, and the queue is the order in which the keys
//! were made.
//!
//! A reader waits for the last writer before it, a writer for whoever is just before it. Each watches that one key, so a release
//! wakes those whose turn it is. Whoever vanishes, wherever in the queue, deletes its key, and the one behind looks again.
//!
//! # When a renewal counts
//! etcd's leader renews a lease by itself, without the others. One that was replaced and does not know it yet says yes to a lease
//! that is another's to keep. So after each renewal the key is read, which takes a majority: if no newer term has begun by then,
//! it was the leader who renewed.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost::{Error, Failed, Lost, Name, Refused, Token, Unknown, clock};
use tokio::time::{sleep, timeout};

use super::calls::{Calls, seconds};
use super::proto::compare::{CompareTarget, TargetUnion};
use super::proto::range_request::{SortOrder, SortTarget};
use super::proto::request_op::Request;
use super::proto::response_op::Response;
use super::proto::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseHeader, TxnRequest,
    TxnResponse,
};
use crate::backend::{Ask, Mode, Proof, Undo, random, unique};
use crate::backoff::Backoff;
use crate::keeper::SLEEP_MAX;
use crate::validity::{Step, Validity};

/// Before the name, so that a lock on `a` is not the key `a` of somebody's data.
pub(super) const KEY_PREFIX: &str = "fencepost/lock/";
/// Tokens stay below this, so that every language and every store can hold them.
const TOKEN_END: i64 = 1 << 53;

/// A place in the queue of a name. Dropping it gives it back in the background.
pub(super) struct Place {
    calls: Calls,
    name: Name,
    mode: Mode,
    lease_id: i64,
    key: Vec<u8>,
    /// Decides the order. Zero until the key is there.
    create_revision: i64,
    /// The last that proved the lease.
    proof: Mutex<Proof>,
    /// Revokes the lease. Invariant: it is there from before the lease is, until the place was given back.
    undo: Mutex<Option<Undo>>,
    left: tokio::sync::Mutex<Left>,
}

/// Whether the place was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    No,
    /// It was sent, and nobody has heard what came of it.
    InDoubt,
    Yes,
}

/// What was seen of a place at some revision.
struct Look {
    revision: i64,
    /// Whether the place is still there.
    is_there: bool,
    /// The key that has to go first.
    ahead: Option<Vec<u8>>,
}

/// Whether somebody is in the way of this request, held or waiting.
pub(super) async fn is_busy(calls: &Calls, ask: &Ask) -> Result<bool, Error> {
    let (key, range_end) = rivals(&ask.name, ask.mode);
    let found = calls.range(RangeRequest { key, range_end, limit: 1, keys_only: true, ..Default::default() }).await?;
    Ok(!found.kvs.is_empty())
}

impl Place {
    /// Takes the lock if nobody is in the way. etcd decides that and writes in one step, so nobody ever waits for one who only
    /// tried.
    pub(super) async fn take(calls: &Calls, ask: &Ask) -> Result<Option<Place>, Error> {
        let mut place = Place::with_lease(calls, ask).await?;
        let nobody = created_at(rivals(&ask.name, ask.mode), 0);
        let (answer, mut found) = place.put(vec![nobody], vec![]).await?;
        place.create_revision = match answer.succeeded {
            true => header(answer.header)?.revision,
            // Ours is there if this was sent before. Otherwise somebody was faster.
            false => match next(&mut found)?.kvs.first() {
                Some(ours) => ours.create_revision,
                None => return Ok(None),
            },
        };
        place.fencing_token()?;
        Ok(Some(place))
    }

    /// Gets in line and waits for the turn.
    ///
    /// # Errors
    /// [`Refused::SessionEnded`] if the place is lost before the turn comes. It is not taken again: that would be at the end of
    /// the queue, behind those who came later, and against the will of an operator who removed it.
    pub(super) async fn wait(calls: &Calls, ask: &Ask) -> Result<Place, Error> {
        let mut place = Place::with_lease(calls, ask).await?;
        let last_rival = RequestOp::from(place.last_rival(0));
        let (answer, mut found) = place.put(vec![], vec![last_rival]).await?;
        let found = next(&mut found)?.kvs.into_iter().next();
        let revision = header(answer.header)?.revision;
        let seen = if answer.succeeded {
            place.create_revision = revision;
            Look { revision, is_there: true, ahead: found.map(|rival| rival.key) }
        } else {
            // It was sent before, and is there.
            place.create_revision = found.ok_or(Refused::SessionEnded(None))?.create_revision;
            place.look().await?
        };
        place.fencing_token()?;
        tokio::select! {
            biased;
            turn = place.turn(seen) => turn?,
            error = place.keep() => return Err(error),
        }
        Ok(place)
    }

    /// A lease, and no key yet.
    async fn with_lease(calls: &Calls, ask: &Ask) -> Result<Place, Error> {
        // We choose the id, so that it can be revoked when the answer to its grant never came.
        let lease_id = lease_id(&unique()?);
        let ttl_s = whole_seconds(ask.ttl);
        let undo = Undo::new(give_back(calls.clone(), lease_id, seconds(ttl_s)));
        let sent_at = clock::now();
        let ttl = match calls.grant(lease_id, ttl_s).await {
            Ok(ttl) => ttl,
            Err(error) => {
                if let Error::Failed(_) = error {
                    undo.disarm();
                }
                return Err(error);
            }
        };
        Ok(Place {
            calls: calls.clone(),
            name: ask.name.clone(),
            mode: ask.mode,
            lease_id,
            key: key(&ask.name, ask.mode, lease_id),
            create_revision: 0,
            proof: Mutex::new(Proof { sent_at, ttl }),
            undo: Mutex::new(Some(undo)),
            left: tokio::sync::Mutex::new(Left::No),
        })
    }

    /// Makes the key if the conditions hold and it is not there, after the first steps; otherwise reads it. A key that is there
    /// was made by the same request, sent before: making it again would hide the revision that counts.
    async fn put(
        &self,
        mut compare: Vec<Compare>,
        first: Vec<RequestOp>,
    ) -> Result<(TxnResponse, impl Iterator<Item = RangeResponse> + use<>), Error> {
        compare.push(created_at((self.key.clone(), vec![]), 0));
        let put = PutRequest { key: self.key.clone(), value: vec![], lease: self.lease_id };
        let put = RequestOp { request: Some(Request::Put(put)) };
        let success = first.into_iter().chain([put]).collect();
        let request = TxnRequest { compare, success, failure: vec![self.own_key().into()] };
        match self.calls.txn(request).await {
            Ok(mut answer) => {
                let found = ranges(&mut answer.message);
                Ok((answer.message, found))
            }
            // The lease has ended before its key was made.
            Err(Error::Refused(Refused::NotFound)) => Err(Refused::SessionEnded(None).into()),
            Err(error) => Err(error),
        }
    }

    /// The revision that made the key: it rises over all names.
    // Rule: token-order
    pub(super) fn fencing_token(&self) -> Result<Token, Error> {
        if !(1..TOKEN_END).contains(&self.create_revision) {
            let message = format!("etcd's revision {} is no token: it must be below 2^53", self.create_revision);
            return Err(Failed::NotTaken { message, retry_after: None }.into());
        }
        Ok(Token(self.create_revision.unsigned_abs()))
    }

    pub(super) fn last_proof(&self) -> Proof {
        *locked(&self.proof)
    }

    /// Returns when nobody is ahead any more.
    async fn turn(&self, seen: Look) -> Result<(), Error> {
        self.watch_until(seen, |seen| match seen {
            Look { is_there: false, .. } => Some(Err(Refused::SessionEnded(None).into())),
            Look { ahead: None, .. } => Some(Ok(())),
            Look { ahead: Some(_), .. } => None,
        })
        .await
    }

    /// Returns when the place is gone.
    pub(super) async fn gone(&self) -> Lost {
        let seen = Look { revision: self.create_revision, is_there: true, ahead: None };
        self.watch_until(seen, |seen| (!seen.is_there).then(|| self.why_gone())).await
    }

    /// Looks again whenever the place or the one ahead of it is deleted.
    async fn watch_until<T>(&self, mut seen: Look, done: impl Fn(&Look) -> Option<T>) -> T {
        let mut backoff = Backoff::for_unreachable();
        loop {
            if let Some(done) = done(&seen) {
                return done;
            }
            let looked = async {
                let keys: Vec<Vec<u8>> = seen.ahead.iter().chain([&self.key]).cloned().collect();
                let watch = self.calls.watch(&keys, seen.revision + 1).await?;
                if let Err(error) = watch.deletion().await {
                    // Nothing is missed: what has happened since is read.
                    tracing::debug!(%error, "a watch of etcd broke off, and is begun anew");
                    sleep(backoff.pause(random())).await;
                } else {
                    backoff.reset();
                }
                self.look().await
            };
            match looked.await {
                Ok(look) => seen = look,
                // The lease decides how long it is worth trying.
                Err(error) => {
                    tracing::debug!(%error, "etcd did not say who is ahead, and is asked again");
                    sleep(backoff.pause(random())).await;
                }
            }
        }
    }

    /// Whether the place is there, and who is ahead, at one revision.
    async fn look(&self) -> Result<Look, Error> {
        let success = vec![self.own_key().into(), self.last_rival(self.create_revision - 1).into()];
        let mut answer = self.calls.txn(TxnRequest { success, ..Default::default() }).await?.message;
        let mut found = ranges(&mut answer);
        let (own, ahead) = (next(&mut found)?, next(&mut found)?);
        Ok(Look {
            revision: header(answer.header)?.revision,
            is_there: self.is_in(&own),
            ahead: ahead.kvs.into_iter().next().map(|rival| rival.key),
        })
    }

    /// Keeps the lease while others are ahead. Returns when that is over, and why.
    async fn keep(&self) -> Error {
        let mut validity = Validity::new(self.last_proof());
        let mut backoff = Backoff::for_unreachable();
        let mut last = Error::from(Refused::SessionEnded(None));
        loop {
            let now = clock::now();
            match validity.poll(now) {
                Step::Lost(_) => return last,
                Step::WaitUntil(until) => sleep(until.since(now).min(SLEEP_MAX)).await,
                Step::Renew => match timeout(validity.remaining(now), self.prolong()).await {
                    Ok(Ok(proof)) => {
                        backoff.reset();
                        validity.handle_proof(proof);
                    }
                    Ok(Err(Error::Refused(Refused::Lost(_)))) => return Refused::SessionEnded(None).into(),
                    Ok(Err(refused @ Error::Refused(_))) => return refused,
                    Ok(Err(error)) => {
                        last = error;
                        validity.handle_failed(clock::now(), backoff.pause(random()));
                    }
                    Err(_) => last = Unknown::NoAnswer.into(),
                },
            }
        }
    }

    /// Lets the lease begin anew.
    pub(super) async fn prolong(&self) -> Result<Proof, Error> {
        // Whoever answers after an election is a new leader. Two in a row are a reason to pause.
        for _ in 0..2 {
            let sent_at = clock::now();
            let kept = self.calls.keep_alive(self.lease_id).await?;
            if kept.ttl <= 0 {
                return Err(self.why_gone().into());
            }
            let seen = self.calls.range(self.own_key()).await?;
            if !self.is_in(&seen) {
                return Err(self.why_gone().into());
            }
            // Rule: holder-stops-first
            if header(kept.header)?.raft_term == header(seen.header)?.raft_term {
                let proof = Proof { sent_at, ttl: seconds(kept.ttl) };
                *locked(&self.proof) = proof;
                return Ok(proof);
            }
        }
        let message = "etcd elects a leader, and nobody knows yet who renewed the lease".to_owned();
        Err(Failed::NotTaken { message, retry_after: None }.into())
    }

    /// Deletes the key, if it is there.
    ///
    /// # Errors
    /// [`Refused::NotHeld`] if we did so before. If it is gone otherwise: [`Refused::NotOwner`] if somebody else has the lock by
    /// now, else [`Refused::Lost`], or [`Unknown::BrokeOff`] if it may be that we deleted it without hearing of it, and the
    /// lease may have ended as well.
    pub(super) async fn leave(&self) -> Result<(), Error> {
        let mut left = self.left.lock().await;
        // If we are dropped from here on, it stays so.
        let before = std::mem::replace(&mut *left, Left::InDoubt);
        if before == Left::Yes {
            *left = Left::Yes;
            return Err(Refused::NotHeld.into());
        }
        let mut answer = match self.calls.txn(self.delete_or_read_holder()).await {
            Ok(answer) => answer,
            Err(error) => {
                if error.is_failed() {
                    *left = before;
                }
                return Err(error);
            }
        };
        // The key is gone, and nothing depends on the lease any more.
        drop(locked(&self.undo).take());
        if answer.message.succeeded {
            *left = Left::Yes;
            return Ok(());
        }
        if answer.repeated || before == Left::InDoubt {
            // While the lease certainly lives, nobody but us takes the key away: it was a try whose answer we did not hear.
            if !Validity::new(self.last_proof()).remaining(clock::now()).is_zero() {
                *left = Left::Yes;
                return Ok(());
            }
            return Err(Unknown::BrokeOff("it was sent twice, and the second found nothing".to_owned()).into());
        }
        *left = before;
        let holder = next(&mut ranges(&mut answer.message))?.kvs.into_iter().next();
        let (exclusive, _) = rivals(&self.name, Mode::Shared);
        let is_rival = |key: &[u8]| self.mode == Mode::Exclusive || key.starts_with(&exclusive);
        match holder {
            Some(holder) if is_rival(&holder.key) => Err(Refused::NotOwner.into()),
            _ => Err(self.why_gone().into()),
        }
    }

    fn delete_or_read_holder(&self) -> TxnRequest {
        let delete = DeleteRangeRequest { key: self.key.clone() };
        let (queue, range_end) = queue(&self.name);
        let holder = RangeRequest { key: queue, range_end, limit: 1, keys_only: true, ..by_age(SortOrder::Ascend) };
        TxnRequest {
            compare: vec![created_at((self.key.clone(), vec![]), self.create_revision)],
            success: vec![RequestOp { request: Some(Request::DeleteRange(delete)) }],
            failure: vec![holder.into()],
        }
    }

    /// Why the place is gone: its time was over, or somebody removed it before.
    fn why_gone(&self) -> Lost {
        let Proof { sent_at, ttl } = self.last_proof();
        if clock::now() < sent_at.after(ttl) { Lost::Gone } else { Lost::DeadlinePassed }
    }

    fn own_key(&self) -> RangeRequest {
        RangeRequest { key: self.key.clone(), ..Default::default() }
    }

    /// The youngest of those that this place waits for, up to a revision; zero is no bound.
    fn last_rival(&self, max_create_revision: i64) -> RangeRequest {
        let (key, range_end) = rivals(&self.name, self.mode);
        RangeRequest { key, range_end, max_create_revision, limit: 1, keys_only: true, ..by_age(SortOrder::Descend) }
    }

    fn is_in(&self, found: &RangeResponse) -> bool {
        found.kvs.iter().any(|kv| kv.create_revision == self.create_revision)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { key, create_revision, .. } = self;
        write!(f, "Place({} at {create_revision})", String::from_utf8_lossy(key))
    }
}

/// Revokes a lease. After its TTL it has ended by itself.
async fn give_back(calls: Calls, lease_id: i64, ttl: Duration) {
    let until = clock::now().after(ttl);
    let mut backoff = Backoff::for_unreachable();
    while let Err(error) = calls.revoke(lease_id).await {
        if clock::now() > until {
            tracing::debug!(%error, "a lease of etcd was not revoked, and will expire");
            return;
        }
        sleep(backoff.pause(random())).await;
    }
}

/// All keys of a name: a range, as its beginning and its end.
///
/// What ends a name cannot be in it, so no name is the beginning of another.
fn queue(name: &Name) -> (Vec<u8>, Vec<u8>) {
    let name = name.as_str().replace('%', "%25").replace('/', "%2F");
    prefixed(format!("{KEY_PREFIX}{name}/"))
}

/// Those keys of a name that one in this mode waits for: a writer for all, a reader for writers.
fn rivals(name: &Name, mode: Mode) -> (Vec<u8>, Vec<u8>) {
    match mode {
        Mode::Exclusive => queue(name),
        Mode::Shared => prefixed(format!("{}exclusive-", String::from_utf8_lossy(&queue(name).0))),
    }
}

fn key(name: &Name, mode: Mode, lease_id: i64) -> Vec<u8> {
    let mode = match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
    };
    let (mut key, _) = queue(name);
    key.extend(format!("{mode}-{lease_id:016x}").bytes());
    key
}

/// All keys that begin like this. The text ends in ASCII, so the next byte is the end of the range.
fn prefixed(text: String) -> (Vec<u8>, Vec<u8>) {
    let key = text.into_bytes();
    let mut range_end = key.clone();
    if let Some(last) = range_end.last_mut() {
        *last += 1;
    }
    (key, range_end)
}

/// The first 63 bits of a value that nobody else has, never zero.
fn lease_id(unique: &str) -> i64 {
    let bits = u64::from_str_radix(&unique[..16], 16).expect("it is 32 hexadecimal digits");
    (bits >> 1).max(1).cast_signed()
}

/// etcd counts in whole seconds. Rounded up: a lock may live longer than was asked for, and never shorter.
fn whole_seconds(ttl: Duration) -> i64 {
    let up = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(up.max(1)).unwrap_or(i64::MAX)
}

fn by_age(order: SortOrder) -> RangeRequest {
    RangeRequest { sort_order: order.into(), sort_target: SortTarget::Create.into(), ..Default::default() }
}

/// Every key of the range was created at this revision; at zero: there is none.
fn created_at((key, range_end): (Vec<u8>, Vec<u8>), revision: i64) -> Compare {
    let target_union = Some(TargetUnion::CreateRevision(revision));
    Compare { key, range_end, target: CompareTarget::Create.into(), target_union, ..Default::default() }
}

impl From<RangeRequest> for RequestOp {
    fn from(range: RangeRequest) -> RequestOp {
        RequestOp { request: Some(Request::Range(range)) }
    }
}

/// What was read, in the order in which it was asked for.
fn ranges(answer: &mut TxnResponse) -> impl Iterator<Item = RangeResponse> + use<> {
    std::mem::take(&mut answer.responses).into_iter().filter_map(|response| match response.response {
        Some(Response::Range(range)) => Some(range),
        _ => None,
    })
}

fn next(found: &mut impl Iterator<Item = RangeResponse>) -> Result<RangeResponse, Error> {
    found.next().ok_or_else(|| Failed::NotUnderstood("an answer of etcd without what was read".to_owned()).into())
}

fn header(header: Option<ResponseHeader>) -> Result<ResponseHeader, Error> {
    header.ok_or_else(|| Failed::NotUnderstood("an answer of etcd without a header".to_owned()).into())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_of_a_name_is_among_those_of_another() {
        let names = ["a", "a/", "a/b", "a%2Fb", "a%", "a%2", "/a", "/a/exclusive-1", "a/exclusive-", "ä", "a b", "b"];
        let names = names.map(|name| Name::new(name).expect("a name"));
        for one in &names {
            let (begin, end) = queue(one);
            for other in &names {
                for mode in [Mode::Exclusive, Mode::Shared] {
                    let key = key(other, mode, 7);
                    assert_eq!((begin.clone()..end.clone()).contains(&key), one == other, "{one} and {other}");
                }
            }
        }
    }

    #[test]
    fn a_reader_waits_for_writers_and_a_writer_for_all() {
        let name = Name::new("a").expect("a name");
        let waits_for = |one, other| {
            let (begin, end) = rivals(&name, one);
            (begin..end).contains(&key(&name, other, i64::MAX))
        };
        use Mode::{Exclusive, Shared};
        let all = [(Exclusive, Exclusive), (Exclusive, Shared), (Shared, Exclusive), (Shared, Shared)];
        assert_eq!(all.map(|(one, other)| waits_for(one, other)), [true, true, true, false]);
    }

    #[test]
    fn a_ttl_becomes_whole_seconds_and_never_less() {
        let cases = [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (29_999, 30), (30_000, 30)];
        for (ms, s) in cases {
            assert_eq!(whole_seconds(Duration::from_millis(ms)), s, "{ms} ms");
        }
    }
}
