//! Sends and receives of queue channels as clauses of a select.

use std::{mem::MaybeUninit, pin::Pin, ptr::NonNull, task::Waker};

use super::{
    Channel,
    node::{CLOSED, DISCARDED, DONE, IDLE, Node, Parked, SPENT, WAITING, Want},
    recv::Recv,
    send::SendValue,
    state::{Effects, Offer, Take},
    waiting::Side,
};
use crate::{
    lock::{Hint, RawLock},
    select::{Claim, ClauseAction},
};

impl<T> Channel<T> {
    /// Takes the node off its list, if it is listed, without counting a failure.
    fn delist(&self, node: &Node<T>, side: Side) {
        let mut state = self.state.lock();
        // SAFETY: under the lock; the node is on the side it was parked on. A node that is listed,
        // or was, has links.
        let waker = unsafe {
            if state.unpark(node, side == Side::Send) {
                node.links(|links| links.parked.waker.take())
            } else {
                None
            }
        };
        drop(state);
        drop(waker);
    }
}

impl<T> ClauseAction for SendValue<'_, T> {
    fn lock(&self) -> Option<&RawLock> {
        Some(self.sender().channel.state.raw())
    }

    fn try_end(self: Pin<&mut Self>) -> bool {
        let (channel, node) = (&self.sender().channel, &self.node);
        if node.state() == WAITING {
            // The send was awaited by itself before it became a clause.
            channel.delist(node, Side::Send);
        }
        if node.state() != IDLE {
            return true;
        }
        if self.sender().is_released() {
            node.set_state(CLOSED);
            return true;
        }
        if self.seems_stuck() {
            return false;
        }
        channel.offer_node(node, false) != Offer::Full
    }

    #[inline(always)]
    fn is_fresh(&self) -> bool {
        self.node.state() == IDLE && !self.sender().is_released()
    }

    #[inline(always)]
    fn seems_stuck(&self) -> bool {
        self.sender().channel.state.says(Hint::FULL)
    }

    unsafe fn could_end(&self) -> bool {
        // SAFETY: the caller holds the lock.
        unsafe { self.sender().channel.state.state() }.could_offer()
    }

    unsafe fn enlist(self: Pin<&mut Self>, claim: NonNull<Claim>, clause: u32) {
        let channel = &self.sender().channel;
        // SAFETY: the caller holds the lock and delists; the node is pinned and IDLE.
        unsafe {
            let parked = Parked { waker: None, claim: Some((claim, clause)), want: Want::Value };
            channel.state.state().park_sender(NonNull::from(&self.node), parked);
        }
    }

    fn delist(self: Pin<&mut Self>) {
        self.sender().channel.delist(&self.node, Side::Send);
    }

    fn watch(self: Pin<&mut Self>, _waker: &Waker) -> bool {
        false
    }

    fn ended_closed(&self) -> bool {
        self.node.state() == CLOSED
    }

    fn is_spent(&self) -> bool {
        self.node.state() == SPENT
    }

    fn forget(self: Pin<&mut Self>) {
        // A value that was sent is gone. An unsent value is still in the node, to be sent later.
        let gone = matches!(self.node.state(), DONE | DISCARDED);
        self.node.set_state(if gone { SPENT } else { IDLE });
    }
}

impl<T> ClauseAction for Recv<'_, T> {
    fn lock(&self) -> Option<&RawLock> {
        Some(self.receiver().channel.state.raw())
    }

    fn try_end(self: Pin<&mut Self>) -> bool {
        let (channel, node) = (&self.receiver().channel, &self.node);
        if node.state() == WAITING {
            channel.delist(node, Side::Receive);
        }
        if node.state() != IDLE {
            return true;
        }
        if self.receiver().is_released() {
            node.set_state(CLOSED);
            return true;
        }
        if self.seems_stuck() {
            return false;
        }
        let mut place = MaybeUninit::uninit();
        let mut effects = Effects::none();
        let mut state = channel.state.lock();
        match state.take(&mut place, &mut effects) {
            Take::Taken => {
                drop(state);
                // SAFETY: a value was taken, so the place is written; this owns the IDLE node.
                unsafe {
                    channel.deliver(&mut effects, &mut place);
                    node.fill(place.assume_init(), effects.ticket);
                }
                node.set_state(DONE);
            }
            Take::Empty => return false,
            Take::Closed => node.set_state(CLOSED),
        }
        true
    }

    #[inline(always)]
    fn is_fresh(&self) -> bool {
        self.node.state() == IDLE && !self.receiver().is_released()
    }

    #[inline(always)]
    fn seems_stuck(&self) -> bool {
        self.receiver().channel.state.says(Hint::EMPTY)
    }

    unsafe fn could_end(&self) -> bool {
        // SAFETY: the caller holds the lock.
        unsafe { self.receiver().channel.state.state() }.could_take()
    }

    unsafe fn enlist(self: Pin<&mut Self>, claim: NonNull<Claim>, clause: u32) {
        let channel = &self.receiver().channel;
        // SAFETY: the caller holds the lock and delists; the node is pinned and IDLE.
        unsafe {
            let parked = Parked { waker: None, claim: Some((claim, clause)), want: Want::Value };
            channel.state.state().park_receiver(NonNull::from(&self.node), parked);
        }
    }

    fn delist(self: Pin<&mut Self>) {
        self.receiver().channel.delist(&self.node, Side::Receive);
    }

    fn watch(self: Pin<&mut Self>, _waker: &Waker) -> bool {
        false
    }

    fn ended_closed(&self) -> bool {
        self.node.state() == CLOSED
    }

    fn is_spent(&self) -> bool {
        false
    }

    fn forget(self: Pin<&mut Self>) {
        self.receiver().channel.drop_recv(&self.node);
    }
}
