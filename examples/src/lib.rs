//! The programs are in `src/bin`, one file each. This library holds no code: it lets the documentation tests compile the program of the
//! README.
#![doc = include_str!("../../README.md")]
