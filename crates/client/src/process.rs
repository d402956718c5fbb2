//! What the system knows about this process: its user, host, program, pid and start.
//!
//! People who ask who holds a lock see it, and the log has it as the author of what an administrator orders. Nothing here fails: a
//! fact that the system does not tell is left out. The system is asked once.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// How many bytes of one fact are kept: a long path or host name must not fill the metadata of a session, which has 4 KiB.
const FACT_BYTES_MAX: usize = 128;

/// This process.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    user: Option<String>,
    host: Option<String>,
    program: Option<String>,
    /// In UTC, as in RFC 3339: `2026-11-18T16:03:13Z`.
    started: Option<String>,
}

impl Process {
    /// This process, as the system describes it.
    pub(crate) fn this() -> &'static Process {
        static THIS: OnceLock<Process> = OnceLock::new();
        THIS.get_or_init(|| Process {
            user: user().map(|user| fact(&user)),
            host: host().map(|host| fact(&host)),
            program: program().map(|program| fact(&program)),
            started: started().and_then(utc),
        })
    }

    /// The facts for the metadata of a session, by their keys.
    pub(crate) fn facts(&self) -> impl Iterator<Item = (String, String)> {
        let known =
            [("user", &self.user), ("host", &self.host), ("program", &self.program), ("started", &self.started)];
        let known = known.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
        known.chain([("pid".to_owned(), std::process::id().to_string())])
    }

    /// `USER@HOST` in visible ASCII characters, as a header can carry it.
    pub(crate) fn caller(&self) -> String {
        let unknown = || "unknown".to_owned();
        let (user, host) = (self.user.clone().unwrap_or_else(unknown), self.host.clone().unwrap_or_else(unknown));
        format!("{user}@{host}").chars().map(|it| if it.is_ascii_graphic() { it } else { '?' }).collect()
    }
}

/// The text on one line.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect()
}

/// The beginning of what the system says, on one line.
fn fact(text: &str) -> String {
    let line = one_line(text);
    line[..line.floor_char_boundary(FACT_BYTES_MAX)].to_owned()
}

/// The name of the user, or its number if it has no name here, as in many containers.
#[cfg(unix)]
fn user() -> Option<String> {
    let id = nix::unistd::Uid::current();
    let named = nix::unistd::User::from_uid(id).ok().flatten();
    Some(named.map_or_else(|| id.to_string(), |user| user.name))
}

#[cfg(not(unix))]
fn user() -> Option<String> {
    std::env::var("USERNAME").ok()
}

#[cfg(unix)]
fn host() -> Option<String> {
    Some(nix::unistd::gethostname().ok()?.to_string_lossy().into_owned())
}

#[cfg(not(unix))]
fn host() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}

/// The name of the program's file.
fn program() -> Option<String> {
    let path = std::env::current_exe().ok().or_else(|| std::env::args_os().next().map(Into::into))?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// When the process began. The system counts it in ticks since the machine's start, like the clock of deadlines.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn started() -> Option<SystemTime> {
    let stat = String::from_utf8_lossy(&std::fs::read("/proc/self/stat").ok()?).into_owned();
    // The second field is the program's name in parentheses, which may hold anything. The 22nd is the start.
    let (_, from_the_third) = stat.rsplit_once(')')?;
    let ticks: u64 = from_the_third.split_whitespace().nth(22 - 3)?.parse().ok()?;
    let ticks_a_second = rustix::param::clock_ticks_per_second().max(1);
    let began = Duration::from_secs_f64(ticks as f64 / ticks_a_second as f64);
    let age = Duration::from_nanos(crate::clock::now().0).checked_sub(began)?;
    SystemTime::now().checked_sub(age)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn started() -> Option<SystemTime> {
    None
}

/// A time in UTC, as in RFC 3339, to the second. `None` outside of the years 1970 to 9999.
fn utc(time: SystemTime) -> Option<String> {
    let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    let (mut days, second) = (since_1970 / 86_400, since_1970 % 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
        if year > 9999 {
            return None;
        }
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    Some(format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_knows_this_process() {
        let facts: std::collections::BTreeMap<_, _> = Process::this().facts().collect();
        assert_eq!(facts["pid"], std::process::id().to_string());
        assert!(!facts["user"].is_empty() && !facts["host"].is_empty(), "{facts:?}");
        assert!(facts["program"].starts_with("fencepost"), "{facts:?}");
        #[cfg(target_os = "linux")]
        {
            let now = utc(SystemTime::now()).expect("this century");
            // RFC 3339 in UTC sorts as text. The tests began within the last day.
            let day_ago = utc(SystemTime::now() - Duration::from_secs(86_400)).expect("this century");
            assert!(day_ago < facts["started"] && facts["started"] <= now, "{facts:?} at {now}");
        }
        let caller = Process::this().caller();
        assert!(caller.contains('@') && caller.chars().all(|it| it.is_ascii_graphic()), "{caller}");
    }

    #[test]
    fn what_the_system_does_not_tell_is_left_out() {
        let unknown = Process { user: None, host: None, program: None, started: None };
        let keys: Vec<String> = unknown.facts().map(|(key, _)| key).collect();
        assert_eq!((keys, unknown.caller()), (vec!["pid".to_owned()], "unknown@unknown".to_owned()));
        let odd = Process { user: Some("jörg\n".to_owned()), host: Some("db 1".to_owned()), ..unknown };
        assert_eq!(odd.caller(), "j?rg?@db?1");
    }

    #[test]
    fn a_long_fact_is_cut_at_a_whole_character() {
        assert_eq!(fact(&"ü".repeat(100)), "ü".repeat(FACT_BYTES_MAX / 2));
        assert_eq!(fact(&format!("x{}", "ü".repeat(100))).len(), FACT_BYTES_MAX - 1);
        assert_eq!(fact("two\nlines\r"), "two lines ");
    }

    #[test]
    fn times_are_shown_in_utc() {
        let at = |seconds| utc(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(at(951_782_399).as_deref(), Some("2000-02-28T23:59:59Z"));
        assert_eq!(at(951_782_400).as_deref(), Some("2000-02-29T00:00:00Z"));
        assert_eq!(at(1_767_225_599).as_deref(), Some("2025-12-31T23:59:59Z"));
        assert_eq!(at(4_107_542_400).as_deref(), Some("2100-03-01T00:00:00Z"));
        assert_eq!(at(253_402_300_799).as_deref(), Some("9999-12-31T23:59:59Z"));
        assert_eq!(at(253_402_300_800), None);
    }
}
