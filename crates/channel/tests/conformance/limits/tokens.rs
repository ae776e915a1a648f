//! Cancel tokens and their trees.

use std::{pin::pin, task::Poll, thread};

use marline_channel::{CancelToken, ErrorKind, rendezvous, unbounded};

use crate::{
    Failed,
    conformance::{Wakes, join, park, poll_with, ready, until},
};

#[test]
fn a_token_triggers_its_children_and_grandchildren() {
    let token = CancelToken::new();
    let children: Vec<_> = (0..3).map(|_| token.child()).collect();
    let grandchildren: Vec<_> = children.iter().map(|child| child.child()).collect();
    assert!(!grandchildren.iter().any(CancelToken::is_cancelled));
    token.cancel();
    assert!(children.iter().chain(&grandchildren).all(CancelToken::is_cancelled));
}

#[test]
fn a_child_triggers_neither_its_parent_nor_its_siblings() {
    let token = CancelToken::new();
    let (child, sibling) = (token.child(), token.child());
    child.cancel();
    assert_eq!([child, token, sibling].map(|token| token.is_cancelled()), [true, false, false]);
}

#[test]
fn the_child_of_a_triggered_token_is_triggered() {
    let token = CancelToken::new();
    token.cancel();
    assert!(token.child().is_cancelled());
}

#[test]
fn a_clone_is_the_same_token() {
    let token = CancelToken::new();
    let clone = token.clone();
    clone.cancel();
    assert!(token.is_cancelled());
}

#[test]
fn a_token_triggered_twice_wakes_once() {
    let (_tx, rx) = unbounded::<u32>();
    let token = CancelToken::new();
    let (wakes, waker) = Wakes::pair();
    let mut op = pin!(rx.recv().cancel(&token));
    assert!(poll_with(op.as_mut(), &waker).is_pending());
    token.cancel();
    token.cancel();
    assert_eq!(wakes.count(), 1);
}

#[test]
fn a_token_cancels_operations_of_its_grandchildren() {
    let (_tx, rx) = rendezvous::<u32>();
    let token = CancelToken::new();
    let grandchild = token.child().child(); // the child itself is dropped
    let waiter = {
        let rx = rx.clone();
        thread::spawn(move || rx.recv().cancel(&grandchild).wait())
    };
    until("the receive waits", || rx.snapshot().waiting_recv == 1);
    token.cancel();
    assert_eq!(join(waiter).kind(), ErrorKind::Cancelled);
}

#[test]
fn dropping_a_token_triggers_nothing() {
    let (tx, rx) = unbounded();
    let token = CancelToken::new();
    let mut own = pin!(rx.recv().cancel(&token));
    let mut childs = pin!(rx.recv().cancel(&token.child()));
    park(own.as_mut());
    park(childs.as_mut());
    drop(token);
    park(own.as_mut());
    tx.try_send(1).unwrap();
    tx.try_send(2).unwrap();
    assert_eq!((ready(own), ready(childs)), (Ok(1), Ok(2)));
}

#[test]
fn one_token_ends_many_operations_on_many_channels() {
    let channels: Vec<_> = (0..40).map(|_| rendezvous::<u32>()).collect();
    let token = CancelToken::new();
    let (wakes, waker) = Wakes::pair();
    let mut ops: Vec<_> =
        channels.iter().map(|(_, rx)| Box::pin(rx.recv().cancel(&token))).collect();
    for op in &mut ops {
        assert!(poll_with(op.as_mut(), &waker).is_pending());
    }
    token.cancel();
    assert_eq!(wakes.count(), 40);
    assert!(ops.iter_mut().all(|op| ready(op.as_mut()).kind() == ErrorKind::Cancelled));
}

#[test]
fn an_ended_operation_is_not_woken_by_its_token() {
    let (tx, rx) = unbounded();
    let token = CancelToken::new();
    let (wakes, waker) = Wakes::pair();
    {
        let mut op = pin!(rx.recv().cancel(&token));
        assert!(poll_with(op.as_mut(), &waker).is_pending());
        tx.try_send(1).unwrap();
        assert_eq!(poll_with(op.as_mut(), &waker), Poll::Ready(Ok(1)));
    }
    let woken = wakes.count();
    token.cancel();
    assert_eq!(wakes.count(), woken, "no operation is left to wake");
}

#[test]
fn a_long_chain_of_tokens_is_triggered_and_dropped_without_recursion() {
    let token = CancelToken::new();
    let mut last = token.child();
    for _ in 0..200_000 {
        last = last.child();
    }
    token.cancel();
    assert!(last.is_cancelled());
    drop(token);
    drop(last);
}

#[test]
fn a_token_triggers_the_children_that_were_not_dropped() {
    let token = CancelToken::new();
    let mut kept = vec![];
    for n in 0..10_000 {
        let child = token.child();
        if n % 100 == 0 {
            kept.push(child);
        }
    }
    token.cancel();
    assert!(kept.iter().all(CancelToken::is_cancelled));
}

#[test]
fn children_made_while_the_token_is_triggered_are_triggered() {
    for _ in 0..200 {
        let token = CancelToken::new();
        let maker = {
            let token = token.clone();
            thread::spawn(move || (0..20).map(|_| token.child()).collect::<Vec<_>>())
        };
        token.cancel();
        assert!(join(maker).iter().all(CancelToken::is_cancelled));
    }
}
