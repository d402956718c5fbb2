//! The client's machines against the real lock state. What users see must be true whatever the network does.

mod random;
mod jobs;
mod stories;
mod world;
