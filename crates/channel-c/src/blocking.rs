//! Sends and receives that wait on the calling thread, for elements of every mode.

use std::pin::pin;

use marline_channel::SendError;

use crate::{
    channel::Channel,
    code::Code,
    element::{Destination, Element},
    limits::{Limits, Wait},
    zero_copy::Route,
};

impl Channel {
    /// Sends an element within `limits`. Takes back an element that was not sent.
    #[inline(always)]
    pub(crate) fn send(&self, element: Element, route: Route, limits: &Limits) -> Result<(), Code> {
        let result = self.send_element(element, limits);
        self.discards.zero_copy.count_send(route, &result);
        result
    }

    #[inline(always)]
    fn send_element(&self, element: Element, limits: &Limits) -> Result<(), Code> {
        let sent = if limits.wait == Wait::Try {
            limits.check_cancelled()?;
            self.tx.try_send(element)
        } else if self.interruptible {
            return self.send_interruptible(element, limits);
        } else if limits.are_none() {
            self.tx.send(element).wait()
        } else {
            limits.put_on(self.tx.send(element)).wait()
        };
        match sent {
            Ok(_) => Ok(()),
            Err(error) => Err(self.take_back(error)),
        }
    }

    #[cold]
    fn send_interruptible(&self, element: Element, limits: &Limits) -> Result<(), Code> {
        let mut op = pin!(limits.put_on(self.tx.send(element)));
        match op.as_mut().wait_interruptible() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.take_back(error)),
            Err(_) => match op.into_unsent() {
                None => Ok(()),
                Some(element) => {
                    self.recover(element);
                    Err(Code::INTERRUPTED)
                }
            },
        }
    }

    /// Receives an element within `limits` and stores it.
    ///
    /// # Safety
    /// The destination can be written to, and was made for this channel.
    #[inline(always)]
    pub(crate) unsafe fn recv(&self, to: Destination, limits: &Limits) -> Result<(), Code> {
        let received = if limits.wait == Wait::Try {
            limits.check_cancelled()?;
            self.rx.try_recv()
        } else if self.interruptible {
            let mut op = pin!(limits.put_on(self.rx.recv()));
            // An interrupted receive is dropped, which loses nothing.
            op.as_mut().wait_interruptible().and_then(|result| result)
        } else if limits.are_none() {
            self.rx.recv().wait()
        } else {
            limits.put_on(self.rx.recv()).wait()
        };
        // SAFETY: the caller's promise.
        unsafe { to.store(received?, self) }
    }

    /// Takes back an element that could not be sent. Returns the reason.
    #[cold]
    pub(crate) fn take_back(&self, error: SendError<Element>) -> Code {
        let code = Code::from(&error);
        self.recover(error.into_inner());
        code
    }

    /// Takes back an element that was not sent. Keeps the block of a copied element for later.
    pub(crate) fn recover(&self, element: Element) {
        if let Element::Boxed(block) = element {
            self.blocks.put(block);
        }
    }
}
