//! What the system says about this process: processor time, memory, open files and its start. Linux only; elsewhere nothing is shown.
//!
//! It reads `/proc`, which takes some microseconds, and only when `/metrics` is read.

use crate::exposition::Exposition;

/// What the system says about this process. A value that cannot be read is `None`.
struct Process {
    cpu_s: Option<f64>,
    virtual_bytes: Option<u64>,
    resident_bytes: Option<u64>,
    started_at_s: Option<f64>,
    open_fds: Option<usize>,
    max_fds: Option<u64>,
}

/// Adds the metrics of the process, under the names that Prometheus gives them. Leaves out what the system does not say.
pub(crate) fn show(shown: &mut Exposition) {
    let Process { cpu_s, virtual_bytes, resident_bytes, started_at_s, open_fds, max_fds } = read();
    if let Some(seconds) = cpu_s {
        let help = "Processor time of this process, in user and system mode, in seconds";
        shown.counter("process_cpu_seconds_total", help, seconds);
    }
    if let Some(bytes) = resident_bytes {
        shown.gauge("process_resident_memory_bytes", "Memory of this process that is in RAM, in bytes", bytes);
    }
    if let Some(bytes) = virtual_bytes {
        shown.gauge("process_virtual_memory_bytes", "Address space of this process, in bytes", bytes);
    }
    if let Some(count) = open_fds {
        shown.gauge("process_open_fds", "File descriptors that are open", count);
    }
    if let Some(count) = max_fds {
        shown.gauge("process_max_fds", "File descriptors that may be open at most", count);
    }
    if let Some(seconds) = started_at_s {
        let help = "When this process began, in seconds since 1970";
        shown.gauge("process_start_time_seconds", help, seconds);
    }
}

#[cfg(target_os = "linux")]
fn read() -> Process {
    let text = |path: &str| std::fs::read_to_string(path).ok();
    let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
    let stat = text("/proc/self/stat").unwrap_or_default();
    let boot_s = text("/proc/stat").and_then(|stat| number_after(&stat, "btime "));
    let started_ticks = stat_field(&stat, 22);
    let cpu_ticks = stat_field(&stat, 14).zip(stat_field(&stat, 15)).map(|(user, system)| user + system);
    let resident_pages = stat_field(&stat, 24);
    Process {
        cpu_s: cpu_ticks.map(|ticks| ticks as f64 / ticks_per_s),
        virtual_bytes: stat_field(&stat, 23),
        resident_bytes: resident_pages.map(|pages| pages * rustix::param::page_size() as u64),
        started_at_s: boot_s.zip(started_ticks).map(|(boot, ticks)| boot as f64 + ticks as f64 / ticks_per_s),
        // One of the entries is the directory itself, which is open only for this count.
        open_fds: std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count().saturating_sub(1)),
        max_fds: text("/proc/self/limits").and_then(|limits| number_after(&limits, "Max open files")),
    }
}

#[cfg(not(target_os = "linux"))]
fn read() -> Process {
    Process {
        cpu_s: None,
        virtual_bytes: None,
        resident_bytes: None,
        started_at_s: None,
        open_fds: None,
        max_fds: None,
    }
}

/// A field of `/proc/self/stat`, counted from 1 as the manual page proc(5) does. The second field is the program's name in
/// parentheses and may contain spaces, so fields are counted from its end.
#[cfg(target_os = "linux")]
fn stat_field(stat: &str, field: usize) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(field - 3)?.parse().ok()
}

/// The first number after a word at the beginning of a line.
#[cfg(target_os = "linux")]
fn number_after(text: &str, word: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(word))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_a_name_with_spaces_and_parentheses() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194560 100 0 0 0 7 5 0 0 20 0 3 0 1234 5000000 600 18446744073709551615";
        assert_eq!(stat_field(stat, 14), Some(7));
        assert_eq!(stat_field(stat, 15), Some(5));
        assert_eq!(stat_field(stat, 22), Some(1234));
        assert_eq!(stat_field(stat, 24), Some(600));
        assert_eq!(stat_field("", 14), None);
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(number_after(limits, "Max open files"), Some(1024));
        assert_eq!(number_after(limits, "Max locks"), None);
    }

    #[test]
    fn this_process_has_memory_files_and_a_start() {
        let process = read();
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 1 << 20));
        assert!(process.virtual_bytes > process.resident_bytes);
        assert!(process.open_fds.is_some_and(|count| count >= 3), "standard input, output and error");
        assert!(process.max_fds >= process.open_fds.map(|count| count as u64));
        let now_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(process.started_at_s.is_some_and(|began| (now_s - 3_600.0..now_s + 2.0).contains(&began)));
        assert!(process.cpu_s.is_some());
    }
}
