//! The clauses of a select, with their channels.

use std::ptr::NonNull;

use marline_channel::{RecvKey, Selector, SendKey};

use crate::{
    channel::Channel,
    code::Code,
    element::{Destination, Element},
    table::Ref,
    zero_copy::Route,
};

/// The most clauses of one select: more is a mistake.
const MAX_CLAUSES: usize = 1 << 16;

/// Clauses, and the selector that refers to their channels.
pub(super) struct Clauses {
    /// Owned. Behind a pointer, because a started wait refers to it while this is borrowed, too.
    selector: NonNull<Selector<'static>>,
    list: Vec<Clause>,
    biased: bool,
    skip_closed: bool,
}

// SAFETY: selectors are `Send`, and this one is owned.
unsafe impl Send for Clauses {}

struct Clause {
    role: Role,
    channel: Ref<Channel>,
}

enum Role {
    Recv {
        key: RecvKey<Element>,
        to: Destination,
    },
    Send {
        key: SendKey<Element>,
        route: Route,
        /// Whether the element is gone (sent or taken back), until a refill.
        spent: bool,
    },
}

impl Clauses {
    pub(super) fn new(biased: bool, skip_closed: bool) -> Clauses {
        Clauses {
            selector: new_selector(biased, skip_closed),
            list: Vec::new(),
            biased,
            skip_closed,
        }
    }

    /// Returns the selector.
    ///
    /// # Safety
    /// The reference, and everything derived from it, goes before the next call and before the
    /// clauses.
    pub(super) unsafe fn selector(&mut self) -> &'static mut Selector<'static> {
        // SAFETY: owned and alive; exclusive by the caller's promise.
        unsafe { self.selector.as_mut() }
    }

    /// Adds a receive clause. Returns its number.
    ///
    /// # Safety
    /// No wait refers to the selector. The destination can be written to during waits, and was
    /// made for this channel.
    pub(super) unsafe fn add_recv(
        &mut self,
        channel: Ref<Channel>,
        to: Destination,
    ) -> Result<usize, Code> {
        self.check_room()?;
        // SAFETY: the channel is kept beside its clause and goes after the selector; the rest is
        // the caller's promise.
        let key = unsafe { self.selector().recv(&channel.extended().rx) };
        Ok(self.push(Role::Recv { key, to }, channel))
    }

    /// Adds a send clause. Returns its number.
    ///
    /// # Safety
    /// No wait refers to the selector.
    pub(super) unsafe fn add_send(
        &mut self,
        channel: Ref<Channel>,
        element: Element,
        route: Route,
    ) -> Result<usize, Code> {
        self.check_room()?;
        // SAFETY: as above.
        let key = unsafe { self.selector().send(&channel.extended().tx, element) };
        let spent = false;
        Ok(self.push(Role::Send { key, route, spent }, channel))
    }

    fn check_room(&mut self) -> Result<(), Code> {
        if self.list.len() >= MAX_CLAUSES {
            return Err(Code::TOO_LARGE);
        }
        self.list.try_reserve(1).map_err(|_| Code::NO_MEMORY)
    }

    fn push(&mut self, role: Role, channel: Ref<Channel>) -> usize {
        self.list.push(Clause { role, channel });
        self.list.len() - 1
    }

    /// Returns the channel of a send clause.
    pub(super) fn send_channel(&self, index: usize) -> Result<&Ref<Channel>, Code> {
        match self.list.get(index) {
            Some(Clause { role: Role::Send { .. }, channel }) => Ok(channel),
            _ => Err(Code::INVALID),
        }
    }

    /// Gives a send clause an element to send next. Takes back an element that it has not sent.
    ///
    /// # Safety
    /// No wait refers to the selector.
    pub(super) unsafe fn refill(
        &mut self,
        index: usize,
        element: Element,
        new_route: Route,
    ) -> Result<(), Code> {
        // SAFETY: the caller's promise.
        let selector = unsafe { self.selector() };
        let Some(Clause { role: Role::Send { key, route, spent }, channel }) =
            self.list.get_mut(index)
        else {
            return Err(Code::INVALID);
        };
        if let Some(element) = selector.refill(key, element) {
            channel.recover(element);
        }
        *route = new_route;
        *spent = false;
        Ok(())
    }

    /// Whether no clause has anything to do, so that a wait could never end.
    pub(super) fn is_empty(&self) -> bool {
        self.list.iter().all(|clause| matches!(clause.role, Role::Send { spent: true, .. }))
    }

    pub(super) fn is_send(&self, index: usize) -> bool {
        self.send_channel(index).is_ok()
    }

    /// Takes the result of the clause that was chosen.
    ///
    /// # Safety
    /// No wait refers to the selector; destinations can be written to.
    pub(super) unsafe fn result(&mut self, index: usize) -> Result<(), Code> {
        // SAFETY: the caller's promise.
        let selector = unsafe { self.selector() };
        let clause = self.list.get_mut(index).ok_or(Code::INTERNAL)?;
        match &mut clause.role {
            Role::Recv { key, to } => {
                let received = selector.received(key).ok_or(Code::INTERNAL)?;
                // SAFETY: the caller that added the clause promised the destination for waits; it
                // is for this channel.
                unsafe { to.store(received?, &clause.channel) }
            }
            Role::Send { key, route, spent } => {
                *spent = true;
                let result = match selector.sent(key).ok_or(Code::INTERNAL)? {
                    Ok(_) => Ok(()),
                    Err(error) => Err(clause.channel.take_back(error)),
                };
                let zero_copy = &clause.channel.discards.zero_copy;
                zero_copy.count_send(*route, &result);
                result
            }
        }
    }

    /// Puts back the element that the chosen receive clause received.
    ///
    /// # Safety
    /// No wait refers to the selector.
    pub(super) unsafe fn forget(&mut self) {
        // SAFETY: the caller's promise. A new wait gives up a result that was not taken.
        drop(unsafe { self.selector() }.next());
    }

    /// Takes all clauses out.
    ///
    /// # Safety
    /// No wait refers to the selector.
    pub(super) unsafe fn clear(&mut self) {
        *self = Clauses::new(self.biased, self.skip_closed);
    }
}

fn new_selector(biased: bool, skip_closed: bool) -> NonNull<Selector<'static>> {
    let mut selector = Selector::new();
    if biased {
        selector = selector.biased();
    }
    if skip_closed {
        selector = selector.skip_closed();
    }
    NonNull::from(Box::leak(Box::new(selector)))
}

impl Drop for Clauses {
    fn drop(&mut self) {
        // SAFETY: the selector comes from a box, and is dropped once, before the channels in the
        // list.
        drop(unsafe { Box::from_raw(self.selector.as_ptr()) });
    }
}
