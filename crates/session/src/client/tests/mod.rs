//! The machines against the real lock state: what users see must be true whatever the network does.

mod random;
mod stories;
mod world;
