//! The metrics of a channel, for C: snapshots, rates, and subscriptions.

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
    time::Duration,
};

use marline_channel::Kind as ChannelKind;

use crate::{
    border::{checked, checked_const, enter},
    calls::Hook,
    channel::{Channel, ChannelId},
    clock,
    code::Code,
    options::Kind,
    table::{Object, Table},
};

/// A channel at one moment. Totals survive its close. Times are CLOCK_MONOTONIC in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// The version of these fields: 1.
    pub version: u32,
    /// One of enum marline_kind.
    pub kind: u32,
    /// Whether the channel is closed.
    pub closed: bool,
    /// The most elements that it can hold; UINT64_MAX for UNBOUNDED.
    pub capacity: u64,
    /// Elements inside.
    pub len: u64,
    /// The most elements that were ever inside.
    pub high_water: u64,
    /// Sending ends: 1, and 0 once destroyed.
    pub senders: u64,
    /// Receiving ends: 1, and 0 once destroyed.
    pub receivers: u64,
    /// Sends that wait, on a thread or started.
    pub waiting_send: u64,
    /// Receives that wait, on a thread or started.
    pub waiting_recv: u64,
    /// Elements accepted. An element that the overflow policy dropped later counts; one that it
    /// dropped at once does not.
    pub sends: u64,
    /// Elements received.
    pub recvs: u64,
    /// Bytes of the elements accepted: element sizes, or the lengths that were sent.
    pub bytes_sent: u64,
    /// Bytes of the elements received.
    pub bytes_received: u64,
    /// Tries to send that found no room.
    pub send_full: u64,
    /// Sends that ran out of time.
    pub send_timeout: u64,
    /// Sends that were cancelled or abandoned.
    pub send_cancelled: u64,
    /// Sends that found, or met, a closed channel.
    pub send_closed: u64,
    /// Tries to receive that found no element.
    pub recv_empty: u64,
    /// Receives that ran out of time.
    pub recv_timeout: u64,
    /// Receives that were cancelled or abandoned.
    pub recv_cancelled: u64,
    /// Receives that found, or met, a closed and drained channel.
    pub recv_closed: u64,
    /// Elements dropped to make room for newer ones.
    pub dropped_oldest: u64,
    /// Elements dropped for lack of room.
    pub dropped_newest: u64,
    /// Elements still inside when the channel was destroyed.
    pub undelivered: u64,
    /// About when the first operation was (sampled). 0: none was sampled yet.
    pub first_operation_ns: u64,
    /// About when the last operation was (sampled). 0: none was sampled yet.
    pub last_operation_ns: u64,
    /// When this snapshot was taken.
    pub at_ns: u64,
}

/// Operations and bytes per second between two snapshots.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Elements accepted per second.
    pub sends: f64,
    /// Elements received per second.
    pub recvs: f64,
    /// Bytes accepted per second.
    pub bytes_sent: f64,
    /// Bytes received per second.
    pub bytes_received: f64,
}

/// Called with a snapshot, which is valid during the call. Runs on a thread that uses the channel,
/// outside all locks. It must return, and not by longjmp or an exception.
pub type MetricsFn = Option<unsafe extern "C" fn(snapshot: *const Snapshot, user: *mut c_void)>;

/// The handle of a subscription. Never 0.
pub type SubscriptionId = u64;

struct Subscription {
    hook: Arc<Hook<unsafe extern "C" fn(*const Snapshot, *mut c_void)>>,
    #[expect(dead_code, reason = "held until the subscription ends")]
    kept: marline_channel::Subscription,
}

impl Object for Subscription {
    const ID_TAG: u64 = 7;

    fn table() -> &'static Table<Subscription> {
        static SUBSCRIPTIONS: Table<Subscription> = Table::new();
        &SUBSCRIPTIONS
    }
}

pub(crate) fn kind_number(kind: ChannelKind) -> u32 {
    match kind {
        ChannelKind::Rendezvous => Kind::Rendezvous as u32,
        ChannelKind::Bounded => Kind::Bounded as u32,
        ChannelKind::Unbounded => Kind::Unbounded as u32,
        ChannelKind::Conflated => Kind::Conflated as u32,
        ChannelKind::Oneshot | ChannelKind::Broadcast | ChannelKind::Watch => 0,
    }
}

