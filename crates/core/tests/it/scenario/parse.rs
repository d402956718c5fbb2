//! Parses the lines of a step: entries with commands, or a question to the state.
//!
//! Sessions, freezes and grants are still names here. `world.rs` replaces them by ids when the scenario runs.

use fencepost_core::{
    Acquire, JobBytes, JobKey, JobReport, JobTerms, Keep, Lock, LockDelay, LockMode, LogicalMs, Metadata, Millis, Name,
    OwnerName, Permits, Position, Principal, Reason, RequestNumber, Seen, TakePermits, Terms, Token, Ttl, Value,
    Verdict, Wait, bounds,
};

use super::words::{Bad, Words, bad, duration, mode};

/// What a step does.
#[derive(Debug)]
pub(crate) enum Doing {
    /// Appends these entries, in their order, this many times.
    Entries { times: u64, entries: Vec<Vec<Line>> },
    /// Asks a question. It does not change what the state answers to log entries.
    Ask(Question),
}

/// One line of an entry.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    After(Millis),
    At(LogicalMs),
    Grace,
    Open(Opening),
    KeepAlive { who: Who, seen: Sees },
    Attach { who: Who, right_secret: bool, seen: Sees },
    Request { who: Who, seen: Sees, asks: Asks },
    Admin { act: AdminAct, reason: Reason },
}

/// A session, with an epoch and a request number if the scenario gives them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Who {
    pub(crate) session: String,
    pub(crate) epoch: Option<u64>,
    pub(crate) number: Option<u64>,
}

/// Sessions that are opened with the same settings.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    pub(crate) sessions: Vec<String>,
    pub(crate) principal: Principal,
    pub(crate) ttl: Ttl,
    pub(crate) metadata: Metadata,
    pub(crate) right_secret: bool,
}

/// The answers that a client says it has seen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sees {
    These(Seen),
    /// Every answer that it has got so far.
    All,
}

/// What a session asks for.
#[derive(Clone, Debug)]
pub(crate) enum Asks {
    Lock(Acquire),
    Take(TakePermits),
    Cancel {
        request: RequestNumber,
        release_if_granted: bool,
    },
    Release(GrantWord, Option<JobReport>),
    Begin(GrantWord),
    Checkpoint(GrantWord, JobBytes),
    Extend(GrantWord, Millis),
    Convert(GrantWord, Name, LockMode, Wait),
    SetValue(GrantWord, Value),
    Close,
    /// Repeats the earlier request with this number.
    Again,
}

/// A grant: by its id, or by a resource that it holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GrantWord {
    Id(u64),
    On(Name),
}

/// What an administrator does.
#[derive(Clone, Debug)]
pub(crate) enum AdminAct {
    Break(GrantWord),
    Evict(String),
    Waive(GrantWord),
    FreezeName(String, Name),
    FreezePrefix(String, String),
    Thaw(String),
    Limit(Name, Option<Permits>),
    CompleteJob(Name, JobKey, Keep),
    ForgetJob(Name, JobKey),
    AllowJobs,
}

/// A question to the state, or an instruction to the runner.
#[derive(Debug)]
pub(crate) enum Question {
    Show,
    ShowSession(String),
    ShowJob(Name, JobKey),
    ShowJobs(String),
    Deadline,
    Snapshot,
    RestoreBackup { token_jump: u64 },
    Check(Name, Token),
    Why { name: Name, queue_max: usize },
    WhyWaits { session: String, number: u64 },
    Events(bool),
    Watch { prefix: String, after: Position },
    Ring(usize),
}

/// Parses the lines of a step.
pub(crate) fn step(lines: &[String]) -> Result<Doing, Bad> {
    if let [line] = lines
        && let Some(question) = question(&mut Words::new(line)?)?
    {
        return Ok(Doing::Ask(question));
    }
    let mut times = 1;
    let mut entries = vec![Vec::new()];
    for (at, text) in lines.iter().enumerate() {
        let mut words = Words::new(text)?;
        if at == 0 && words.take("repeat") {
            times = words.number("how many times")?;
            words.expect("times")?;
        } else if words.take("then") {
            entries.push(Vec::new());
        } else {
            let entry = entries.last_mut().expect("there is at least one entry");
            entry_line(&mut words, entry).map_err(|bad| format!("{text}: {bad}"))?;
        }
        words.end().map_err(|bad| format!("{text}: {bad}"))?;
    }
    Ok(Doing::Entries { times, entries })
}

