//! The recipe: a contender is a key under its own lease, and the queue of a name is its keys in the order of creation.
//!
//! A reader waits for the last writer before it. A writer waits for the contender just before it. Each contender watches only that
//! key, so a release wakes only the contenders that are next. A contender that leaves or dies loses its key, at any position in
//! the queue, and the contender behind it checks the queue again.
//!
//! # When a renewal counts
//! etcd's leader renews a lease alone, without a quorum. A replaced leader that has not noticed yet still confirms renewals, but
//! the new leader decides when the lease ends. So after each renewal we read the key, which needs a quorum. If both answers carry
//! the same term, the current leader has renewed the lease.

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

/// Prefix of all keys, so that a lock on `a` does not touch a user's key `a`.
pub(super) const KEY_PREFIX: &str = "fencepost/lock/";
/// Tokens stay below this bound, so that every language and every store can represent them.
const TOKEN_END: i64 = 1 << 53;

/// A contender for a name: one key under one lease, with its place in the queue. Dropping it revokes the lease in the background.
pub(super) struct EtcdContender {
    calls: Calls,
    name: Name,
    mode: Mode,
    lease_id: i64,
    key: Vec<u8>,
    /// The revision that created the key. It decides the order and is the token. Zero until the key exists.
    create_revision: i64,
    /// The newest proof of the lease.
    proof: Mutex<Proof>,
    /// Revokes the lease. Invariant: `Some` from before the lease exists until the key is deleted.
    undo: Mutex<Option<Undo>>,
    left: tokio::sync::Mutex<Left>,
}

/// Whether the contender has left the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    No,
    /// The deletion was sent, and its outcome is unknown.
    InDoubt,
    Yes,
}

/// The state of a contender in its queue at one revision.
struct Look {
    revision: i64,
    /// Whether its key still exists.
    is_there: bool,
    /// The key that must be deleted before it holds the lock.
    ahead: Option<Vec<u8>>,
}

/// Whether another contender blocks this request, as a holder or as a waiter.
pub(super) async fn is_busy(calls: &Calls, ask: &Ask) -> Result<bool, Error> {
    let (key, range_end) = rivals(&ask.name, ask.mode);
    let found = calls.range(RangeRequest { key, range_end, limit: 1, keys_only: true, ..Default::default() }).await?;
    Ok(!found.kvs.is_empty())
}

impl EtcdContender {
    /// Acquires the lock if no other contender blocks it. etcd checks and writes in one transaction, so no waiter ever waits for a
    /// contender that only tried.
    pub(super) async fn take(calls: &Calls, ask: &Ask) -> Result<Option<EtcdContender>, Error> {
        let mut contender = EtcdContender::with_lease(calls, ask).await?;
        let no_rivals = created_at(rivals(&ask.name, ask.mode), 0);
        let (answer, mut found) = contender.put(vec![no_rivals], vec![]).await?;
        contender.create_revision = match answer.succeeded {
            true => header(answer.header)?.revision,
            // Our key exists if an earlier attempt created it. Otherwise another contender was faster.
            false => match next(&mut found)?.kvs.first() {
                Some(ours) => ours.create_revision,
                None => return Ok(None),
            },
        };
        contender.fencing_token()?;
        Ok(Some(contender))
    }

    /// Joins the queue and waits until the lock is granted.
    ///
    /// # Errors
    /// [`Refused::SessionEnded`] if the key is deleted before that. It does not join again: it would be at the end of the queue,
    /// behind later contenders, and an operator may have removed it on purpose.
    pub(super) async fn wait(calls: &Calls, ask: &Ask) -> Result<EtcdContender, Error> {
        let mut contender = EtcdContender::with_lease(calls, ask).await?;
        let last_rival = RequestOp::from(contender.last_rival(0));
        let (answer, mut found) = contender.put(vec![], vec![last_rival]).await?;
        let found = next(&mut found)?.kvs.into_iter().next();
        let revision = header(answer.header)?.revision;
        let seen = if answer.succeeded {
            contender.create_revision = revision;
            Look { revision, is_there: true, ahead: found.map(|rival| rival.key) }
        } else {
            // An earlier attempt created the key.
            contender.create_revision = found.ok_or(Refused::SessionEnded(None))?.create_revision;
            contender.look().await?
        };
        contender.fencing_token()?;
        tokio::select! {
            biased;
            turn = contender.turn(seen) => turn?,
            error = contender.keep() => return Err(error),
        }
        Ok(contender)
    }

