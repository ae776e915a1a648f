//! `wait_interruptible` returns when a signal handler ran. The operation can go on.

use std::{
    os::unix::thread::JoinHandleExt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use marline_channel::{ErrorKind, Select, Sent, rendezvous};

use crate::conformance::{PATIENCE, join, until};

/// How often each signal was handled.
static HANDLED: [AtomicUsize; 65] = [const { AtomicUsize::new(0) }; 65];

extern "C" fn handler(signal: libc::c_int) {
    HANDLED[signal as usize].fetch_add(1, Ordering::SeqCst);
}

/// Installs a handler for `signal` that only counts.
fn handle(signal: libc::c_int, flags: libc::c_int) {
    // SAFETY: the action is valid, and its handler only touches an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = flags;
        libc::sigemptyset(&mut action.sa_mask);
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Sends a signal to a thread, which may have ended just now.
fn signal<T>(thread: &thread::JoinHandle<T>, signal: libc::c_int) {
    // SAFETY: the thread was not joined, so its id is valid.
    let result = unsafe { libc::pthread_kill(thread.as_pthread_t(), signal) };
    assert!(matches!(result, 0 | libc::ESRCH), "pthread_kill says {result}");
}

/// Sends the signal until it interrupts a wait: a sleep does not see a signal that came just before
/// it.
fn a_signal_interrupts_and_the_operation_goes_on(number: libc::c_int, flags: libc::c_int) {
    handle(number, flags);
    let (tx, rx) = rendezvous();
    let interruptions = Arc::new(AtomicUsize::new(0));
    let (end, seen) = (rx.clone(), interruptions.clone());
    let waiter = thread::spawn(move || {
        let mut op = pin!(end.recv());
        loop {
            match op.as_mut().wait_interruptible() {
                Ok(received) => return received,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Interrupted);
                    seen.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    });
    until("the thread waits", || rx.snapshot().waiting_recv == 1);
    until("the thread is interrupted", || {
        signal(&waiter, number);
        interruptions.load(Ordering::SeqCst) > 0
    });
    assert_eq!(rx.snapshot().waiting_recv, 1, "the operation is still in its line");
    assert_eq!(tx.try_send(1), Ok(Sent::Accepted));
    assert_eq!(join(waiter), Ok(1));
}

#[test]
fn a_signal_interrupts_a_wait_and_the_operation_goes_on() {
    a_signal_interrupts_and_the_operation_goes_on(libc::SIGUSR1, 0);
}

#[test]
fn a_signal_with_sa_restart_interrupts_a_wait_too() {
    a_signal_interrupts_and_the_operation_goes_on(libc::SIGUSR2, libc::SA_RESTART);
}

#[test]
fn an_interrupted_send_keeps_its_value() {
    handle(libc::SIGWINCH, 0);
    let (tx, rx) = rendezvous();
    let waiter = thread::spawn(move || {
        let mut op = pin!(tx.send(7));
        match op.as_mut().wait_interruptible() {
            Ok(_) => panic!("nobody receives"),
            Err(error) => (error.kind(), op.into_unsent()),
        }
    });
    until("the thread waits", || rx.snapshot().waiting_send == 1);
    until("the thread is interrupted", || {
        signal(&waiter, libc::SIGWINCH);
        waiter.is_finished()
    });
    assert_eq!(join(waiter), (ErrorKind::Interrupted, Some(7)));
    assert!(rx.try_recv().unwrap_err().is_closed());
}

#[test]
fn a_select_is_interrupted_and_goes_on() {
    handle(libc::SIGURG, 0);
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    let interruptions = Arc::new(AtomicUsize::new(0));
    let (end, seen) = (rx.clone(), interruptions.clone());
    let waiter = thread::spawn(move || {
        let select = Select::new().on(end.recv(), Some).on(other_rx.recv(), |_| None);
        let mut op = pin!(select);
        loop {
            match op.as_mut().wait_interruptible() {
                Ok(selected) => return selected.unwrap(),
                Err(_) => seen.fetch_add(1, Ordering::SeqCst),
            };
        }
    });
    until("the thread waits", || rx.snapshot().waiting_recv == 1);
    until("the thread is interrupted", || {
        signal(&waiter, libc::SIGURG);
        interruptions.load(Ordering::SeqCst) > 0
    });
    assert_eq!(tx.send(1).timeout(PATIENCE).wait(), Ok(Sent::Accepted));
    assert_eq!(join(waiter), Some(Ok(1)));
}

#[test]
fn a_plain_wait_is_not_interrupted() {
    handle(libc::SIGCONT, 0);
    let (tx, rx) = rendezvous();
    let end = rx.clone();
    let waiter = thread::spawn(move || end.recv().wait());
    until("the thread waits", || rx.snapshot().waiting_recv == 1);
    until("the handler ran often", || {
        signal(&waiter, libc::SIGCONT);
        HANDLED[libc::SIGCONT as usize].load(Ordering::SeqCst) >= 50
    });
    assert_eq!(rx.snapshot().waiting_recv, 1);
    tx.try_send(1).unwrap();
    assert_eq!(join(waiter), Ok(1));
}