fn question(words: &mut Words) -> Result<Option<Question>, Bad> {
    let question = if words.take("show") {
        if words.take("session") {
            Question::ShowSession(words.word("a session")?)
        } else if words.take("job") {
            Question::ShowJob(words.name()?, words.key()?)
        } else if words.take("jobs") {
            Question::ShowJobs(if words.is_empty() { String::new() } else { words.word("a prefix")? })
        } else {
            Question::Show
        }
    } else if words.take("deadline") {
        Question::Deadline
    } else if words.take("snapshot") {
        Question::Snapshot
    } else if words.take("restore-backup") {
        words.expect("jump")?;
        Question::RestoreBackup { token_jump: words.number("a token jump")? }
    } else if words.take("check") {
        let name = words.name()?;
        words.expect("token")?;
        Question::Check(name, Token(words.number("a token")?))
    } else if words.take("why") {
        let word = words.word("a resource or a request")?;
        match who(&word) {
            Ok(Who { session, number: Some(number), .. }) => Question::WhyWaits { session, number },
            _ => {
                let queue_max =
                    if words.take("first") { words.number("how many waiters")? as usize } else { usize::MAX };
                Question::Why { name: Name::new(&word).map_err(bad)?, queue_max }
            }
        }
    } else if words.take("events") {
        let word = words.word("on or off")?;
        Question::Events(match word.as_str() {
            "on" => true,
            "off" => false,
            _ => return Err(format!("expected on or off, found '{word}'")),
        })
    } else if words.take("watch") {
        let prefix = if words.peek() == Some("after") { String::new() } else { words.word("a prefix")? };
        words.expect("after")?;
        let word = words.word("a position")?;
        let position = word
            .split_once('.')
            .and_then(|(index, ordinal)| Some(Position { index: index.parse().ok()?, ordinal: ordinal.parse().ok()? }));
        Question::Watch { prefix, after: position.ok_or(format!("expected a position such as 2.0, found '{word}'"))? }
    } else if words.take("ring") {
        Question::Ring(words.number("how many events")? as usize)
    } else {
        return Ok(None);
    };
    words.end()?;
    Ok(Some(question))
}

fn entry_line(words: &mut Words, entry: &mut Vec<Line>) -> Result<(), Bad> {
    if words.take("after") {
        entry.push(Line::After(words.duration()?));
    } else if words.take("at") {
        entry.push(Line::At(words.stamp()?));
    } else if words.take("grace") {
        entry.push(Line::Grace);
    } else {
        entry.push(command(words)?);
        return Ok(());
    }
    // Time may come before a command on the same line.
    if words.is_empty() { Ok(()) } else { entry_line(words, entry) }
}

fn command(words: &mut Words) -> Result<Line, Bad> {
    if words.take("open") {
        return opening(words);
    }
    if words.take("admin") {
        let act = admin(words)?;
        let reason = if words.take("because") { words.quoted("a reason")? } else { String::new() };
        return Ok(Line::Admin { act, reason: Reason::new(&reason).map_err(bad)? });
    }
    let who = who(&words.word("a session or a command")?)?;
    if words.take("keep-alive") {
        return Ok(Line::KeepAlive { who, seen: seen(words)? });
    }
    if words.take("attach") {
        let right_secret = !words.take("wrong-secret");
        return Ok(Line::Attach { who, right_secret, seen: seen(words)? });
    }
    let asks = asks(words)?;
    Ok(Line::Request { who, seen: seen(words)?, asks })
}

