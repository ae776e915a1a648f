use super::*;
use crate::random::Random;

const LIMIT: u64 = 100;
const ONE: ProcessId = ProcessId(1);
const TWO: ProcessId = ProcessId(2);

/// A store, and the effects of its events.
struct Rig {
    store: ObjectStore,
    now: Time,
    requests: u64,
    effects: Vec<Effect>,
}

fn rig(spills: bool) -> Rig {
    let config = Config { limit: LIMIT, spills, patience: Duration::from_secs(10) };
    Rig { store: ObjectStore::new(config), now: Time::ZERO, requests: 0, effects: Vec::new() }
}

impl Rig {
    fn handle(&mut self, event: Event) -> Vec<Effect> {
        self.store.handle(self.now, event, &mut self.effects);
        self.store.check_invariants();
        std::mem::take(&mut self.effects)
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn create(&mut self, process: ProcessId, bytes: u64) -> (RequestId, Vec<Effect>) {
        let request = self.request();
        (
            request,
            self.handle(Event::CreateRequested { request, process, bytes, speculative: false }),
        )
    }

    /// Creates a blob that is sealed, retained by the cluster, and not pinned.
    fn kept(&mut self, bytes: u64) -> BlobId {
        let (request, effects) = self.create(ONE, bytes);
        let [Effect::GrantRoom { request: same, blob, .. }] = effects[..] else {
            panic!("{effects:?}")
        };
        assert_eq!(same, request);
        for event in [Event::Sealed { blob }, Event::Retained { blob }] {
            assert_eq!(self.handle(event), []);
        }
        assert_eq!(self.handle(Event::Disowned { blob }), []);
        blob
    }

    fn pin(&mut self, process: ProcessId, blob: BlobId) -> (RequestId, Vec<Effect>) {
        let request = self.request();
        (request, self.handle(Event::PinRequested { request, process, blob }))
    }

    fn pinned(&mut self, process: ProcessId, blob: BlobId) {
        let (request, effects) = self.pin(process, blob);
        assert_eq!(effects, [Effect::GrantPin { request, blob }]);
    }

    fn spill_ended(&mut self, blob: BlobId) -> Vec<Effect> {
        self.handle(Event::SpillEnded { blob, result: Ok(()) })
    }

    fn pass(&mut self, seconds: u64) -> Vec<Effect> {
        self.now = self.now + Duration::from_secs(seconds);
        let mut effects = self.handle(Event::TimePassed);
        effects.retain(|effect| *effect != Effect::TrimMemory); // Trimming changes no blob.
        effects
    }
}

fn error(effects: &[Effect]) -> String {
    match effects {
        [Effect::Refuse { error, .. }] => error.message().into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_blob_that_is_neither_retained_nor_pinned_is_dropped() {
    let mut rig = rig(true);
    let blob = rig.kept(10);
    rig.pinned(TWO, blob);
    assert_eq!(rig.handle(Event::Forgotten { blob }), [], "a process reads it");
    assert_eq!(rig.handle(Event::Unpinned { process: TWO, blob }), [Effect::Drop { blob }]);
    assert_eq!(rig.store.used(), 0);
    assert!(error(&rig.pin(TWO, blob).1).contains("is not in this store"));
}

#[test]
fn blobs_that_were_never_retained_are_dropped_with_their_process() {
    let mut rig = rig(true);
    let (_, effects) = rig.create(ONE, 10);
    let [Effect::GrantRoom { blob: unfinished, .. }] = effects[..] else { panic!("{effects:?}") };
    let (_, effects) = rig.create(ONE, 10);
    let [Effect::GrantRoom { blob: sealed, .. }] = effects[..] else { panic!("{effects:?}") };
    assert_eq!(rig.handle(Event::Sealed { blob: sealed }), []);
    assert!(error(&rig.pin(TWO, unfinished).1).contains("not complete"));
    let mut effects = rig.handle(Event::ProcessGone { process: ONE });
    effects.sort_by_key(|effect| format!("{effect:?}"));
    assert_eq!(effects, [Effect::Drop { blob: unfinished }, Effect::Drop { blob: sealed }]);
    assert_eq!(rig.store.used(), 0);
}

#[test]
fn an_ended_process_loses_its_own_pins_and_no_others() {
    let mut rig = rig(true);
    let blob = rig.kept(10);
    rig.pinned(ONE, blob);
    rig.pinned(TWO, blob);
    rig.pinned(TWO, blob);
    assert_eq!(rig.handle(Event::Forgotten { blob }), []);
    assert_eq!(rig.handle(Event::ProcessGone { process: ONE }), []);
    assert_eq!(rig.handle(Event::Unpinned { process: TWO, blob }), [], "it was pinned twice");
    assert_eq!(rig.handle(Event::Unpinned { process: TWO, blob }), [Effect::Drop { blob }]);
}

#[test]
fn a_blob_that_was_pinned_before_a_fork_stays_until_the_process_is_gone() {
    let mut rig = rig(true);
    let (before, after) = (rig.kept(10), rig.kept(10));
    rig.pinned(TWO, before);
    assert_eq!(rig.handle(Event::Forked { process: TWO }), []);
    rig.pinned(TWO, after);
    for blob in [before, after] {
        assert_eq!(rig.handle(Event::Forgotten { blob }), []);
    }
    assert_eq!(rig.handle(Event::Unpinned { process: TWO, blob: before }), []);
    let gone = Effect::Drop { blob: after };
    assert_eq!(rig.handle(Event::Unpinned { process: TWO, blob: after }), [gone]);
    let gone = Effect::Drop { blob: before };
    assert_eq!(rig.handle(Event::ProcessGone { process: TWO }), [gone]);
}

#[test]
fn the_least_recently_used_blobs_are_spilled_to_make_room() {
    let mut rig = rig(true);
    let (first, second, third) = (rig.kept(40), rig.kept(40), rig.kept(20));
    rig.pinned(TWO, first);
    assert_eq!(rig.handle(Event::Unpinned { process: TWO, blob: first }), []);
    let (request, effects) = rig.create(TWO, 50);
    assert_eq!(effects, [Effect::Spill { blob: second }, Effect::Spill { blob: third }]);
    assert_eq!(rig.spill_ended(second), [Effect::FreeMemory { blob: second }]);
    let effects = rig.spill_ended(third);
    let [freed, Effect::GrantRoom { request: granted, bytes: 50, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((freed, *granted), (&Effect::FreeMemory { blob: third }, request));
    assert_eq!((rig.store.used(), rig.store.spilled()), (90, 60));
}

#[test]
fn a_spilled_blob_is_loaded_when_a_process_pins_it() {
    let mut rig = rig(true);
    let (first, _second) = (rig.kept(60), rig.kept(40));
    let (_, effects) = rig.create(TWO, 60);
    assert_eq!(effects, [Effect::Spill { blob: first }]);
    let effects = rig.spill_ended(first);
    let [_, Effect::GrantRoom { blob: other, .. }] = effects[..] else { panic!("{effects:?}") };
    assert_eq!(rig.handle(Event::Sealed { blob: other }), []);
    rig.pinned(TWO, other);
    // Both wait for the same blob, and the second one makes room.
    let (one, effects) = rig.pin(ONE, first);
    assert_eq!(effects.len(), 1, "{effects:?}");
    let (two, none) = rig.pin(TWO, first);
    assert_eq!(none, []);
    let Effect::Spill { blob: victim } = effects[0] else { panic!("{effects:?}") };
    assert_ne!(victim, other, "its process reads it");
    assert_eq!(rig.spill_ended(victim), [Effect::FreeMemory { blob: victim }]);
    let gone = rig.handle(Event::ProcessGone { process: TWO });
    assert_eq!(gone, [Effect::Drop { blob: other }, Effect::Load { blob: first, bytes: 60 }]);
    let effects = rig.handle(Event::LoadEnded { blob: first, result: Ok(()) });
    assert_eq!(
        effects,
        [Effect::FreeDisk { blob: first }, Effect::GrantPin { request: one, blob: first }],
        "the other one is gone: {two:?}"
    );
}

#[test]
fn blobs_that_are_not_yet_retained_are_spilled_too() {
    let mut rig = rig(true);
    let mut made = Vec::new();
    // One process creates more than there is room for before the cluster hears of it.
    for _ in 0..3 {
        let (_, effects) = rig.create(ONE, 60);
        let blob = match (effects.as_slice(), made.last().copied()) {
            ([Effect::GrantRoom { blob, .. }], None) => *blob,
            ([Effect::Spill { blob }], Some(before)) => {
                assert_eq!(*blob, before);
                let effects = rig.spill_ended(before);
                let [Effect::FreeMemory { .. }, Effect::GrantRoom { blob, .. }] = effects[..]
                else {
                    panic!("{effects:?}")
                };
                blob
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(rig.handle(Event::Sealed { blob }), []);
        made.push(blob);
    }
    for blob in &made[..2] {
        assert_eq!(rig.handle(Event::Retained { blob: *blob }), []);
        assert_eq!(rig.handle(Event::Disowned { blob: *blob }), [], "the cluster retains it");
    }
    assert_eq!(rig.handle(Event::Disowned { blob: made[2] }), [Effect::Drop { blob: made[2] }]);
    assert_eq!((rig.store.used(), rig.store.spilled()), (0, 120));
}

#[test]
fn an_abandoned_blob_is_dropped() {
    let mut rig = rig(true);
    let (_, effects) = rig.create(ONE, 10);
    let [Effect::GrantRoom { blob, .. }] = effects[..] else { panic!("{effects:?}") };
    assert_eq!(rig.handle(Event::Abandoned { blob }), [Effect::Drop { blob }]);
    assert_eq!(rig.handle(Event::Abandoned { blob }), []);
    assert_eq!(rig.store.used(), 0);
}

#[test]
fn a_blob_that_is_pinned_while_it_is_spilled_stays_in_memory() {
    let mut rig = rig(true);
    let blob = rig.kept(60);
    assert_eq!(rig.create(TWO, 60).1, [Effect::Spill { blob }]);
    rig.pinned(ONE, blob);
    assert_eq!(rig.spill_ended(blob), [Effect::FreeDisk { blob }]);
    assert_eq!(rig.handle(Event::Unpinned { process: ONE, blob }), [Effect::Spill { blob }]);
    assert_eq!(rig.handle(Event::Forgotten { blob }), [], "it is being written");
    let effects = rig.spill_ended(blob);
    assert!(matches!(effects[..], [Effect::Drop { .. }, Effect::GrantRoom { .. }]), "{effects:?}");
}

#[test]
fn speculative_room_is_granted_only_while_there_is_plenty() {
    let mut rig = rig(true);
    let ahead = |rig: &mut Rig, bytes| {
        let request = rig.request();
        rig.handle(Event::CreateRequested { request, process: ONE, bytes, speculative: true })
    };
    let is_refused = |effects: Vec<Effect>| matches!(effects[..], [Effect::Refuse { .. }]);
    let granted = ahead(&mut rig, 10);
    let [Effect::GrantRoom { blob, bytes: 10, .. }] = granted[..] else { panic!("{granted:?}") };
    assert!(is_refused(ahead(&mut rig, 3)), "other room is granted ahead");
    assert!(is_refused(ahead(&mut rig, u64::MAX)));
    assert_eq!(rig.handle(Event::Sealed { blob }), []);
    assert!(matches!(ahead(&mut rig, 12)[..], [Effect::GrantRoom { bytes: 12, .. }]));
    let gone = rig.handle(Event::ProcessGone { process: ONE });
    assert_eq!(gone.len(), 2, "the filled blob and the unfilled one: {gone:?}");
    let half = rig.kept(50);
    assert!(is_refused(ahead(&mut rig, 1)), "half is in use");
    assert_eq!(rig.handle(Event::Forgotten { blob: half }).len(), 1);
    let blob = rig.kept(40);
    rig.pinned(TWO, blob);
    assert_eq!(rig.create(TWO, 61).1, [], "the request waits");
    assert!(is_refused(ahead(&mut rig, 1)), "another request waits");
}

#[test]
fn a_request_without_room_fails_in_time_and_names_the_figures() {
    let mut rig = rig(true);
    let blob = rig.kept(60);
    rig.pinned(TWO, blob);
    assert_eq!(rig.create(ONE, 50).1, []);
    assert_eq!(rig.pass(9), []);
    assert_eq!(rig.store.next_wake(), Some(Time::ZERO + Duration::from_secs(10)));
    let words = error(&rig.pass(1));
    for part in
        ["no room for 50 bytes", "60 bytes of 100 bytes are used", "60 bytes of it are being read"]
    {
        assert!(words.contains(part), "{words}");
    }
    assert_eq!(rig.store.next_wake(), None);
    let words = error(&rig.create(ONE, 101).1);
    assert!(words.contains("101 bytes do not fit") && words.contains("in parts"), "{words}");
}

#[test]
fn a_failed_spill_is_tried_again_and_its_error_is_reported() {
    let mut rig = rig(true);
    let blob = rig.kept(60);
    assert_eq!(rig.create(ONE, 60).1, [Effect::Spill { blob }]);
    let full = || Err(Error::exhausted("no space left on device"));
    assert_eq!(rig.handle(Event::SpillEnded { blob, result: full() }), []);
    assert_eq!(rig.store.next_wake(), Some(Time::ZERO + DISK_PAUSE));
    assert_eq!(rig.pass(1), [Effect::Spill { blob }]);
    assert_eq!(rig.pass(20), [], "it is being written");
    let words = error(&rig.handle(Event::SpillEnded { blob, result: full() }));
    assert!(words.contains("no space left on device"), "{words}");
    // When the disk has room again, everything is as before.
    rig.pass(1);
    assert_eq!(rig.create(ONE, 60).1, [Effect::Spill { blob }]);
    assert_eq!(rig.spill_ended(blob).len(), 2);
}

#[test]
fn without_a_disk_a_request_waits_until_a_blob_is_dropped() {
    let mut rig = rig(false);
    let blob = rig.kept(60);
    let (request, effects) = rig.create(ONE, 60);
    assert_eq!(effects, []);
    let effects = rig.handle(Event::Forgotten { blob });
    assert!(
        matches!(effects[..], [Effect::Drop { .. }, Effect::GrantRoom { request: same, .. }] if same == request),
        "{effects:?}"
    );
    rig.pass(20);
    assert_eq!(rig.create(ONE, 60).1, []);
    assert!(error(&rig.pass(10)).contains("there is no disk"));
}

#[test]
fn a_spilled_blob_that_cannot_be_loaded_is_reported_lost() {
    let mut rig = rig(true);
    let blob = rig.kept(60);
    assert_eq!(rig.create(TWO, 100).1, [Effect::Spill { blob }]);
    assert_eq!(rig.spill_ended(blob).len(), 2);
    assert_eq!(rig.handle(Event::ProcessGone { process: TWO }).len(), 1);
    let (request, effects) = rig.pin(ONE, blob);
    assert_eq!(effects, [Effect::Load { blob, bytes: 60 }]);
    let corrupt = Error::internal("it is not what was written");
    let effects = rig.handle(Event::LoadEnded { blob, result: Err(corrupt.clone()) });
    assert_eq!(
        effects,
        [
            Effect::Lost { blob, error: corrupt.clone() },
            Effect::Drop { blob },
            Effect::RefuseLost { request, error: corrupt },
        ],
        "the waiting request does not fail: there may be another copy, or the value is recomputed"
    );
    assert_eq!((rig.store.used(), rig.store.spilled()), (0, 0));
}

#[test]
fn a_blob_whose_load_fails_with_exhausted_stays_on_disk() {
    let mut rig = rig(true);
    let blob = rig.kept(60);
    assert_eq!(rig.create(TWO, 100).1, [Effect::Spill { blob }]);
    assert_eq!(rig.spill_ended(blob).len(), 2);
    assert_eq!(rig.handle(Event::ProcessGone { process: TWO }).len(), 1);
    assert_eq!(rig.pin(ONE, blob).1, [Effect::Load { blob, bytes: 60 }]);
    let full = Err(Error::exhausted("too many open files"));
    assert!(error(&rig.handle(Event::LoadEnded { blob, result: full })).contains("too many open"));
    assert_eq!((rig.store.used(), rig.store.spilled()), (0, 60));
    assert_eq!(rig.pin(ONE, blob).1, [Effect::Load { blob, bytes: 60 }], "the load is tried again");
}

#[test]
fn memory_is_trimmed_when_none_was_freed_for_the_trim_delay() {
    let mut rig = rig(true);
    let (first, second, third) = (rig.kept(10), rig.kept(10), rig.kept(10));
    assert_eq!(rig.store.next_wake(), None, "nothing was freed");
    assert_eq!(rig.handle(Event::Forgotten { blob: first }), [Effect::Drop { blob: first }]);
    assert_eq!(rig.store.next_wake(), Some(Time::ZERO + TRIM_DELAY));
    rig.now = rig.now + TRIM_DELAY / 2;
    assert_eq!(rig.handle(Event::Forgotten { blob: second }), [Effect::Drop { blob: second }]);
    assert_eq!(rig.store.next_wake(), Some(Time::ZERO + TRIM_DELAY), "the timer stays");
    rig.now = Time::ZERO + TRIM_DELAY;
    assert_eq!(rig.handle(Event::TimePassed), [], "memory was freed since");
    rig.now = rig.store.next_wake().unwrap();
    assert_eq!(rig.handle(Event::TimePassed), [Effect::TrimMemory]);
    assert_eq!(rig.store.next_wake(), None);
    assert_eq!(rig.handle(Event::Forgotten { blob: third }), [Effect::Drop { blob: third }]);
    assert!(rig.store.next_wake().is_some());
}

#[test]
fn a_waiting_request_does_not_time_out_while_others_are_granted_room() {
    let mut rig = rig(false);
    let mut held = rig.kept(60);
    let waiting: Vec<RequestId> = (0..4).map(|_| rig.create(TWO, 60).0).collect();
    for request in waiting {
        assert_eq!(rig.pass(9), []);
        let effects = rig.handle(Event::Forgotten { blob: held });
        let [Effect::Drop { .. }, Effect::GrantRoom { request: same, blob, .. }] = effects[..]
        else {
            panic!("{effects:?}")
        };
        assert_eq!(same, request, "requests are granted in order");
        for event in [Event::Sealed { blob }, Event::Retained { blob }] {
            assert_eq!(rig.handle(event), []);
        }
        assert_eq!(rig.handle(Event::Disowned { blob }), []);
        held = blob;
    }
    assert_eq!(rig.create(ONE, 60).1, []);
    assert!(error(&rig.pass(10)).contains("no room"));
}

/// The memory and disk of a shell, by blob.
#[derive(Default)]
struct Shell {
    memory: Map<BlobId, u64>,
    disk: Set<BlobId>,
    writing: Vec<BlobId>,
    reading: Vec<BlobId>,
    asked: Set<RequestId>,
    given: Vec<(ProcessId, BlobId)>,
    owned: Vec<(ProcessId, BlobId)>,
    asking: Map<RequestId, (ProcessId, Option<BlobId>)>,
    filling: Vec<(ProcessId, BlobId)>,
    kept: Set<BlobId>,
}

impl Shell {
    /// Ends a process, with everything that it had and requested.
    fn goes(&mut self, rig: &mut Rig, process: ProcessId) {
        self.given.retain(|(by, _)| *by != process);
        self.owned.retain(|(by, _)| *by != process);
        self.filling.retain(|(by, _)| *by != process);
        self.asking.retain(|_, (by, _)| *by != process);
        let asking = &self.asking;
        self.asked.retain(|request| asking.contains_key(request));
        self.take(rig.handle(Event::ProcessGone { process }));
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::GrantRoom { request, blob, bytes } => {
                    assert!(self.asked.remove(&request));
                    let (process, _) = self.asking.remove(&request).unwrap();
                    assert!(self.memory.insert(blob, bytes).is_none());
                    self.filling.push((process, blob));
                }
                Effect::GrantPin { request, blob } => {
                    assert!(self.asked.remove(&request));
                    let (process, wanted) = self.asking.remove(&request).unwrap();
                    assert_eq!(wanted, Some(blob));
                    assert!(self.memory.contains_key(&blob), "{blob:?} is in memory");
                    self.given.push((process, blob));
                }
                Effect::Refuse { request, .. } | Effect::RefuseLost { request, .. } => {
                    assert!(self.asked.remove(&request));
                    self.asking.remove(&request);
                }
                Effect::Spill { blob } => {
                    assert!(self.memory.contains_key(&blob) && !self.writing.contains(&blob));
                    self.writing.push(blob);
                }
                Effect::FreeMemory { blob } => {
                    assert!(self.disk.contains(&blob) && self.memory.remove(&blob).is_some());
                    assert!(self.given.iter().all(|(_, given)| *given != blob), "no pin");
                }
                Effect::Load { blob, bytes } => {
                    assert!(self.disk.contains(&blob));
                    assert!(self.memory.insert(blob, bytes).is_none());
                    self.reading.push(blob);
                }
                Effect::TrimMemory => {}
                Effect::FreeDisk { blob } => assert!(self.disk.remove(&blob)),
                Effect::Drop { blob } => {
                    assert!(!self.kept.contains(&blob), "{blob:?} is retained");
                    assert!(self.given.iter().all(|(_, given)| *given != blob), "no pin");
                    assert!(
                        self.owned.iter().all(|(_, owned)| *owned != blob),
                        "{blob:?} has an owner"
                    );
                    assert!(!self.writing.contains(&blob) && !self.reading.contains(&blob));
                    self.memory.remove(&blob);
                    self.disk.remove(&blob);
                }
                Effect::Lost { blob, .. } => {
                    self.owned.retain(|(_, owned)| *owned != blob);
                    self.kept.remove(&blob);
                }
            }
        }
    }
}

#[test]
fn a_cancelled_request_does_not_hold_up_the_requests_behind_it() {
    let mut rig = rig(false);
    let (first, _) = rig.create(ONE, LIMIT - 10);
    let (second, _) = rig.create(ONE, 50);
    let (third, effects) = rig.create(TWO, 10);
    assert!(effects.is_empty(), "the second request is before it");
    let effects = rig.handle(Event::RequestCancelled { request: second });
    assert!(
        matches!(&effects[..], [Effect::Refuse { request, .. }, Effect::GrantRoom { request: granted, .. }]
        if (*request, *granted) == (second, third)),
        "{effects:?}"
    );
    // An answered request is not answered again.
    assert!(rig.handle(Event::RequestCancelled { request: first }).is_empty());
}

#[test]
fn no_needed_blob_is_dropped_and_every_request_is_answered() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (mut rig, mut shell) = (rig(!random.one_in(4)), Shell::default());
        for _ in 0..400 {
            step(&mut random, &mut rig, &mut shell);
            let memory: u64 = shell.memory.values().sum();
            assert_eq!(memory, rig.store.used(), "seed {seed}");
            assert!(memory <= LIMIT);
        }
        // At the end every process is gone, and nothing is left.
        for process in 0..3 {
            shell.goes(&mut rig, ProcessId(process));
        }
        for blob in std::mem::take(&mut shell.kept) {
            shell.take(rig.handle(Event::Forgotten { blob }));
        }
        while !shell.writing.is_empty() || !shell.reading.is_empty() {
            finish(&mut random, &mut rig, &mut shell);
        }
        assert_eq!(
            (shell.memory.len(), shell.disk.len(), shell.asked.len()),
            (0, 0, 0),
            "seed {seed}"
        );
        assert_eq!((rig.store.used(), rig.store.spilled()), (0, 0), "seed {seed}");
    }
}

/// Ends one operation of the disk, with success or an error.
fn finish(random: &mut Random, rig: &mut Rig, shell: &mut Shell) {
    let result = match random.one_in(8) {
        true => Err(Error::exhausted("the disk")),
        false => Ok(()),
    };
    if !shell.writing.is_empty() && (shell.reading.is_empty() || random.one_in(2)) {
        let blob = shell.writing.swap_remove(random.below(shell.writing.len() as u64) as usize);
        if result.is_ok() {
            shell.disk.insert(blob);
        }
        shell.take(rig.handle(Event::SpillEnded { blob, result }));
    } else if !shell.reading.is_empty() {
        let blob = shell.reading.swap_remove(random.below(shell.reading.len() as u64) as usize);
        let result = match result {
            Err(_) if random.one_in(2) => Err(Error::internal("it is not what was written")),
            other => other,
        };
        match &result {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Exhausted => {
                shell.memory.remove(&blob);
            }
            Err(_) => {
                shell.kept.remove(&blob); // The blob is about to be lost.
            }
        }
        shell.take(rig.handle(Event::LoadEnded { blob, result }));
    }
}

fn step(random: &mut Random, rig: &mut Rig, shell: &mut Shell) {
    let process = ProcessId(random.below(3));
    match random.below(10) {
        0 | 1 => {
            let request = rig.request();
            shell.asked.insert(request);
            shell.asking.insert(request, (process, None));
            let bytes = 1 + random.below(60);
            let ahead = random.one_in(5);
            shell.take(rig.handle(Event::CreateRequested {
                request,
                process,
                bytes,
                speculative: ahead,
            }));
        }
        2 | 3 if !shell.filling.is_empty() => {
            let index = random.below(shell.filling.len() as u64) as usize;
            let (process, blob) = shell.filling.swap_remove(index);
            if random.one_in(5) {
                return shell.take(rig.handle(Event::Abandoned { blob }));
            }
            shell.owned.push((process, blob));
            shell.take(rig.handle(Event::Sealed { blob }));
            if !random.one_in(5) {
                shell.kept.insert(blob);
                shell.take(rig.handle(Event::Retained { blob }));
            }
        }
        4 if !shell.owned.is_empty() => {
            let index = random.below(shell.owned.len() as u64) as usize;
            let (_, blob) = shell.owned.swap_remove(index);
            shell.take(rig.handle(Event::Disowned { blob }));
        }
        4 | 5 if !shell.given.is_empty() => {
            let index = random.below(shell.given.len() as u64) as usize;
            let (process, blob) = shell.given.swap_remove(index);
            shell.take(rig.handle(Event::Unpinned { process, blob }));
        }
        6 | 7 if !shell.kept.is_empty() => {
            let all: Vec<BlobId> = shell.kept.iter().copied().collect();
            let blob = all[random.below(all.len() as u64) as usize];
            let request = rig.request();
            shell.asked.insert(request);
            shell.asking.insert(request, (process, Some(blob)));
            shell.take(rig.handle(Event::PinRequested { request, process, blob }));
        }
        8 if random.one_in(4) => shell.goes(rig, process),
        8 if !shell.kept.is_empty() => {
            let all: Vec<BlobId> = shell.kept.iter().copied().collect();
            let blob = all[random.below(all.len() as u64) as usize];
            shell.kept.remove(&blob);
            shell.take(rig.handle(Event::Forgotten { blob }));
        }
        9 if random.one_in(3) && !shell.asked.is_empty() => {
            // A waiting request is cancelled. That alone answers it.
            let all: Vec<RequestId> = shell.asked.iter().copied().collect();
            let request = all[random.below(all.len() as u64) as usize];
            let effects = rig.handle(Event::RequestCancelled { request });
            let refused = |effect: &Effect| matches!(effect, Effect::Refuse { request: one, .. } if *one == request);
            assert!(effects.iter().any(refused), "{effects:?}");
            shell.take(effects);
        }
        9 if random.one_in(3) => {
            let effects = rig.pass(random.below(12));
            shell.take(effects);
        }
        _ => finish(random, rig, shell),
    }
}
