//! Sends and receives of many values. Up to [`ROUND`] values move under one lock. A send waits,
//! like any other send, whenever the channel is full. A receive waits for its first value only.

use std::{
    collections::VecDeque,
    mem::MaybeUninit,
    pin::Pin,
    task::{Poll, Waker},
};

use super::{
    Channel, Receiver, Sender,
    node::{CLOSED, IDLE, Node, WAITING},
    state::{Effects, Offer, Take},
    waiting::Side,
};
use crate::{
    error::{Error, ErrorKind},
    op::{Op, sealed},
    panics::FirstPanic,
    park::WaitMemory,
};

/// The most values that move under one lock: a bound on how long others wait for the lock.
const ROUND: usize = 32;

/// The operation [`Sender::send_all`] returns.
pub type Sending<'a, T> = Op<SendAll<'a, T>>;

/// The action of [`Sending`]. The value with which it waits is in its node. All values behind that
/// one are still in `values`.
pub struct SendAll<'a, T> {
    tx: &'a Sender<T>,
    values: &'a mut VecDeque<T>,
    node: Node<T>,
    sent: usize,
}

// SAFETY: the node is shared with peers by the rules of `node`, which send `T` across threads.
unsafe impl<T: Send> Send for SendAll<'_, T> {}
// SAFETY: through a shared reference only the node's atomic state can be read.
unsafe impl<T: Send> Sync for SendAll<'_, T> {}

impl<'a, T> SendAll<'a, T> {
    pub(super) fn op(tx: &'a Sender<T>, values: &'a mut VecDeque<T>) -> Sending<'a, T> {
        Op::of(SendAll { tx, values, node: Node::new(None), sent: 0 })
    }

    /// Sends as many values as fit, up to [`ROUND`]. Returns false if the channel is full, or
    /// closed.
    fn send_round(&mut self) -> bool {
        let channel = &self.tx.channel;
        let mut effects = [const { Effects::none() }; ROUND];
        let mut fits = true;
        let mut state = channel.state.lock();
        for effects in &mut effects {
            fits = !state.is_closed();
            let mut value = if fits { self.values.pop_front() } else { None };
            if value.is_none() {
                break;
            }
            match state.offer(&mut value, effects) {
                Offer::Sent | Offer::Discarded => self.sent += 1,
                Offer::Full | Offer::Closed => {
                    put_front(self.values, value);
                    fits = false;
                    break;
                }
            }
        }
        drop(state);
        carry_out_round(channel, effects);
        fits
    }

    /// Puts the unsent value of the node, if there is one, back to the front of `values`.
    fn put_back(&mut self) {
        // SAFETY: the node is not WAITING, so the slot is the owner's.
        let value = unsafe { self.node.slot(|slot| slot.take()) };
        put_front(self.values, value);
        self.node.set_state(IDLE);
    }
}

fn put_front<T>(values: &mut VecDeque<T>, value: Option<T>) {
    if let Some(value) = value {
        values.push_front(value);
    }
}

fn carry_out_round<T>(channel: &Channel<T>, effects: [Effects<T>; ROUND]) {
    let mut panics = FirstPanic::default();
    for mut effects in effects {
        if effects.any {
            panics.run(|| channel.carry_out(&mut effects));
        }
    }
    panics.resume();
}

impl<T> sealed::Action for SendAll<'_, T> {
    type Output = Result<usize, Error>;

    fn poll(self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output> {
        // SAFETY: the node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        if this.tx.is_released() && this.node.state() == IDLE {
            return Poll::Ready(Err(ErrorKind::Closed.into()));
        }
        loop {
            if this.node.state() == IDLE {
                while !this.values.is_empty() && this.send_round() {}
                let Some(value) = this.values.pop_front() else {
                    return Poll::Ready(Ok(this.sent));
                };
                // SAFETY: the node is IDLE, so the slot is the owner's.
                unsafe { this.node.slot(|slot| *slot = Some(value)) };
            }
            // SAFETY: the node is pinned, and `drop` leaves.
            match unsafe { this.tx.channel.poll_send(&this.node, waker) } {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(CLOSED) => {
                    this.put_back();
                    return Poll::Ready(Err(ErrorKind::Closed.into()));
                }
                Poll::Ready(_) => {
                    this.sent += 1;
                    this.node.set_state(IDLE);
                }
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.node.state() > WAITING
    }

    fn abandon(self: Pin<&mut Self>, why: ErrorKind) -> Self::Output {
        // SAFETY: the node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let left = this.tx.channel.leave(&this.node, Side::Send, why);
        let closed = !left && this.node.state() == CLOSED;
        if !left && !closed {
            // A peer took this value first. The values behind it are still unsent.
            this.sent += 1;
            if this.values.is_empty() {
                this.node.set_state(IDLE);
                return Ok(this.sent);
            }
        }
        this.put_back();
        Err(if closed { ErrorKind::Closed } else { why }.into())
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        Some(&self.tx.channel.wait_memory)
    }
}

impl<T> Drop for SendAll<'_, T> {
    fn drop(&mut self) {
        if self.node.state() == WAITING {
            self.tx.channel.leave(&self.node, Side::Send, ErrorKind::Cancelled);
        }
        self.put_back();
    }
}