/// `a`, `a#3`, `a@1` or `a@1#3`.
fn who(word: &str) -> Result<Who, Bad> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("no number in '{word}'"));
    let (rest, request) = match word.split_once('#') {
        Some((rest, text)) => (rest, Some(number(text)?)),
        None => (word, None),
    };
    let (session, epoch) = match rest.split_once('@') {
        Some((session, text)) => (session, Some(number(text)?)),
        None => (rest, None),
    };
    Ok(Who { session: session.to_string(), epoch, number: request })
}

fn opening(words: &mut Words) -> Result<Line, Bad> {
    let mut opening = Opening {
        sessions: vec![words.word("a session")?],
        principal: Principal::new("app").map_err(bad)?,
        ttl: Ttl::new(bounds::SESSION_TTL_MS_DEFAULT).map_err(bad)?,
        metadata: Metadata::default(),
        right_secret: true,
    };
    while !words.is_empty() {
        if words.take("ttl") {
            opening.ttl = words.ttl()?;
        } else if words.take("principal") {
            opening.principal = Principal::new(&words.word("a principal")?).map_err(bad)?;
        } else if words.take("meta") {
            opening.metadata = Metadata::new(words.quoted("metadata")?.as_bytes()).map_err(bad)?;
        } else if words.take("wrong-secret") {
            opening.right_secret = false;
        } else {
            opening.sessions.push(words.word("a session")?);
        }
    }
    Ok(Line::Open(opening))
}

fn asks(words: &mut Words) -> Result<Asks, Bad> {
    let verb = words.word("what to do")?;
    Ok(match verb.as_str() {
        "lock" => Asks::Lock(lock(words)?),
        "take" => Asks::Take(take(words)?),
        "cancel" => {
            let word = words.word("a request")?;
            let number = word.strip_prefix('#').and_then(|number| number.parse().ok());
            let request = RequestNumber(number.ok_or(format!("expected a request such as #3, found '{word}'"))?);
            Asks::Cancel { request, release_if_granted: words.take("release") }
        }
        "release" => Asks::Release(grant(words)?, report(words)?),
        "begin" => Asks::Begin(grant(words)?),
        "checkpoint" => Asks::Checkpoint(grant(words)?, job_bytes(words, "a checkpoint")?),
        "extend" => Asks::Extend(grant(words)?, words.duration()?),
        "upgrade" | "weaken" => {
            let grant = grant(words)?;
            let name = match &grant {
                GrantWord::On(name) => name.clone(),
                GrantWord::Id(_) => words.name()?,
            };
            let mode = words.mode()?;
            Asks::Convert(grant, name, mode, wait(words)?)
        }
        "set" => {
            let grant = grant(words)?;
            Asks::SetValue(grant, Value::new(words.quoted("a value")?.as_bytes()).map_err(bad)?)
        }
        "close" => Asks::Close,
        "again" => Asks::Again,
        _ => return Err(format!("no command '{verb}'")),
    })
}

fn grant(words: &mut Words) -> Result<GrantWord, Bad> {
    if words.take("grant") {
        return Ok(GrantWord::Id(words.number("a grant id")?));
    }
    Ok(GrantWord::On(words.name()?))
}

/// `succeeded "result"`, `failed "result"` or `open "error"`, if the release says how the attempt went.
fn report(words: &mut Words) -> Result<Option<JobReport>, Bad> {
    let verdict = match words.peek() {
        Some("succeeded") => Verdict::Succeeded,
        Some("failed") => Verdict::Failed,
        Some("open") => Verdict::Open,
        _ => return Ok(None),
    };
    words.word("a verdict")?;
    Ok(Some(JobReport { verdict, bytes: job_bytes(words, "a result or an error")? }))
}

fn job_bytes(words: &mut Words, what: &str) -> Result<JobBytes, Bad> {
    JobBytes::new(words.quoted(what)?.as_bytes()).map_err(bad)
}

fn keep(words: &mut Words) -> Result<Keep, Bad> {
    if words.take("keep") { Keep::new(words.duration()?.get()).map_err(bad) } else { Ok(Keep::default()) }
}

