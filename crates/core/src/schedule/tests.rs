use super::*;
use crate::random::Random;
use crate::resources::Amount;

fn provides(names: &[&str]) -> Arc<WorkerCapabilities> {
    let names = names.iter().map(|name| Arc::from(*name)).collect();
    Arc::new(WorkerCapabilities { names, ..WorkerCapabilities::default() })
}

fn key(requires: &str, resources: Resources) -> Demand {
    Demand { requires: requires.into(), resources, takes: None, preemptible: true, code_version: 0 }
}

fn task(number: u128) -> Work {
    Work::Task(TaskId::from_u128(number))
}

/// Drives a schedule as the controller does, and records where each piece of work is.
struct Rig {
    schedule: Schedule,
    workers: Vec<WorkerIndex>,
    running: Vec<(Work, ShapeId, WorkerIndex, Grant)>,
    backlog: Vec<(Work, ShapeId, WorkerIndex)>,
    waiting: Vec<(Work, Ticket)>,
    keys: Vec<Demand>,
    made: u128,
}

impl Rig {
    fn new() -> Rig {
        let keys = vec![
            key("add", Resources::one_cpu()),
            key("add", Resources::cpus(2)),
            key("mul", Resources::one_cpu()),
            key("mul", Resources::one_cpu().with_gpus(Amount(5_000))),
            key("add", Resources::one_cpu().with_custom("disk", Amount::ONE)),
            key("add", Resources::default().with_memory(600)),
            Demand { takes: Some(Resources::default()), ..key("actor:A", Resources::one_cpu()) },
        ];
        Rig {
            schedule: Schedule::default(),
            workers: Vec::new(),
            running: Vec::new(),
            backlog: Vec::new(),
            waiting: Vec::new(),
            keys,
            made: 0,
        }
    }

    fn add_worker(&mut self, random: &mut Random) {
        let mut offer = Resources::cpus(1 + random.below(4) as u32).with_memory(1000);
        if random.one_in(2) {
            offer = offer.with_gpus(Amount::whole(1 + random.below(2) as u32));
        }
        if random.one_in(2) {
            offer = offer.with_custom("disk", Amount::whole(2));
        }
        let names: &[&str] =
            [&["add"][..], &["add", "mul", "actor:*"], &["mul"]][random.below(3) as usize];
        let worker_index = self.schedule.add_worker(provides(names), offer);
        self.workers.push(worker_index);
        self.schedule.set_open(worker_index, true);
    }

    fn submit(&mut self, random: &mut Random) {
        self.made += 1;
        let key = self.keys[random.below(self.keys.len() as u64) as usize].clone();
        let work = task(self.made);
        let near = match self.workers.len() {
            0 => None,
            workers => Some(self.workers[random.below(workers as u64) as usize]),
        };
        let near = near.filter(|_| random.one_in(2));
        let ticket = self.schedule.enqueue(work, key, near, random.one_in(10));
        self.waiting.push((work, ticket));
    }

    fn finish(&mut self, random: &mut Random) {
        if self.running.is_empty() {
            return;
        }
        let index = random.below(self.running.len() as u64) as usize;
        let (_, shape, worker_index, grant) = self.running.swap_remove(index);
        self.schedule.note_time(shape, random.up_to(Duration::from_millis(1)));
        let next = self.backlog.iter().position(|(_, s, w)| (*s, *w) == (shape, worker_index));
        match next {
            Some(next) => {
                let (work, shape, worker_index) = self.backlog.remove(next);
                self.schedule.take_over(worker_index, shape);
                self.running.push((work, shape, worker_index, grant));
            }
            None => self.schedule.give_back(worker_index, shape, &grant),
        }
    }

    fn lose(&mut self, random: &mut Random) {
        if self.workers.is_empty() {
            return;
        }
        let worker_index =
            self.workers.swap_remove(random.below(self.workers.len() as u64) as usize);
        self.schedule.remove_worker(worker_index);
        self.running.retain(|(_, _, worker, _)| *worker != worker_index);
        self.backlog.retain(|(_, _, worker)| *worker != worker_index);
    }

