//! How long a holder may trust a deadline that stands in logical time.
//!
//! The cluster counts in stamps, the client in its own clock, and nobody compares the two. But a client knows one thing for
//! certain: what it sent at its instant S was put in the log at stamp L, and the leader read its clock for L after the message
//! had arrived. So at S logical time was at most L. It never runs faster than real time, and so a deadline D is not reached
//! before S + (D - L). One in a hundred is taken off for two clocks that tick differently, and a millisecond for rounding.
//!
//! Such a pair is an anchor. Every pair proves something, and the best is the one that proves most: since the hundredth is
//! taken off all of D - L, that is the one with the largest S - 0.99 L, whatever D is. (By S - L alone an old pair would be
//! kept for hours, and the hundredth of hours is more than any TTL.)

use std::time::Duration;

use fencepost_core::LogicalMs;

use fencepost_core::Nanos;

/// Of every hundred nanoseconds of logical time, so many may be believed.
const BELIEVED_OF_HUNDRED: i128 = 99;
/// Stamps are whole milliseconds.
const ROUNDING: i128 = 1_000_000;

/// What is known of the logical time of one group.
// Rule: holder-stops-first
#[derive(Clone, Copy, Debug, Default)]
pub struct Anchor {
    /// The best pair: sent at, and put in the log at.
    best: Option<(Nanos, LogicalMs)>,
    /// The highest stamp that any answer has shown.
    shown: LogicalMs,
}

impl Anchor {
    /// This very try was sent at `sent_at` and put in the log at `stamp`. Not for repeats, reads and pushes: they prove
    /// nothing about when their stamp was.
    pub fn proven(&mut self, sent_at: Nanos, stamp: LogicalMs) {
        self.shown(stamp);
        if self.best.is_none_or(|best| worth(best) < worth((sent_at, stamp))) {
            self.best = Some((sent_at, stamp));
        }
    }

    /// An answer has shown that logical time has come this far.
    pub fn shown(&mut self, stamp: LogicalMs) {
        self.shown = self.shown.max(stamp);
    }

    /// Until when the deadline is certainly not reached; none if it may be over already.
    pub fn safe_until(&self, deadline: LogicalMs) -> Option<Nanos> {
        let (sent_at, stamp) = self.best?;
        if self.shown >= deadline || stamp >= deadline {
            return None;
        }
        let believed = i128::from(deadline.0 - stamp.0) * 1_000_000 * BELIEVED_OF_HUNDRED / 100 - ROUNDING;
        u64::try_from(i128::from(sent_at.0) + believed).ok().map(Nanos)
    }

    /// How long the deadline is certainly not reached.
    pub fn remaining(&self, deadline: LogicalMs, now: Nanos) -> Duration {
        self.safe_until(deadline).map_or(Duration::ZERO, |until| until.since(now))
    }
}