impl From<&marline_channel::Snapshot> for Snapshot {
    fn from(snapshot: &marline_channel::Snapshot) -> Snapshot {
        let totals = &snapshot.totals;
        Snapshot {
            version: snapshot.version,
            kind: kind_number(snapshot.kind),
            closed: snapshot.closed,
            capacity: snapshot.capacity.map_or(u64::MAX, |capacity| capacity as u64),
            len: snapshot.len as u64,
            high_water: snapshot.high_water as u64,
            senders: snapshot.senders as u64,
            receivers: snapshot.receivers as u64,
            waiting_send: snapshot.waiting_send as u64,
            waiting_recv: snapshot.waiting_recv as u64,
            sends: totals.sends,
            recvs: totals.recvs,
            bytes_sent: totals.bytes_sent,
            bytes_received: totals.bytes_received,
            send_full: totals.send_full,
            send_timeout: totals.send_timeout,
            send_cancelled: totals.send_cancelled,
            send_closed: totals.send_closed,
            recv_empty: totals.recv_empty,
            recv_timeout: totals.recv_timeout,
            recv_cancelled: totals.recv_cancelled,
            recv_closed: totals.recv_closed,
            dropped_oldest: totals.dropped_oldest,
            dropped_newest: totals.dropped_newest,
            undelivered: totals.undelivered,
            first_operation_ns: snapshot.first_operation.map_or(0, clock::nanoseconds),
            last_operation_ns: snapshot.last_operation.map_or(0, clock::nanoseconds),
            at_ns: clock::nanoseconds(snapshot.at),
        }
    }
}

/// Stores the state and the counters of a channel in *snapshot, in constant time.
///
/// EINVAL: no such channel, or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_snapshot(channel: ChannelId, snapshot: *mut Snapshot) -> c_int {
    enter(|| {
        let snapshot = checked(snapshot)?;
        let taken = Snapshot::from(&Channel::of(channel)?.rx.snapshot());
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { snapshot.write(taken) };
        Ok(())
    })
}

/// Stores in *rate the rates from an earlier snapshot of a channel to a later one. They are zero if
/// no time has passed.
///
/// EINVAL: a null pointer, or a snapshot of another version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_rate(
    earlier: *const Snapshot,
    later: *const Snapshot,
    rate: *mut Rate,
) -> c_int {
    enter(|| {
        let rate = checked(rate)?;
        // SAFETY: not null and aligned; valid by the caller's promise.
        let (earlier, later) = unsafe { (&*checked_const(earlier)?, &*checked_const(later)?) };
        let version = marline_channel::SNAPSHOT_VERSION;
        if earlier.version != version || later.version != version {
            return Err(Code::INVALID);
        }
        let seconds = later.at_ns.saturating_sub(earlier.at_ns) as f64 / 1e9;
        let per_second = |field: fn(&Snapshot) -> u64| match seconds > 0.0 {
            true => field(later).saturating_sub(field(earlier)) as f64 / seconds,
            false => 0.0,
        };
        let between = Rate {
            sends: per_second(|snapshot| snapshot.sends),
            recvs: per_second(|snapshot| snapshot.recvs),
            bytes_sent: per_second(|snapshot| snapshot.bytes_sent),
            bytes_received: per_second(|snapshot| snapshot.bytes_received),
        };
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { rate.write(between) };
        Ok(())
    })
}

/// Pushes snapshots of a channel to metrics_fn: at most one per min_operations and per
/// min_interval_ms, and a last one when the channel closes. marline_metrics_unsubscribe ends this.
///
/// EINVAL: no such channel, or a null pointer. ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_metrics_subscribe(
    channel: ChannelId,
    min_operations: u64,
    min_interval_ms: u64,
    metrics_fn: MetricsFn,
    user: *mut c_void,
    subscription: *mut SubscriptionId,
) -> c_int {
    enter(|| {
        let subscription = checked(subscription)?;
        let metrics_fn = metrics_fn.ok_or(Code::INVALID)?;
        let channel = Channel::of(channel)?;
        let hook = Arc::new(Hook::new(metrics_fn, user));
        let called = hook.clone();
        let interval = Duration::from_millis(min_interval_ms);
        let kept = channel.tx.subscribe_metrics(min_operations, interval, move |snapshot| {
            let snapshot = Snapshot::from(snapshot);
            // SAFETY: C gave the function for this, and the snapshot outlives the call.
            called.call(|function, user| unsafe { function(&snapshot, user) });
        })?;
        let id = Subscription::table()
            .insert(Subscription { hook, kept })
            .map_err(|_| Code::NO_MEMORY)?;
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { subscription.write(id) };
        Ok(())
    })
}

/// Ends a subscription. When it returns, its metrics_fn is not called any more and does not run on
/// another thread.
///
/// EINVAL: no such subscription.
#[unsafe(no_mangle)]
pub extern "C" fn marline_metrics_unsubscribe(subscription: SubscriptionId) -> c_int {
    enter(|| {
        let subscription = Subscription::table().remove(subscription).ok_or(Code::INVALID)?;
        subscription.hook.revoke();
        Ok(())
    })
}
