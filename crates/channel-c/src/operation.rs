//! Operations for coroutine libraries: a start form starts one, `wake_fn` says when it can be
//! finished, and the library finishes or abandons it.
//!
//! An operation object holds the pinned Rust operation, so that starting one allocates nothing. The
//! Rust operation refers to its channel. The object keeps that channel for as long as it runs.

use std::{
    ffi::{c_int, c_void},
    future::Future,
    mem::MaybeUninit,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use marline_channel::{Receiving, Sending};

use crate::{
    alert::{Alerts, WakeFn},
    border::{checked, enter},
    calls::Calls,
    channel::Channel,
    code::Code,
    element::{Destination, Element},
    exclusive::{Exclusive, Guard},
    limits::{Limits, Wait},
    table::{Object, Ref, Table},
    zero_copy::Route,
};

/// The handle of an operation object. Never 0.
pub type OpId = u64;

pub(crate) struct Operation {
    inside: Exclusive<OperationState>,
}

/// The object lives in its table's slot and never moves, so neither does the operation that runs. A
/// Rust operation is large: it is created in its place, and neither wrapped nor moved afterwards.
struct OperationState {
    running: Running,
    send: MaybeUninit<Sending<'static, Element>>,
    recv: MaybeUninit<Receiving<'static, Element>>,
    alerts: Alerts,
}

/// The operation that runs, and the channel that it refers to, which is released after it.
enum Running {
    Nothing,
    /// `send` is initialised.
    Send {
        channel: Ref<Channel>,
        route: Route,
    },
    /// `recv` is initialised.
    Recv {
        channel: Ref<Channel>,
        to: Destination,
    },
}

impl Object for Operation {
    const ID_TAG: u64 = 3;

    fn table() -> &'static Table<Operation> {
        static OPERATIONS: Table<Operation> = Table::new();
        &OPERATIONS
    }
}

impl Operation {
    fn of(id: OpId) -> Result<Ref<Operation>, Code> {
        Operation::table().get(id).ok_or(Code::INVALID)
    }

    /// Starts a send. It ends at once, or is left pending.
    pub(crate) fn start_send(
        id: OpId,
        channel: Ref<Channel>,
        element: Element,
        route: Route,
        limits: &Limits,
        wake_fn: WakeFn,
        user: *mut c_void,
    ) -> Result<(), Code> {
        let operation = Operation::of(id)?;
        if limits.wait == Wait::Try {
            drop(operation.idle()?);
            return channel.send(element, route, limits);
        }
        let mut inside = operation.idle()?;
        inside.alerts.begin(wake_fn, user);
        // SAFETY: the operation goes before the channel, see `OperationState::end`.
        let tx = unsafe { &channel.extended().tx };
        match limits.are_none() {
            true => inside.send.write(tx.send(element)),
            false => inside.send.write(limits.put_on(tx.send(element))),
        };
        inside.running = Running::Send { channel, route };
        operation.started(inside)
    }

    /// Starts a receive. It ends at once, or is left pending.
    ///
    /// # Safety
    /// The destination can be written to until the operation ends, and was made for this channel.
    pub(crate) unsafe fn start_recv(
        id: OpId,
        channel: Ref<Channel>,
        to: Destination,
        limits: &Limits,
        wake_fn: WakeFn,
        user: *mut c_void,
    ) -> Result<(), Code> {
        let operation = Operation::of(id)?;
        if limits.wait == Wait::Try {
            drop(operation.idle()?);
            // SAFETY: the caller's promise.
            return unsafe { channel.recv(to, limits) };
        }
        let mut inside = operation.idle()?;
        inside.alerts.begin(wake_fn, user);
        // SAFETY: the operation goes before the channel, see `OperationState::end`.
        let rx = unsafe { &channel.extended().rx };
        match limits.are_none() {
            true => inside.recv.write(rx.recv()),
            false => inside.recv.write(limits.put_on(rx.recv())),
        };
        inside.running = Running::Recv { channel, to };
        operation.started(inside)
    }
}

