//! The channels this thread sent to or received from last, kept referenced: a thread in a loop then
//! finds its channel by reading its slot instead of changing it, and two threads on one channel do
//! not pass the slot's cache line back and forth.
//!
//! A reference is taken out while it is in use, so a callback that uses channels meanwhile finds
//! its own. A channel that is destroyed while a thread keeps it idle has been closed and emptied;
//! its memory goes with the next channel in that place, or with the thread.

use std::{cell::Cell, mem::ManuallyDrop, ops::Deref};

use crate::{
    channel::{Channel, ChannelId},
    code::Code,
    table::Ref,
};

/// A worker that passes things on uses two channels; a few more do no harm.
const PLACES: usize = 4;

struct RecentChannel {
    id: ChannelId,
    channel: Ref<Channel>,
}

thread_local! {
    static RECENT: [Cell<Option<RecentChannel>>; PLACES] = const { [const { Cell::new(None) }; PLACES] };
}

/// The low bits of an id are its slot's: neighbours have different places.
fn place(id: ChannelId) -> usize {
    id as usize % PLACES
}

/// A channel in use by this thread.
pub(crate) struct InUse {
    id: ChannelId,
    channel: ManuallyDrop<Ref<Channel>>,
}

impl Channel {
    /// The channel, for an operation that ends on this thread before it returns.
    #[inline(always)]
    pub(crate) fn in_use(id: ChannelId) -> Result<InUse, Code> {
        // Without it while the thread is being torn down.
        let kept = RECENT.try_with(|recent| recent[place(id)].take()).ok().flatten();
        let channel = match kept {
            Some(kept) if kept.id == id && kept.channel.is_open() => kept.channel,
            other => {
                drop(other);
                Channel::of(id)?
            }
        };
        Ok(InUse { id, channel: ManuallyDrop::new(channel) })
    }
}

impl Deref for InUse {
    type Target = Channel;

    #[inline(always)]
    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl Drop for InUse {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let channel = unsafe { ManuallyDrop::take(&mut self.channel) };
        if channel.is_open() {
            let id = self.id;
            // What a callback left there meanwhile is dropped.
            let _ = RECENT
                .try_with(|recent| recent[place(id)].replace(Some(RecentChannel { id, channel })));
        }
    }
}