    fn settle(&mut self) {
        while let Some(step) = self.schedule.step() {
            match step {
                Step::Place { work, shape, worker, grant } => {
                    let waiting = self.waiting.iter().position(|(waiting, _)| *waiting == work);
                    self.waiting.remove(waiting.expect("only waiting work is placed"));
                    match grant {
                        Some(grant) => self.running.push((work, shape, worker, grant)),
                        None => self.backlog.push((work, shape, worker)),
                    }
                }
                Step::TakeBack { from, shape, idle } => {
                    let last = self.backlog.iter().rposition(|(_, s, w)| (*s, *w) == (shape, from));
                    let (work, ..) = self.backlog.remove(last.expect("the worker has a backlog"));
                    self.schedule.leave_backlog(from, shape);
                    let key = self.schedule.shape(shape).demand.clone();
                    let ticket = self.schedule.enqueue(work, key, None, true);
                    self.waiting.push((work, ticket));
                    self.schedule.recheck_worker(idle);
                }
            }
        }
        self.schedule.check_invariants();
    }
}

#[test]
fn no_work_waits_while_a_worker_has_room_for_it() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut rig = Rig::new();
        for _ in 0..300 {
            match random.below(12) {
                0 => rig.add_worker(&mut random),
                1 if random.one_in(3) => rig.lose(&mut random),
                2 if !rig.waiting.is_empty() => {
                    let index = random.below(rig.waiting.len() as u64) as usize;
                    let (_, ticket) = rig.waiting.swap_remove(index);
                    rig.schedule.withdraw(ticket);
                }
                3 if !rig.workers.is_empty() => {
                    let worker_index = rig.workers[random.below(rig.workers.len() as u64) as usize];
                    rig.schedule.set_open(worker_index, random.one_in(2));
                }
                4..=7 => rig.finish(&mut random),
                _ => rig.submit(&mut random),
            }
            rig.settle();
        }
    }
}

#[test]
fn the_least_loaded_worker_is_first_and_the_oldest_work_goes_first() {
    let mut schedule = Schedule::default();
    let small = schedule.add_worker(provides(&["f"]), Resources::cpus(1));
    let large = schedule.add_worker(provides(&["f"]), Resources::cpus(3));
    schedule.set_open(small, true);
    schedule.set_open(large, true);
    let mut places = Vec::new();
    for number in 0..6 {
        schedule.enqueue(task(number), key("f", Resources::one_cpu()), None, false);
        while let Some(step) = schedule.step() {
            let Step::Place { work, worker, .. } = step else { panic!("nothing to take back") };
            places.push((work, worker));
        }
    }
    let workers: Vec<WorkerIndex> = places.iter().map(|(_, worker)| *worker).collect();
    assert_eq!(workers, [large, large, small, large]);
    assert_eq!(schedule.queued(), 2);
    schedule.give_back(small, ShapeId(0), &Grant { resources: Resources::one_cpu(), gpus: vec![] });
    let Some(Step::Place { work, worker, .. }) = schedule.step() else { panic!("there is room") };
    assert_eq!((work, worker), (task(4), small));
}

