//! Wakes a task at an instant, to some microseconds.
//!
//! The timer of the runtime counts in milliseconds, which is longer than most latencies that are measured here. An open loop on it
//! would send requests in bursts, and its own delay would count as the system's. The timers of the kernel (timerfd) are finer. They
//! are read like a pipe, so the pipe type of the runtime can wait for them.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// A timer. One task at a time waits for it.
pub(crate) struct Alarm(Receiver);

impl Alarm {
    pub(crate) fn new() -> Result<Alarm> {
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)
            .context("cannot make a timer")?;
        // Unchecked, because a timer is not a pipe. A receiver only waits until the descriptor is readable, and reads it.
        Ok(Alarm(Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Returns at this instant. Returns immediately if it has passed.
    pub(crate) async fn until(&mut self, at: Instant) -> Result<()> {
        let wait = at.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        rustix::time::timerfd_settime(self.0.as_fd(), TimerfdTimerFlags::empty(), &once(wait))
            .context("cannot set a timer")?;
        // The kernel returns the number of expirations, in eight bytes.
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
    async fn an_alarm_is_never_early_and_a_past_instant_does_not_wait() {
        let mut alarm = Alarm::new().expect("this is Linux");
        for wait in [Duration::from_micros(1), Duration::from_micros(300), Duration::from_millis(3)] {
            let at = Instant::now() + wait;
            alarm.until(at).await.expect("the timer expires");
            assert!(Instant::now() >= at, "after {wait:?}");
        }
        alarm.until(Instant::now()).await.expect("the instant has passed");
    }
}
