//! The guarantees of every store. Each function gets an empty location and panics when the guarantee is
//! broken.

mod backup;
mod commits;
mod lists;
mod watches;

pub use backup::*;
pub use commits::*;
pub use lists::*;
pub use watches::*;

/// Names every guarantee once; each engine decides how to run them.
macro_rules! for_each_promise {
    ($run:ident) => {
        $run! {
            records_are_created_read_updated_and_deleted,
            a_refused_operation_changes_nothing,
            of_two_writers_exactly_one_gets_a_conflict,
            a_commit_of_many_is_one_moment,
            sizes_and_keys_have_limits,
            odd_keys_and_values_come_back_as_they_were,
            a_prefix_lists_only_its_own,
            pages_are_one_snapshot_while_others_write,
            a_list_at_an_old_revision_shows_what_was,
            compaction_ends_old_lists_and_watches,
            a_watch_shows_every_change_with_its_predecessor,
            a_watch_from_every_old_revision_misses_and_repeats_nothing,
            watches_under_concurrent_writes_see_the_same_story,
            a_watch_goes_on_where_it_was_after_reopening,
            a_quiet_watch_says_how_far_it_is,
            a_slow_watcher_is_cut_off_and_nobody_waits_for_it,
            a_future_revision_is_refused,
            a_backup_restores_everything_under_a_new_epoch,
            a_damaged_backup_restores_nothing,
            a_closed_store_says_so,
        }
    };
}
pub(crate) use for_each_promise;