#[test]
fn short_tasks_get_a_backlog_and_an_idle_worker_takes_from_it() {
    let mut schedule = Schedule::default();
    let first = schedule.add_worker(provides(&["f"]), Resources::cpus(1));
    schedule.set_open(first, true);
    for number in 0..10 {
        schedule.enqueue(task(number), key("f", Resources::one_cpu()), None, false);
    }
    let Some(Step::Place { shape, grant: Some(grant), .. }) = schedule.step() else {
        panic!("room")
    };
    assert_eq!(schedule.step(), None, "it is not known yet how long these tasks run");
    schedule.note_time(shape, Duration::from_micros(500));
    schedule.give_back(first, shape, &grant);
    let mut backlog = 0;
    let mut started = 0;
    while let Some(step) = schedule.step() {
        let Step::Place { grant, .. } = step else { panic!("no other worker is here") };
        if grant.is_some() { started += 1 } else { backlog += 1 }
    }
    assert_eq!((started, backlog), (1, 4), "one runs, and the backlog holds 2 ms of work");
    // The idle worker gets the waiting work, and then unstarted work of the other worker.
    let idle = schedule.add_worker(provides(&["f"]), Resources::cpus(8));
    schedule.set_open(idle, true);
    let mut placed = 0;
    let taken = loop {
        match schedule.step().expect("unstarted work is taken back") {
            Step::Place { worker, grant: Some(_), .. } if worker == idle => placed += 1,
            step @ (Step::Place { .. } | Step::TakeBack { .. }) => break step,
        }
    };
    assert_eq!(placed, 4);
    assert_eq!(taken, Step::TakeBack { from: first, shape, idle });
    assert_eq!(schedule.step(), None);
}

#[test]
fn a_blocked_slot_takes_no_backlog() {
    let gpus = |count| Resources::cpus(count).with_gpus(Amount::whole(count));
    let mut schedule = Schedule::default();
    let worker = schedule.add_worker(provides(&["f"]), gpus(2));
    schedule.set_open(worker, true);
    let mut made = 0;
    let mut place = |schedule: &mut Schedule| {
        made += 1;
        schedule.enqueue(task(made), key("f", gpus(1)), None, false);
        let step = schedule.step();
        assert_eq!(schedule.step(), None, "one piece of work waits");
        schedule.check_invariants();
        step
    };
    let mut start = |schedule: &mut Schedule| match place(schedule) {
        Some(Step::Place { shape, grant: Some(grant), .. }) => (shape, grant),
        step => panic!("there is room, not {step:?}"),
    };
    let (shape, first) = start(&mut schedule);
    let (_, second) = start(&mut schedule);
    schedule.note_time(shape, Duration::from_millis(1));

    // The backlog holds 2 ms of work for the slot that runs, and none for the blocked slot.
    schedule.lend_cpu(worker, shape, &first);
    for _ in 0..2 {
        let Some(Step::Place { grant: None, .. }) = place(&mut schedule) else {
            panic!("the running task will leave its slot to backlog tasks")
        };
    }
    assert_eq!(place(&mut schedule), None);
    schedule.lend_cpu(worker, shape, &second);
    for number in [100, 101] {
        schedule.leave_backlog(worker, shape);
        schedule.enqueue(task(number), key("f", gpus(1)), None, true);
        assert_eq!(schedule.step(), None, "no task here will leave its slot soon");
        schedule.check_invariants();
    }

    // A task goes on and leaves its slot: one task takes it at once, two more wait in the backlog.
    schedule.reclaim_cpu(worker, shape, &second);
    schedule.give_back(worker, shape, &second);
    let granted = std::iter::from_fn(|| schedule.step()).map(|step| match step {
        Step::Place { grant, .. } => grant.is_some(),
        Step::TakeBack { .. } => panic!("no other worker is here"),
    });
    assert_eq!(granted.collect::<Vec<_>>(), [true, false, false]);
    schedule.check_invariants();
}

#[test]
fn removed_workers_leave_no_pools_behind() {
    let mut schedule = Schedule::default();
    for number in 0..100 {
        let name = format!("version-{number}");
        let worker_index = schedule.add_worker(provides(&[&name]), Resources::cpus(1));
        schedule.set_open(worker_index, true);
        schedule.enqueue(task(number), key(&name, Resources::one_cpu()), None, false);
        assert!(
            matches!(schedule.step(), Some(Step::Place { worker, .. }) if worker == worker_index)
        );
        schedule.remove_worker(worker_index);
        schedule.check_invariants();
    }
    assert_eq!(schedule.pools.len(), 1);
}

