//! Processor time and memory of processes, as the kernel counts them in `/proc`.
//!
//! A server that forks (Postgres) or runs under a shell has several processes. So its descendants are counted with it, including
//! those that have ended.

use std::collections::{BTreeMap, BTreeSet};

/// `/proc` counts in hundredths of a second on every Linux machine, whatever the frequency of the kernel's own clock.
const TICK_US: u64 = 10_000;

/// The needed fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// Its own time, in user and kernel mode, all threads together.
    own_ticks: u64,
    /// The time of its children that have ended and were waited for.
    ended_ticks: u64,
}

/// Processor time so far of these processes and of everything that they started, in microseconds.
pub fn processor_us(processes: &[u32]) -> u64 {
    let stats = all_stats();
    let found =
        with_descendants(processes, &stats).into_iter().filter_map(|process| Some((process, stats.get(&process)?)));
    found.map(|(process, stat)| own_us(&process.to_string(), stat) + stat.ended_ticks * TICK_US).sum()
}

/// Processor time of this process so far, in microseconds, without its children.
pub fn own_processor_us() -> u64 {
    read_stat("self").map_or(0, |stat| own_us("self", &stat))
}

/// The larger of two counts. Ticks are rounded down, and with a hundred processes the error is up to a second. Living threads are
/// counted in nanoseconds, but the time of ended threads is only in the ticks.
fn own_us(process: &str, stat: &Stat) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    let lines = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok());
    let living_ns: u64 = lines.filter_map(|line| parse_schedstat(&line)).sum();
    (stat.own_ticks * TICK_US).max(living_ns / 1_000)
}

/// Resident memory of a process, in bytes. Zero if the process has ended.
pub fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    parse_resident(&status).unwrap_or(0)
}

fn read_stat(process: &str) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// All running processes. A process that ends meanwhile is left out.
fn all_stats() -> BTreeMap<u32, Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| Some((name.parse().ok()?, read_stat(&name)?))).collect()
}

fn with_descendants(processes: &[u32], stats: &BTreeMap<u32, Stat>) -> BTreeSet<u32> {
    let mut found: BTreeSet<u32> = processes.iter().copied().collect();
    loop {
        let children = stats.iter().filter(|(_, stat)| found.contains(&stat.parent)).map(|(process, _)| *process);
        let more: Vec<u32> = children.filter(|process| !found.contains(process)).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// The name of a process is in brackets and may itself contain brackets, so the fields begin after the last bracket.
fn parse_stat(line: &str) -> Option<Stat> {
    let fields: Vec<&str> = line.rsplit_once(") ")?.1.split(' ').collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own_ticks: number(11)? + number(12)?,
        ended_ticks: number(13)? + number(14)?,
    })
}

/// The first number is the time on a processor, in nanoseconds.
fn parse_schedstat(line: &str) -> Option<u64> {
    line.split(' ').next()?.trim().parse().ok()
}

fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_even_if_the_name_contains_brackets() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 150 50 20 5 20 0 9 0 100 1000 10 18446744073709551615";
        assert_eq!(parse_stat(line), Some(Stat { parent: 7, own_ticks: 200, ended_ticks: 25 }));
        assert_eq!(parse_stat("42 (cut"), None);
        assert_eq!(parse_stat("42 (short) S 7"), None);
    }

    #[test]
    fn descendants_of_a_server_are_counted_once() {
        let stat = |parent| Stat { parent, own_ticks: 1, ended_ticks: 0 };
        let stats = BTreeMap::from([(1, stat(0)), (5, stat(1)), (6, stat(5)), (7, stat(6)), (8, stat(1))]);
        assert_eq!(with_descendants(&[5, 7], &stats), BTreeSet::from([5, 6, 7]));
    }

    #[test]
    fn processor_time_is_read_to_the_nanosecond() {
        assert_eq!(parse_schedstat("123456789 42 7\n"), Some(123_456_789));
        assert_eq!(parse_schedstat("\n"), None);
        // More ticks than the living threads have used: some threads have ended.
        let stat = Stat { parent: 1, own_ticks: u64::from(u32::MAX), ended_ticks: 0 };
        assert_eq!(own_us("self", &stat), stat.own_ticks * TICK_US);
        let stat = Stat { own_ticks: 0, ..stat };
        assert!(own_us("no such process", &stat) == 0 && own_us("self", &stat) > 0);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(parse_resident("Name:\tx\nVmRSS:\t  1024 kB\n"), Some(1 << 20));
        assert_eq!(parse_resident("Name:\tx\n"), None);
    }

    #[test]
    fn this_process_has_memory_and_processor_time() {
        assert!(resident_bytes(std::process::id()) > 0);
        // The two times are not compared: threads of other tests end in between.
        assert!(processor_us(&[std::process::id()]) > 0 && own_processor_us() > 0);
    }
}
