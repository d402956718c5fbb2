//! The state hash: a sum with one term for every record, updated with every change.
//!
//! The order of a sum does not matter, so a changed record costs one subtraction and one addition. Two replicas compare
//! their whole states at any log position by comparing one number. Records are hashed through `derive(Hash)`, so a new field
//! cannot be forgotten. This file fixes the bytes that are hashed, because `derive(Hash)` alone differs between platforms; a
//! golden test pins them.

use std::hash::{Hash, Hasher};

use xxhash_rust::xxh3::xxh3_64;

/// The sum over all records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digest {
    sum: u64,
    scratch: ByteForm,
}

/// The term that a record adds to the sum. Stored beside the record, so that removing it needs no second hashing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Term(u64);

impl Digest {
    /// Replaces a record's old term, which is the default for a new record, by the term of its present content.
    pub(crate) fn put(&mut self, term: &mut Term, record: &impl Hash) {
        self.scratch.0.clear();
        record.hash(&mut self.scratch);
        let new = xxh3_64(&self.scratch.0);
        self.sum = self.sum.wrapping_sub(term.0).wrapping_add(new);
        *term = Term(new);
    }

    /// Removes the term of a record that was removed.
    pub(crate) fn take(&mut self, term: Term) {
        self.sum = self.sum.wrapping_sub(term.0);
    }

    /// The sum with one more record, which is not stored in it.
    pub(crate) fn with(&self, record: &impl Hash) -> u64 {
        let mut bytes = ByteForm::default();
        record.hash(&mut bytes);
        self.sum.wrapping_add(xxh3_64(&bytes.0))
    }
}

/// The bytes that `derive(Hash)` produces, the same on every platform.
#[derive(Clone, Debug, Default)]
struct ByteForm(Vec<u8>);

impl Hasher for ByteForm {
    fn finish(&self) -> u64 {
        xxh3_64(&self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn write_u16(&mut self, n: u16) {
        self.write(&n.to_le_bytes());
    }

    fn write_u32(&mut self, n: u32) {
        self.write(&n.to_le_bytes());
    }

    fn write_u64(&mut self, n: u64) {
        self.write(&n.to_le_bytes());
    }

    fn write_u128(&mut self, n: u128) {
        self.write(&n.to_le_bytes());
    }

    // Lengths and enum discriminants come in the platform's size, so they are widened to 64 bits.
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as i64 as u64);
    }
}
