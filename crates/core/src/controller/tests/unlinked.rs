//! Callers without a link: their sessions, and the work that they submit.

use super::*;

impl Rig {
    fn opens(&mut self, number: u128) -> Result<Session, Error> {
        let id = SessionId::from_u128(number);
        self.ask(|controller, now, effects| controller.open_unlinked(now, id, effects))
    }

    fn keeps(&mut self, session: Session) -> Result<Duration, Error> {
        self.ask(|controller, now, effects| controller.keep_alive(now, session, effects))
    }

    fn closes(&mut self, session: Session) -> Result<(), Error> {
        self.ask(|controller, now, effects| controller.close_unlinked(now, session, effects))
    }

    fn submit_for(&mut self, session: Option<Session>, spec: TaskSpec) -> Result<(), Error> {
        let spec = Arc::new(spec);
        self.ask(|controller, now, effects| controller.submit_for(now, session, spec, effects))
    }

    fn create_for(
        &mut self,
        session: Option<Session>,
        spec: ActorSpec,
    ) -> Result<(ActorId, bool), Error> {
        let spec = Arc::new(spec);
        self.ask(|controller, now, effects| controller.create_for(now, session, spec, effects))
    }

    fn cancels(&mut self, task: u128, force: bool) -> Result<bool, Error> {
        let id = task_id(task);
        self.ask(|controller, now, effects| controller.cancel_for(now, id, force, effects))
    }

    fn awaits(&mut self, task: u128) -> Result<bool, Error> {
        self.ask(|controller, _, _| controller.await_task(task_id(task)))
    }

    fn is_over(&mut self, session: Session, cause: SessionEndCause) {
        assert_eq!(self.next(), Effect::EndSession { session, cause });
    }
}

fn detached(number: u128) -> ActorSpec {
    actor_with(number, ActorOptions { lifetime: Lifetime::Detached, ..ActorOptions::default() })
}

