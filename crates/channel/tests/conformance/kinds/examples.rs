//! The page's examples, compiled and run here, word for word.

use crate::{
    conformance::{join, run},
    page::examples,
};

#[test]
fn every_example_on_the_page_is_in_this_file() {
    let here: Vec<&str> = include_str!("examples.rs").lines().map(str::trim).collect();
    for example in examples() {
        let lines: Vec<&str> = example.iter().map(|line| line.trim()).collect();
        let found = here.windows(lines.len()).any(|window| window == lines.as_slice());
        assert!(found, "this example is not compiled here:\n{}", example.join("\n"));
    }
    assert!(!examples().is_empty());
}

#[test]
fn threads_and_tasks_share_a_channel() {
    use marline_channel::bounded;

    let (tx, rx) = bounded(16);
    let sender = std::thread::spawn(move || {
        for n in 0..100u64 {
            tx.send(n).wait().unwrap(); // a blocking thread …
        }
    });
    let sum = async {
        let mut sum = 0;
        // … and an async task on one channel
        while let Ok(n) = rx.recv().await {
            sum += n;
        }
        sum
    };
    assert_eq!(run(sum), 4950);
    join(sender);
}

#[test]
fn a_builder_sets_the_policy() {
    use marline_channel::{Builder, Overflow};

    let (tx, rx) = Builder::bounded(2)
        .overflow(Overflow::DropOldest)
        .name("frames")
        .on_drop(|frame: u32| println!("frame {frame} will never be received"))
        .build()
        .unwrap();
    for frame in 0..5 {
        tx.try_send(frame).unwrap();
    }
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn a_send_that_times_out_gives_its_value_back() {
    use marline_channel::{CancelToken, ErrorKind, bounded};
    use std::time::Duration;

    let (tx, rx) = bounded(1);
    let token = CancelToken::new();
    tx.send("first").wait().unwrap();
    let late = tx.send("second").timeout(Duration::from_millis(1)).cancel(&token).wait();
    let error = late.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.into_inner(), "second"); // the value comes back
    assert_eq!(rx.try_recv(), Ok("first"));
}

#[test]
fn a_select_runs_one_body() {
    use marline_channel::{bounded, select, unbounded};

    let (jobs_tx, jobs) = unbounded::<u32>();
    let (log, _log_rx) = bounded::<String>(1);
    jobs_tx.try_send(5).unwrap();
    let doubled = async {
        select! {
            biased;
            job = jobs.recv() => job.unwrap() * 2,
            _ = log.send("idle".to_string()) => 0,
        }
    };
    assert_eq!(run(doubled), 10);
}

#[test]
fn a_selector_has_the_value_of_its_chosen_clause() {
    use marline_channel::{Selector, unbounded};

    let (tx, numbers) = unbounded();
    let (_tx, words) = unbounded::<String>();
    tx.try_send(1).unwrap();
    let mut selector = Selector::new();
    let number = selector.recv(&numbers);
    let word = selector.recv(&words);
    if selector.next().wait() == Ok(number.index()) {
        assert_eq!(selector.received(&number), Some(Ok(1)));
    } else {
        println!("{:?}", selector.received(&word));
    }
}

#[cfg(feature = "metrics")]
#[test]
fn a_snapshot_counts_values_and_sends() {
    use marline_channel::bounded;

    let (tx, rx) = bounded(8);
    tx.try_send(1u64).unwrap();
    let before = rx.snapshot();
    assert_eq!((before.len, before.totals.sends), (1, 1));
    rx.try_recv().unwrap();
    println!("{} values a second", rx.snapshot().rate(&before).recvs);
}
