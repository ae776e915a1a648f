//! Sessions: joining, fencing, watching, and what ends with a session.

use super::*;

#[test]
fn an_ended_session_releases_its_holds_and_cancels_its_tasks() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let object = ObjectId::of(task_id(90), 0);
    rig.client_says(client, FromClient::Put { object, value: value("kept"), at: None });
    rig.submit(client, task(1));
    let running = rig.assigns(worker, 1);
    rig.submit(client, task(2));
    assert_eq!(rig.controller.object_count_and_inline_bytes(), (1, 4));

    rig.dies(client);
    let order = ToWorker::CancelAttempt { attempt: running, mode: CancelMode::Force };
    assert_eq!(rig.next_to_worker(worker), order);
    assert_eq!(rig.state_of(2), TaskState::Cancelled, "it had not started");
    assert_eq!(rig.controller.object_count_and_inline_bytes(), (0, 0));

    rig.end(worker, running, AttemptEnd::Cancelled, None);
    assert_eq!(rig.state_of(1), TaskState::Cancelled);
    assert_eq!(rig.controller.holds().all_things().count(), 0);
    rig.nothing_left();
}

#[test]
fn a_session_ends_with_its_lease_and_its_later_messages_are_fenced() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.silent = vec![client];
    rig.pass(29 * SECOND);
    assert!(rig.controller.is_alive(client));
    rig.pass(SECOND);
    assert_eq!(
        rig.next(),
        Effect::EndSession { session: client, cause: SessionEndCause::LeaseOver }
    );

    rig.submit(client, task(1));
    assert_eq!(rig.next(), Effect::Fence(client));
    assert_eq!(rig.controller.counters().fenced, 1);
    assert_eq!(rig.controller.pending_tasks(), 0);
    rig.nothing_left();
}

#[test]
fn registering_again_ends_the_earlier_session_and_ignores_late_requests() {
    let mut rig = Rig::new();
    let before = rig.client(1);
    rig.happens(joins(before.id, 2, Role::Client));
    assert_eq!(
        rig.next(),
        Effect::EndSession { session: before, cause: SessionEndCause::Replaced }
    );
    let Effect::OpenSession(after) = rig.next() else { panic!("it may join again") };
    assert!(after.id == before.id && after.epoch > before.epoch);
    rig.effects.clear();

    rig.happens(joins(before.id, 1, Role::Client));
    assert!(rig.controller.is_alive(after));
    rig.nothing_left();
}

#[test]
fn a_host_that_watches_a_session_hears_of_its_end_once() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let watch = FromWorker::Watch { session: client };
    rig.worker_says(worker, watch.clone());
    rig.worker_says(worker, watch.clone());
    for _ in 0..2 {
        let watched = ToWorker::Watched { session: client, alive: true };
        assert_eq!(rig.next_to_worker(worker), watched);
    }

    rig.happens(Event::SessionClosed { session: client });
    assert_eq!(rig.next(), Effect::EndSession { session: client, cause: SessionEndCause::Closed });
    assert_eq!(rig.next_to_worker(worker), ToWorker::SessionEnded { session: client });
    rig.worker_says(worker, watch);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Watched { session: client, alive: false });
    rig.nothing_left();
}

#[test]
fn a_session_that_watches_itself_ends_without_harm() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.client_says(client, FromClient::Watch { session: client });
    rig.nothing_left(); // The session is open, so there is no answer.
    rig.worker_says(worker, FromWorker::Watch { session: worker });
    let watched = ToWorker::Watched { session: worker, alive: true };
    assert_eq!(rig.next_to_worker(worker), watched);
    rig.dies(client);
    rig.dies(worker);
    assert_eq!(rig.controller.session_count(), 0);
    rig.nothing_left();
}

#[test]
fn the_error_of_a_cancelled_task_says_that_its_client_ended() {
    let mut rig = Rig::new();
    let (client, other, worker) = (rig.client(1), rig.client(2), rig.worker(3, 1));
    rig.submit(client, task(1));
    let running = rig.assigns(worker, 1);
    rig.submit(client, task(2));
    for number in [1, 2] {
        rig.submit(other, task(number)); // Every submitter learns of the end.
    }
    rig.effects.clear();
    rig.dies(client);
    rig.next_to_worker(worker);
    let error = rig.ends(other, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let expected = format!("task {} (add) was stopped: its client ended", task_id(2));
    assert_eq!(error.message(), expected);
    rig.end(worker, running, AttemptEnd::Cancelled, None);
    let error = rig.ends(other, 1).unwrap_err();
    assert!(error.message().ends_with("was stopped: its client ended"), "{error}");
}