/// What a pair adds to every deadline, in hundredths of nanoseconds.
fn worth((sent_at, stamp): (Nanos, LogicalMs)) -> i128 {
    i128::from(sent_at.0) * 100 - i128::from(stamp.0) * 1_000_000 * BELIEVED_OF_HUNDRED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::Seeds;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_deadline_is_believed_less_a_hundredth_and_a_millisecond() {
        let mut anchor = Anchor::default();
        assert_eq!(anchor.safe_until(LogicalMs(10_000)), None, "nothing is known");
        anchor.proven(Nanos(500 * MS), LogicalMs(7_000));
        assert_eq!(anchor.safe_until(LogicalMs(17_000)), Some(Nanos((500 + 9_900 - 1) * MS)));
        anchor.shown(LogicalMs(16_999));
        assert!(anchor.safe_until(LogicalMs(17_000)).is_some());
        anchor.shown(LogicalMs(17_000));
        assert_eq!(anchor.safe_until(LogicalMs(17_000)), None, "an answer has shown that it is over");
    }

    #[test]
    fn a_session_of_hours_is_not_lost_by_its_old_anchor() {
        let mut anchor = Anchor::default();
        anchor.proven(Nanos(0), LogicalMs(0));
        // Hours later each keep-alive takes a millisecond longer to arrive than the first message did.
        let later = 5 * 3_600_000;
        anchor.proven(Nanos(later * MS), LogicalMs(later + 1));
        assert!(anchor.remaining(LogicalMs(later + 1 + 30_000), Nanos(later * MS)) > Duration::from_secs(29));
    }

    /// A group's clock and a client's, and everything that may go wrong between them. Real time is in nanoseconds; logical
    /// time moves with the leader's clock, which may stall, and goes on from the highest stamp when the leader changes.
    struct World {
        real: u64,
        /// Nanoseconds of the client's clock for a million real ones.
        client_rate: u64,
        client: u64,
        /// The same for the leader's.
        leader_rate: u64,
        base: u64,
        counted: u64,
        last_stamp: u64,
    }

    impl World {
        fn pass(&mut self, nanos: u64, stalled: bool) {
            self.real += nanos;
            self.client += nanos * self.client_rate / 1_000_000;
            if !stalled {
                self.counted += nanos * self.leader_rate / 1_000_000;
            }
        }

        fn commit(&mut self) -> LogicalMs {
            self.last_stamp = self.last_stamp.max(self.base + self.counted / MS);
            LogicalMs(self.last_stamp)
        }

        fn fail_over(&mut self) {
            (self.base, self.counted) = (self.last_stamp, 0);
        }
    }

    #[test]
    fn no_schedule_makes_a_client_believe_longer_than_the_server() {
        let (mut believed_at_an_end, mut ends) = (0, 0);
        for seed in 0..400 {
            let mut seeds = Seeds::new(seed);
            // Two clocks that differ by one in a hundred at most.
            let leader_rate = 995_100 + seeds.below(9_800);
            let client_rate = (leader_rate * 99).div_ceil(100) + seeds.below(leader_rate / 50);
            let mut world = World {
                real: 0,
                client_rate,
                client: seeds.below(1 << 40),
                leader_rate,
                base: seeds.below(1 << 30),
                counted: 0,
                last_stamp: 0,
            };
            let mut anchor = Anchor::default();
            let ttl = 1_000 + seeds.below(30_000);
            let mut deadline = LogicalMs(0);
            // What is under way: sent at; then put in the log at, until the answer has arrived.
            let (mut sent, mut logged) = (Vec::new(), Vec::new());
            for _ in 0..400 {
                let before = anchor.safe_until(deadline);
                let nanos = seeds.below(ttl * MS / 8);
                let stalled = seeds.one_in(5);
                world.pass(nanos, stalled);
                match seeds.below(8) {
                    0 | 1 => sent.push(Nanos(world.client)),
                    2 | 3 if !sent.is_empty() => {
                        let at = sent.swap_remove(seeds.below(sent.len() as u64) as usize);
                        logged.push((at, world.commit()));
                    }
                    4 | 5 if !logged.is_empty() => {
                        let (at, stamp) = logged.swap_remove(seeds.below(logged.len() as u64) as usize);
                        anchor.proven(at, stamp);
                        deadline = deadline.max(LogicalMs(stamp.0 + ttl));
                    }
                    6 => world.fail_over(),
                    _ => {}
                }
                // What the server would say now, with the best renewal that the client has heard of.
                let over = world.base + world.counted / MS >= deadline.0 && deadline.0 > 0;
                if over {
                    ends += 1;
                    let now = Nanos(world.client);
                    let believes = |until: Option<Nanos>| until.is_some_and(|until| now < until);
                    assert!(!believes(anchor.safe_until(deadline)), "seed {seed}: believed past the end");
                    believed_at_an_end += u32::from(before.is_some());
                }
            }
        }
        assert!(ends > 1_000 && believed_at_an_end > 100, "the schedules reach ends: {ends}, {believed_at_an_end}");
    }
}