impl Ref<Operation> {
    #[inline(always)]
    fn idle(&self) -> Result<Guard<'_, OperationState>, Code> {
        let inside = self.inside.lock()?;
        match inside.running {
            Running::Nothing => Ok(inside),
            Running::Send { .. } | Running::Recv { .. } => Err(Code::INVALID),
        }
    }

    #[inline(always)]
    fn busy(&self) -> Result<Guard<'_, OperationState>, Code> {
        let inside = self.inside.lock()?;
        match inside.running {
            Running::Nothing => Err(Code::INVALID),
            Running::Send { .. } | Running::Recv { .. } => Ok(inside),
        }
    }

    /// Polls a started operation for the first time.
    #[inline(always)]
    fn started(&self, mut inside: Guard<'_, OperationState>) -> Result<(), Code> {
        let (polled, _) = inside.drive();
        self.ended(polled, &mut inside)
    }

    fn finish(&self) -> Result<(), Code> {
        let mut inside = self.busy()?;
        inside.alerts.listen();
        let (polled, running) = inside.drive();
        let result = self.ended(polled, &mut inside);
        drop(inside);
        if let Some(calls) = running {
            calls.wait();
        }
        result
    }

    /// Returns the result of a poll. If the object was destroyed meanwhile, no call could finish a
    /// pending operation, so this abandons it.
    #[inline(always)]
    fn ended(
        &self,
        polled: Poll<Result<(), Code>>,
        inside: &mut OperationState,
    ) -> Result<(), Code> {
        match polled {
            Poll::Ready(result) => result,
            Poll::Pending if self.is_open() => Err(Code::NOT_FINISHED),
            Poll::Pending => {
                let _ = inside.abandon();
                Err(Code::INVALID)
            }
        }
    }

    fn abandon(&self) -> Result<(), Code> {
        let mut inside = self.busy()?;
        let (result, running) = inside.abandon();
        drop(inside);
        if let Some(calls) = running {
            calls.wait();
        }
        result
    }
}

impl OperationState {
    /// Polls the running operation until it has ended, or until it can be left pending with its
    /// alert armed. Wake-ups must be noted already. When the operation ends, also returns its
    /// calls, if one is running on another thread.
    fn drive(&mut self) -> (Poll<Result<(), Code>>, Option<Arc<Calls>>) {
        let waker = self.alerts.waker();
        let mut context = Context::from_waker(&waker);
        loop {
            let polled = self.poll(&mut context);
            if polled.is_ready() {
                self.end();
                return (polled, self.alerts.quiet());
            }
            if self.alerts.arm() {
                return (polled, None);
            }
            self.alerts.listen();
        }
    }

    #[inline(always)]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Code>> {
        match &self.running {
            Running::Nothing => Poll::Ready(Err(Code::INTERNAL)),
            Running::Send { channel, route } => {
                // SAFETY: the operation is initialised while it runs, and never moves.
                let op = unsafe { Pin::new_unchecked(self.send.assume_init_mut()) };
                op.poll(context).map(|sent| {
                    let result = match sent {
                        Ok(_) => Ok(()),
                        Err(error) => Err(channel.take_back(error)),
                    };
                    channel.discards.zero_copy.count_send(*route, &result);
                    result
                })
            }
            Running::Recv { channel, to } => {
                // SAFETY: as above.
                let op = unsafe { Pin::new_unchecked(self.recv.assume_init_mut()) };
                // SAFETY: the caller that started the receive promised the destination, for this
                // channel.
                op.poll(context).map(|received| unsafe { to.store(received?, channel) })
            }
        }
    }

    /// Gives up the running operation. A send whose element a receiver took first has happened. An
    /// element that a receive was given goes back when the receive ends.
    fn abandon(&mut self) -> (Result<(), Code>, Option<Arc<Calls>>) {
        let running = self.alerts.quiet();
        let mut result = Err(Code::CANCELLED);
        if let Running::Send { channel, route } = &self.running {
            // SAFETY: the operation is initialised while it runs, and never moves.
            let op = unsafe { Pin::new_unchecked(self.send.assume_init_mut()) };
            match op.into_unsent() {
                None => result = Ok(()),
                Some(element) => channel.recover(element),
            }
            channel.discards.zero_copy.count_send(*route, &result);
        }
        self.end();
        (result, running)
    }

    /// Drops the running operation in its place, then releases its channel.
    #[inline(always)]
    fn end(&mut self) {
        // SAFETY: the operation is initialised while it runs, and `running` says that it no longer
        // does afterwards.
        unsafe {
            match &self.running {
                Running::Nothing => {}
                Running::Send { .. } => self.send.assume_init_drop(),
                Running::Recv { .. } => self.recv.assume_init_drop(),
            }
        }
        self.running = Running::Nothing;
    }
}