#[test]
fn infeasible_work_says_why_it_cannot_be_placed() {
    let mut schedule = Schedule::default();
    let demand = key("f", Resources::cpus(4));
    assert!(schedule.why_infeasible(&demand).unwrap().contains("no worker is here"));
    let worker_index = schedule.add_worker(provides(&["f", "python:*"]), Resources::cpus(2));
    schedule.set_open(worker_index, true);
    assert_eq!(
        schedule.why_infeasible(&demand).unwrap(),
        "no worker is large enough for cpu 4: the largest offers cpu 2"
    );
    assert_eq!(
        schedule.why_infeasible(&key("g", Resources::one_cpu())).unwrap(),
        "no worker provides \"g\": those here provide \"f\", \"python:*\""
    );
    assert_eq!(schedule.why_infeasible(&key("python:x", Resources::one_cpu())), None);
    let is_known = |name| schedule.why_unknown(&key(name, Resources::one_cpu())).is_none();
    assert!(is_known("python:anything") && !is_known("ruby:anything"));
    assert!(is_known("python/77aa:anything") && !is_known("ruby/python:anything"));
}

#[test]
fn code_goes_to_workers_that_have_its_version_of_python() {
    let mut schedule = Schedule::default();
    let python = |minor| {
        Arc::new(WorkerCapabilities { code_version: minor, ..(*provides(&["python:*"])).clone() })
    };
    let made_with = |minor| Demand { code_version: minor, ..key("python:f", Resources::one_cpu()) };
    let old = schedule.add_worker(python(11), Resources::cpus(9));
    schedule.set_open(old, true);
    let placed = |schedule: &mut Schedule| match schedule.step() {
        Some(Step::Place { worker, .. }) => Some(worker),
        _ => None,
    };
    schedule.enqueue(task(1), made_with(13), None, false);
    assert_eq!(placed(&mut schedule), None);
    let words = "no worker has Python 3.13, which its code needs: those here have Python 3.11";
    assert_eq!(schedule.why_infeasible(&made_with(13)).unwrap(), words);
    schedule.enqueue(task(2), made_with(11), None, false);
    assert_eq!(placed(&mut schedule), Some(old));
    schedule.enqueue(task(3), made_with(0), None, false);
    assert_eq!(placed(&mut schedule), Some(old), "any version can run work without code");
    let new = schedule.add_worker(python(13), Resources::cpus(1));
    schedule.set_open(new, true);
    assert_eq!(placed(&mut schedule), Some(new));
    schedule.check_invariants();
}

#[test]
fn a_worker_unable_to_start_a_runtime_still_gets_other_work() {
    let mut schedule = Schedule::default();
    let able = provides(&["python:*", "f"]);
    let worker_index = schedule.add_worker(able.clone(), Resources::cpus(9));
    schedule.set_open(worker_index, true);
    let unable = WorkerCapabilities { unable: ["python/77aa".into()].into(), ..(*able).clone() };
    schedule.set_provides(worker_index, Arc::new(unable));
    let runs = |schedule: &mut Schedule, number, name| {
        schedule.enqueue(task(number), key(name, Resources::one_cpu()), None, false);
        let placed = matches!(schedule.step(), Some(Step::Place { .. }));
        schedule.check_invariants();
        placed
    };
    assert!(!runs(&mut schedule, 1, "python/77aa:f"));
    assert!(runs(&mut schedule, 2, "python:f") && runs(&mut schedule, 3, "python/1f0a:f"));
    let unable = WorkerCapabilities { unable: ["python".into()].into(), ..(*able).clone() };
    schedule.set_provides(worker_index, Arc::new(unable));
    assert!(!runs(&mut schedule, 4, "python:f") && !runs(&mut schedule, 5, "python/1f0a:f"));
    assert!(runs(&mut schedule, 6, "f"), "functions of its own program still run");
    schedule.set_provides(worker_index, able);
    let placed = std::iter::from_fn(|| schedule.step()).count();
    assert_eq!(placed, 3, "the work that waited");
    schedule.check_invariants();
}

