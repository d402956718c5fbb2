//! Every bound on what the lock state holds and what a command may ask for, each with its reason.
//!
//! A command that reaches a bound is refused with the name of the bound ([`crate::Refusal::Bound`]) and changes nothing.
//! A queue, loop or payload of the core without a bound here is a bug. The bounds of byte formats are in `fencepost-wire`.

use std::fmt;

/// Bytes in a resource name: long enough for any path or URL-like key, short enough that a name is never a payload.
pub const NAME_BYTES_MAX: usize = 512;
/// Bytes of a text that a message repeats, such as a name that is not valid: enough to recognise it. See [`crate::shortened`].
pub const SHOWN_BYTES_MAX: usize = 128;
/// Levels of a path: every acquire looks up each level above its name and takes an intention there.
pub const PATH_LEVELS_MAX: usize = 16;
/// Bytes of metadata on a session or a grant: tells people who holds a lock; not for application data.
pub const METADATA_BYTES_MAX: usize = 4 * 1024;
/// Bytes of an election value: an address and a few labels, which are replicated on every change.
pub const VALUE_BYTES_MAX: usize = 4 * 1024;
/// Bytes of an owner's name: it is stored with every grant of that owner.
pub const OWNER_BYTES_MAX: usize = 128;
/// Bytes of a principal's name: a certificate's subject name or a token's subject.
pub const PRINCIPAL_BYTES_MAX: usize = 256;
/// Bytes of the reason of an administrative act: a sentence and a ticket number.
pub const REASON_BYTES_MAX: usize = 1024;
/// Bytes of that reason that the clients which the act hits are told: a ticket number and a few words. A session remembers
/// them with its losses and its answers.
pub const TOLD_REASON_BYTES_MAX: usize = 128;
/// Bytes of a job's key: an invoice number, a date, a content hash, a path.
pub const JOB_KEY_BYTES_MAX: usize = 256;
/// Bytes of a job's result, of its checkpoint and of an attempt's error: a position and a summary, each replicated.
pub const JOB_BYTES_MAX: usize = 4 * 1024;
/// Bytes that the record of a job counts for, besides its name, its key and what it stores.
pub const JOB_RECORD_BYTES: usize = 512;
/// Bytes that are reserved for a job while it is held: the largest that its record can become.
pub const JOB_ROOM_BYTES: usize = JOB_RECORD_BYTES + NAME_BYTES_MAX + JOB_KEY_BYTES_MAX + 3 * JOB_BYTES_MAX;
/// Records of jobs under one name: a job every minute for two months.
pub const JOBS_PER_NAME_MAX: usize = 100_000;
/// Bytes of these records: one name cannot take the group's room.
pub const JOB_BYTES_PER_NAME_MAX: usize = 64 * 1024 * 1024;
/// Records of jobs in the group: each stays in the memory of every node, and in its snapshots.
pub const JOBS_MAX: usize = 1_000_000;
/// Bytes of all records of jobs: a snapshot of them is written and sent in seconds.
pub const JOB_BYTES_TOTAL_MAX: usize = 512 * 1024 * 1024;
/// Records of jobs that one entry forgets after their time: the end of many records must not delay the entry.
pub const JOBS_FORGOTTEN_PER_ENTRY_MAX: usize = 64;
/// Resources in one request: they are granted in one step.
pub const MULTI_LOCK_MAX: usize = 64;
/// Names that one request touches, ancestors included: the look-ups of one apply step.
pub const FOOTPRINT_NAMES_MAX: usize = 256;
/// Bytes of one message at the edge: a decoder never allocates more. Enforced where messages are read, not here.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Resources that a session holds and waits for, taken together: its end is one bounded step.
pub const LOCKS_PER_SESSION_MAX: usize = 10_000;
/// Requests of one session that wait at the same time: one client cannot fill the queues.
pub const WAITERS_PER_SESSION_MAX: usize = 1_000;
/// Requests that wait for one resource: bounds the memory of one queue.
pub const WAITERS_PER_RESOURCE_MAX: usize = 100_000;
/// Living sessions of one principal: a broken fleet of clients cannot fill the state.
pub const SESSIONS_PER_PRINCIPAL_MAX: usize = 10_000;
/// Answers that a session remembers because its client has not acknowledged them.
pub const UNSEEN_ANSWERS_MAX: usize = 1_024;
/// Ranges of acknowledged numbers above the mark. An honest client leaves one gap for each request that waits or is
/// not acknowledged, so this is the sum of those two bounds, rounded up.
pub const SEEN_RANGES_MAX: usize = 2_048;
/// Lost grants that a session remembers, so that a late release is still answered `expired`; the oldest are forgotten
/// first.
pub const LOST_GRANTS_REMEMBERED_MAX: usize = 1_024;
/// Entries into one grant: a runaway recursion is refused long before the count could overflow.
pub const REENTRIES_MAX: u32 = 1_000_000;
/// Freezes at one time: an acquire may have to look at all of them.
pub const FREEZES_MAX: usize = 1_000;
/// Semaphore limits set by administrators: each stays in the state until an administrator takes it away.
pub const LIMITS_MAX: usize = 10_000;
/// Holders named in a busy answer; the answer also says how many there are in all.
pub const BUSY_HOLDERS_SHOWN_MAX: usize = 16;
/// Edges that one deadlock search follows. Then it gives up, and the request waits unchecked.
pub const DEADLOCK_STEPS_MAX: usize = 10_000;
/// Edges that one search for a suspected deadlock follows. Then it gives up and shows none: it is part of a read, and a
/// read must not stall apply.
pub const SUSPECTED_STEPS_MAX: usize = 1_000;
/// Waiters of one name from which a search for a suspected deadlock starts.
pub const SUSPECTED_STARTS_MAX: usize = 16;
/// Rows that one page of a listing looks at, whether they match or not: a read must not stall apply.
pub const PAGE_ROWS_MAX: usize = 10_000;

