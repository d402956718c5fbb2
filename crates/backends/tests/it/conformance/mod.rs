//! The conformance suite: the same tests for every lock system, each with its real server.
//!
//! A behaviour that a system does not promise is not skipped: the suite checks that a request for it is refused before anything is
//! sent. So the waivers are the table of promises, which has the reasons.

mod bed;
mod behaviours;
mod frozen;
#[cfg(feature = "redis")]
mod known_failures;
mod native;
mod proxy;

use fencepost_backends::System;

/// All behaviours, for one system.
macro_rules! conformance {
    ($module:ident, $system:expr) => {
        conformance!($module, $system,
            at_most_one_holds_it_under_contention,
            a_wait_ends_when_the_holder_releases,
            a_wait_that_is_too_short_times_out_and_leaves_nothing_behind,
            a_wait_that_is_dropped_leaves_nothing_behind,
            a_dropped_guard_releases_the_lock,
            a_paused_holder_loses_the_lock_and_notices_it,
            a_holder_whose_connection_is_cut_notices_the_loss,
            a_holder_notices_that_the_server_is_gone,
            a_held_lock_is_renewed_for_longer_than_its_ttl,
            tokens_rise_or_are_refused,
            readers_share_and_keep_writers_out_or_are_refused,
            what_is_not_promised_is_refused_before_anything_is_sent,
            what_only_fencepost_has_is_kept_or_has_no_client,
            the_same_owner_enters_again,
            several_locks_are_taken_without_deadlock,
            work_is_stopped_when_the_lock_is_lost,
            requests_to_a_dead_server_fail_at_once,
        );
    };
    ($module:ident, $system:expr, $($behaviour:ident,)*) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $behaviour() {
                    if let Some(bed) = bed::Bed::new($system) {
                        behaviours::$behaviour(&bed, concat!(stringify!($module), "/", stringify!($behaviour))).await;
                    }
                }
            )*
        }
    };
}

conformance!(fencepost, System::Fencepost);
conformance!(memory, System::Memory);
#[cfg(feature = "redis")]
conformance!(redis, System::Redis);
#[cfg(feature = "postgres")]
conformance!(postgres_advisory, System::PostgresAdvisory);
#[cfg(feature = "postgres")]
conformance!(postgres_table, System::PostgresTable);
#[cfg(feature = "postgres")]
conformance!(postgres_row, System::PostgresRow);
#[cfg(feature = "redis")]
conformance!(redlock, System::Redlock);
#[cfg(feature = "etcd")]
conformance!(etcd, System::Etcd);
#[cfg(feature = "zookeeper")]
conformance!(zookeeper, System::Zookeeper);
