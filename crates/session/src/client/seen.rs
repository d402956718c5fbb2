//! Which answers this client has seen, and which of them it has acknowledged on the current stream.
//!
//! The server merges the acknowledgements, so each message carries only the new ones; a new stream gets all of them once. That keeps
//! messages small when hundreds of requests wait and each of them is a gap in the numbers.

use std::collections::BTreeMap;

use fencepost_core::Seen;

/// The request numbers whose answers the client has seen.
#[derive(Debug, Default)]
pub(crate) struct SeenNumbers {
    /// Every number up to this one is seen.
    mark: u64,
    /// Ranges of seen numbers above the mark: first to last number. Invariant: they touch neither each other nor the mark.
    above: BTreeMap<u64, u64>,
    /// Numbers seen but not yet acknowledged on this stream.
    unsaid: Vec<u64>,
}

impl SeenNumbers {
    /// The answer to this number has reached the state that users see.
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

    /// The acknowledgements for the next message on this stream.
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

    /// The acknowledgements of [`SeenNumbers::news`] were sent on this stream.
    pub(crate) fn said(&mut self) {
        self.unsaid.clear();
    }

    /// All acknowledgements, for a new stream.
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
        assert_eq!((news.mark, news.ranges.len()), (5, 0), "a number up to the mark needs no range");
        assert_eq!(seen.all().ranges.as_slice(), [(9, 9)]);
    }

    #[test]
    fn increments_add_up_to_all_seen_numbers() {
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
