//! Redis: marks and commands in one script. **For efficiency only.**
//!
//! Redis answers before its replicas have the write. So a fail-over can lose the newest marks together with the newest writes,
//! and then a stale token is let in. `WAIT` does not help: it only counts the replicas afterwards. `appendfsync always` does not
//! help: a fail-over promotes a replica, not the disk. Data that must be correct belongs in a store that commits.
//!
//! While one server lives, the guard is exact: Redis runs a script as a whole, and nothing else meanwhile. There is nothing to
//! install.
//!
//! The marks of a [`Guard`] are one hash. In a cluster its key and all keys of the commands must be in one slot: give them the
//! same hash tag.

use std::sync::LazyLock;

use ::redis::aio::ConnectionLike;
use ::redis::{Arg, FromRedisValue, Pipeline, Script, Value, cmd, from_redis_value};
use fencepost_core::{Name, Token};

use crate::access::{Access, Claims, Reads, Writes};
use crate::error::Error;
use crate::rules::{Shown, Stale, Use};
use crate::upkeep::{Forgotten, SCHEMA_VERSION, Status};

/// A warning to print wherever the state of this guard is shown.
pub const CAUTION: &str =
    "for efficiency only: a fail-over of Redis can lose marks and writes, and then a stale token is let in";

static ADMIT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("redis.lua")));

/// Goes through all marks in one script. Redis does nothing else meanwhile.
static FORGET_BELOW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local version = redis.call('HGET', KEYS[1], 'version')
        if version and version ~= ARGV[1] then
            return {'version', version}
        end
        local base = math.max(tonumber(redis.call('HGET', KEYS[1], 'base') or 0), tonumber(ARGV[2]))
        redis.call('HSET', KEYS[1], 'version', ARGV[1], 'base', string.format('%.0f', base))
        local fields, forgotten = redis.call('HGETALL', KEYS[1]), 0
        for at = 1, #fields, 2 do
            local here, below = string.match(fields[at + 1], '^(%d+) %d+ (%d+) ')
            if here and math.max(tonumber(here), tonumber(below)) <= base then
                redis.call('HDEL', KEYS[1], fields[at])
                forgotten = forgotten + 1
            end
        end
        return {'done', forgotten, base}",
    )
});

/// The marks under one key.
///
/// ```no_run
/// # use fencepost_fence::{Access, FencingToken, redis::Guard};
/// # async fn example(token: FencingToken) -> Result<(), Box<dyn std::error::Error>> {
/// # let mut connection = redis::Client::open("redis://127.0.0.1/")?.get_multiplexed_async_connection().await?;
/// let guard = Guard::default();
/// let claim = Access::claim("wallet:7", token);
/// let (balance,): (i64,) = guard.claim(&mut connection, &claim, redis::pipe().get("wallet:7")).await?;
/// let write = Access::write("wallet:7", token);
/// let () = guard.write(&mut connection, &write, redis::pipe().set("wallet:7", balance - 100)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Guard {
    marks_key: String,
}

/// The marks under `{fencepost}:marks`.
impl Default for Guard {
    fn default() -> Guard {
        Guard::new("{fencepost}:marks")
    }
}

impl Guard {
    /// The marks under this key. All programs that share a resource must use the same key.
    pub fn new(marks_key: impl Into<String>) -> Guard {
        Guard { marks_key: marks_key.into() }
    }

    /// Claims, and runs commands that read. Returns the answers of all commands, also of those that the pipeline marks as ignored.
    ///
    /// # Errors
    /// As [`Guard::write`]; [`Error::Unsupported`] if a command may write.
    // Rule: claim-before-read
    pub async fn claim<Answers: FromRedisValue>(
        &self,
        connection: &mut impl ConnectionLike,
        access: &Access<Claims>,
        commands: &Pipeline,
    ) -> Result<Answers, Error> {
        self.admit(connection, access, "reads", commands).await
    }

    /// Runs commands that read, under a shared or update lock. Returns the answers as [`Guard::claim`] does.
    ///
    /// # Errors
    /// As [`Guard::claim`].
    pub async fn read<Answers: FromRedisValue>(
        &self,
        connection: &mut impl ConnectionLike,
        access: &Access<Reads>,
        commands: &Pipeline,
    ) -> Result<Answers, Error> {
        self.admit(connection, access, "reads", commands).await
    }

    /// Runs commands that write. Returns the answers as [`Guard::claim`] does.
    ///
    /// # Errors
    /// [`Error::Stale`] if the store has seen a newer token: no command was run. [`Error::Store`] if Redis or one of the commands
    /// failed. Redis undoes nothing: the commands before the failed one have taken effect, as after `EXEC`.
    ///
    /// # Cancellation
    /// The script may or may not have run.
    // Rule: same-transaction
    pub async fn write<Answers: FromRedisValue>(
        &self,
        connection: &mut impl ConnectionLike,
        access: &Access<Writes>,
        commands: &Pipeline,
    ) -> Result<Answers, Error> {
        self.admit(connection, access, "writes", commands).await
    }