    /// Creates the lease, without a key.
    async fn with_lease(calls: &Calls, ask: &Ask) -> Result<EtcdContender, Error> {
        // We choose the lease id, so that we can revoke the lease even if the answer to its grant is lost.
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
        Ok(EtcdContender {
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

    /// Runs the steps in `first` and creates the key, if the conditions hold and the key does not exist. Otherwise reads the key.
    /// An existing key comes from an earlier attempt of the same request. Writing it again would answer with a later revision than
    /// the one that created it.
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
            // The lease ended before its key was created.
            Err(Error::Refused(Refused::NotFound)) => Err(Refused::SessionEnded(None).into()),
            Err(error) => Err(error),
        }
    }

    /// The revision that created the key. It rises across all names.
    // Rule: token-order
    pub(super) fn fencing_token(&self) -> Result<Token, Error> {
        if !(1..TOKEN_END).contains(&self.create_revision) {
            let message =
                format!("etcd's revision {} is not a valid token: tokens are below 2^53", self.create_revision);
            return Err(Failed::NotTaken { message, retry_after: None }.into());
        }
        Ok(Token(self.create_revision.unsigned_abs()))
    }

    pub(super) fn last_proof(&self) -> Proof {
        *locked(&self.proof)
    }

    /// Returns when no contender is ahead.
    async fn turn(&self, seen: Look) -> Result<(), Error> {
        self.watch_until(seen, |seen| match seen {
            Look { is_there: false, .. } => Some(Err(Refused::SessionEnded(None).into())),
            Look { ahead: None, .. } => Some(Ok(())),
            Look { ahead: Some(_), .. } => None,
        })
        .await
    }

    /// Returns when the key is gone.
    pub(super) async fn gone(&self) -> Lost {
        let seen = Look { revision: self.create_revision, is_there: true, ahead: None };
        self.watch_until(seen, |seen| (!seen.is_there).then(|| self.why_gone())).await
    }

    /// Reads the queue again whenever our key or the key ahead of it is deleted, until `done` returns a value.
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
                    // No deletion is missed: `look` reads the current state.
                    tracing::debug!(%error, "a watch of etcd broke off; starting a new one");
                    sleep(backoff.pause(random())).await;
                } else {
                    backoff.reset();
                }
                self.look().await
            };
            match looked.await {
                Ok(look) => seen = look,
                // Retries without a limit here. The end of the lease ends the retries.
                Err(error) => {
                    tracing::debug!(%error, "reading the queue from etcd failed; retrying");
                    sleep(backoff.pause(random())).await;
                }
            }
        }
    }

    /// Reads at one revision whether our key exists and which key is ahead.
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

    /// Renews the lease while the contender waits. Returns, with the reason, when the lease is lost.
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

    /// Renews the lease, and proves that the current leader has done so.
    pub(super) async fn prolong(&self) -> Result<Proof, Error> {
        // One retry covers a single election. After a second election in a row, the caller backs off.
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
        let message =
            "etcd is electing a leader, so it is unknown whether the current leader renewed the lease".to_owned();
        Err(Failed::NotTaken { message, retry_after: None }.into())
    }

    /// Deletes the key if it exists.
    ///
    /// # Errors
    /// [`Refused::NotHeld`] if we have already deleted it. If it is gone for another reason: [`Refused::NotOwner`] if another
    /// contender now holds the lock, otherwise [`Refused::Lost`]. [`Unknown::BrokeOff`] if the cause is unknown: an earlier
    /// deletion of ours whose answer was lost, or the end of the lease.
    pub(super) async fn leave(&self) -> Result<(), Error> {
        let mut left = self.left.lock().await;
        // If this future is dropped from here on, the state stays `InDoubt`.
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
        // The key is gone, so the lease can be revoked.
        drop(locked(&self.undo).take());
        if answer.message.succeeded {
            *left = Left::Yes;
            return Ok(());
        }
        if answer.repeated || before == Left::InDoubt {
            // While the lease is certainly alive, only we delete the key. So an earlier attempt deleted it, and its answer was lost.
            if !Validity::new(self.last_proof()).remaining(clock::now()).is_zero() {
                *left = Left::Yes;
                return Ok(());
            }
            let why = "the release was sent twice, and the key was gone at the second attempt";
            return Err(Unknown::BrokeOff(why.to_owned()).into());
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

    /// Why the key is gone: its lease expired, or an operator removed it earlier.
    fn why_gone(&self) -> Lost {
        let Proof { sent_at, ttl } = self.last_proof();
        if clock::now() < sent_at.after(ttl) { Lost::Gone } else { Lost::DeadlinePassed }
    }

    fn own_key(&self) -> RangeRequest {
        RangeRequest { key: self.key.clone(), ..Default::default() }
    }

    /// Reads the youngest key that this contender waits for, created up to this revision. Zero means no limit.
    fn last_rival(&self, max_create_revision: i64) -> RangeRequest {
        let (key, range_end) = rivals(&self.name, self.mode);
        RangeRequest { key, range_end, max_create_revision, limit: 1, keys_only: true, ..by_age(SortOrder::Descend) }
    }

    fn is_in(&self, found: &RangeResponse) -> bool {
        found.kvs.iter().any(|kv| kv.create_revision == self.create_revision)
    }
}

impl fmt::Debug for EtcdContender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EtcdContender { key, create_revision, .. } = self;
        write!(f, "EtcdContender({} at {create_revision})", String::from_utf8_lossy(key))
    }
}

