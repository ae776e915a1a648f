//! An intrusive list of wakers, for what operations *wait for* although no peer hands them a value:
//! a cancel token, a broadcast, a watch. Registering allocates nothing.
//!
//! The methods of [`WakeList`] run under the lock of its owner; the free functions take that lock.
//! A node lives in its operation. The operation takes its node off the list, under that lock,
//! before it goes.

use std::{marker::PhantomPinned, ptr::NonNull, task::Waker};

use crate::{lock::Lock, panics::FirstPanic, sync::Shared};

pub(crate) struct WakeNode {
    links: Shared<Links>,
    _pinned: PhantomPinned,
}

struct Links {
    previous: Option<NonNull<WakeNode>>,
    next: Option<NonNull<WakeNode>>,
    waker: Option<Waker>,
    listed: bool,
}

// SAFETY: the links are only touched under the lock of the list's owner.
unsafe impl Send for WakeNode {}
// SAFETY: as above.
unsafe impl Sync for WakeNode {}

impl WakeNode {
    pub(crate) fn new() -> WakeNode {
        let links = Links { previous: None, next: None, waker: None, listed: false };
        WakeNode { links: Shared::new(links), _pinned: PhantomPinned }
    }
}

pub(crate) struct WakeList {
    head: Option<NonNull<WakeNode>>,
    tail: Option<NonNull<WakeNode>>,
    len: usize,
}

// SAFETY: the nodes it points at are `Send`, and alive while they are listed.
unsafe impl Send for WakeList {}

impl WakeList {
    pub(crate) const fn new() -> WakeList {
        WakeList { head: None, tail: None, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the node is listed with a waker that wakes the same task as `waker`.
    ///
    /// # Safety
    /// Under the lock.
    unsafe fn holds(&self, node: &WakeNode, waker: &Waker) -> bool {
        // SAFETY: the lock guards the links.
        unsafe {
            node.links.with(|links| {
                links.listed && links.waker.as_ref().is_some_and(|held| held.will_wake(waker))
            })
        }
    }

    /// Appends the node to the list, or replaces the waker of a listed node. Returns the old waker,
    /// for the caller to drop outside the lock.
    ///
    /// # Safety
    /// Under the lock; the node is pinned and will be removed before it goes.
    unsafe fn insert(&mut self, node: &WakeNode, waker: Waker) -> Option<Waker> {
        let this = NonNull::from(node);
        // SAFETY: the lock guards all links, and listed nodes are alive.
        unsafe {
            let (was_listed, old) = node.links.with(|links| {
                let old = links.waker.replace(waker);
                (std::mem::replace(&mut links.listed, true), old)
            });
            if was_listed {
                return old;
            }
            node.links.with(|links| {
                links.previous = self.tail;
                links.next = None;
            });
            match self.tail {
                None => self.head = Some(this),
                Some(tail) => tail.as_ref().links.with(|links| links.next = Some(this)),
            }
            self.tail = Some(this);
            self.len += 1;
            old
        }
    }

    /// Takes the node off the list, if it is listed. Returns its waker, for the caller to drop
    /// outside the lock.
    ///
    /// # Safety
    /// Under the lock; a listed node is in this list.
    unsafe fn remove(&mut self, node: &WakeNode) -> Option<Waker> {
        // SAFETY: the lock guards all links, and listed nodes are alive.
        unsafe {
            let (listed, previous, next, waker) = node.links.with(|links| {
                let listed = std::mem::replace(&mut links.listed, false);
                (listed, links.previous.take(), links.next.take(), links.waker.take())
            });
            if !listed {
                return waker;
            }
            match previous {
                None => self.head = next,
                Some(previous) => previous.as_ref().links.with(|links| links.next = next),
            }
            match next {
                None => self.tail = previous,
                Some(next) => next.as_ref().links.with(|links| links.previous = previous),
            }
            self.len -= 1;
            waker
        }
    }

    /// Takes the first node off the list and returns its waker.
    fn pop(&mut self) -> Option<Waker> {
        let node = self.head?;
        // SAFETY: under the lock; the head is listed and alive.
        unsafe { self.remove(node.as_ref()) }
    }
}

/// Registers `waker` for the next [`wake_all`]. Returns true, without registering, if `ready` is
/// true already. A waker is user code, so it is cloned and dropped outside the lock. Therefore
/// `ready` is checked once more, under the same lock in which the node is listed.
///
/// # Safety
/// The node is pinned, in this list or in none, and [`leave`] is called before it goes.
pub(crate) unsafe fn register<S>(
    lock: &Lock<S>,
    list: impl Fn(&mut S) -> &mut WakeList,
    node: &WakeNode,
    waker: &Waker,
    ready: impl Fn(&S) -> bool,
) -> bool {
    let mut state = lock.lock();
    if ready(&state) {
        return true;
    }
    // SAFETY: under the lock.
    if unsafe { list(&mut state).holds(node, waker) } {
        return false;
    }
    drop(state);
    let waker = waker.clone();
    let mut state = lock.lock();
    if ready(&state) {
        drop(state);
        return true;
    }
    // SAFETY: under the lock; the rest is the caller's promise.
    let old = unsafe { list(&mut state).insert(node, waker) };
    drop(state);
    drop(old);
    false
}

/// Takes the node off the list. Returns whether it was there.
///
/// # Safety
/// The node is in this list or in none.
pub(crate) unsafe fn leave<S>(
    lock: &Lock<S>,
    list: impl Fn(&mut S) -> &mut WakeList,
    node: &WakeNode,
) -> bool {
    let mut state = lock.lock();
    // SAFETY: under the lock; the rest is the caller's promise.
    let waker = unsafe { list(&mut state).remove(node) };
    drop(state);
    waker.is_some()
}

/// Wakes every operation that is on the list now, outside the lock, a few at a time. An operation
/// that registers again meanwhile is behind them and is not woken twice. A waker that panics does
/// not keep the others from waking.
pub(crate) fn wake_all<S>(lock: &Lock<S>, list: impl Fn(&mut S) -> &mut WakeList) {
    const ROUND: usize = 16;
    let mut panics = FirstPanic::default();
    let mut left = usize::MAX;
    loop {
        let mut round = [const { None::<Waker> }; ROUND];
        let mut state = lock.lock();
        let list = list(&mut state);
        left = left.min(list.len());
        for place in round.iter_mut().take(left) {
            *place = list.pop();
        }
        drop(state);
        left -= left.min(ROUND);
        for waker in round.into_iter().flatten() {
            panics.run(|| waker.wake());
        }
        if left == 0 {
            return panics.resume();
        }
    }
}
