//! The counters of a channel's zero-copy sends and receives.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::code::Code;

/// The zero-copy counters of a channel. Ordinary metrics are in struct marline_snapshot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZcCounters {
    /// Buffers sent as a descriptor.
    pub sent: u64,
    /// Descriptors received without a copy.
    pub received: u64,
    /// Sends that copied because the buffer was smaller than its region's min_len.
    pub fallback_small: u64,
    /// Sends that copied because the region had max_in_flight buffers in flight, or because the
    /// channel cannot carry descriptors (a COPY channel).
    pub fallback_capacity: u64,
    /// Calls of marline_send_zc* that a token, a timeout, a signal or an abandon ended.
    pub cancelled: u64,
    /// Calls of marline_send_zc* that met a closed channel, and buffers sent without a copy that
    /// were still inside when the channel was destroyed.
    pub aborted_close: u64,
}

/// How the element of a send travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Not a zero-copy send.
    Plain,
    ZeroCopy,
    CopiedSmall,
    CopiedCapacity,
}

impl Route {
    pub(crate) fn is_copied(self) -> bool {
        matches!(self, Route::CopiedSmall | Route::CopiedCapacity)
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    fallback_small: AtomicU64,
    fallback_capacity: AtomicU64,
    cancelled: AtomicU64,
    aborted_close: AtomicU64,
}

impl Counters {
    /// Counts how a send ended.
    #[inline(always)]
    pub(crate) fn count_send(&self, route: Route, result: &Result<(), Code>) {
        if route != Route::Plain {
            self.count_zero_copy_send(route, result);
        }
    }

    fn count_zero_copy_send(&self, route: Route, result: &Result<(), Code>) {
        let counter = match (result, route) {
            (Ok(()), Route::CopiedSmall) => &self.fallback_small,
            (Ok(()), Route::CopiedCapacity) => &self.fallback_capacity,
            (Ok(()), _) => &self.sent,
            (&Err(Code::CLOSED), _) => &self.aborted_close,
            (&Err(Code::TIMEOUT | Code::CANCELLED | Code::INTERRUPTED), _) => &self.cancelled,
            (Err(_), _) => return,
        };
        add_one(counter);
    }

    pub(crate) fn count_received(&self) {
        add_one(&self.received);
    }

    pub(crate) fn count_aborted(&self) {
        add_one(&self.aborted_close);
    }

    pub(crate) fn read(&self) -> ZcCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ZcCounters {
            sent: read(&self.sent),
            received: read(&self.received),
            fallback_small: read(&self.fallback_small),
            fallback_capacity: read(&self.fallback_capacity),
            cancelled: read(&self.cancelled),
            aborted_close: read(&self.aborted_close),
        }
    }
}

fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