/// The operation [`Receiver::recv_many`] returns.
pub type Receiving<'a, T> = Op<RecvMany<'a, T>>;

/// The action of [`Receiving`].
pub struct RecvMany<'a, T> {
    rx: &'a Receiver<T>,
    values: &'a mut Vec<T>,
    max: usize,
    node: Node<T>,
}

// SAFETY: the node is shared with peers by the rules of `node`, which send `T` across threads.
unsafe impl<T: Send> Send for RecvMany<'_, T> {}
// SAFETY: through a shared reference only the node's atomic state can be read.
unsafe impl<T: Send> Sync for RecvMany<'_, T> {}

impl<'a, T> RecvMany<'a, T> {
    pub(super) fn op(rx: &'a Receiver<T>, values: &'a mut Vec<T>, max: usize) -> Receiving<'a, T> {
        Op::of(RecvMany { rx, values, max, node: Node::new(None) })
    }

    /// Takes up to `max` values without waiting. Returns how many it took.
    fn take_rounds(&mut self, max: usize) -> usize {
        let channel = &self.rx.channel;
        let mut taken = 0;
        while taken < max {
            let round = ROUND.min(max - taken).min(channel.state.lock().len() as usize);
            if round == 0 {
                break;
            }
            self.values.reserve(round);
            let mut effects = [const { Effects::none() }; ROUND];
            let mut got = 0;
            let mut state = channel.state.lock();
            for effects in effects.iter_mut().take(round) {
                let mut place = MaybeUninit::uninit();
                if state.take(&mut place, effects) != Take::Taken {
                    break;
                }
                // SAFETY: a value was taken, so the place is written.
                self.values.push(unsafe { place.assume_init() });
                got += 1;
            }
            drop(state);
            carry_out_round(channel, effects);
            taken += got;
            if got < round {
                break;
            }
        }
        taken
    }
}

impl<T> sealed::Action for RecvMany<'_, T> {
    type Output = Result<usize, Error>;

    fn poll(self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output> {
        // SAFETY: the node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        if this.max == 0 {
            return Poll::Ready(Ok(0));
        }
        if this.node.state() == IDLE {
            if this.rx.is_released() {
                return Poll::Ready(Err(ErrorKind::Closed.into()));
            }
            let taken = this.take_rounds(this.max);
            if taken > 0 {
                return Poll::Ready(Ok(taken));
            }
        }
        let mut place = MaybeUninit::uninit();
        // SAFETY: the node is pinned, and `drop` leaves.
        match unsafe { this.rx.channel.poll_recv(&this.node, &mut place, waker) } {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Take::Empty | Take::Closed) => Poll::Ready(Err(ErrorKind::Closed.into())),
            Poll::Ready(Take::Taken) => {
                // SAFETY: a value was taken, so the place is written.
                this.values.push(unsafe { place.assume_init() });
                let max = this.max - 1;
                Poll::Ready(Ok(1 + this.take_rounds(max)))
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.node.state() > WAITING
    }

    fn abandon(mut self: Pin<&mut Self>, why: ErrorKind) -> Self::Output {
        if self.rx.channel.leave(&self.node, Side::Receive, why) {
            return Err(why.into());
        }
        match self.as_mut().poll(None) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("a settled receive is ready"),
        }
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        Some(&self.rx.channel.wait_memory)
    }
}

impl<T> Drop for RecvMany<'_, T> {
    fn drop(&mut self) {
        if self.node.state() != IDLE {
            self.rx.channel.drop_recv(&self.node);
        }
    }
}