/// The shortest time to live of a session or a lock: below it, keep-alives would cost more than the locks.
pub const TTL_MS_MIN: u64 = 1_000;
/// The time to live of a session whose client chooses none.
pub const SESSION_TTL_MS_DEFAULT: u64 = 30_000;
/// The shortest time for which the record of a job is kept: hosts with clocks a minute apart find it.
pub const KEEP_MS_MIN: u64 = 60_000;
/// The time for which the record of a job is kept if its client chooses none: 30 days.
pub const KEEP_MS_DEFAULT: u64 = 30 * 24 * 60 * 60 * 1_000;
/// The longest lock delay: while a grant rests, its resource is unavailable.
pub const LOCK_DELAY_MS_MAX: u64 = 60_000;
/// The most that a fail-over adds to a deadline: about one election, one reconnect and one keep-alive.
pub const FAILOVER_GRACE_MS: u64 = 3_000;
/// The longest duration (a year): sums of stamps and durations cannot overflow.
pub const DURATION_MS_MAX: u64 = 365 * 24 * 60 * 60 * 1_000;
/// The largest token: below 2^53, so that a language whose only numbers are doubles can carry every token.
pub const TOKEN_MAX: u64 = (1 << 53) - 1;
/// What restoring a backup adds to the token counter: more tokens than any cluster gives out between a backup and its restore.
pub const RESTORE_TOKEN_JUMP: u64 = 1_000_000_000_000;

/// The bound that a command reached, as a refusal names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bound {
    /// [`NAME_BYTES_MAX`]
    NameBytes,
    /// [`PATH_LEVELS_MAX`]
    PathLevels,
    /// [`METADATA_BYTES_MAX`]
    MetadataBytes,
    /// [`VALUE_BYTES_MAX`]
    ValueBytes,
    /// [`OWNER_BYTES_MAX`]
    OwnerBytes,
    /// [`PRINCIPAL_BYTES_MAX`]
    PrincipalBytes,
    /// [`REASON_BYTES_MAX`]
    ReasonBytes,
    /// [`TOLD_REASON_BYTES_MAX`]
    ToldReasonBytes,
    /// [`JOB_KEY_BYTES_MAX`]
    JobKeyBytes,
    /// [`JOB_BYTES_MAX`]
    JobBytes,
    /// [`JOBS_PER_NAME_MAX`]
    JobsPerName,
    /// [`JOB_BYTES_PER_NAME_MAX`]
    JobBytesPerName,
    /// [`JOBS_MAX`]
    Jobs,
    /// [`JOB_BYTES_TOTAL_MAX`]
    JobBytesTotal,
    /// [`MULTI_LOCK_MAX`]
    MultiLock,
    /// [`FOOTPRINT_NAMES_MAX`]
    FootprintNames,
    /// [`LOCKS_PER_SESSION_MAX`]
    LocksPerSession,
    /// [`WAITERS_PER_SESSION_MAX`]
    WaitersPerSession,
    /// [`WAITERS_PER_RESOURCE_MAX`]
    WaitersPerResource,
    /// [`SESSIONS_PER_PRINCIPAL_MAX`]
    SessionsPerPrincipal,
    /// [`UNSEEN_ANSWERS_MAX`]
    UnseenAnswers,
    /// [`SEEN_RANGES_MAX`]
    SeenRanges,
    /// [`REENTRIES_MAX`]
    Reentries,
    /// [`FREEZES_MAX`]
    Freezes,
    /// [`LIMITS_MAX`]
    Limits,
    /// [`TTL_MS_MIN`]
    TtlLeast,
    /// [`KEEP_MS_MIN`]
    KeepLeast,
    /// [`LOCK_DELAY_MS_MAX`]
    LockDelay,
    /// [`DURATION_MS_MAX`]
    Duration,
}

