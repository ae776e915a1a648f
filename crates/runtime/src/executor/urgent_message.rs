//! Requests that a worker sends to an executor while user code runs. An executor process receives
//! them on a socket of its own, by a thread that user code cannot hold up.

use marline_core::id::TaskId;

/// The size of each message.
pub(crate) const BYTES: usize = 1 + 16 + 8;

/// See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UrgentMessage {
    /// Cancel this task or call, and the work that it has submitted.
    Cancel(TaskId),
    /// Cancel this task or call. The work that it has submitted goes on.
    CancelAlone(TaskId),
    /// This task or call may not wait for other work: `limit` of them wait already.
    DenyWait { task: TaskId, limit: usize },
    /// `count` items of this task or call were consumed in all. It runs or is about to.
    ItemsTaken { task: TaskId, count: u32 },
}

impl UrgentMessage {
    /// Encodes the message: its kind, the task, and a number.
    pub fn encode(self) -> [u8; BYTES] {
        let (kind, task, number) = match self {
            UrgentMessage::Cancel(task) => (0, task, 0),
            UrgentMessage::CancelAlone(task) => (1, task, 0),
            UrgentMessage::DenyWait { task, limit } => (2, task, limit as u64),
            UrgentMessage::ItemsTaken { task, count } => (3, task, u64::from(count)),
        };
        let mut bytes = [kind; BYTES];
        bytes[1..17].copy_from_slice(&task.as_u128().to_be_bytes());
        bytes[17..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// Decodes a message. Returns `None` if its kind is unknown.
    pub fn decode(bytes: [u8; BYTES]) -> Option<UrgentMessage> {
        let task = bytes[1..17].try_into().expect("sixteen bytes are sixteen");
        let task = TaskId::from_u128(u128::from_be_bytes(task));
        let number = u64::from_be_bytes(bytes[17..].try_into().expect("eight bytes are eight"));
        match bytes[0] {
            0 => Some(UrgentMessage::Cancel(task)),
            1 => Some(UrgentMessage::CancelAlone(task)),
            2 => Some(UrgentMessage::DenyWait { task, limit: number as usize }),
            3 => Some(UrgentMessage::ItemsTaken { task, count: number as u32 }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_messages_round_trip() {
        let task = TaskId::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
        let not_wait = UrgentMessage::DenyWait { task, limit: 1_000 };
        let took = UrgentMessage::ItemsTaken { task, count: u32::MAX };
        for ask in [UrgentMessage::Cancel(task), UrgentMessage::CancelAlone(task), not_wait, took] {
            assert_eq!(UrgentMessage::decode(ask.encode()), Some(ask));
        }
        assert_eq!(UrgentMessage::decode([9; BYTES]), None);
    }
}