/// Revokes a lease. Stops trying after its TTL, when the lease has expired.
async fn give_back(calls: Calls, lease_id: i64, ttl: Duration) {
    let until = clock::now().after(ttl);
    let mut backoff = Backoff::for_unreachable();
    while let Err(error) = calls.revoke(lease_id).await {
        if clock::now() > until {
            tracing::debug!(%error, "a lease of etcd was not revoked; it will expire");
            return;
        }
        sleep(backoff.pause(random())).await;
    }
}

/// All keys of a name: the range from its first key to the first key after it.
///
/// The `/` that ends a name is escaped inside names, so the keys of one name never match the prefix of another.
fn queue(name: &Name) -> (Vec<u8>, Vec<u8>) {
    let name = name.as_str().replace('%', "%25").replace('/', "%2F");
    prefixed(format!("{KEY_PREFIX}{name}/"))
}

/// The keys of a name that a contender in this mode waits for: a writer waits for all, a reader only for writers.
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

/// The range of all keys with this prefix. The prefix ends in an ASCII character, so adding one to its last byte gives the end.
fn prefixed(text: String) -> (Vec<u8>, Vec<u8>) {
    let key = text.into_bytes();
    let mut range_end = key.clone();
    if let Some(last) = range_end.last_mut() {
        *last += 1;
    }
    (key, range_end)
}

/// The first 63 bits of a unique value, never zero.
fn lease_id(unique: &str) -> i64 {
    let bits = u64::from_str_radix(&unique[..16], 16).expect("it is 32 hexadecimal digits");
    (bits >> 1).max(1).cast_signed()
}

/// etcd counts in whole seconds. Rounds up: a lock may live longer than requested, never shorter.
fn whole_seconds(ttl: Duration) -> i64 {
    let up = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(up.max(1)).unwrap_or(i64::MAX)
}

fn by_age(order: SortOrder) -> RangeRequest {
    RangeRequest { sort_order: order.into(), sort_target: SortTarget::Create.into(), ..Default::default() }
}

/// A condition: every key of the range was created at this revision. Zero means that the range is empty.
fn created_at((key, range_end): (Vec<u8>, Vec<u8>), revision: i64) -> Compare {
    let target_union = Some(TargetUnion::CreateRevision(revision));
    Compare { key, range_end, target: CompareTarget::Create.into(), target_union, ..Default::default() }
}

impl From<RangeRequest> for RequestOp {
    fn from(range: RangeRequest) -> RequestOp {
        RequestOp { request: Some(Request::Range(range)) }
    }
}

/// The results of the reads in a transaction, in the order of the requests.
fn ranges(answer: &mut TxnResponse) -> impl Iterator<Item = RangeResponse> + use<> {
    std::mem::take(&mut answer.responses).into_iter().filter_map(|response| match response.response {
        Some(Response::Range(range)) => Some(range),
        _ => None,
    })
}

fn next(found: &mut impl Iterator<Item = RangeResponse>) -> Result<RangeResponse, Error> {
    found.next().ok_or_else(|| Failed::NotUnderstood("an answer of etcd without the keys it read".to_owned()).into())
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
    fn no_key_of_a_name_is_in_the_range_of_another_name() {
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
    fn a_reader_waits_for_writers_and_a_writer_for_all_contenders() {
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
    fn a_ttl_is_rounded_up_to_whole_seconds() {
        let cases = [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (29_999, 30), (30_000, 30)];
        for (ms, s) in cases {
            assert_eq!(whole_seconds(Duration::from_millis(ms)), s, "{ms} ms");
        }
    }
}
