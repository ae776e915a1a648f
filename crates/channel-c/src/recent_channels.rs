//! The channels that this thread sent to or received from last. The thread keeps a [`Ref`] to each.
//! So a thread in a loop finds its channel by reading the slot instead of changing it, and two
//! threads on one channel do not pass the slot's cache line back and forth.
//!
//! A `Ref` is taken out while it is in use, so a callback that uses channels meanwhile gets its
//! own. If a channel is destroyed while an idle thread keeps a `Ref`, the channel has been closed
//! and emptied. Its memory goes when another channel takes that place, or with the thread.

use std::{cell::Cell, mem::ManuallyDrop, ops::Deref};

use crate::{
    channel::{Channel, ChannelId},
    code::Code,
    table::Ref,
};

/// How many channels a thread keeps. A thread that passes elements on uses two; a few more do no
/// harm.
const PLACES: usize = 4;

struct RecentChannel {
    id: ChannelId,
    channel: Ref<Channel>,
}

thread_local! {
    static RECENT: [Cell<Option<RecentChannel>>; PLACES] = const { [const { Cell::new(None) }; PLACES] };
}

/// Returns the place of an id. The low bits of an id are its slot's index, so neighbours have
/// different places.
fn place(id: ChannelId) -> usize {
    id as usize % PLACES
}

/// A channel in use by this thread.
pub(crate) struct InUse {
    id: ChannelId,
    channel: ManuallyDrop<Ref<Channel>>,
}

impl Channel {
    /// Returns the channel, for an operation that ends on this thread before it returns.
    #[inline(always)]
    pub(crate) fn in_use(id: ChannelId) -> Result<InUse, Code> {
        // There are no recent channels while the thread is torn down.
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
        // SAFETY: the channel is taken once, here.
        let channel = unsafe { ManuallyDrop::take(&mut self.channel) };
        if channel.is_open() {
            let id = self.id;
            // A channel that a callback left there meanwhile is dropped.
            let _ = RECENT
                .try_with(|recent| recent[place(id)].replace(Some(RecentChannel { id, channel })));
        }
    }
}
