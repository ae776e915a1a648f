//! An actor as one writes it with tokio: a task that owns its state and receives messages, each
//! with a channel for the answer. The caller blocks a thread of its own, as our callers do.

use crate::contest::Contestant;
use tokio::sync::{mpsc, oneshot};

pub const NAME: &str = "tokio mpsc + oneshot";

/// The most messages that may wait in the mailbox.
const CAPACITY: usize = 1024;

type Message = (u64, oneshot::Sender<u64>);

pub fn contestant() -> Contestant {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime starts");
    let (mailbox, mut inbox) = mpsc::channel::<Message>(CAPACITY);
    runtime.spawn(async move {
        while let Some((value, answer)) = inbox.recv().await {
            let _ = answer.send(value);
        }
    });
    let same = mailbox.clone();
    let ask = |mailbox: &mpsc::Sender<Message>| {
        let (answer, answered) = oneshot::channel();
        mailbox.blocking_send((7, answer)).expect("the actor lives");
        answered
    };
    let once = move || {
        let _keep = &runtime;
        ask(&mailbox).blocking_recv().expect("the actor answers");
    };
    let bulk = move |count| {
        let all: Vec<_> = (0..count).map(|_| ask(&same)).collect();
        all.into_iter().for_each(|one| assert_eq!(one.blocking_recv(), Ok(7)));
    };
    Contestant { name: NAME, once: Box::new(once), bulk: Some(Box::new(bulk)) }
}
