//! How long a holder may trust a deadline that stands in logical time.
//!
//! The cluster counts in stamps and the client in its own clock. The two clocks are never compared. But a client knows one thing for
//! certain: what it sent at its instant S was put in the log at stamp L, and the leader read its clock for L after the message
//! had arrived. So at S logical time was at most L. Logical time never runs faster than real time, so a deadline D is not reached
//! before S + (D - L). One percent is subtracted for clocks that tick differently, and a millisecond for rounding.
//!
//! Such a pair (S, L) is an anchor. The best pair allows the longest trust. Since the percent is subtracted from all of D - L, that is
//! the pair with the largest S - 0.99 L, whatever D is. (Compared by S - L alone, an old pair would be kept for hours, and one percent
//! of hours is more than any TTL.)

use std::time::Duration;

use fencepost_core::LogicalMs;

use fencepost_core::Nanos;

/// How many of a hundred nanoseconds of logical time a holder may trust.
const BELIEVED_OF_HUNDRED: i128 = 99;
/// Stamps are whole milliseconds.
const ROUNDING: i128 = 1_000_000;

/// What a client knows about the logical time of one group.
// Rule: holder-stops-first
#[derive(Clone, Copy, Debug, Default)]
pub struct Anchor {
    /// The best pair: when the request was sent, and the stamp of its log entry.
    best: Option<(Nanos, LogicalMs)>,
    /// The highest stamp of any answer so far.
    shown: LogicalMs,
}

impl Anchor {
    /// A request was sent at `sent_at`, and the entry with this `stamp` carried out this very try. Not for repeats, reads and pushes:
    /// nothing proves that the leader read the clock for their stamp after `sent_at`.
    pub fn proven(&mut self, sent_at: Nanos, stamp: LogicalMs) {
        self.shown(stamp);
        if self.best.is_none_or(|best| worth(best) < worth((sent_at, stamp))) {
            self.best = Some((sent_at, stamp));
        }
    }

    /// An answer shows that logical time has reached this stamp.
    pub fn shown(&mut self, stamp: LogicalMs) {
        self.shown = self.shown.max(stamp);
    }

    /// The deadline certainly does not pass before this instant. `None` if the deadline may have passed already.
    pub fn safe_until(&self, deadline: LogicalMs) -> Option<Nanos> {
        let (sent_at, stamp) = self.best?;
        if self.shown >= deadline || stamp >= deadline {
            return None;
        }
        let believed = i128::from(deadline.0 - stamp.0) * 1_000_000 * BELIEVED_OF_HUNDRED / 100 - ROUNDING;
        u64::try_from(i128::from(sent_at.0) + believed).ok().map(Nanos)
    }

    /// The time that is certainly left before the deadline. Zero if the deadline may have passed already.
    pub fn remaining(&self, deadline: LogicalMs, now: Nanos) -> Duration {
        self.safe_until(deadline).map_or(Duration::ZERO, |until| until.since(now))
    }
}

/// How much trust a pair adds to any deadline, in hundredths of nanoseconds.
fn worth((sent_at, stamp): (Nanos, LogicalMs)) -> i128 {
    i128::from(sent_at.0) * 100 - i128::from(stamp.0) * 1_000_000 * BELIEVED_OF_HUNDRED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::Seeds;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_deadline_is_trusted_less_one_percent_and_a_millisecond() {
        let mut anchor = Anchor::default();
        assert_eq!(anchor.safe_until(LogicalMs(10_000)), None, "nothing is known");
        anchor.proven(Nanos(500 * MS), LogicalMs(7_000));
        assert_eq!(anchor.safe_until(LogicalMs(17_000)), Some(Nanos((500 + 9_900 - 1) * MS)));
        anchor.shown(LogicalMs(16_999));
        assert!(anchor.safe_until(LogicalMs(17_000)).is_some());
        anchor.shown(LogicalMs(17_000));
        assert_eq!(anchor.safe_until(LogicalMs(17_000)), None, "an answer shows that the deadline has passed");
    }

    #[test]
    fn a_session_of_hours_is_not_lost_because_of_an_old_anchor() {
        let mut anchor = Anchor::default();
        anchor.proven(Nanos(0), LogicalMs(0));
        // Hours later each keep-alive takes a millisecond longer to arrive than the first message did.
        let later = 5 * 3_600_000;
        anchor.proven(Nanos(later * MS), LogicalMs(later + 1));
        assert!(anchor.remaining(LogicalMs(later + 1 + 30_000), Nanos(later * MS)) > Duration::from_secs(29));
    }

    /// A leader's clock and a client's clock. Real time is in nanoseconds. Logical time follows the leader's clock, which may stall; after
    /// a leader change it goes on from the highest stamp.
    struct World {
        real: u64,
        /// Nanoseconds of the client's clock per million real nanoseconds.
        client_rate: u64,
        client: u64,
        /// Nanoseconds of the leader's clock per million real nanoseconds.
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
            // Two clocks that differ by at most one percent.
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
            // Requests on the way to the leader, then answers on the way back.
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
                // Whether the deadline has passed for the server, by the best renewal that the client knows of.
                let over = world.base + world.counted / MS >= deadline.0 && deadline.0 > 0;
                if over {
                    ends += 1;
                    let now = Nanos(world.client);
                    let believes = |until: Option<Nanos>| until.is_some_and(|until| now < until);
                    assert!(!believes(anchor.safe_until(deadline)), "seed {seed}: believed past the deadline");
                    believed_at_an_end += u32::from(before.is_some());
                }
            }
        }
        assert!(
            ends > 1_000 && believed_at_an_end > 100,
            "too few deadlines passed: {ends}; the client had trusted one just before: {believed_at_an_end}"
        );
    }
}
