//! The suite that every kind of store must pass: memory, a folder, and any S3 service, over the same API that the
//! rest of the project uses. Behind the feature `conformance`, for tests.
//!
//! [`CHECKS`] names them, [`run`] runs one.
//!
//! Each check makes a store of its own below the given settings' URI, so that one place can run all of them.

mod checkpoints;
mod concurrency;
pub mod load;
mod maintenance;
mod round_trip;

use std::fmt;

use crate::settings::StoreSettings;
use crate::{Lake, Result};

/// What a check found different from the contract.
#[derive(Debug)]
pub struct Broken(String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

/// Outcome of a check.
pub type Outcome = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Fails the check unless the two are equal.
pub(crate) fn same<T: PartialEq + fmt::Debug>(what: &str, found: &T, wanted: &T) -> Outcome {
    if found == wanted {
        return Ok(());
    }
    let short = |value: &T| {
        let text = format!("{value:?}");
        text.chars().take(2_000).collect::<String>()
    };
    Err(Box::new(Broken(format!("{what}: found {}, wanted {}", short(found), short(wanted)))))
}

/// Fails the check unless the condition holds.
pub(crate) fn holds(what: impl fmt::Display, condition: bool) -> Outcome {
    if condition { Ok(()) } else { Err(Box::new(Broken(what.to_string()))) }
}

/// Settings of a store of its own, below a place.
pub(crate) fn below(settings: &StoreSettings, name: &str) -> StoreSettings {
    let uri = settings.uri.trim_end_matches('/');
    let uri = match uri.strip_prefix("memory://") {
        Some(memory) => format!("memory://{memory}-{name}"),
        None => format!("{uri}/{name}"),
    };
    StoreSettings { uri, ..settings.clone() }
}

pub(crate) async fn fresh(settings: &StoreSettings, name: &str) -> Result<Lake> {
    Lake::init(below(settings, name)).await
}

/// A check by name.
macro_rules! checks {
    ($($name:literal => $check:path,)+) => {
        /// Names of all checks, in the order in which [`run`] takes them.
        pub const CHECKS: &[&str] = &[$($name),+];

        /// Runs one check.
        ///
        /// # Errors
        /// What is different from the contract, or what the store answered.
        pub async fn run(name: &str, settings: &StoreSettings) -> Outcome {
            match name {
                $($name => Box::pin($check(settings)).await,)+
                other => Err(Box::new(Broken(format!("there is no check {other:?}")))),
            }
        }
    };
}

checks! {
    "a_store_is_made_once_and_found_again" => round_trip::a_store_is_made_once_and_found_again,
    "rows_come_back_as_written" => round_trip::rows_come_back_as_written,
    "nothing_is_visible_before_its_commit" => round_trip::nothing_is_visible_before_its_commit,
    "rows_are_taken_by_address" => round_trip::rows_are_taken_by_address,
    "a_scan_reads_no_payload_unasked" => round_trip::a_scan_reads_no_payload_unasked,
    "values_larger_than_the_read_ahead_are_read" => round_trip::values_larger_than_the_read_ahead_are_read,
    "a_slice_of_routed_experts_reads_a_part" => round_trip::a_slice_of_routed_experts_reads_a_part,
    "contents_are_stored_once" => round_trip::contents_are_stored_once,
    "weight_versions_are_numbered_once" => round_trip::weight_versions_are_numbered_once,
    "many_writers_lose_and_double_nothing" => concurrency::many_writers_lose_and_double_nothing,
    "a_pinned_reader_sees_one_moment" => concurrency::a_pinned_reader_sees_one_moment,
    "the_longest_copy_is_the_effective_one" => concurrency::the_longest_copy_is_the_effective_one,
    "compaction_keeps_every_byte" => maintenance::compaction_keeps_every_byte,
    "snapshots_are_found_by_id_tag_and_time" => maintenance::snapshots_are_found_by_id_tag_and_time,
    "gc_keeps_what_a_tag_names" => maintenance::gc_keeps_what_a_tag_names,
    "a_run_is_removed_whole_and_alone" => maintenance::a_run_is_removed_whole_and_alone,
    "files_of_any_size_come_back_as_written" => checkpoints::files_of_any_size_come_back_as_written,
    "a_file_that_fails_is_not_there" => checkpoints::a_file_that_fails_is_not_there,
    "a_checkpoint_is_published_whole_and_once" => checkpoints::a_checkpoint_is_published_whole_and_once,
    "two_trainers_of_one_run_cannot_both_go_on" => checkpoints::two_trainers_of_one_run_cannot_both_go_on,
    "old_checkpoints_are_retired_and_leftovers_found" => checkpoints::old_checkpoints_are_retired_and_leftovers_found,
    "what_a_trainer_writes_down_survives_compaction" => checkpoints::what_a_trainer_writes_down_survives_compaction,
    "leftovers_are_found_and_removed" => maintenance::leftovers_are_found_and_removed,
}
