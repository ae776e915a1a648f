//! Copies large buffers. One core cannot use the full memory bandwidth, so several threads copy a
//! large buffer in pieces. A thread that is done with a piece takes the next, so a core that is
//! busy with other work does not delay the copy.

use std::sync::{LazyLock, Mutex};
use std::thread;

/// The least length that several threads copy, in bytes. A shorter copy is done before a second
/// thread would start.
const LARGE: usize = 8 << 20;
/// The length of the pieces, in bytes.
const PIECE: usize = 2 << 20;
/// The most threads of one copy. More threads are not faster.
const MOST_THREADS: usize = 4;

static THREADS: LazyLock<usize> = LazyLock::new(|| {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_THREADS))
});

/// Copies all of `from` to `to`, which has the same length.
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    match from.len() < LARGE {
        true => to.copy_from_slice(from),
        false => copy_with(*THREADS, to, from),
    }
}

fn copy_with(threads: usize, to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "both buffers have the same length");
    let pieces = Mutex::new(to.chunks_mut(PIECE).zip(from.chunks(PIECE)));
    let next = || pieces.lock().expect("nothing panics under it").next();
    let work = || {
        while let Some((to, from)) = next() {
            to.copy_from_slice(from);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            let thread = thread::Builder::new().name("marline-copy".into());
            // If no thread can be started, the others do the work. This thread is one of them.
            let _ = thread.spawn_scoped(scope, work);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_complete_with_any_number_of_threads() {
        let source: Vec<u8> = (0..LARGE + PIECE + 4321).map(|index| (index % 251) as u8).collect();
        for threads in [1, 2, 5, 40] {
            for len in [0, 1, PIECE - 1, PIECE, 3 * PIECE + 1, source.len()] {
                let mut to = vec![0; len];
                copy_with(threads, &mut to, &source[..len]);
                assert!(to == source[..len], "{len} by {threads}");
            }
        }
        let mut to = vec![0; source.len()];
        copy(&mut to, &source);
        assert!(to == source);
    }
}
