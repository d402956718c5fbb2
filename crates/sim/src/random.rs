//! The random generator of a run. The same seed gives the same numbers on every platform.
//!
//! All chance in the simulation comes from here: no part asks the operating system or a library for randomness.

/// A pseudo-random generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 up to, but not including, `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// A number from `least` up to and including `most`.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True with a probability of `chance` percent.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// True with a probability of one in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A random element. The slice must not be empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// A separate generator, for a part whose numbers must not depend on how many numbers other parts draw.
    pub fn fork(&mut self) -> Random {
        Random(self.number())
    }

    /// A delay between the bounds, usually near the lower one and now and then near the upper, as real delays are.
    pub fn delay(&mut self, least: u64, most: u64) -> u64 {
        let span = most.saturating_sub(least).max(1);
        let (one, other) = (self.below(span), self.below(span));
        least + (u128::from(one) * u128::from(other) / u128::from(span)) as u64
    }
}
