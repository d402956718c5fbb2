//! Chance, from one seed.

/// A generator of numbers: the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number (splitmix64).
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From zero up to, but not including, this.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// From one up to and including the other.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Any of these, of which there is at least one.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// A generator of its own, for a part whose numbers should not depend on how many the others draw.
    pub fn fork(&mut self) -> Random {
        Random(self.number())
    }

    /// A length of time in nanoseconds, mostly near the lower bound and now and then near the upper: as delays are.
    pub fn delay(&mut self, least: u64, most: u64) -> u64 {
        let span = most.saturating_sub(least).max(1);
        let (one, other) = (self.below(span), self.below(span));
        least + (u128::from(one) * u128::from(other) / u128::from(span)) as u64
    }
}