impl Drop for OperationState {
    fn drop(&mut self) {
        self.end();
    }
}

/// Creates an operation object, for coroutine libraries and event loops, which cannot block a
/// thread. It serves one operation at a time, any number of times, without allocating.
///
/// A start form (such as marline_send_start) returns
/// - 0 or an error: the operation is over, exactly as with the blocking form, and wake_fn is not
///   called;
/// - EINPROGRESS: the operation waits. wake_fn(user) is called once when it can be finished. Then
///   marline_op_finish returns its result. (wake_fn may be NULL: then call marline_op_finish now
///   and then.)
///
/// With timeout_ms 0 the operation is only tried, and never left pending. A thread of the library
/// watches a timeout_ms > 0. The operation keeps its channel and token, also if they are destroyed
/// meanwhile. One thread at a time may use an operation object.
///
/// EINVAL: a null pointer. ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_op_create(op: *mut OpId) -> c_int {
    enter(|| {
        let op = checked(op)?;
        let inside = OperationState {
            running: Running::Nothing,
            send: MaybeUninit::uninit(),
            recv: MaybeUninit::uninit(),
            alerts: Alerts::new(),
        };
        let operation = Operation { inside: Exclusive::new(inside) };
        let id = Operation::table().insert(operation).map_err(|_| Code::NO_MEMORY)?;
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { op.write(id) };
        Ok(())
    })
}

/// Ends a pending operation and returns its result, as the blocking form would. Then the object can
/// be used again, and wake_fn is not called any more and does not run on another thread.
///
/// EINPROGRESS: the operation cannot end yet. wake_fn will be called, also if it was called before.
/// EINVAL: no such object, or nothing is pending.
#[unsafe(no_mangle)]
pub extern "C" fn marline_op_finish(op: OpId) -> c_int {
    enter(|| Operation::of(op)?.finish())
}

/// Gives up a pending operation. Then the object can be used again, and wake_fn is not called any
/// more and does not run on another thread.
///
/// ECANCELED: given up. The element of a send stays with its sender. A receive has taken nothing:
/// an element that it was given is the next element of the channel.
/// 0: a receiver took the element of the send first, so the send has happened.
/// EINVAL: no such object, or nothing is pending.
#[unsafe(no_mangle)]
pub extern "C" fn marline_op_abandon(op: OpId) -> c_int {
    enter(|| Operation::of(op)?.abandon())
}

/// Destroys an operation object. A pending operation is abandoned.
///
/// EINVAL: no such object.
#[unsafe(no_mangle)]
pub extern "C" fn marline_op_destroy(op: OpId) -> c_int {
    enter(|| {
        let operation = Operation::table().remove(op).ok_or(Code::INVALID)?;
        // A call further out on this thread's stack finds the handle gone, and abandons it itself.
        let _ = operation.abandon();
        Ok(())
    })
}