    async fn admit<Kind, Answers: FromRedisValue>(
        &self,
        connection: &mut impl ConnectionLike,
        access: &Access<Kind>,
        may: &str,
        commands: &Pipeline,
    ) -> Result<Answers, Error> {
        let shown = access.shown()?;
        let mut call = ADMIT.key(&self.marks_key);
        call.arg(SCHEMA_VERSION).arg(may).arg(shown.len());
        for one in shown {
            call.arg(one.name.as_str()).arg(one.token.0).arg(word(one.used_to));
        }
        for command in commands.cmd_iter() {
            call.arg(command.args_iter().len());
            for argument in command.args_iter() {
                // The other kind of argument is the cursor of a scan, which begins at 0.
                let Arg::Simple(word) = argument else {
                    call.arg(0);
                    continue;
                };
                call.arg(word);
            }
        }
        let (verdict, rest) = verdict(call.invoke_async(connection).await.map_err(Error::store)?)?;
        match verdict.as_str() {
            "stale" => Err(stale(shown, rest)?.into()),
            "writes" => Err(Error::Unsupported("a claim or a read cannot carry a command that writes: use `write`")),
            _ => done(&verdict, rest),
        }
    }

    /// The state of the marks. Show [`CAUTION`] with it.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] if a newer version has created them.
    pub async fn status(&self, connection: &mut impl ConnectionLike) -> Result<Status, Error> {
        let fields: Vec<(String, String)> =
            cmd("HGETALL").arg(&self.marks_key).query_async(connection).await.map_err(Error::store)?;
        let mut status =
            Status { version: SCHEMA_VERSION, base: Token(0), names: 0, writes: 0, highest: Token(0), keys: None };
        for (field, value) in fields {
            let numbers: Vec<u64> = value.split(' ').filter_map(|number| number.parse().ok()).collect();
            match (field.as_str(), &numbers[..]) {
                ("version", [version]) if *version == u64::from(SCHEMA_VERSION) => {}
                ("version", _) => return Err(other_version(&value)),
                ("base", [base]) => status.base = Token(*base),
                (_, [here, _, below, _, writes]) => {
                    status.names += 1;
                    status.writes += writes;
                    status.highest = status.highest.max(Token(*here.max(below)));
                }
                _ => {
                    return Err(Error::store(format!("{} has {field} = {value}, which is not a mark", self.marks_key)));
                }
            }
        }
        status.highest = status.highest.max(status.base);
        Ok(status)
    }

    /// Forgets every mark that is not above the oldest living token, and raises the base floor to that token.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] if a newer version has created the marks.
    // Rule: fence-gc
    pub async fn forget_below(
        &self,
        connection: &mut impl ConnectionLike,
        oldest_live: Token,
    ) -> Result<Forgotten, Error> {
        let mut call = FORGET_BELOW.key(&self.marks_key);
        call.arg(SCHEMA_VERSION).arg(oldest_live.0);
        let (verdict, rest) = verdict(call.invoke_async(connection).await.map_err(Error::store)?)?;
        let (names, base) = done(&verdict, rest)?;
        Ok(Forgotten { names, base: Token(base) })
    }
}

/// The first word of a script's answer, and the rest of the answer.
fn verdict(mut answer: Vec<Value>) -> Result<(String, Vec<Value>), Error> {
    let rest = answer.split_off(answer.len().min(1));
    let (verdict,) = parsed(answer)?;
    Ok((verdict, rest))
}

/// The answers, if the script ran to its end.
fn done<Answers: FromRedisValue>(verdict: &str, rest: Vec<Value>) -> Result<Answers, Error> {
    match verdict {
        "done" => parsed(rest),
        "version" => Err(other_version(&parsed::<(String,)>(rest)?.0)),
        other => Err(Error::store(format!("the script answered {other}, which this guard does not know"))),
    }
}

fn other_version(version: &str) -> Error {
    let why = format!(
        "the guard's marks have format version {version}, and this release knows {SCHEMA_VERSION}: use a newer release of Fencepost"
    );
    Error::NotInstalled(why)
}

fn stale(shown: &[Shown], said: Vec<Value>) -> Result<Stale, Error> {
    let (nth, at, highest): (usize, String, u64) = parsed(said)?;
    let one = nth
        .checked_sub(1)
        .and_then(|at| shown.get(at))
        .ok_or_else(|| Error::store("the script refused a name that was not shown"))?;
    Ok(Stale { name: one.name.clone(), token: one.token, at: Name::new(&at)?, highest: Token(highest) })
}

fn parsed<Answers: FromRedisValue>(answers: Vec<Value>) -> Result<Answers, Error> {
    from_redis_value(Value::Array(answers)).map_err(Error::store)
}

fn word(used_to: Use) -> &'static str {
    match used_to {
        Use::Read => "read",
        Use::Claim => "claim",
        Use::Write => "write",
    }
}
