//! A client that sends random messages at any time. They are well formed, and name ids of its own,
//! of other clients, and ids that do not exist. Whatever it sends, the controller goes on, and the
//! work of other clients still ends. The oracle promises nothing about ids that this client used.

use crate::executor::UserCodeBehavior;
use crate::process::{Input, Message, ProcessId};
use crate::world::World;
use marline_core::error::Error;
use marline_core::id::{
    ActorEpoch, ActorId, Attempt, ObjectId, Referent, Session, SessionEpoch, SessionId, TaskId,
};
use marline_core::message::{AttemptId, CancelMode, FromClient, Instance};
use marline_core::output::{Audience, OutputSource};
use marline_core::payload::{Payload, Value};
use marline_core::resources::{Amount, Resources};
use marline_core::spec::{
    ActorOptions, ActorSpec, Budget, Lifetime, Target, TaskOptions, TaskSpec,
};
use std::sync::Arc;
use std::time::Duration;

impl World {
    /// Sends a random message, and schedules the next one.
    pub fn make_mischief(&mut self, id: ProcessId) {
        if !self.faults {
            return;
        }
        self.soon(id, Duration::from_millis(400), Input::UserActs);
        if self.client_shell(id).upstream.session.is_some() {
            let message = self.odd_message(id);
            self.send_upstream(id, Message::FromClient(message));
        }
    }

    /// Returns one of the latest ids that clients made, or an id that no client made.
    fn odd_id(&mut self) -> u128 {
        let recent = self.oracle.recent.len() as u64;
        if recent == 0 || self.random.one_in(6) {
            return u128::from(self.random.below(1 << 20));
        }
        self.oracle.recent[self.random.below(recent) as usize]
    }

    fn odd_task(&mut self) -> TaskId {
        TaskId::from_u128(self.odd_id())
    }

    fn odd_actor(&mut self) -> ActorId {
        ActorId::from_u128(self.odd_id())
    }

    fn odd_object(&mut self) -> ObjectId {
        ObjectId::of(self.odd_task(), self.random.below(4) as u32)
    }

    fn odd_thing(&mut self) -> Referent {
        if self.random.one_in(2) {
            Referent::Object(self.odd_object())
        } else {
            Referent::Actor(self.odd_actor())
        }
    }

    fn odd_session(&mut self, id: ProcessId) -> Session {
        let mine = self.client_shell(id).upstream.session.expect("it was looked up");
        if self.random.one_in(3) {
            return mine;
        }
        let id = SessionId::from_u128(u128::from(self.random.below(10)));
        Session { id, epoch: SessionEpoch(mine.epoch.0 - self.random.below(4)) }
    }

    fn odd_audience(&mut self) -> Audience {
        let (attempt, epoch) = (Attempt(self.random.below(3)), ActorEpoch(self.random.below(3)));
        match self.random.below(4) {
            0 => Audience::Nobody,
            1 => Audience::Me,
            2 => {
                Audience::OfSource(OutputSource::Task(AttemptId { task: self.odd_task(), attempt }))
            }
            _ => {
                Audience::OfSource(OutputSource::Actor(Instance { actor: self.odd_actor(), epoch }))
            }
        }
    }