#[test]
fn a_session_without_a_link_is_never_pinged_and_ends_exactly_with_its_lease() {
    let mut rig = Rig::new();
    let session = rig.opens(1).unwrap();
    rig.pass(29 * SECOND);
    assert_eq!(rig.keeps(session), Ok(30 * SECOND));
    rig.pass(30 * SECOND - Duration::from_nanos(1));
    rig.nothing_left();
    assert!(rig.controller.is_alive(session));
    rig.pass(Duration::from_nanos(1));
    rig.is_over(session, SessionEndCause::LeaseOver);
    assert_eq!(rig.keeps(session).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(rig.controller.session_count(), 0);
    rig.nothing_left();
}

#[test]
fn a_request_at_the_end_of_a_lease_is_fenced_even_before_the_timer() {
    let mut rig = Rig::new();
    let session = rig.opens(1).unwrap();
    rig.now = Time::ZERO + 30 * SECOND;
    assert_eq!(rig.submit_for(Some(session), task(1)).unwrap_err().kind(), ErrorKind::Fenced);
    rig.is_over(session, SessionEndCause::LeaseOver);
    assert_eq!(rig.controller.pending_tasks(), 0);
    // Opening the session again gives another epoch.
    let again = rig.opens(1).unwrap();
    assert!(again.id == session.id && again.epoch > session.epoch);
    rig.nothing_left();
}

#[test]
fn opening_a_session_twice_returns_it_and_renews_its_lease() {
    let mut rig = Rig::new();
    let session = rig.opens(1).unwrap();
    rig.pass(20 * SECOND);
    assert_eq!(rig.opens(1), Ok(session));
    rig.pass(20 * SECOND);
    assert!(rig.controller.is_alive(session));
    rig.nothing_left();
}

#[test]
fn requests_without_a_link_cannot_use_a_session_with_a_link() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    assert_eq!(rig.opens(1).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(rig.keeps(client).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(rig.closes(client).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(rig.submit_for(Some(client), task(1)).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(rig.controller.is_alive(client));
    rig.nothing_left();
}

#[test]
fn sessions_beyond_max_unlinked_sessions_fail_and_name_the_limit() {
    let mut rig = Rig::with(Config { max_unlinked_sessions: 1, ..Config::default() });
    let session = rig.opens(1).unwrap();
    let error = rig.opens(2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("the limit is 1 (max_unlinked_sessions)"), "{error}");
    rig.closes(session).unwrap();
    rig.is_over(session, SessionEndCause::Closed);
    rig.opens(2).unwrap();
    rig.nothing_left();
}

#[test]
fn closing_a_session_cancels_its_tasks_and_deletes_its_actors() {
    let mut rig = Rig::new();
    let worker = rig.worker(2, 2);
    let session = rig.opens(1).unwrap();
    rig.submit_for(Some(session), task(1)).unwrap();
    let first = rig.assigns(worker, 1);
    rig.finish(worker, first);
    assert!(rig.holds(session, Referent::Object(ObjectId::of(task_id(1), 0))));
    rig.nothing_left(); // The session has no link, so nothing is sent to it.
    rig.submit_for(Some(session), task(2)).unwrap();
    let running = rig.assigns(worker, 2);
    let (actor, created) = rig.create_for(Some(session), actor(7)).unwrap();
    assert!(created);
    let instance = rig.instantiates(worker, actor);

    rig.closes(session).unwrap();
    rig.is_over(session, SessionEndCause::Closed);
    let cancel = ToWorker::CancelAttempt { attempt: running, mode: CancelMode::Force };
    assert_eq!(rig.next_to_worker(worker), cancel);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Destroy(instance));
    assert_eq!(rig.controller.object_count_and_inline_bytes(), (0, 0));
    assert_eq!(rig.closes(session).unwrap_err().kind(), ErrorKind::Fenced);
    rig.nothing_left();
}

#[test]
fn without_a_session_an_actor_must_be_detached_and_a_call_is_ownerless() {
    let mut rig = Rig::new();
    let worker = rig.worker(2, 1);
    let error = rig.create_for(None, actor(7)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let id = rig.create_for(None, detached(7)).unwrap().0;
    assert_eq!(rig.create_for(None, detached(7)), Ok((id, false)), "it was created before");
    let instance = rig.instantiates(worker, id);
    rig.worker_says(worker, FromWorker::ActorReady { instance });
    rig.submit_for(None, call(1, id)).unwrap();
    let called = rig.executes(worker, 1);
    rig.finish(worker, called);
    assert_eq!(rig.controller.task_result(task_id(1)), Ok(Ok(vec![value("done")])));
    // Submitting the same call again does not run it again.
    rig.submit_for(None, call(1, id)).unwrap();
    rig.nothing_left();
}

#[test]
fn a_call_that_would_fail_at_once_is_rejected() {
    let mut rig = Rig::new();
    let worker = rig.worker(2, 1);
    let nobody = ActorId::from_u128(9);
    let refused = |rig: &mut Rig, id| rig.submit_for(None, call(1, id)).unwrap_err().kind();
    assert_eq!(refused(&mut rig, nobody), ErrorKind::NotFound);
    let options = ActorOptions {
        lifetime: Lifetime::Detached,
        max_pending_calls: 0,
        ..ActorOptions::default()
    };
    let id = rig.create_for(None, actor_with(7, options)).unwrap().0;
    let instance = rig.instantiates(worker, id);
    assert_eq!(refused(&mut rig, id), ErrorKind::Exhausted);
    let error = raised("ValueError");
    rig.worker_says(worker, FromWorker::ActorFailed { instance, error });
    assert_eq!(refused(&mut rig, id), ErrorKind::Gone, "user code's failure is the cause");
    assert_eq!(rig.controller.pending_tasks(), 0);
    rig.nothing_left();
}

#[test]
fn max_pending_tasks_limits_sessions_without_a_link_too() {
    let mut rig = Rig::with(Config { max_pending_tasks: 1, ..Config::default() });
    let session = rig.opens(1).unwrap();
    rig.submit_for(Some(session), task(1)).unwrap();
    rig.submit_for(Some(session), task(1)).unwrap();
    let error = rig.submit_for(Some(session), task(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("(max_pending_tasks)"), "{error}");
    rig.nothing_left();
}

#[test]
fn a_second_session_that_submits_a_task_holds_its_results_too() {
    let mut rig = Rig::new();
    let worker = rig.worker(2, 1);
    let (first, second) = (rig.opens(3).unwrap(), rig.opens(4).unwrap());
    rig.submit_for(Some(first), task(1)).unwrap();
    let attempt = rig.assigns(worker, 1);
    rig.submit_for(Some(second), task(1)).unwrap();
    rig.finish(worker, attempt);
    rig.closes(first).unwrap();
    rig.is_over(first, SessionEndCause::Closed);
    assert_eq!(rig.controller.task_result(task_id(1)), Ok(Ok(vec![value("done")])));
    rig.nothing_left();
}

#[test]
fn the_end_of_an_awaited_task_wakes_its_waiters() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    rig.submit(client, task(1));
    rig.submit_ownerless(task(2)).unwrap();
    let attempts = [rig.assigns(worker, 1), rig.assigns(worker, 2)];
    assert_eq!(rig.awaits(1), Ok(true));
    rig.finish(worker, attempts[0]);
    assert_eq!(rig.next(), Effect::WakeTaskWaiters(task_id(1)));
    rig.ends(client, 1).unwrap();
    rig.finish(worker, attempts[1]);
    rig.nothing_left(); // No caller awaited the other task.
    assert_eq!(rig.awaits(2), Ok(false));
    assert_eq!(rig.awaits(3).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn cancelling_a_task_returns_whether_it_was_in_time() {
    let mut rig = Rig::new();
    rig.submit_for(None, task(1)).unwrap();
    assert_eq!(rig.awaits(1), Ok(true));
    assert_eq!(rig.cancels(1, false), Ok(true));
    assert_eq!(rig.next(), Effect::WakeTaskWaiters(task_id(1)));
    assert_eq!(rig.cancels(1, false), Ok(false));
    assert_eq!(rig.cancels(2, false).unwrap_err().kind(), ErrorKind::NotFound);
    rig.nothing_left();
}

#[test]
fn held_results_are_found_after_the_history_has_dropped_their_task() {
    let mut rig = Rig::with(Config { history: 1, ..Config::default() });
    let worker = rig.worker(2, 1);
    let session = rig.opens(1).unwrap();
    for number in 1..=3 {
        rig.submit_for(Some(session), task(number)).unwrap();
        let attempt = rig.assigns(worker, number);
        rig.finish(worker, attempt);
    }
    assert_eq!(rig.controller.task_status(task_id(1)).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(rig.controller.task_result(task_id(1)), Ok(Ok(vec![value("done")])));
    assert_eq!(rig.awaits(1), Ok(false));
    let unknown = rig.controller.task_result(task_id(9)).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    rig.nothing_left();
}

#[test]
fn task_result_ignores_put_values_and_incomplete_results() {
    let mut rig = Rig::with(Config { history: 1, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let put = ObjectId::of(task_id(90), 0);
    rig.client_says(client, FromClient::Put { object: put, value: value("kept"), at: None });
    assert_eq!(rig.controller.task_result(task_id(90)).unwrap_err().kind(), ErrorKind::NotFound);
    rig.submit(client, TaskSpec { returns: 2, ..task(1) });
    let attempt = rig.assigns(worker, 1);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![value("one"), value("two")]), None);
    rig.ends(client, 1).unwrap();
    rig.submit(client, task(2));
    let attempt = rig.assigns(worker, 2);
    rig.finish(worker, attempt);
    rig.ends(client, 2).unwrap();
    let both = vec![value("one"), value("two")];
    assert_eq!(rig.controller.task_result(task_id(1)), Ok(Ok(both)));
    let thing = Referent::Object(ObjectId::of(task_id(1), 1));
    rig.client_says(client, FromClient::Release { thing });
    assert_eq!(rig.controller.task_result(task_id(1)).unwrap_err().kind(), ErrorKind::NotFound);
    rig.nothing_left();
}