#[test]
fn the_reason_to_wait_names_resources_that_no_worker_offers() {
    let mut schedule = Schedule::default();
    let worker_index = schedule.add_worker(provides(&["f"]), Resources::cpus(2));
    schedule.set_open(worker_index, true);
    let why = |schedule: &Schedule, resources| schedule.why_infeasible(&key("f", resources));
    let special = || Resources::one_cpu().with_custom("gpu_a100", Amount::ONE);
    assert_eq!(why(&schedule, special()).unwrap(), "no worker offers gpu_a100");
    let both = special().with_gpus(Amount::ONE);
    assert_eq!(why(&schedule, both.clone()).unwrap(), "no worker offers gpu or gpu_a100");
    // Offers of a worker that does not provide the function, or that is closed, do not count.
    let other = schedule.add_worker(provides(&["g"]), both.clone());
    schedule.set_open(other, true);
    let closed = schedule.add_worker(provides(&["f"]), both.clone());
    assert_eq!(why(&schedule, both.clone()).unwrap(), "no worker offers gpu or gpu_a100");
    schedule.set_open(closed, true);
    assert_eq!(why(&schedule, both), None);
    let more = Resources::cpus(2).with_custom("gpu_a100", Amount::ONE);
    let too_small = "no worker is large enough for cpu 2, gpu_a100 1: the largest offers cpu 2";
    assert_eq!(why(&schedule, more).unwrap(), too_small);
}

#[test]
fn the_reason_to_wait_for_memory_says_how_workers_offer_it() {
    let mut schedule = Schedule::default();
    let demand = key("f", Resources::one_cpu().with_memory(1 << 20));
    let worker_index = schedule.add_worker(provides(&["f"]), Resources::cpus(2));
    schedule.set_open(worker_index, true);
    let why = schedule.why_infeasible(&demand).unwrap();
    let (size, how) = why.split_once("; ").unwrap();
    assert_eq!(size, "no worker offers memory");
    assert!(
        how.starts_with("workers offer memory only if they are told to (`marline up --memory`")
    );
    let other = schedule.add_worker(provides(&["f"]), Resources::cpus(1).with_memory(1 << 10));
    schedule.set_open(other, true);
    assert_eq!(
        schedule.why_infeasible(&demand).unwrap(),
        "no worker is large enough for cpu 1, memory 1 MiB: the largest offers cpu 2",
        "one worker offers memory, but too little"
    );
    let too_many = schedule.why_infeasible(&key("f", Resources::cpus(9))).unwrap();
    assert!(!too_many.contains("memory"), "{too_many}");
}

#[test]
fn the_reason_to_wait_names_closed_and_preemptible_workers() {
    let mut schedule = Schedule::default();
    let lasting = Demand { preemptible: false, ..key("f", Resources::one_cpu()) };
    let why = |schedule: &Schedule| schedule.why_infeasible(&lasting).unwrap_or_default();
    let nobody = "no worker is here: start one with `marline worker`";
    assert_eq!(why(&schedule), nobody);

    let fleeting = WorkerCapabilities { preemptible: true, ..(*provides(&["f"])).clone() };
    let fleeting = schedule.add_worker(Arc::new(fleeting), Resources::cpus(2));
    let closed = "no worker takes work now: those here are joining, suspected, paused or draining";
    assert_eq!(why(&schedule), closed);
    schedule.set_open(fleeting, true);
    let preemptible = "only preemptible workers provide \"f\", and it must not run on one";
    assert_eq!(why(&schedule), preemptible);
    assert_eq!(schedule.why_infeasible(&key("f", Resources::one_cpu())), None);
    let other = Demand { requires: "g".into(), ..lasting.clone() };
    let unknown = "no worker provides \"g\": those here provide \"f\"";
    assert_eq!(schedule.why_infeasible(&other).unwrap(), unknown);

    let safe = schedule.add_worker(provides(&["f"]), Resources::cpus(2));
    schedule.set_open(safe, true);
    assert_eq!(schedule.why_infeasible(&lasting), None);
    schedule.set_open(safe, false);
    schedule.set_open(fleeting, false);
    assert_eq!(why(&schedule), closed);
    schedule.remove_worker(safe);
    schedule.remove_worker(fleeting);
    assert_eq!(why(&schedule), nobody);
}

