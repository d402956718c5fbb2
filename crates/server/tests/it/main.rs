//! The integration tests of this crate, in one program: each program costs a link and a start.

mod client;
mod cluster;
mod counts;
mod edge;
mod frames;
mod http_reads;
mod metrics;
mod one_node;
mod tls;
mod wrong_door;