fn lock(words: &mut Words) -> Result<Acquire, Bad> {
    let mut acquire = Acquire { locks: Default::default(), owner: None, wait: Wait::No, terms: Terms::default() };
    while let Some(word) = words.peek().map(str::to_string) {
        if is_term(&word) || word == "owner" {
            break;
        }
        let (name, mode) = match word.rsplit_once(':') {
            Some((name, letter)) if mode(letter).is_some() => {
                let lock = (Name::new(name).map_err(bad)?, mode(letter).expect("checked by the guard"));
                words.word("a lock")?;
                lock
            }
            _ => (words.name()?, words.mode()?),
        };
        acquire.locks.push(Lock { name, mode });
    }
    loop {
        if words.take("owner") {
            acquire.owner = Some(OwnerName::new(&words.word("an owner")?).map_err(bad)?);
        } else if !term(words, &mut acquire.wait, &mut acquire.terms)? {
            return Ok(acquire);
        }
    }
}

fn take(words: &mut Words) -> Result<TakePermits, Bad> {
    let permits = words.permits()?;
    words.expect("of")?;
    let name = words.name()?;
    let limit = if words.take("limit") { Some(words.permits()?) } else { None };
    let mut take = TakePermits { name, permits, limit, wait: Wait::No, terms: Terms::default() };
    while term(words, &mut take.wait, &mut take.terms)? {}
    Ok(take)
}

fn is_term(word: &str) -> bool {
    matches!(word, "wait" | "ttl" | "max-hold" | "delay" | "hear-contended" | "value" | "meta" | "key" | "seen")
}

