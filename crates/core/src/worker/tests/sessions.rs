//! The session of a worker, and queries.

use super::*;

#[test]
fn a_worker_whose_lease_ends_kills_every_executor_and_drops_its_work() {
    let mut rig = Rig::new();
    let runs = rig.start(task(1));
    rig.assign(task(2), None);
    let hosts = rig.host(ActorOptions::default());
    rig.call(method(3), 0);
    rig.trust_caller();
    rig.take();

    // The worker's lease is 30 s less a tenth, from when it requested the session.
    rig.pass(27 * SECOND);
    let kills = [runs, hosts].map(|executor| Effect::Kill { executor });
    let rest = [Effect::FenceCaller(CALLER), Effect::Stopped(SESSION)];
    assert_eq!(rig.take(), kills.into_iter().chain(rest).collect::<Vec<_>>());
    assert_eq!((rig.worker.session(), rig.worker.load()), (None, (0, 0)));

    rig.ends(runs, 1, Ok(vec![value()])); // Late messages, from the executor and the controller.
    rig.assign(task(4), Some(one_cpu()));
    assert_eq!(rig.take(), []);
}

#[test]
fn queries_list_tasks_actors_and_free_resources() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.host(ActorOptions::default());
    rig.assign(task(2), None);
    rig.call(method(3), 0);
    rig.trust_caller();
    let filter = crate::controller::TaskFilter::default();
    let listed = |rig: &Rig, limit| {
        let tasks = rig.worker.list_tasks(limit, &filter).into_iter();
        tasks.map(|task| (task.spec.id.as_u128(), task.since.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(listed(&rig, 10), [(3, true), (2, false), (1, true)]);
    assert_eq!(listed(&rig, 1), [(3, true)]);
    let actors = rig.worker.list_actors(10, Default::default());
    assert_eq!((actors.len(), actors[0].pending_calls, actors[0].ready), (1, 1, true));
    assert_eq!(rig.worker.actor_here(actors[0].spec.id).as_ref(), Some(&actors[0]));
    assert_eq!(rig.worker.actor_here(ActorId::from_u128(99)), None);
    assert_eq!(rig.worker.free(&Resources::cpus(4)), Resources::cpus(3));
    rig.happens(Event::Blocked { executor });
    assert_eq!(rig.worker.free(&Resources::cpus(4)), Resources::cpus(4), "it lends its CPU");
}

#[test]
fn a_lookup_repeated_after_a_fence_fails_with_unavailable() {
    let mut rig = Rig::new();
    let object = ObjectId::of(TaskId::from_u128(7), 0);
    rig.happens(Event::DataMissing { object });
    assert_eq!(rig.take(), [tell(FromWorker::Locate { object })]);

    rig.happens(Event::Fenced { session: SESSION });
    assert_eq!(rig.take(), [Effect::Stopped(SESSION)], "the store answers its waiting readers");
    rig.happens(Event::DataMissing { object });
    let [Effect::Located { copies: Err(error), .. }] = &rig.take()[..] else {
        panic!("there is no controller to ask")
    };
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Unavailable, false));
}
