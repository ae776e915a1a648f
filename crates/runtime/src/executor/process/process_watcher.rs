//! Sees processes die, children of this process or not: one thread waits for all of them, on descriptors
//! that stand for processes.

use crate::per_process::PerProcess;
use marline_channel::oneshot;
use marline_core::map::Map;
use rustix::event::epoll;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// How many deaths are taken at a time.
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

/// Settled when this process has ended. It must not have been waited for yet.
pub(super) fn death(process: Pid) -> io::Result<oneshot::Receiver<()>> {
    let (deaths, epoll) = deaths()?;
    let descriptor = pidfd_open(process, PidfdFlags::empty())?;
    let (tell, told) = oneshot();
    let mut watched = deaths.watched();
    let number = watched.next;
    watched.next += 1;
    let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
    epoll::add(&epoll, &descriptor, epoll::EventData::new_u64(number), once)?;
    watched.processes.insert(number, (descriptor, tell));
    Ok(told)
}

fn deaths() -> io::Result<(&'static ProcessWatcher, Arc<OwnedFd>)> {
    static DEATHS: PerProcess<ProcessWatcher> = PerProcess::new();
    let deaths = DEATHS.get_or_init(ProcessWatcher::default);
    // Started when it is first needed, and then for good.
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
        // A signal, at most: whoever it is for sees to it.
        let _ = epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None);
        for event in events {
            let seen = self.watched().processes.remove(&event.data.u64());
            if let Some((_, tell)) = seen {
                let _ = tell.send(());
            }
        }
    }
}
