//! A small pipeline: threads and async tasks on the same channels, a select, a deadline that fires,
//! a cancel, and a drop policy. At the end the books must be balanced
//! (sent = received + returned + dropped), or the program fails.
//!
//! `make demo`, or `cargo run --release -p marline-channel --example pipeline`.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use futures_executor::block_on;
use marline_channel::{
    Builder, CancelToken, ErrorKind, Overflow, Snapshot, bounded, rendezvous, select_blocking,
};

const ORDERS: u64 = 100_000;

/// The books: every value that was sent must be received, returned or dropped.
#[derive(Default)]
struct Books {
    sent: AtomicU64,
    received: AtomicU64,
    returned: AtomicU64,
    dropped: AtomicU64,
}

impl Books {
    fn balance(&self) -> bool {
        let [sent, received, returned, dropped] =
            [&self.sent, &self.received, &self.returned, &self.dropped].map(|n| n.load(Relaxed));
        println!("\n  sent {sent} = received {received} + returned {returned} + dropped {dropped}");
        sent == received + returned + dropped
    }
}

fn main() -> ExitCode {
    let books = Arc::new(Books::default());
    let log = books.clone();
    // Orders come from a thread and from an async task, on one channel …
    let (orders_tx, orders_rx) = bounded::<u64>(64);
    // … go through two workers, again a thread and a task, that meet the kitchen one by one …
    let (kitchen_tx, kitchen_rx) = rendezvous::<u64>();
    // … while a display shows the latest few, and drops the orders that it has no time for.
    let (display_tx, display_rx) = Builder::bounded(8)
        .name("display")
        .overflow(Overflow::DropOldest)
        .on_drop(move |_order: u64| {
            log.dropped.fetch_add(1, Relaxed);
        })
        .build()
        .expect("these options fit together");
    let closing = CancelToken::new();

    thread::scope(|scope| {
        let books = &*books;
        let (from_thread, from_task) = (orders_tx.clone(), orders_tx);
        scope.spawn(move || {
            for order in 0..ORDERS / 2 {
                books.sent.fetch_add(1, Relaxed);
                from_thread.send(order).wait().expect("the workers are there");
            }
        });
        scope.spawn(move || {
            block_on(async {
                for order in ORDERS / 2..ORDERS {
                    books.sent.fetch_add(1, Relaxed);
                    from_task.send(order).await.expect("the workers are there");
                }
            })
        });

        let (worker_rx, worker_tx) = (orders_rx.clone(), kitchen_tx.clone());
        scope.spawn(move || {
            for order in &worker_rx {
                worker_tx.send(order).wait().expect("the kitchen is there");
            }
        });
        let task_display = display_tx.clone();
        scope.spawn(move || {
            block_on(async {
                // This worker also sends each order to the display, which the books count again.
                while let Ok(order) = orders_rx.recv().await {
                    books.sent.fetch_add(1, Relaxed);
                    task_display.send(order).await.expect("the display is there");
                    kitchen_tx.send(order).await.expect("the kitchen is there");
                }
            })
        });

        // The kitchen cooks. Every 16 orders it takes whichever is ready, an order or a frame of
        // the display. So the display falls behind and drops its oldest orders.
        let token = closing.clone();
        let kitchen = scope.spawn(move || {
            let (mut cooked, mut shown) = (0u64, 0u64);
            loop {
                if cooked % 16 != 0 && kitchen_rx.recv().wait().is_ok() {
                    cooked += 1;
                    continue;
                }
                select_blocking! {
                    skip_closed;
                    cancel(&token);
                    order = kitchen_rx.recv() => { order.expect("skipped when closed"); cooked += 1; }
                    frame = display_rx.recv() => { frame.expect("skipped when closed"); shown += 1; }
                    else _ended => break,
                }
            }
            books.received.fetch_add(cooked + shown, Relaxed);
            (cooked, shown, kitchen_rx.snapshot(), display_rx.snapshot())
        });

        // Meanwhile two sends fail, and their values come back.
        let (impatient_tx, _nobody_receives) = rendezvous::<&str>();
        books.sent.fetch_add(2, Relaxed);
        let late = impatient_tx.send("soup").timeout(Duration::from_millis(5)).wait();
        let late = late.expect_err("nobody receives");
        assert_eq!(late.kind(), ErrorKind::Timeout);
        println!("  a deadline fired: {late}; {:?} is back", late.value());
        let token = closing.child();
        let canceller = token.clone();
        let watched = impatient_tx.clone();
        scope.spawn(move || {
            while watched.snapshot().waiting_send == 0 {
                thread::yield_now();
            }
            canceller.cancel();
        });
        let cancelled = block_on(impatient_tx.send("salad").cancel(&token));
        let cancelled = cancelled.expect_err("nobody receives");
        assert_eq!(cancelled.kind(), ErrorKind::Cancelled);
        println!("  a send was cancelled: {cancelled}; {:?} is back", cancelled.value());
        books.returned.fetch_add(2, Relaxed);

        drop(display_tx);
        let (cooked, shown, kitchen, display) = kitchen.join().expect("the kitchen works");
        println!("  the kitchen cooked {cooked} orders and saw {shown} frames of the display\n");
        print_table(&[
            ("kitchen", kitchen),
            ("display", display),
            ("impatient", impatient_tx.snapshot()),
        ]);
    });

    if books.balance() {
        println!("  the books are balanced");
        ExitCode::SUCCESS
    } else {
        println!("  the books are NOT balanced");
        ExitCode::FAILURE
    }
}

fn print_table(rows: &[(&str, Snapshot)]) {
    println!(
        "  {:<10} {:<11} {:>8} {:>9} {:>9} {:>10} {:>8} {:>9} {:>8}",
        "channel",
        "kind",
        "capacity",
        "sends",
        "recvs",
        "high water",
        "timeout",
        "cancelled",
        "dropped"
    );
    for (name, snapshot) in rows {
        let totals = snapshot.totals;
        println!(
            "  {name:<10} {:<11} {:>8} {:>9} {:>9} {:>10} {:>8} {:>9} {:>8}",
            snapshot.kind,
            snapshot.capacity.map_or("none".into(), |capacity| capacity.to_string()),
            totals.sends,
            totals.recvs,
            snapshot.high_water,
            totals.send_timeout,
            totals.send_cancelled,
            totals.dropped_oldest + totals.undelivered,
        );
    }
}
