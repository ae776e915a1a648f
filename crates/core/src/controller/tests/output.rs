//! Which client is shown what work prints.

use super::*;
use crate::output::{AttributedOutput, Audience, OutputSource, PrintedLines, StdStream};

fn output(text: &str) -> PrintedLines {
    PrintedLines { pid: 7, stream: StdStream::Err, text: Some(text.into()), dropped: 2, missed: 3 }
}

impl Rig {
    fn shows_output(&mut self, client: Session, to: Audience) {
        self.client_says(client, FromClient::ShowOutput { to });
        self.nothing_left();
    }

    fn prints(&mut self, worker: Session, source: OutputSource, text: &str) {
        let output = output(text);
        self.worker_says(worker, FromWorker::Printed { source, output });
    }

    /// Takes the next effect, which must show this output to this client. Returns the name and the
    /// host under which it is shown.
    fn is_shown(&mut self, client: Session, from: OutputSource, text: &str) -> (String, String) {
        let ToClient::Printed(AttributedOutput { source, name, hostname, output: shown }) =
            self.next_to_client(client)
        else {
            panic!("a client is shown output")
        };
        assert_eq!((source, shown), (from, output(text)), "nothing is lost on the way");
        (name.to_string(), hostname.to_string())
    }
}

/// Returns a rig, with a client that wants to see what its work prints, and a worker.
fn rig() -> (Rig, Session, Session) {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.shows_output(client, Audience::Me);
    let worker = rig.worker(2, 4);
    (rig, client, worker)
}

#[test]
fn the_output_of_a_task_is_shown_to_its_submitter() {
    let (mut rig, client, worker) = rig();
    let other = rig.client(3);
    rig.shows_output(other, Audience::Me);
    rig.submit(client, task(1));
    rig.submit(other, task(2));
    let attempt = rig.assigns(worker, 1);
    rig.effects.clear();
    rig.prints(worker, OutputSource::Task(attempt), "one");
    let shown = rig.is_shown(client, OutputSource::Task(attempt), "one");
    assert_eq!(shown, ("add".into(), "node-2".into()));
    rig.nothing_left();
}

#[test]
fn output_of_ended_clients_and_of_ownerless_tasks_is_shown_to_no_client() {
    let (mut rig, client, worker) = rig();
    let other = rig.client(3);
    rig.submit(other, task(1));
    let attempt = rig.assigns(worker, 1);
    rig.effects.clear();
    rig.prints(worker, OutputSource::Task(attempt), "one");
    rig.nothing_left();
    rig.submit(client, task(2));
    rig.effects.clear();
    let attempt = AttemptId { task: task_id(2), attempt: Attempt(1) };
    rig.dies(client);
    rig.effects.clear();
    rig.prints(worker, OutputSource::Task(attempt), "two");
    rig.nothing_left();
    let unknown = AttemptId { task: task_id(9), attempt: Attempt(1) };
    rig.prints(worker, OutputSource::Task(unknown), "three");
    rig.nothing_left();
    rig.submit_ownerless(task(4)).unwrap();
    let attempt = rig.assigns(worker, 4);
    rig.prints(worker, OutputSource::Task(attempt), "four");
    rig.nothing_left();
}

#[test]
fn output_that_comes_after_the_end_of_a_task_is_shown_to_its_submitter() {
    let (mut rig, client, worker) = rig();
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    rig.effects.clear();
    rig.finish(worker, attempt);
    rig.effects.clear();
    rig.prints(worker, OutputSource::Task(attempt), "a thread");
    rig.is_shown(client, OutputSource::Task(attempt), "a thread");
}

#[test]
fn the_output_of_an_actor_is_shown_to_its_creator_under_its_name_or_class() {
    let (mut rig, client, worker) = rig();
    let nameless = rig.create(client, worker, actor(7));
    rig.prints(worker, OutputSource::Actor(nameless), "one");
    assert_eq!(rig.is_shown(client, OutputSource::Actor(nameless), "one").0, "Counter");
    let detached = ActorOptions {
        lifetime: Lifetime::Detached,
        get_if_exists: true,
        ..ActorOptions::default()
    };
    let spec = ActorSpec { name: Some("bob".into()), ..actor_with(8, detached.clone()) };
    let named = rig.create(client, worker, spec);
    // Another client finds the actor by its name. Its output still goes to its creator.
    let other = rig.client(3);
    rig.shows_output(other, Audience::Me);
    let spec = ActorSpec { name: Some("bob".into()), ..actor_with(9, detached) };
    rig.client_says(other, FromClient::CreateActor(Arc::new(spec)));
    rig.effects.clear();
    rig.prints(worker, OutputSource::Actor(named), "two");
    assert_eq!(rig.is_shown(client, OutputSource::Actor(named), "two").0, "bob");
    // The actor lives on when its creator has left. Its output is shown to no client.
    rig.dies(client);
    rig.effects.clear();
    assert!(rig.controller.actor_status(named.actor).is_ok());
    rig.prints(worker, OutputSource::Actor(named), "three");
    rig.nothing_left();
}

#[test]
fn output_of_nested_work_is_shown_to_the_client_of_the_outer_task() {
    let (mut rig, client, worker) = rig();
    let executor = rig.client(3);
    rig.submit(client, task(1));
    let outer = rig.assigns(worker, 1);
    rig.effects.clear();
    rig.shows_output(executor, Audience::OfSource(OutputSource::Task(outer)));
    rig.submit(executor, task(2));
    let inner = rig.assigns(worker, 2);
    rig.effects.clear();
    // The executor then runs a task of another client. Work that it submitted before still belongs
    // to the first client.
    let other = rig.client(4);
    rig.shows_output(other, Audience::Me);
    rig.submit(other, task(3));
    let another = rig.assigns(worker, 3);
    rig.effects.clear();
    rig.shows_output(executor, Audience::OfSource(OutputSource::Task(another)));
    rig.prints(worker, OutputSource::Task(inner), "inner");
    rig.is_shown(client, OutputSource::Task(inner), "inner");
    let made = {
        rig.client_says(executor, FromClient::CreateActor(Arc::new(actor(7))));
        rig.instantiates(worker, actor(7).id)
    };
    rig.effects.clear();
    rig.prints(worker, OutputSource::Actor(made), "made");
    rig.is_shown(other, OutputSource::Actor(made), "made");
    // Output of work that belongs to no known task is shown to no client.
    let unknown = AttemptId { task: task_id(9), attempt: Attempt(1) };
    rig.shows_output(executor, Audience::OfSource(OutputSource::Task(unknown)));
    rig.submit(executor, task(5));
    let ownerless = rig.assigns(worker, 5);
    rig.effects.clear();
    rig.prints(worker, OutputSource::Task(ownerless), "for nobody");
    rig.nothing_left();
}
