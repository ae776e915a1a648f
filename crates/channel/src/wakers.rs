//! An intrusive list of wakers: how anything that is *waited for* without handing out values (a
//! cancel token, a broadcast, a watch) knows whom to wake. Registering allocates nothing.
//!
//! Every function runs under the lock of the thing waited for. The node lives in the operation; an
//! operation takes its node off the list, under that lock, before it goes.

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
    pub(crate) unsafe fn holds(&self, node: &WakeNode, waker: &Waker) -> bool {
        // SAFETY: the lock guards the links.
        unsafe {
            node.links.with(|links| {
                links.listed && links.waker.as_ref().is_some_and(|held| held.will_wake(waker))
            })
        }
    }

    /// Lists the node at the end, or gives a listed one another waker; returns the old one, to be
    /// dropped outside the lock.
    ///
    /// # Safety
    /// Under the lock; the node is pinned and will be removed before it goes.
    pub(crate) unsafe fn insert(&mut self, node: &WakeNode, waker: Waker) -> Option<Waker> {
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

    /// Takes the node off, if it is listed; returns its waker, to be dropped outside the lock.
    ///
    /// # Safety
    /// Under the lock; a listed node is in this list.
    pub(crate) unsafe fn remove(&mut self, node: &WakeNode) -> Option<Waker> {
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

    /// Takes the first node off.
    fn pop(&mut self) -> Option<Waker> {
        let node = self.head?;
        // SAFETY: under the lock; the head is listed and alive.
        unsafe { self.remove(node.as_ref()) }
    }
}

/// Wakes everybody who is on the list now, outside the lock, a few at a time. Those who come back
/// meanwhile are behind them and are not woken twice. A panicking waker keeps nobody from waking.
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
