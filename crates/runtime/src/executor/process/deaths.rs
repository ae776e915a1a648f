//! Sees processes die, children of this process or not: one thread waits for all of them, on descriptors
//! that stand for processes.

use marline_channel::oneshot;
use marline_core::map::Map;
use rustix::event::epoll;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;

/// How many deaths are taken at a time.
const EVENTS: usize = 64;

struct Deaths {
    epoll: OwnedFd,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    next: u64,
    processes: Map<u64, (OwnedFd, oneshot::Sender<()>)>,
}

/// Settled when this process has ended. It must not have been waited for yet.
pub(super) fn death(process: Pid) -> io::Result<oneshot::Receiver<()>> {
    let deaths = deaths()?;
    let descriptor = pidfd_open(process, PidfdFlags::empty())?;
    let (tell, told) = oneshot();
    let mut watched = deaths.watched();
    let number = watched.next;
    watched.next += 1;
    let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
    epoll::add(&deaths.epoll, &descriptor, epoll::EventData::new_u64(number), once)?;
    watched.processes.insert(number, (descriptor, tell));
    Ok(told)
}

fn deaths() -> io::Result<&'static Deaths> {
    static DEATHS: OnceLock<Deaths> = OnceLock::new();
    if let Some(deaths) = DEATHS.get() {
        return Ok(deaths);
    }
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut new = false;
    let deaths = DEATHS.get_or_init(|| {
        new = true;
        Deaths { epoll, watched: Mutex::default() }
    });
    if new {
        let watch = || {
            loop {
                deaths.see();
            }
        };
        thread::Builder::new().name("marline-deaths".into()).spawn(watch)?;
    }
    Ok(deaths)
}

impl Deaths {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().expect("nothing panics under it")
    }

    fn see(&self) {
        let mut events = Vec::with_capacity(EVENTS);
        // A signal, at most: whoever it is for sees to it.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None);
        for event in events {
            let seen = self.watched().processes.remove(&event.data.u64());
            if let Some((_, tell)) = seen {
                let _ = tell.send(());
            }
        }
    }
}
