//! Notices the deaths of processes, children of this process or not. One thread waits for all of
//! them, on process descriptors (pidfds).

use crate::per_process::PerProcess;
use marline_channel::oneshot;
use marline_core::map::Map;
use rustix::event::epoll;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// How many deaths are handled at a time.
const EVENTS: usize = 64;

#[derive(Default)]
struct ProcessWatcher {
    epoll: Mutex<Option<Arc<OwnedFd>>>,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    next: u64,
    processes: Map<u64, (OwnedFd, oneshot::Sender<()>)>,
}

/// Returns a receiver that settles when this process has ended. The process must not be reaped yet.
pub(super) fn death(process: Pid) -> io::Result<oneshot::Receiver<()>> {
    let (deaths, epoll) = deaths()?;
    let descriptor = pidfd_open(process, PidfdFlags::empty())?;
    let (sender, receiver) = oneshot();
    let mut watched = deaths.watched();
    let number = watched.next;
    watched.next += 1;
    let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
    epoll::add(&epoll, &descriptor, epoll::EventData::new_u64(number), once)?;
    watched.processes.insert(number, (descriptor, sender));
    Ok(receiver)
}

fn deaths() -> io::Result<(&'static ProcessWatcher, Arc<OwnedFd>)> {
    static DEATHS: PerProcess<ProcessWatcher> = PerProcess::new();
    let deaths = DEATHS.get_or_init(ProcessWatcher::default);
    // The thread starts when it is first needed, and then runs for good.
    let mut epoll = deaths.epoll.lock().expect("nothing panics under it");
    if epoll.is_none() {
        let new = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let watched = new.clone();
        let watch = move || {
            loop {
                deaths.see(&watched);
            }
        };
        thread::Builder::new().name("marline-deaths".into()).spawn(watch)?;
        *epoll = Some(new);
    }
    Ok((deaths, epoll.clone().expect("it is there now")))
}

impl ProcessWatcher {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().expect("nothing panics under it")
    }

    fn see(&self, epoll: &OwnedFd) {
        let mut events = Vec::with_capacity(EVENTS);
        // The only possible error is an interruption by a signal, which is handled elsewhere.
        let _ = epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None);
        for event in events {
            let seen = self.watched().processes.remove(&event.data.u64());
            if let Some((_, sender)) = seen {
                let _ = sender.send(());
            }
        }
    }
}
