//! Work that no worker here can run.

use super::*;
use crate::error::Ran;

fn divide(number: u128) -> TaskSpec {
    TaskSpec { target: Target::Function("divide".into()), ..task(number) }
}

fn python(number: u128, made_with: u32) -> TaskSpec {
    let args = Payload { code_version: made_with, ..Payload::raw("code") };
    TaskSpec { target: Target::Function("python:f".into()), args, ..task(number) }
}

impl Rig {
    fn worker_providing(&mut self, number: u128, names: &[&str], code_version: u32) -> Session {
        let names = names.iter().map(|name| Arc::from(*name)).collect();
        let provides =
            Arc::new(WorkerCapabilities { names, code_version, ..WorkerCapabilities::default() });
        let hostname = format!("node-{number}");
        let resources = Resources::cpus(1);
        let info = WorkerInfo { hostname, resources, provides, ..WorkerInfo::default() };
        self.happens(joins(SessionId::from_u128(number), 1, Role::Worker(info)));
        let Effect::OpenSession(session) = self.next() else { panic!("the worker may join") };
        self.worker_says(session, FromWorker::Joined);
        session
    }

    fn warns(&mut self, client: Session) -> String {
        let message = self.next_to_client(client);
        let ToClient::Warning { words } = message else { panic!("no warning: {message:?}") };
        words
    }
}

#[test]
fn an_unknown_task_fails_after_unknown_task_wait_once_a_worker_is_here() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.submit(client, divide(1));
    rig.pass(10 * SECOND);
    assert!(rig.warns(client).contains("no worker is here"));
    rig.pass(600 * SECOND);
    rig.nothing_left();

    rig.worker(2, 1);
    let why = "no worker provides \"divide\": those here provide \"actor:*\", \"add\", \"mul\"";
    assert_eq!(rig.why_waits(1), why);
    rig.pass(59 * SECOND);
    assert!(rig.warns(client).contains(why), "once more, since the reason is another");
    rig.nothing_left();
    rig.pass(8 * SECOND);
    let error = rig.ends(client, 1).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::NotFound, false));
    assert!(error.message().starts_with(why), "{error}");
    assert!(error.message().contains("60s (unknown_task_wait)"), "{error}");
    rig.nothing_left();
}

#[test]
fn an_unknown_task_runs_if_a_worker_that_provides_it_joins_in_time() {
    let mut rig = Rig::new();
    let (client, _) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, divide(1));
    rig.pass(50 * SECOND);
    rig.warns(client);
    let knows = rig.worker_providing(3, &["divide"], 0);
    let attempt = rig.assigns(knows, 1);
    rig.submit(client, divide(2));
    // The wait of the second task begins when the worker that could run it is gone.
    rig.dies(knows);
    rig.pass(55 * SECOND);
    rig.nothing_left();
    rig.pass(12 * SECOND);
    for number in [1, 2] {
        let error = rig.ends(client, number).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.may_have_run(), number == 1, "{attempt:?} was lost");
    }
    rig.nothing_left();
}

#[test]
fn a_task_too_large_for_every_worker_stays_pending() {
    let mut rig = Rig::new();
    let (client, _) = (rig.client(1), rig.worker(2, 1));
    let large = TaskOptions { resources: Resources::cpus(9), ..TaskOptions::default() };
    rig.submit(client, task_with(1, large));
    rig.pass(600 * SECOND);
    rig.warns(client);
    rig.nothing_left();
    assert_eq!(rig.state_of(1), TaskState::Pending);
}

#[test]
fn code_waits_for_its_python_version_and_finally_fails_as_incompatible() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let old = rig.worker_providing(2, &["python:*"], 11);
    rig.submit(client, python(1, 13));
    rig.submit(client, python(2, 11));
    rig.assigns(old, 2);
    let why = "no worker has Python 3.13, which its code needs: those here have Python 3.11";
    assert_eq!(rig.why_waits(1), why);
    rig.pass(50 * SECOND);
    rig.warns(client);
    let new = rig.worker_providing(3, &["python:*"], 13);
    rig.assigns(new, 1);

    // The code of an actor or a task may be one of the values that it needs.
    let code = ObjectId::of(task_id(90), 0);
    let value = Payload { code_version: 12, ..Payload::raw("code") }.into();
    rig.client_says(client, FromClient::Put { object: code, value, at: None });
    rig.submit(client, TaskSpec { needs: vec![code], ..python(3, 0) });
    rig.pass(70 * SECOND);
    assert!(rig.warns(client).contains("Python 3.11 and 3.13"));
    let error = rig.ends(client, 3).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Incompatible, false));
    rig.nothing_left();
}

