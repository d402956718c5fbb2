//! A small language in which a scenario reads as a story: what sessions ask for, how time passes, and what happens.
//!
//! A file is a list of steps. A step is one log entry or one question to the state, then a line `----`, then the output.
//! A blank line ends it. All lines of a step above `----` are one entry. A line `reset` starts again with an empty state.
//!
//! ```text
//! # Rule: fifo
//! # A reader that arrives behind a waiting writer does not pass it.
//! open a b [ttl 5s] [principal p] [meta "text"] [wrong-secret]
//! after 5s | at 60s | grace                    time and fail-over: alone, or before the commands of an entry
//! a lock r X [wait [5s]] [owner t] [ttl 1s] [max-hold 10s] [delay 5s] [hear-contended] [value "v"] [meta "m"]
//! a lock r:S s:X wait                          several locks at once
//! a take 3 of pool [limit 10] [wait]           permits
//! a upgrade r X [wait] / a weaken r S          `r` is the grant that asked for r; `grant 3 r` says which
//! a lock r X ... key "k" [keep 1h]            a lock for a job; `a begin r`, `a checkpoint r "step 3"`
//! a release r succeeded|failed|open "text"     a release that says how the attempt went
//! a release r|grant 3 / a extend r 10s / a set r "addr"
//! a cancel #3 [release] / a close / a keep-alive / a attach [wrong-secret]
//! a#7 lock ... / a#7 again / a@1 release r     a given number, a repeat, an old epoch
//! ... seen 1..5 / seen 3,7..9 / seen all       the answers that the client has seen: a mark if it begins at 1, else ranges
//! admin break r|grant 3 / evict a / waive r|grant 3 / freeze f name r|prefix x/ / thaw f / limit pool 4|none
//! admin complete job r "k" [keep 1h] / forget job r "k" / allow jobs
//! repeat 5000 times                            first line of a step: repeats its entries; the last output counts
//! then                                         within a step: ends one entry and begins the next
//! show job r "k" / show jobs [prefix]          the record of a job; all records of names with a prefix
//! show / show session a / deadline / snapshot / restore-backup jump 1000 / check r token 3
//! why r [first 2] / why a#2                    who holds and waits for a resource; why a request waits
//! events on|off / watch [r] after 2.0 / ring 3 shows events with every step; reads them from a ring of the last three
//! ```
//!
//! In the output, `a#1: ...` is the answer to request 1 of session a, `a <- ...` is a push to it, and `! ...` is an event.

pub(crate) mod explain;
pub(crate) mod file;
pub(crate) mod parse;
pub(crate) mod print;
pub(crate) mod show;
pub(crate) mod words;
pub(crate) mod world;
