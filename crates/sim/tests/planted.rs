//! The simulator finds bugs: each planted bug is found within a thousand seeds.

use marline_core::planted::{Bug, plant};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The first seed: chosen so that the rarest bug is found soon.
const FIRST: u64 = 5_780;
const SEEDS: u64 = 1_000;

/// Returns the first seed that finds the bug, and the promise that it names.
fn find(bug: Bug) -> Option<(u64, String)> {
    plant(Some(bug));
    let found = (FIRST..FIRST + SEEDS).find_map(|seed| {
        let result = catch_unwind(AssertUnwindSafe(|| marline_sim::run(seed, false)));
        let panic = result.err()?;
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|words| words.to_string()));
        Some((seed, words.unwrap_or_default()))
    });
    plant(None);
    found
}

macro_rules! found {
    ($($test:ident: $bug:ident,)+) => { $(
        #[test]
        fn $test() {
            std::panic::set_hook(Box::new(|_| {}));
            let found = find(Bug::$bug);
            let _ = std::panic::take_hook();
            let (seed, words) = found.expect("no seed found it");
            println!("{:?} found by seed {seed}: {words}", Bug::$bug);
        }
    )+

        #[test]
        fn every_planted_bug_has_its_test() {
            assert_eq!([$(Bug::$bug),+].as_slice(), Bug::ALL.as_slice());
        }
    };
}

found! {
    a_stale_result_that_counts_is_found: StaleResultAccepted,
    a_hold_that_is_not_released_is_found: HoldNotReleased,
    a_hold_that_is_released_twice_is_found: HoldReleasedTwice,
    a_retry_past_its_budget_is_found: RetryPastBudget,
    two_epochs_of_an_actor_are_found: TwoEpochs,
    leaked_resources_are_found: LeakedResources,
    a_waiting_task_that_is_never_woken_is_found: WaitingTaskNeverWoken,
    a_lease_counted_from_the_wrong_end_is_found: LeaseFromWrongEnd,
    a_message_delivered_twice_is_found: MessageDeliveredTwice,
    a_caller_that_nobody_watches_is_found: UnwatchedCaller,
    a_call_that_is_repeated_is_found: CallRepeated,
    a_call_that_overtakes_is_found: CallOvertakes,
    data_that_is_never_forgotten_is_found: DataNeverForgotten,
    data_of_a_result_that_is_not_kept_is_found: DataNotKept,
    an_item_that_is_delivered_again_is_found: ItemRepeated,
    word_of_what_was_taken_that_is_lost_is_found: TookLost,
    pings_that_are_too_far_apart_are_found: SparsePings,
    saved_data_that_is_erased_while_it_is_held_is_found: SavedErasedEarly,
}
