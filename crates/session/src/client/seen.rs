//! Which answers this client has seen, and what of that it has said on the stream it has now.
//!
//! The server adds up what it is told, so each message says only what is new; a new stream is told everything once. That keeps
//! messages small when hundreds of requests wait and every one of them is a gap.

use std::collections::BTreeMap;

use fencepost_core::Seen;

/// The numbers whose answers were seen.
#[derive(Debug, Default)]
pub(crate) struct SeenNumbers {
    /// Every number up to this one.
    mark: u64,
    /// Ranges above it, by their first number. Invariant: they touch neither each other nor the mark.
    above: BTreeMap<u64, u64>,
    /// Numbers seen since the last message on this stream.
    unsaid: Vec<u64>,
}

impl SeenNumbers {
    /// The user-visible state has taken the answer to this number.
    // Rule: exactly-once
    pub(crate) fn add(&mut self, number: u64) {
        if self.covers(number) {
            return;
        }
        self.unsaid.push(number);
        let (mut first, mut last) = (number, number);
        if let Some((before, end)) = self.above.range(..number).next_back()
            && *end + 1 == number
        {
            first = *before;
        }
        if let Some(end) = self.above.remove(&(number + 1)) {
            last = end;
        }
        if first == self.mark + 1 {
            self.mark = last;
        } else {
            self.above.insert(first, last);
        }
    }

    pub(crate) fn covers(&self, number: u64) -> bool {
        number <= self.mark || self.above.range(..=number).next_back().is_some_and(|(_, last)| number <= *last)
    }

    /// What is new since the last message.
    pub(crate) fn news(&mut self) -> Seen {
        let mut seen = Seen { mark: self.mark, ..Seen::default() };
        self.unsaid.retain(|number| *number > seen.mark);
        self.unsaid.sort_unstable();
        for number in self.unsaid.iter().copied() {
            match seen.ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => seen.ranges.push((number, number)),
            }
        }
        seen
    }

    /// The news have gone out on this stream.
    pub(crate) fn said(&mut self) {
        self.unsaid.clear();
    }

    /// Everything, for a stream that was told nothing yet.
    pub(crate) fn all(&mut self) -> Seen {
        self.said();
        Seen { mark: self.mark, ranges: self.above.iter().map(|(first, last)| (*first, *last)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::Seeds;

    #[test]
    fn ranges_close_up_to_the_mark() {
        let mut seen = SeenNumbers::default();
        for number in [1, 2, 5, 4, 9] {
            seen.add(number);
        }
        let all = seen.all();
        assert_eq!((all.mark, all.ranges.as_slice()), (2, &[(4, 5), (9, 9)][..]));
        seen.add(3);
        let news = seen.news();
        assert_eq!((news.mark, news.ranges.len()), (5, 0), "what the mark covers needs no range");
        assert_eq!(seen.all().ranges.as_slice(), [(9, 9)]);
    }

    #[test]
    fn what_was_said_bit_by_bit_adds_up_to_everything() {
        for seed in 0..50 {
            let mut seeds = Seeds::new(seed);
            let (mut seen, mut told) = (SeenNumbers::default(), SeenNumbers::default());
            for _ in 0..300 {
                seen.add(1 + seeds.below(200));
                if seeds.one_in(4) {
                    let news = seen.news();
                    seen.said();
                    (1..=news.mark).for_each(|number| told.add(number));
                    news.ranges.iter().for_each(|(first, last)| (*first..=*last).for_each(|number| told.add(number)));
                    let (all, heard) = (seen.all(), told.all());
                    assert_eq!(all, heard, "seed {seed}");
                }
            }
        }
    }
}
