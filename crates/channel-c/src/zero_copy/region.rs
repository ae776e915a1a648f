//! Registered memory: which buffers may travel without a copy, and how many are in flight. A region
//! ends only when none is. `backend` knows whose memory it is.

use std::{
    ffi::{c_int, c_void},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::backend::{Backend, ZcBackend};
use crate::{
    border::{checked, checked_const, enter},
    code::Code,
    limits::Wait,
    table::{Object, Ref, Table},
};

/// The handle of a registered region of memory. Never 0.
pub type RegionId = u64;

/// The memory to register. Set the fields that you do not need to zero.
#[repr(C)]
pub struct RegionOptions {
    /// Where the memory begins.
    pub addr: *mut c_void,
    /// Its length in bytes.
    pub len: usize,
    /// Buffers of fewer bytes than this are copied instead: a copy of a small buffer is cheaper.
    pub min_len: usize,
    /// With this many buffers in flight, further ones are copied instead. 0: no limit.
    pub max_in_flight: u64,
    /// Whose memory it is; NULL for plain memory of this process. The call copies the structure.
    pub backend: *const ZcBackend,
    /// Always 0.
    pub reserved: [u64; 2],
}

pub(crate) struct Region {
    addr: usize,
    len: usize,
    min_len: usize,
    max_in_flight: u64,
    pub(super) backend: Backend,
    traffic: Mutex<Traffic>,
    landed: Condvar,
}

struct Traffic {
    in_flight: u64,
    /// How many callers wait until no buffer is in flight. While one waits, no buffer may be sent.
    deregistering: u32,
}

impl Object for Region {
    const ID_TAG: u64 = 5;

    fn table() -> &'static Table<Region> {
        static REGIONS: Table<Region> = Table::new();
        &REGIONS
    }
}

/// Why a buffer is copied instead of travelling as it is.
pub(super) enum FallbackReason {
    Small,
    Capacity,
}

impl Region {
    pub(super) fn of(id: RegionId) -> Result<Ref<Region>, Code> {
        Region::table().get(id).ok_or(Code::INVALID)
    }

    /// Returns the offset of a buffer. Fails with EINVAL if it is empty or not inside the region.
    pub(super) fn offset(&self, buffer: *const c_void, len: usize) -> Result<u64, Code> {
        let offset = buffer.addr().checked_sub(self.addr).ok_or(Code::INVALID)?;
        let end = offset.checked_add(len).ok_or(Code::INVALID)?;
        if len == 0 || end > self.len {
            return Err(Code::INVALID);
        }
        Ok(offset as u64)
    }

    /// Counts a buffer as in flight, if it may travel as it is.
    pub(super) fn count_in_flight(&self, len: usize) -> Result<Result<(), FallbackReason>, Code> {
        let mut traffic = self.traffic();
        if traffic.deregistering > 0 {
            return Err(Code::INVALID);
        }
        if len < self.min_len {
            return Ok(Err(FallbackReason::Small));
        }
        if self.max_in_flight > 0 && traffic.in_flight >= self.max_in_flight {
            return Ok(Err(FallbackReason::Capacity));
        }
        traffic.in_flight += 1;
        Ok(Ok(()))
    }

    /// Counts one buffer fewer in flight.
    pub(super) fn uncount_in_flight(&self) {
        let mut traffic = self.traffic();
        traffic.in_flight -= 1;
        if traffic.in_flight == 0 && traffic.deregistering > 0 {
            self.landed.notify_all();
        }
    }

    /// Waits until no buffer is in flight. During the wait, and after a success, none can be sent.
    fn wait_until_none_in_flight(&self, wait: Wait) -> Result<(), Code> {
        let deadline = wait.deadline();
        let mut traffic = self.traffic();
        traffic.deregistering += 1;
        while traffic.in_flight > 0 {
            let left = match (wait, deadline) {
                (Wait::Try, _) => None,
                (_, None) => Some(LONGEST_SLEEP),
                (_, Some(deadline)) => Some(deadline.saturating_duration_since(Instant::now())),
            };
            match left {
                Some(left) if !left.is_zero() => {
                    let waited = self.landed.wait_timeout(traffic, left.min(LONGEST_SLEEP));
                    traffic = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                out_of_time => {
                    traffic.deregistering -= 1;
                    return Err(match out_of_time {
                        None => Code::WOULD_BLOCK,
                        Some(_) => Code::TIMEOUT,
                    });
                }
            }
        }
        Ok(())
    }

    fn traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The longest single sleep. A longer wait checks in between.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Registers memory whose buffers can then be sent with marline_send_zc. The memory stays yours. It
/// must stay valid until marline_region_deregister has returned 0.
///
/// EINVAL: a null pointer, no length, or reserved fields set. ENOMEM. Or the code that register_fn
/// returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_region_register(
    options: *const RegionOptions,
    region: *mut RegionId,
) -> c_int {
    enter(|| {
        let region = checked(region)?;
        // SAFETY: not null and aligned; valid by the caller's promise.
        let options = unsafe { &*checked_const(options)? };
        // SAFETY: null or valid, by the caller's promise.
        let id = register(options, unsafe { options.backend.as_ref() })?;
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { region.write(id) };
        Ok(())
    })
}

fn register(options: &RegionOptions, backend: Option<&ZcBackend>) -> Result<RegionId, Code> {
    let last = options.addr.addr().checked_add(options.len);
    if options.addr.is_null() || options.len == 0 || last.is_none() || options.reserved != [0; 2] {
        return Err(Code::INVALID);
    }
    let backend = Backend::register(backend, options.addr, options.len)?;
    let region = Region {
        addr: options.addr.addr(),
        len: options.len,
        min_len: options.min_len,
        max_in_flight: options.max_in_flight,
        backend,
        traffic: Mutex::new(Traffic { in_flight: 0, deregistering: 0 }),
        landed: Condvar::new(),
    };
    Region::table().insert(region).map_err(|region| {
        region.backend.deregister();
        Code::NO_MEMORY
    })
}

/// Ends a region once none of its buffers is in flight: neither in a channel, nor with a receiver
/// that has not released it. Waits for that as timeout_ms says (0: not at all, < 0: without a
/// limit). Meanwhile sends from the region fail with EINVAL. If the time runs out, the region is as
/// it was.
///
/// EAGAIN (timeout_ms 0) or ETIME: buffers are still in flight. EINVAL: no such region.
#[unsafe(no_mangle)]
pub extern "C" fn marline_region_deregister(region: RegionId, timeout_ms: i64) -> c_int {
    enter(|| {
        Region::of(region)?.wait_until_none_in_flight(Wait::of(timeout_ms))?;
        // If two callers waited, one of them ends the region.
        let region = Region::table().remove(region).ok_or(Code::INVALID)?;
        region.backend.deregister();
        Ok(())
    })
}

/// Stores in *count how many buffers of a region are in flight.
///
/// EINVAL: no such region, or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_region_in_flight(region: RegionId, count: *mut u64) -> c_int {
    enter(|| {
        let count = checked(count)?;
        let in_flight = Region::of(region)?.traffic().in_flight;
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { count.write(in_flight) };
        Ok(())
    })
}