    fn odd_message(&mut self, id: ProcessId) -> FromClient {
        let mode = CancelMode::from_force(self.random.one_in(2));
        match self.random.below(19) {
            0 | 1 => FromClient::Submit(self.odd_spec()),
            2 => FromClient::Cancel { task: self.odd_task(), mode },
            3 => {
                let contains = vec![self.odd_thing(), self.odd_thing()];
                let value = Value { payload: Payload::raw(vec![1; 5]), referents: contains };
                let object = self.odd_object();
                self.oracle.fuzzed_ids.insert(object.origin);
                FromClient::Put { object, value, at: None }
            }
            4 => FromClient::Fetch { object: self.odd_object() },
            5 => FromClient::Hold { thing: self.odd_thing() },
            6 => {
                let attempt = Attempt(self.random.below(3));
                FromClient::Accept { call: AttemptId { task: self.odd_task(), attempt } }
            }
            7 | 8 => FromClient::Release { thing: self.odd_thing() },
            9 => FromClient::CreateActor(self.odd_actor_spec()),
            10 => {
                let name = format!("name-{}", self.random.below(4)).into();
                FromClient::FindActor {
                    request: self.random.below(3),
                    namespace: "default".into(),
                    name,
                }
            }
            11 => FromClient::WatchActor { actor: self.odd_actor() },
            12 => FromClient::Watch { session: self.odd_session(id) },
            13 => FromClient::ShowOutput { to: self.odd_audience() },
            15 => {
                let object = self.odd_object();
                self.oracle.fuzzed_ids.insert(object.origin);
                FromClient::Announce { object }
            }
            18 => {
                let count = self.random.below(20) as u32;
                FromClient::Took { task: self.odd_task(), count }
            }
            17 => {
                let things = vec![self.odd_thing(), self.odd_thing()];
                let attempt = Attempt(1 + self.random.below(3));
                let item = self.random.one_in(2).then(|| self.random.below(3) as u32);
                let call = AttemptId { task: self.odd_task(), attempt };
                FromClient::Enclose { call, item, things }
            }
            16 => {
                let value = match self.random.one_in(2) {
                    true => Ok(Value::from(Payload::raw(vec![1; 5]))),
                    false => Err(Error::cancelled("it was")),
                };
                let object = self.odd_object();
                self.oracle.fuzzed_ids.insert(object.origin);
                FromClient::Resolve { object, value }
            }
            // This may end an actor of another client, as any client may end a detached actor. Not
            // too often.
            14 if self.random.one_in(2) => FromClient::KillActor { actor: self.odd_actor() },
            _ => FromClient::DeleteActor { actor: self.odd_actor() },
        }
    }

    fn odd_spec(&mut self) -> Arc<TaskSpec> {
        let target = if self.random.one_in(2) {
            Target::Function(["add", "mul", "nobody's", ""][self.random.below(4) as usize].into())
        } else {
            Target::Method { actor: self.odd_actor(), method: "increment".into() }
        };
        let resources = match self.random.below(4) {
            0 => Resources::cpus(1_000),
            1 => Resources { cpu: Amount(-5), ..Resources::default() },
            2 => Resources::default().with_gpus(Amount(15_000)),
            _ => Resources::one_cpu(),
        };
        let id = self.odd_task();
        self.oracle.fuzzed_ids.insert(id);
        Arc::new(TaskSpec {
            id,
            target,
            args: UserCodeBehavior::Return.args(),
            needs: vec![self.odd_object()],
            referents: vec![self.odd_thing()],
            returns: [0, 1, 3, u32::MAX][self.random.below(4) as usize],
            stream_window: [None, Some(0), Some(2), Some(u32::MAX)][self.random.below(4) as usize],
            options: Arc::new(TaskOptions { resources, ..TaskOptions::default() }),
        })
    }

    fn odd_actor_spec(&mut self) -> Arc<ActorSpec> {
        let options = ActorOptions {
            resources: Resources::cpus(self.random.below(9) as u32),
            max_restarts: Budget::Unlimited,
            max_concurrency: self.random.below(3) as u32,
            lifetime: Lifetime::NonDetached,
            get_if_exists: self.random.one_in(2),
            idle_ttl: self.random.one_in(3).then_some(Duration::ZERO),
            ..ActorOptions::default()
        };
        Arc::new(ActorSpec {
            id: self.odd_actor(),
            class: ["Counter", "Nobody", ""][self.random.below(3) as usize].into(),
            args: UserCodeBehavior::Return.args(),
            needs: vec![],
            referents: vec![self.odd_thing()],
            name: self.random.one_in(2).then(|| "name-9".into()),
            namespace: "default".into(),
            options: Arc::new(options),
            interface: Default::default(),
        })
    }
}
