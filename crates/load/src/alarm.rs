//! Waking at an instant, to some microseconds.
//!
//! The runtime's own timer counts in milliseconds, which is longer than most of what is measured here: an open loop on it would
//! ask in bursts, and call its own delay the system's. The kernel's timers are finer, and they are read like a pipe, so the
//! runtime's pipes serve for them.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// One alarm clock, for one who waits at a time.
pub(crate) struct Alarm(Receiver);

impl Alarm {
    pub(crate) fn new() -> Result<Alarm> {
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)
            .context("cannot make a timer")?;
        // Unchecked: it is no pipe. All that a receiver does is to wait until there is something to read, and to read it.
        Ok(Alarm(Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Returns at that instant, at once if it has passed.
    pub(crate) async fn until(&mut self, at: Instant) -> Result<()> {
        let wait = at.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        rustix::time::timerfd_settime(self.0.as_fd(), TimerfdTimerFlags::empty(), &once(wait))
            .context("cannot set a timer")?;
        // How often it rang, in eight bytes.
        self.0.read_exact(&mut [0; 8]).await?;
        Ok(())
    }
}

fn once(wait: Duration) -> Itimerspec {
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let seconds = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX);
    Itimerspec { it_interval: never, it_value: Timespec { tv_sec: seconds, tv_nsec: wait.subsec_nanos().into() } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn nobody_is_woken_early_and_what_has_passed_does_not_wait() {
        let mut alarm = Alarm::new().expect("this is Linux");
        for wait in [Duration::from_micros(1), Duration::from_micros(300), Duration::from_millis(3)] {
            let at = Instant::now() + wait;
            alarm.until(at).await.expect("it rings");
            assert!(Instant::now() >= at, "after {wait:?}");
        }
        alarm.until(Instant::now()).await.expect("it has passed");
    }
}