impl Bound {
    /// The number behind the bound.
    pub fn limit(self) -> u64 {
        (match self {
            Bound::NameBytes => NAME_BYTES_MAX,
            Bound::PathLevels => PATH_LEVELS_MAX,
            Bound::MetadataBytes => METADATA_BYTES_MAX,
            Bound::ValueBytes => VALUE_BYTES_MAX,
            Bound::OwnerBytes => OWNER_BYTES_MAX,
            Bound::PrincipalBytes => PRINCIPAL_BYTES_MAX,
            Bound::ReasonBytes => REASON_BYTES_MAX,
            Bound::ToldReasonBytes => TOLD_REASON_BYTES_MAX,
            Bound::JobKeyBytes => JOB_KEY_BYTES_MAX,
            Bound::JobBytes => JOB_BYTES_MAX,
            Bound::JobsPerName => JOBS_PER_NAME_MAX,
            Bound::JobBytesPerName => JOB_BYTES_PER_NAME_MAX,
            Bound::Jobs => JOBS_MAX,
            Bound::JobBytesTotal => JOB_BYTES_TOTAL_MAX,
            Bound::MultiLock => MULTI_LOCK_MAX,
            Bound::FootprintNames => FOOTPRINT_NAMES_MAX,
            Bound::LocksPerSession => LOCKS_PER_SESSION_MAX,
            Bound::WaitersPerSession => WAITERS_PER_SESSION_MAX,
            Bound::WaitersPerResource => WAITERS_PER_RESOURCE_MAX,
            Bound::SessionsPerPrincipal => SESSIONS_PER_PRINCIPAL_MAX,
            Bound::UnseenAnswers => UNSEEN_ANSWERS_MAX,
            Bound::SeenRanges => SEEN_RANGES_MAX,
            Bound::Reentries => REENTRIES_MAX as usize,
            Bound::Freezes => FREEZES_MAX,
            Bound::Limits => LIMITS_MAX,
            Bound::TtlLeast => return TTL_MS_MIN,
            Bound::KeepLeast => return KEEP_MS_MIN,
            Bound::LockDelay => return LOCK_DELAY_MS_MAX,
            Bound::Duration => return DURATION_MS_MAX,
        }) as u64
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.limit();
        match self {
            Bound::NameBytes => write!(f, "a resource name has at most {limit} bytes"),
            Bound::PathLevels => write!(f, "a path has at most {limit} levels"),
            Bound::MetadataBytes => write!(f, "metadata has at most {limit} bytes"),
            Bound::ValueBytes => write!(f, "an election's value has at most {limit} bytes"),
            Bound::OwnerBytes => write!(f, "an owner's name has at most {limit} bytes"),
            Bound::PrincipalBytes => write!(f, "a principal's name has at most {limit} bytes"),
            Bound::ReasonBytes => write!(f, "a reason has at most {limit} bytes"),
            Bound::ToldReasonBytes => write!(f, "clients are told at most {limit} bytes of a reason"),
            Bound::JobKeyBytes => write!(f, "a job's key has at most {limit} bytes"),
            Bound::JobBytes => write!(f, "a job's result, checkpoint or error has at most {limit} bytes"),
            Bound::JobsPerName => {
                write!(f, "at most {limit} jobs of one name are remembered: keep them for less time, or forget some")
            }
            Bound::JobBytesPerName => {
                write!(
                    f,
                    "the jobs of one name take at most {limit} bytes: keep them for less time, or store less in each"
                )
            }
            Bound::Jobs => write!(f, "at most {limit} jobs are remembered: keep them for less time, or forget some"),
            Bound::JobBytesTotal => {
                write!(f, "all jobs take at most {limit} bytes: keep them for less time, or store less in each")
            }
            Bound::MultiLock => write!(f, "a request names 1 to {limit} resources"),
            Bound::FootprintNames => {
                write!(f, "a request touches at most {limit} names, ancestors included")
            }
            Bound::LocksPerSession => {
                write!(f, "a session holds and waits for at most {limit} resources")
            }
            Bound::WaitersPerSession => {
                write!(f, "at most {limit} requests of a session wait at a time")
            }
            Bound::WaitersPerResource => write!(f, "at most {limit} requests wait for one resource"),
            Bound::SessionsPerPrincipal => write!(f, "a principal has at most {limit} sessions"),
            Bound::UnseenAnswers => {
                write!(f, "a session has at most {limit} unseen answers: report the answers that were seen")
            }
            Bound::SeenRanges => write!(
                f,
                "the request numbers that a session reports as seen form at most {limit} ranges: report the answers in between, too"
            ),
            Bound::Reentries => write!(f, "a grant is entered at most {limit} times"),
            Bound::Freezes => write!(f, "there are at most {limit} freezes"),
            Bound::Limits => write!(f, "there are at most {limit} semaphore limits"),
            Bound::TtlLeast => write!(f, "a time to live is at least {limit} ms"),
            Bound::KeepLeast => write!(f, "a job is kept for at least {limit} ms"),
            Bound::LockDelay => write!(f, "a lock delay is at most {limit} ms"),
            Bound::Duration => write!(f, "a duration is at most {limit} ms"),
        }
    }
}