/// Adds workers with this many CPUs each, and opens them.
fn workers(schedule: &mut Schedule, cpus: &[u32]) -> Vec<WorkerIndex> {
    let slots: Vec<WorkerIndex> = cpus
        .iter()
        .map(|cpus| schedule.add_worker(provides(&["f"]), Resources::cpus(*cpus)))
        .collect();
    slots.iter().for_each(|worker_index| schedule.set_open(*worker_index, true));
    slots
}

fn placed(schedule: &mut Schedule) -> Vec<(Work, WorkerIndex, Option<Grant>)> {
    let steps = std::iter::from_fn(|| schedule.step());
    let places = steps.map(|step| match step {
        Step::Place { work, worker, grant, .. } => (work, worker, grant),
        Step::TakeBack { .. } => panic!("nothing is taken back"),
    });
    places.collect()
}

#[test]
fn work_goes_to_its_arguments_while_there_is_room_and_elsewhere_when_not() {
    let mut schedule = Schedule::default();
    let slots = workers(&mut schedule, &[2, 4]);
    let f = || key("f", Resources::one_cpu());
    for number in 0..4 {
        schedule.enqueue(task(number), f(), Some(slots[0]), false);
    }
    let at: Vec<WorkerIndex> = placed(&mut schedule).into_iter().map(|(_, at, _)| at).collect();
    assert_eq!(
        at,
        [slots[0], slots[0], slots[1], slots[1]],
        "no work waits for a worker that is full"
    );
    schedule.set_open(slots[0], false);
    schedule.enqueue(task(9), f(), Some(slots[0]), false);
    assert_eq!(placed(&mut schedule)[0].1, slots[1], "a closed worker gets no work");
    schedule.check_invariants();
}

#[test]
fn a_worker_with_the_arguments_is_passed_over_if_it_is_much_busier() {
    let mut schedule = Schedule::default();
    let slots = workers(&mut schedule, &[2, 2]);
    let free = || key("f", Resources::default());
    for number in 0..=u128::from(locality::LOAD_SLACK) {
        schedule.enqueue(task(number), free(), Some(slots[0]), false);
        assert_eq!(placed(&mut schedule)[0].1, slots[0], "{number} more than the other");
    }
    schedule.enqueue(task(100), free(), Some(slots[0]), false);
    assert_eq!(placed(&mut schedule)[0].1, slots[1], "busier by more than the slack");
}

#[test]
fn work_near_its_arguments_overtakes_older_work_at_most_max_overtaken_times() {
    let mut schedule = Schedule::default();
    let slots = workers(&mut schedule, &[1, 1]);
    let f = || key("f", Resources::one_cpu());
    for number in 0..2 {
        schedule.enqueue(task(number), f(), None, false);
    }
    let mut running = placed(&mut schedule);
    running.retain(|(_, at, _)| *at == slots[0]);
    let mut grant = running[0].2.clone().expect("the work runs");
    schedule.enqueue(task(100), f(), Some(slots[1]), false);
    for number in 0..2 * u128::from(locality::MAX_OVERTAKEN) {
        schedule.enqueue(task(200 + number), f(), Some(slots[0]), false);
    }
    let mut order = Vec::new();
    for _ in 0..=locality::MAX_OVERTAKEN {
        let shape = schedule.by_key[&f()];
        schedule.give_back(slots[0], shape, &grant);
        let next = placed(&mut schedule);
        assert_eq!(next.len(), 1);
        order.push(next[0].0);
        grant = next[0].2.clone().expect("the work runs");
        schedule.check_invariants();
    }
    let first = order.iter().position(|work| *work == task(100));
    assert_eq!(first, Some(locality::MAX_OVERTAKEN as usize), "overtaken that often, and no more");
    assert_eq!(order[0], task(200), "the oldest work whose arguments are there");
}
