//! Lists of tasks and actors, and why work waits.

use super::*;

fn ids(tasks: Vec<TaskStatus>) -> Vec<u128> {
    tasks.into_iter().map(|task| task.id.as_u128()).collect()
}

#[test]
fn tasks_are_listed_newest_first_and_filtered() {
    let mut rig = Rig::new();
    let worker = rig.worker(2, 1);
    for number in 1..=5 {
        rig.submit_ownerless(task(number)).unwrap();
    }
    let first = rig.assigns(worker, 1);
    rig.finish(worker, first);
    rig.assigns(worker, 2);
    let ran_at = rig.controller.task_status(task_id(1)).unwrap().worker;
    assert_eq!(ran_at, Some(worker.id), "also when it has ended");
    let list = |limit, states: &[TaskState]| {
        let filter = TaskFilter { states: states.to_vec(), ..TaskFilter::default() };
        ids(rig.controller.list_tasks(limit, &filter))
    };
    assert_eq!(list(10, &[]), [5, 4, 3, 2, 1]);
    assert_eq!(list(2, &[]), [5, 4]);
    assert_eq!(list(0, &[]), []);
    assert_eq!(list(10, &[TaskState::Assigned]), [2]);
    assert_eq!(list(10, &[TaskState::Finished]), [1]);
    assert_eq!(list(2, &[TaskState::Pending, TaskState::Finished]), [5, 4]);
    let filter = TaskFilter { actor: Some(ActorId::from_u128(7)), ..TaskFilter::default() };
    assert_eq!(ids(rig.controller.list_tasks(10, &filter)), []);
}

#[test]
fn the_actor_filter_lists_only_the_calls_of_that_actor() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.submit_ownerless(task(1)).unwrap();
    let actors = [actor(7), actor(8)].map(|spec| {
        let id = spec.id;
        rig.client_says(client, FromClient::CreateActor(Arc::new(spec)));
        rig.submit(client, call(id.as_u128() + 10, id));
        id
    });
    let filter = TaskFilter { actor: Some(actors[1]), ..TaskFilter::default() };
    assert_eq!(ids(rig.controller.list_tasks(10, &filter)), [18]);
    let listed: Vec<ActorId> = rig
        .controller
        .list_actors(1, Default::default())
        .into_iter()
        .map(|actor| actor.spec.id)
        .collect();
    assert_eq!(listed, [actors[1]]);
}

#[test]
fn a_prefix_lists_the_matching_tasks_and_actors_even_if_others_are_newer() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    for number in 0x10..0x20 {
        rig.submit_ownerless(task(number)).unwrap();
        rig.client_says(client, FromClient::CreateActor(Arc::new(actor(number))));
    }
    rig.effects.clear(); // Tasks and actors are placed.
    rig.dies(worker); // All tasks wait. The test then ends one of them.
    rig.ask(|controller, now, effects| {
        controller.cancel_for(now, task_id(0x11), true, effects).unwrap()
    });
    for number in [0x11, 0x12] {
        let prefix: IdPrefix = task_id(number).to_string().parse().unwrap();
        let filter = TaskFilter { prefix, ..TaskFilter::default() };
        assert_eq!(ids(rig.controller.list_tasks(1, &filter)), [number]);
        let listed = rig.controller.list_actors(1, prefix);
        assert_eq!(listed[0].spec.id, ActorId::from_u128(number));
    }
    let other: IdPrefix = "1".parse().unwrap();
    assert!(rig.controller.list_actors(1, other).is_empty());
}

#[test]
fn waiting_work_is_counted_once_under_its_reason() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    for number in 1..=3 {
        rig.submit_ownerless(task(number)).unwrap();
    }
    let no_worker = "no worker is here: start one with `marline worker`";
    assert_eq!(rig.controller.waiting(), [(no_worker.to_owned(), 3)]);

    let worker = rig.worker(2, 1);
    let running = rig.assigns(worker, 1);
    let large = TaskOptions { resources: Resources::cpus(9), ..TaskOptions::default() };
    rig.submit_ownerless(task_with(4, large)).unwrap();
    let needs = vec![ObjectId::of(task_id(1), 0)];
    rig.submit_ownerless(TaskSpec { needs, ..task(5) }).unwrap();
    let id = actor(7).id;
    rig.client_says(client, FromClient::CreateActor(Arc::new(actor(7))));
    rig.submit(client, call(6, id));
    let too_large = "no worker is large enough for cpu 9: the largest offers cpu 1";
    let expected = [
        ("cpu 1 to be free at a worker", 3),
        ("its actor to be ready", 1),
        (too_large, 1),
        ("values that it needs", 1),
    ];
    let expected = expected.map(|(reason, count)| (reason.to_owned(), count));
    assert_eq!(rig.controller.waiting(), expected);

    rig.end(worker, running, AttemptEnd::Lost(crashed()), None);
    let waiting = rig.controller.waiting();
    assert!(waiting.contains(&("the delay before its next attempt".to_owned(), 1)), "{waiting:?}");
    let counted: usize = waiting.iter().map(|(_, count)| count).sum();
    let with_worker = rig.controller.list_workers()[0].tasks;
    let actors = rig
        .controller
        .list_actors(9, Default::default())
        .iter()
        .filter(|a| a.waits_for.is_some())
        .count();
    assert_eq!(counted, rig.controller.pending_tasks() - with_worker + actors, "each once");
}

#[test]
fn the_reason_to_wait_ignores_room_at_workers_without_the_function() {
    let mut rig = Rig::new();
    let worker = rig.worker(2, 1);
    for number in 1..=4 {
        rig.submit_ownerless(task(number)).unwrap();
    }
    rig.effects.clear();
    assert_eq!(rig.why_waits(4), "cpu 1 to be free at a worker");
    let names = ["sleep"].map(Arc::from).into();
    let provides = Arc::new(WorkerCapabilities { names, ..WorkerCapabilities::default() });
    let info = WorkerInfo { resources: Resources::cpus(9), provides, ..WorkerInfo::default() };
    rig.happens(joins(SessionId::from_u128(3), 1, Role::Worker(info)));
    let Effect::OpenSession(other) = rig.next() else { panic!("the worker may join") };
    assert_eq!(rig.why_waits(4), "cpu 1 to be free at a worker", "a joining worker does not count");
    rig.worker_says(other, FromWorker::Joined);
    assert_eq!(rig.why_waits(4), "cpu 1 to be free at a worker that provides \"add\"");
    rig.dies(worker);
    assert_eq!(rig.why_waits(4), "no worker provides \"add\": those here provide \"sleep\"");
}
