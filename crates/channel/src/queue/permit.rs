//! Permits: room that is taken ahead of its value.

use std::{
    fmt, mem,
    pin::Pin,
    task::{Poll, Waker},
};

use super::{
    Overflow, Sender,
    node::{CLOSED, DONE, IDLE, Node, WAITING},
    state::Effects,
    waiting::Side,
};
use crate::{
    error::{Error, ErrorKind, SendError},
    metrics::{Kind, count},
    op::{Op, sealed},
    park::WaitMemory,
};

/// Room for one value; see [`Sender::reserve`]. Dropping it gives the room back.
///
/// ```
/// let (tx, rx) = marline_channel::bounded(1);
/// let permit = tx.reserve().wait().unwrap();
/// permit.send("no waiting here").unwrap();
/// assert_eq!(rx.try_recv(), Ok("no waiting here"));
/// drop(tx.try_reserve().unwrap()); // not used: the room goes back
/// assert!(tx.try_send("again").is_ok());
/// ```
#[must_use = "a permit that is dropped gives its room back"]
pub struct Permit<'a, T> {
    tx: &'a Sender<T>,
}

impl<'a, T> Permit<'a, T> {
    pub(super) fn try_new(tx: &'a Sender<T>) -> Result<Permit<'a, T>, Error> {
        supported(tx)?;
        let mut state = tx.channel.state.lock();
        match state.try_reserve() {
            Ok(()) => Ok(Permit { tx }),
            Err(kind) => {
                if kind == ErrorKind::Full {
                    count!(state.counters, send_full += 1);
                }
                Err(kind.into())
            }
        }
    }

    /// Sends a value into the room. Fails only if the channel was closed meanwhile.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::bounded(1);
    /// let permit = tx.reserve().wait().unwrap();
    /// permit.send("no waiting here").unwrap();
    /// assert_eq!(rx.try_recv(), Ok("no waiting here"));
    /// drop(tx.try_reserve().unwrap()); // not used: the room goes back
    /// assert!(tx.try_send("again").is_ok());
    /// ```
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        let channel = &self.tx.channel;
        let mut value = Some(value);
        let (mut effects, mut then) = (Effects::none(), Effects::none());
        channel.state.lock().send_reserved(&mut value, &mut effects, &mut then);
        let tx = self.tx;
        mem::forget(self);
        let mut panics = crate::panics::FirstPanic::default();
        panics.run(|| tx.channel.carry_out(&mut effects));
        panics.run(|| tx.channel.carry_out(&mut then));
        panics.resume();
        match value {
            None => Ok(()),
            Some(value) => Err(SendError::new(ErrorKind::Closed, value)),
        }
    }
}

impl<T> Drop for Permit<'_, T> {
    fn drop(&mut self) {
        let mut effects = Effects::none();
        self.tx.channel.state.lock().unreserve(&mut effects);
        self.tx.channel.carry_out(&mut effects);
    }
}

impl<T> fmt::Debug for Permit<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(&self.tx).finish()
    }
}

fn supported<T>(tx: &Sender<T>) -> Result<(), Error> {
    if tx.is_released() {
        return Err(ErrorKind::Closed.into());
    }
    let blocks = tx.channel.state.lock().overflow() == Overflow::Block;
    if tx.kind() == Kind::Rendezvous || !blocks {
        return Err(Error::with_message(&(
            ErrorKind::Unsupported,
            "only bounded (blocking) and unbounded channels have room to reserve: use `send`",
        )));
    }
    Ok(())
}

/// The operation [`Sender::reserve`] returns.
pub type Reserving<'a, T> = Op<Reserve<'a, T>>;

/// The action of [`Reserving`].
pub struct Reserve<'a, T> {
    tx: &'a Sender<T>,
    node: Node<T>,
}

// SAFETY: the node is shared with peers by the rules of `node`, which send `T` across threads.
unsafe impl<T: Send> Send for Reserve<'_, T> {}
// SAFETY: through a shared reference only the node's atomic state can be read.
unsafe impl<T: Send> Sync for Reserve<'_, T> {}

impl<'a, T> Reserve<'a, T> {
    pub(super) fn op(tx: &'a Sender<T>) -> Reserving<'a, T> {
        Op::of(Reserve { tx, node: Node::new(None) })
    }

    fn result(&self, outcome: u8) -> Result<Permit<'a, T>, Error> {
        self.node.set_state(IDLE);
        match outcome {
            CLOSED => Err(ErrorKind::Closed.into()),
            _ => Ok(Permit { tx: self.tx }),
        }
    }
}

impl<'a, T> sealed::Action for Reserve<'a, T> {
    type Output = Result<Permit<'a, T>, Error>;

    fn poll(self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output> {
        if self.node.state() == IDLE
            && let Err(error) = supported(self.tx)
        {
            return Poll::Ready(Err(error));
        }
        // SAFETY: the node is pinned, and `drop` leaves.
        unsafe { self.tx.channel.poll_reserve(&self.node, waker) }
            .map(|outcome| self.result(outcome))
    }

    fn is_settled(&self) -> bool {
        self.node.state() > WAITING
    }

    fn abandon(self: Pin<&mut Self>, why: ErrorKind) -> Self::Output {
        if self.tx.channel.leave(&self.node, Side::Send, why) {
            return Err(why.into());
        }
        self.result(self.node.state())
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        Some(&self.tx.channel.wait_memory)
    }
}

impl<T> Drop for Reserve<'_, T> {
    fn drop(&mut self) {
        if self.node.state() != IDLE
            && !self.tx.channel.leave(&self.node, Side::Send, ErrorKind::Cancelled)
            && self.node.state() == DONE
        {
            // The permit was granted, but the user never got it: the room goes back.
            drop(Permit { tx: self.tx });
        }
    }
}
