//! The turn of a fair select: which clause it attempts first.
//!
//! Each select on a thread starts one clause further than the last. So in a loop with k clauses
//! that are always ready, each is chosen within k rounds. Once in [`JUMP_EVERY`] selects the start
//! jumps to a random place, so that selects which take turns on a thread cannot stay in step for
//! ever. A jump costs a clause at most another k rounds.

use std::{
    cell::Cell,
    hash::{BuildHasher, RandomState},
};

/// The number of selects from one jump to the next. It is larger than any sensible number of
/// clauses, so that between two jumps every clause has its turn.
const JUMP_EVERY: u32 = 64;

thread_local! {
    static TURN: Cell<u32> = const { Cell::new(0) };
}

pub(super) fn next() -> usize {
    let turn = TURN.try_with(|turn| turn.get()).unwrap_or(0).wrapping_add(1);
    let turn = if turn.is_multiple_of(JUMP_EVERY) { jump(turn) } else { turn };
    let _ = TURN.try_with(|place| place.set(turn));
    turn as usize
}

/// Returns a random turn, from which the count to the next jump starts again.
#[cold]
fn jump(turn: u32) -> u32 {
    let random = RandomState::new().hash_one(turn) as u32;
    random - random % JUMP_EVERY + 1
}