#[test]
fn an_unable_worker_gets_no_work_of_that_runtime_until_it_is_able() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let broken = rig.worker_providing(2, &["python:*", "add"], 0);
    let unable = |runtime: &str| FromWorker::Unable {
        runtime: runtime.into(),
        error: Error::unavailable(Ran::No, "an executor could not be started: no such file"),
    };
    rig.submit(client, once(1));
    let attempt = rig.assigns(broken, 1);
    rig.finish(broken, attempt);
    rig.ends(client, 1).unwrap();
    rig.worker_says(broken, unable("python"));
    rig.submit(client, python(2, 0));
    let why = rig.why_waits(2);
    assert!(why.starts_with("no worker can start an executor for \"python\": at \"node-2\""));
    assert!(why.ends_with("no such file"), "{why}");
    rig.submit(client, task(3));
    let attempt = rig.assigns(broken, 3);
    rig.finish(broken, attempt);
    rig.ends(client, 3).unwrap();
    assert_eq!(&*rig.controller.list_workers()[0].unable[0].0, "python");

    let well = rig.worker_providing(3, &["python:*"], 0);
    let attempt = rig.assigns(well, 2);
    rig.submit(client, python(4, 0));
    rig.worker_says(broken, FromWorker::Able { runtime: "python".into() });
    rig.assigns(broken, 4);
    rig.finish(well, attempt);
    rig.ends(client, 2).unwrap();
    assert!(rig.controller.list_workers()[0].unable.is_empty());
    rig.nothing_left();
}

#[test]
fn an_actor_that_no_worker_provides_dies_and_names_the_reason() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.worker_providing(2, &["add"], 0);
    let spec = actor(5);
    let id = spec.id;
    rig.client_says(client, FromClient::CreateActor(Arc::new(spec)));
    let created = ToClient::ActorCreated { requested: id, actor: Ok(id) };
    assert_eq!(rig.next_to_client(client), created);
    rig.is_nowhere(client, id);
    rig.pass(70 * SECOND);
    rig.warns(client);
    let error = rig.is_dead(client, id);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("those here provide \"add\""), "{error}");
    rig.nothing_left();
}

#[test]
fn a_worker_that_cannot_start_its_own_program_gets_no_more_actors() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let worker = rig.worker_providing(2, &["actor:*", "add"], 0);
    let spec = actor(5);
    let id = spec.id;
    rig.client_says(client, FromClient::CreateActor(Arc::new(spec)));
    for last in [false, false, true] {
        let made = rig.effects.drain(..).find_map(|effect| {
            let Effect::ToWorker { message, .. } = effect else { return None };
            let ToWorker::Instantiate { epoch, .. } = message else { return None };
            Some(epoch)
        });
        let instance = Instance { actor: id, epoch: made.expect("it is to be made") };
        if last {
            let error = Error::unavailable(Ran::No, "it exits at once");
            rig.worker_says(worker, FromWorker::Unable { runtime: "".into(), error });
        }
        let reason = Refusal::NotStarted;
        rig.worker_says(worker, FromWorker::ActorRefused { instance, reason });
    }
    let orders = rig.effects.iter().any(|effect| matches!(effect, Effect::ToWorker { .. }));
    assert!(!orders, "it is passed over");
    rig.effects.clear();
    rig.pass(70 * SECOND);
    rig.warns(client);
    let error = rig.is_dead(client, id);
    assert!(error.message().contains("no worker can start an executor: at \"node-2\""), "{error}");
}

#[test]
fn an_actor_that_was_ready_once_waits_for_a_worker_without_end() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.worker_providing(2, &["add"], 0);
    let worker = rig.worker_providing(3, &["actor:*"], 0);
    let options = ActorOptions { max_restarts: Budget::Unlimited, ..ActorOptions::default() };
    let instance = rig.create(client, worker, actor_with(5, options));
    rig.worker_says(worker, FromWorker::ActorReady { instance });
    rig.effects.clear();
    rig.dies(worker);
    rig.effects.clear();
    rig.pass(600 * SECOND);
    rig.effects.clear();
    let back = rig.worker_providing(4, &["actor:*"], 0);
    rig.instantiates(back, instance.actor);
}

#[test]
fn the_wait_before_failure_starts_over_when_a_worker_becomes_able() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let broken = rig.worker_providing(2, &["python:*", "add"], 0);
    let unable = || FromWorker::Unable {
        runtime: "python".into(),
        error: Error::unavailable(Ran::No, "no such file"),
    };
    // The worker's only CPU is taken.
    rig.submit(client, task(1));
    rig.assigns(broken, 1);
    rig.worker_says(broken, unable());
    rig.submit(client, python(2, 0));
    rig.pass(50 * SECOND);
    rig.effects.clear();
    rig.worker_says(broken, FromWorker::Able { runtime: "python".into() });
    rig.worker_says(broken, unable());
    rig.pass(50 * SECOND);
    assert_eq!(rig.state_of(2), TaskState::Pending);
    rig.pass(20 * SECOND);
    assert_eq!(rig.state_of(2), TaskState::Failed);
}

#[test]
fn at_most_1000_unable_runtimes_of_a_worker_are_remembered() {
    let mut rig = Rig::new();
    let worker = rig.worker_providing(2, &["python:*"], 0);
    for number in 0..=1_000 {
        let runtime = format!("python/{number}").into();
        let error = Error::unavailable(Ran::No, "no such file");
        rig.worker_says(worker, FromWorker::Unable { runtime, error });
    }
    assert_eq!(rig.controller.list_workers()[0].unable.len(), 1_000);
}