/// Reads the wait or one term of a grant. Returns whether there was one.
fn term(words: &mut Words, waits: &mut Wait, terms: &mut Terms) -> Result<bool, Bad> {
    if words.peek() == Some("wait") {
        *waits = wait(words)?;
    } else if words.take("ttl") {
        terms.ttl = Some(words.ttl()?);
    } else if words.take("max-hold") {
        terms.max_hold = Some(words.duration()?);
    } else if words.take("delay") {
        terms.lock_delay = LockDelay::new(words.duration()?.get()).map_err(bad)?;
    } else if words.take("hear-contended") {
        terms.hear_contended = true;
    } else if words.take("value") {
        terms.value = Some(Value::new(words.quoted("a value")?.as_bytes()).map_err(bad)?);
    } else if words.take("meta") {
        terms.metadata = Metadata::new(words.quoted("metadata")?.as_bytes()).map_err(bad)?;
    } else if words.take("key") {
        terms.job = Some(JobTerms { key: words.key()?, keep: keep(words)? });
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn wait(words: &mut Words) -> Result<Wait, Bad> {
    if !words.take("wait") {
        return Ok(Wait::No);
    }
    match words.peek().and_then(duration) {
        Some(up_to) => {
            words.duration()?;
            Ok(Wait::UpTo(up_to))
        }
        None => Ok(Wait::Forever),
    }
}

/// `seen all`, or numbers and ranges. The first range is the mark if it begins at 1.
fn seen(words: &mut Words) -> Result<Sees, Bad> {
    let mut seen = Seen::default();
    if !words.take("seen") {
        return Ok(Sees::These(seen));
    }
    let word = words.word("which answers")?;
    if word == "all" {
        return Ok(Sees::All);
    }
    for (at, part) in word.split(',').enumerate() {
        let (first, last) = part.split_once("..").unwrap_or((part, part));
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("expected numbers, found '{word}'"));
        let range = (number(first)?, number(last)?);
        if at == 0 && range.0 == 1 && range.1 >= 1 {
            seen.mark = range.1;
        } else {
            seen.ranges.push(range);
        }
    }
    Ok(Sees::These(seen))
}

fn admin(words: &mut Words) -> Result<AdminAct, Bad> {
    let verb = words.word("an administrator's act")?;
    Ok(match verb.as_str() {
        "break" => AdminAct::Break(grant(words)?),
        "evict" => AdminAct::Evict(words.word("a session")?),
        "waive" => AdminAct::Waive(grant(words)?),
        "freeze" => {
            let freeze = words.word("a freeze")?;
            if words.take("name") {
                AdminAct::FreezeName(freeze, words.name()?)
            } else {
                words.expect("prefix")?;
                AdminAct::FreezePrefix(freeze, words.text("a prefix")?)
            }
        }
        "thaw" => AdminAct::Thaw(words.word("a freeze")?),
        "limit" => {
            let name = words.name()?;
            AdminAct::Limit(name, if words.take("none") { None } else { Some(words.permits()?) })
        }
        "complete" => {
            words.expect("job")?;
            AdminAct::CompleteJob(words.name()?, words.key()?, keep(words)?)
        }
        "forget" => {
            words.expect("job")?;
            AdminAct::ForgetJob(words.name()?, words.key()?)
        }
        "allow" => {
            words.expect("jobs")?;
            AdminAct::AllowJobs
        }
        _ => return Err(format!("no administrator's act '{verb}'")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_entry(lines: &[&str]) -> Vec<Line> {
        let lines: Vec<_> = lines.iter().map(|line| line.to_string()).collect();
        match step(&lines).unwrap() {
            Doing::Entries { times: 1, mut entries } if entries.len() == 1 => entries.remove(0),
            other => panic!("{lines:?} is {other:?}"),
        }
    }

    fn complaint(line: &str) -> String {
        step(&[line.to_string()]).unwrap_err()
    }

    #[test]
    fn a_lock_with_everything() {
        let lines = one_entry(&[
            r#"after 5s a@1#7 lock r X wait 5s owner t ttl 1s max-hold 10s delay 5s hear-contended value "v" meta "m" seen 1..3,5"#,
        ]);
        let [Line::After(after), Line::Request { who, seen: Sees::These(seen), asks: Asks::Lock(acquire) }] =
            &lines[..]
        else {
            panic!("{lines:?}");
        };
        assert_eq!(after.get(), 5_000);
        assert_eq!(*who, Who { session: "a".to_string(), epoch: Some(1), number: Some(7) });
        assert_eq!((seen.mark, &seen.ranges[..]), (3, &[(5, 5)][..]));
        assert_eq!(acquire.wait, Wait::UpTo(Millis::new(5_000).unwrap()));
        assert!(acquire.owner.is_some() && acquire.terms.hear_contended && acquire.terms.value.is_some());
        assert_eq!(acquire.terms.max_hold, Some(Millis::new(10_000).unwrap()));
    }

    #[test]
    fn several_locks_and_waits_without_end() {
        let lines = one_entry(&["a lock r:S /s/t:X wait", "b take 3 of pool limit 10 wait"]);
        let [Line::Request { asks: Asks::Lock(lock), .. }, Line::Request { asks: Asks::Take(take), .. }] = &lines[..]
        else {
            panic!("{lines:?}");
        };
        assert_eq!((lock.locks.len(), lock.wait), (2, Wait::Forever));
        assert_eq!((take.permits.get(), take.limit.map(Permits::get)), (3, Some(10)));
    }

    #[test]
    fn repeats_and_entries() {
        let lines = ["repeat 50 times", "a lock r X seen all", "then", "a release r"].map(str::to_string);
        let Doing::Entries { times, entries } = step(&lines).unwrap() else { panic!("entries") };
        assert_eq!((times, entries.len()), (50, 2));
    }

    #[test]
    fn mistakes_are_reported() {
        assert_eq!(complaint("a lok r X"), "a lok r X: no command 'lok'");
        assert_eq!(complaint("a lock r Z"), "a lock r Z: expected S, U or X, found 'Z'");
        assert_eq!(complaint("after soon"), "after soon: expected a duration such as 5s or 250ms, found 'soon'");
        assert_eq!(complaint("a close b"), "a close b: did not expect 'b'");
        assert_eq!(complaint("watch after 2"), "expected a position such as 2.0, found '2'");
        assert_eq!(complaint("open a ttl 1ms"), "open a ttl 1ms: a time to live is at least 1000 ms");
    }
}
