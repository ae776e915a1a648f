//! The unary operations over real sockets, called by a client that knows them only by reflection:
//! every operation, and every error that docs/protocol.md lists for it.

#[path = "control/generic.rs"]
mod generic;
#[path = "control/world.rs"]
mod world;

use generic::{CONTROL, Raw, ReflectionClient, called};
use marline_runtime::core::controller::Config;
use marline_runtime::core::lease::LeaseTerms;
use prost_reflect::prost::Message;
use prost_reflect::{DynamicMessage, ReflectMessage};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tonic::Code;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use world::{TOKEN, TestCluster, alone, world};

const NOBODY: &str = "00000000-0000-0000-0000-000000000001";
/// In milliseconds: long enough for every wait in this file.
const LONG: u64 = 60_000;

/// Each story is a test of its own. The last test runs all stories, and checks that together they
/// met every operation and error that docs/protocol.md lists.
macro_rules! stories {
    ($($story:ident)+) => {
        mod each {
            $(#[test] fn $story() { super::$story(); })+
        }
        const STORIES: &[fn()] = &[$($story),+];
    };
}

stories! {
    sessions_are_opened_kept_alive_and_closed
    a_session_without_keep_alive_ends_and_its_tasks_are_cancelled
    sessions_beyond_the_limit_are_rejected
    tasks_are_submitted_waited_for_and_answered
    tasks_that_have_not_ended_or_never_existed_have_no_result
    tasks_are_cancelled
    a_wait_ends_when_enough_tasks_have_ended_or_its_time_is_over
    tasks_are_listed
    invalid_and_excessive_submissions_are_rejected
    payloads_may_be_as_large_as_their_limit
    actors_are_created_found_called_and_deleted
    an_actor_ends_with_its_session
    invalid_actors_and_calls_are_rejected
    calls_beyond_the_limit_are_rejected
    workers_and_the_cluster_are_shown
    a_drained_worker_finishes_its_running_tasks
    a_worker_answers_for_itself_and_names_the_controller_for_the_rest
}

fn pages_are_bounded(client: &ReflectionClient, operation: &str) {
    let words =
        client.fails_with(operation, json!({"limit": 1001}), Code::ResourceExhausted, "TooLarge");
    assert!(words.contains("the limit is 1000 (MAX_PAGE)"), "{words}");
}

fn raw(text: &str) -> Value {
    json!({"encoding": "ENCODING_RAW", "inline": text})
}

fn submit(client: &ReflectionClient, function: &str) -> Value {
    client.ok("SubmitTask", json!({"function": function, "args": raw("aGVsbG8=")}))["task_id"]
        .clone()
}

fn ended(client: &ReflectionClient, task: &Value) {
    let waited = client.ok("WaitTasks", json!({"task_ids": [task], "timeout_ms": LONG}));
    assert_eq!(waited, json!({"ended": [task], "pending": []}));
}

fn state(client: &ReflectionClient, task: &Value) -> String {
    let status = client.ok("GetTaskStatus", json!({"task_id": task}));
    status["state"].as_str().unwrap().to_owned()
}

/// Repeats the question until the answer is yes.
fn until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::yield_now();
    }
}

fn sessions_are_opened_kept_alive_and_closed() {
    let world = world(Config::default());
    let client = &world.client;
    let opened = client.ok("OpenSession", json!({"protocol": "1"}));
    assert_eq!(opened["lease_ms"], 30_000);
    let session = &opened["session"];
    let again = client.ok("OpenSession", json!({"session_id": session["id"]}));
    assert_eq!(&again["session"], session, "a repeated request opens one session");
    assert_eq!(client.ok("KeepAlive", json!({"session": session}))["lease_ms"], 30_000);
    client.ok("CloseSession", json!({"session": session}));
    for operation in ["KeepAlive", "CloseSession"] {
        let words =
            client.fails_with(operation, json!({"session": session}), Code::Aborted, "Fenced");
        assert!(words.contains(session["id"].as_str().unwrap()), "{words}");
        client.fails_with(operation, json!({}), Code::InvalidArgument, "Invalid");
        let unknown = json!({"session": {"id": NOBODY, "epoch": 1}});
        client.fails_with(operation, unknown, Code::Aborted, "Fenced");
    }
    let worker = client.ok("ListWorkers", json!({}))["workers"][0]["worker_id"].clone();
    let taken = json!({"session_id": worker});
    client.fails_with("OpenSession", taken, Code::AlreadyExists, "AlreadyExists");
    let malformed = json!({"session_id": "seven"});
    client.fails_with("OpenSession", malformed, Code::InvalidArgument, "Invalid");
    let later = json!({"protocol": "2"});
    client.fails_with("OpenSession", later, Code::FailedPrecondition, "Incompatible");
}

fn a_session_without_keep_alive_ends_and_its_tasks_are_cancelled() {
    let lease = Duration::from_millis(300);
    let terms = LeaseTerms { lease, ping_interval: Duration::from_millis(100) };
    let world = alone(Config { terms, ..Config::default() });
    let client = &world.client;
    let session = client.ok("OpenSession", json!({}))["session"].clone();
    let request = json!({"function": "echo", "session": session});
    let task = client.ok("SubmitTask", request)["task_id"].clone();
    ended(client, &task);
    assert_eq!(state(client, &task), "TASK_STATE_CANCELLED");
    client.fails_with("KeepAlive", json!({"session": session}), Code::Aborted, "Fenced");
}

fn sessions_beyond_the_limit_are_rejected() {
    let world = alone(Config { max_unlinked_sessions: 1, ..Config::default() });
    world.client.ok("OpenSession", json!({}));
    let words =
        world.client.fails_with("OpenSession", json!({}), Code::ResourceExhausted, "Exhausted");
    assert!(words.contains("max_unlinked_sessions"), "{words}");
}

fn tasks_are_submitted_waited_for_and_answered() {
    let world = world(Config::default());
    let client = &world.client;
    let task = submit(client, "echo");
    ended(client, &task);
    let result = client.ok("GetTaskResult", json!({"task_id": task}));
    assert_eq!(result["values"][0]["payload"]["inline"], "aGVsbG8=");
    assert_eq!(result["error"], Value::Null);
    let status = client.ok("GetTaskStatus", json!({"task_id": task}));
    let worker = client.ok("ListWorkers", json!({}))["workers"][0]["worker_id"].clone();
    assert_eq!((&status["state"], &status["attempts"]), (&json!("TASK_STATE_FINISHED"), &json!(1)));
    assert_eq!((&status["name"], &status["worker_id"]), (&json!("echo"), &worker));
    let times = ["created_at", "started_at", "finished_at"].map(|at| status[at].as_i64().unwrap());
    assert!(times.is_sorted() && times[0] > 1_700_000_000_000, "{times:?}");

    let failed = submit(client, "fail");
    ended(client, &failed);
    let result = client.ok("GetTaskResult", json!({"task_id": failed}));
    assert_eq!((&result["values"], &result["error"]["message"]), (&json!([]), &json!("it fails")));
    assert_eq!(result["error"]["kind"], "ERROR_KIND_FAILED");

    // An argument is passed by the id of its object. A task that is submitted twice runs once. The request asks for two
    // results.
    let request = json!({
        "task_id": NOBODY, "function": "echo", "returns": 2,
        "needs": [format!("{}#0", task.as_str().unwrap()), task],
    });
    assert_eq!(client.ok("SubmitTask", request.clone())["task_id"], NOBODY);
    ended(client, &json!(NOBODY));
    client.ok("SubmitTask", request);
    let result = client.ok("GetTaskResult", json!({"task_id": NOBODY}));
    assert_eq!(result["values"].as_array().unwrap().len(), 2);
    assert_eq!(result["values"][1]["payload"]["inline"], "kA==", "no arguments are an empty list");
    let counters = client.ok("ClusterResources", json!({}))["counters"].clone();
    assert_eq!((&counters["submitted"], &counters["failed"]), (&json!(3), &json!(1)));
}

fn tasks_that_have_not_ended_or_never_existed_have_no_result() {
    let world = world(Config::default());
    let client = &world.client;
    let task = submit(client, "gate");
    let words = client.fails_with(
        "GetTaskResult",
        json!({"task_id": task}),
        Code::FailedPrecondition,
        "NotReady",
    );
    assert!(words.contains(task.as_str().unwrap()), "{words}");
    for operation in ["GetTaskResult", "GetTaskStatus", "CancelTask"] {
        let unknown = json!({"task_id": NOBODY});
        client.fails_with(operation, unknown, Code::NotFound, "NotFound");
        client.fails_with(operation, json!({"task_id": "x"}), Code::InvalidArgument, "Invalid");
        let words = client.fails_with(operation, json!({}), Code::InvalidArgument, "Invalid");
        assert!(words.ends_with("Request.task_id is missing"), "{words}");
    }
}

fn tasks_are_cancelled() {
    let world = world(Config::default());
    let client = &world.client;
    let large = json!({"function": "echo", "options": {"resources": {"cpu": 90_000}}});
    let waits = client.ok("SubmitTask", large)["task_id"].clone();
    let status = client.ok("GetTaskStatus", json!({"task_id": waits}));
    assert_eq!(
        status["waits_for"],
        "no worker is large enough for cpu 9: the largest offers cpu 2"
    );
    let cancel = |task: &Value, force: bool| {
        client.ok("CancelTask", json!({"task_id": task, "force": force}))["had_not_ended"].clone()
    };
    assert_eq!(cancel(&waits, false), true);
    assert_eq!(state(client, &waits), "TASK_STATE_CANCELLED");
    assert_eq!(cancel(&waits, true), false);
    let runs = submit(client, "gate");
    until(|| state(client, &runs) == "TASK_STATE_RUNNING");
    assert_eq!(cancel(&runs, true), true);
    ended(client, &runs);
    let result = client.ok("GetTaskResult", json!({"task_id": runs}));
    assert_eq!(result["error"]["kind"], "ERROR_KIND_CANCELLED");
}

fn a_wait_ends_when_enough_tasks_have_ended_or_its_time_is_over() {
    let world = world(Config::default());
    let client = &world.client;
    let (quick, slow) = (submit(client, "echo"), submit(client, "gate"));
    let wait = |count: u32, timeout: u64| {
        let tasks = json!([slow, quick, slow]);
        client.ok("WaitTasks", json!({"task_ids": tasks, "count": count, "timeout_ms": timeout}))
    };
    let in_part = json!({"ended": [quick], "pending": [slow]});
    assert_eq!(wait(1, LONG), in_part);
    assert_eq!(wait(1, 0), in_part, "enough has ended");
    assert_eq!(wait(0, 0), in_part, "a timeout of 0 does not wait");
    assert_eq!(wait(2, 1), in_part, "a timeout is not an error");
    std::thread::scope(|scope| {
        // While another client waits for the task, this thread lets the task end.
        let other = client.sibling();
        let (gate, ids) = (&world.gate, json!({"task_ids": [slow], "timeout_ms": LONG}));
        let waiting = scope.spawn(move || other.ok("WaitTasks", ids));
        gate.open();
        assert_eq!(waiting.join().unwrap(), json!({"ended": [slow], "pending": []}));
    });
    let invalid =
        [json!({}), json!({"task_ids": [quick], "count": 2}), json!({"task_ids": [quick, "x"]})];
    for request in invalid {
        client.fails_with("WaitTasks", request, Code::InvalidArgument, "Invalid");
    }
    let unknown = json!({"task_ids": [quick, NOBODY]});
    client.fails_with("WaitTasks", unknown, Code::NotFound, "NotFound");
    let too_long = json!({"task_ids": [quick], "timeout_ms": LONG + 1});
    let words = client.fails_with("WaitTasks", too_long, Code::ResourceExhausted, "TooLarge");
    assert!(words.contains("the limit is 60000 (MAX_WAIT)"), "{words}");
    let too_many = json!({"task_ids": vec![quick; 10_001]});
    let words = client.fails_with("WaitTasks", too_many, Code::ResourceExhausted, "TooLarge");
    assert!(words.contains("the limit is 10000 (MAX_WAIT_TASKS)"), "{words}");
}

fn tasks_are_listed() {
    let world = world(Config::default());
    let client = &world.client;
    let done = submit(client, "fail");
    ended(client, &done);
    let runs = submit(client, "gate");
    until(|| state(client, &runs) == "TASK_STATE_RUNNING");
    let list = |request: Value| {
        let listed = client.ok("ListTasks", request);
        let tasks = listed["tasks"].as_array().unwrap().iter();
        let ids: Vec<Value> = tasks.map(|task| task["task_id"].clone()).collect();
        (ids, listed["more"].as_bool().unwrap())
    };
    assert_eq!(list(json!({})), (vec![runs.clone(), done.clone()], false));
    assert_eq!(list(json!({"limit": 1})), (vec![runs.clone()], true));
    assert!(!list(json!({"limit": 2})).1);
    assert_eq!(list(json!({"states": ["TASK_STATE_FAILED"]})).0, std::slice::from_ref(&done));
    assert_eq!(list(json!({"states": ["TASK_STATE_RUNNING", "TASK_STATE_PENDING"]})).0, [runs]);
    assert_eq!(list(json!({"actor_id": NOBODY})).0, [Value::Null; 0]);
    client.fails_with("ListTasks", json!({"states": [99]}), Code::InvalidArgument, "Invalid");
    client.fails_with("ListTasks", json!({"actor_id": "x"}), Code::InvalidArgument, "Invalid");
    assert_eq!(list(json!({"limit": 1, "id_prefix": done})).0, [done], "newer tasks do not fit");
    client.fails_with("ListTasks", json!({"id_prefix": "x"}), Code::InvalidArgument, "Invalid");
    pages_are_bounded(client, "ListTasks");
}

fn invalid_and_excessive_submissions_are_rejected() {
    let world = alone(Config { max_pending_tasks: 1, ..Config::default() });
    let client = &world.client;
    let invalid = [
        json!({}),
        json!({"function": "echo", "task_id": "x"}),
        json!({"function": "echo", "needs": ["x#0"]}),
        json!({"function": "echo", "args": {"inline": "kA=="}}),
        json!({"function": "echo", "options": {"resources": {"gpu": 15_000}}}),
        json!({"function": "echo", "session": {}}),
    ];
    for request in invalid {
        client.fails_with("SubmitTask", request, Code::InvalidArgument, "Invalid");
    }
    let fenced = json!({"function": "echo", "session": {"id": NOBODY, "epoch": 7}});
    client.fails_with("SubmitTask", fenced, Code::Aborted, "Fenced");
    let later = json!({"function": "echo", "protocol": "2"});
    client.fails_with("SubmitTask", later, Code::FailedPrecondition, "Incompatible");
    let many = json!({"function": "echo", "returns": 1_000_000_000});
    client.fails_with("SubmitTask", many, Code::ResourceExhausted, "TooLarge");
    assert_eq!(client.ok("ClusterResources", json!({}))["pending_tasks"], 0);
    submit(client, "echo");
    let words = client.fails_with(
        "SubmitTask",
        json!({"function": "echo"}),
        Code::ResourceExhausted,
        "Exhausted",
    );
    assert!(words.contains("the limit is 1 (max_pending_tasks)"), "{words}");
    pending_bytes_actors_and_shapes_are_bounded();
}

fn pending_bytes_actors_and_shapes_are_bounded() {
    let small = Config { max_pending_bytes: 90, max_actors: 1, ..Config::default() };
    let world = alone(Config { max_waiting_shapes: 2, ..small });
    let client = &world.client;
    let exhausted = |operation: &str, request: Value, limit: &str| {
        let words = client.fails_with(operation, request, Code::ResourceExhausted, "Exhausted");
        assert!(words.contains(limit), "{words}");
    };
    let actor = |name: &str| json!({"class": "Counter", "name": name, "options": {"lifetime": "LIFETIME_DETACHED"}});
    client.ok("CreateActor", actor("first"));
    exhausted("CreateActor", actor("second"), "1 actors live, the limit is 1 (max_actors)");
    let large = json!({"encoding": "ENCODING_RAW", "inline": "A".repeat(80)});
    client.ok("SubmitTask", json!({"function": "echo", "args": large}));
    let too_much = json!({"function": "echo", "args": large});
    exhausted(
        "SubmitTask",
        too_much,
        "60 bytes of arguments do not fit: pending tasks and actors keep 61 of at most 90",
    );
    // The limit is only reached when the task is placed: the task is accepted, and fails.
    let other =
        client.ok("SubmitTask", json!({"function": "echo", "options": {"resources": {"cpu": 5}}}));
    let outcome = client.ok("GetTaskResult", json!({"task_id": other["task_id"]}));
    assert!(outcome.to_string().contains("max_waiting_shapes"), "{outcome}");
}

fn payloads_may_be_as_large_as_their_limit() {
    let world = world(Config { max_payload_bytes: 3_000, ..Config::default() });
    let client = &world.client;
    let args = |bytes: usize| raw(&"AAAA".repeat(bytes / 3));
    let fits = client.ok("SubmitTask", json!({"function": "echo", "args": args(3_000)}));
    ended(client, &fits["task_id"]);
    let one_more = json!({"encoding": "ENCODING_RAW", "inline": "AAAA".repeat(1_000) + "AA=="});
    for (operation, what) in [("SubmitTask", "function"), ("CreateActor", "class")] {
        let options =
            if what == "class" { json!({"lifetime": "LIFETIME_DETACHED"}) } else { json!({}) };
        let request = json!({what: "echo", "args": one_more, "options": options});
        let words = client.fails_with(operation, request, Code::ResourceExhausted, "TooLarge");
        assert!(words.contains("3001 bytes, the limit is 3000 (max_payload_bytes)"), "{words}");
    }
    let actor = detached(client, json!({}));
    let call = json!({"actor_id": actor, "method": "count", "args": one_more});
    client.fails_with("CallActor", call, Code::ResourceExhausted, "TooLarge");
    ended(client, &submit(client, "echo"));
}

/// Creates a detached actor with these options. Returns its id.
fn detached(client: &ReflectionClient, mut options: Value) -> Value {
    options["lifetime"] = json!("LIFETIME_DETACHED");
    let request = json!({"class": "Counter", "options": options});
    client.ok("CreateActor", request)["actor_id"].clone()
}

fn call(client: &ReflectionClient, actor: &Value, method: &str) -> Value {
    client.ok("CallActor", json!({"actor_id": actor, "method": method}))["task_id"].clone()
}

fn actors_are_created_found_called_and_deleted() {
    let world = world(Config::default());
    let client = &world.client;
    let create = |options: Value| json!({"class": "Counter", "name": "one", "options": options});
    let options = json!({"lifetime": "LIFETIME_DETACHED"});
    let created = client.ok("CreateActor", create(options.clone()));
    assert_eq!(created["created"], true);
    let actor = &created["actor_id"];
    let worker = client.ok("ListWorkers", json!({}))["workers"][0]["worker_id"].clone();
    let states = ["ACTOR_STATE_CREATING", "ACTOR_STATE_READY"];
    assert!(states.iter().any(|state| created["state"] == *state), "{created}");
    assert_eq!(created["worker_id"], worker, "the worker has room for the actor");
    let status = || client.ok("GetActorStatus", json!({"actor_id": actor}));
    until(|| status()["state"] == "ACTOR_STATE_READY");
    let taken = create(options);
    client.fails_with("CreateActor", taken, Code::AlreadyExists, "AlreadyExists");
    let options = json!({"lifetime": "LIFETIME_DETACHED", "get_if_exists": true});
    let found = client.ok("CreateActor", create(options));
    let ready = "ACTOR_STATE_READY";
    let expected =
        json!({"actor_id": actor, "created": false, "state": ready, "worker_id": worker});
    assert_eq!(found, expected, "the existing actor is returned");

    for (number, count) in ["AQ==", "Ag=="].into_iter().enumerate() {
        let task = call(client, actor, "count");
        ended(client, &task);
        let result = client.ok("GetTaskResult", json!({"task_id": task}));
        assert_eq!(result["values"][0]["payload"]["inline"], count, "call {number}");
        let status = client.ok("GetTaskStatus", json!({"task_id": task}));
        assert_eq!((&status["actor_id"], &status["name"]), (actor, &json!("count")));
    }
    let status = client.ok("GetActorStatus", json!({"name": "one"}));
    assert_eq!(status, client.ok("GetActorStatus", json!({"actor_id": actor})));
    let by_both = json!({"namespace": "default", "name": "one"});
    assert_eq!(status, client.ok("GetActorStatus", by_both));
    assert_eq!(
        (&status["state"], &status["class"]),
        (&json!("ACTOR_STATE_READY"), &json!("Counter"))
    );
    assert_eq!((&status["epoch"], &status["restarts"]), (&json!(1), &json!(0)));
    let worker = client.ok("ListWorkers", json!({}))["workers"][0]["worker_id"].clone();
    assert_eq!((&status["worker_id"], &status["pending_calls"]), (&worker, &json!(0)));
    assert!(status["last_used_at"].as_i64().unwrap() >= status["created_at"].as_i64().unwrap());
    let calls = client.ok("ListTasks", json!({"actor_id": actor}));
    assert_eq!(calls["tasks"].as_array().unwrap().len(), 2);
    let listed = client.ok("ListActors", json!({}));
    assert_eq!((&listed["actors"][0], &listed["more"]), (&status, &json!(false)));
    detached(client, json!({}));
    assert_eq!(client.ok("ListActors", json!({"limit": 1}))["more"], true);
    pages_are_bounded(client, "ListActors");

    client.ok("DeleteActor", json!({"actor_id": actor}));
    client.fails_with("DeleteActor", json!({"actor_id": actor}), Code::NotFound, "NotFound");
    let status = client.ok("GetActorStatus", json!({"actor_id": actor}));
    assert_eq!(
        (&status["state"], &status["cause"]),
        (&json!("ACTOR_STATE_DEAD"), &json!("DEATH_CAUSE_DELETED"))
    );
    client.fails_with("GetActorStatus", json!({"name": "one"}), Code::NotFound, "NotFound");
    let gone = json!({"actor_id": actor, "method": "count"});
    client.fails_with("CallActor", gone, Code::DataLoss, "Gone");
}

fn an_actor_ends_with_its_session() {
    let world = world(Config::default());
    let client = &world.client;
    let session = client.ok("OpenSession", json!({}))["session"].clone();
    let request = json!({"class": "Counter", "session": session});
    let actor = client.ok("CreateActor", request)["actor_id"].clone();
    let request = json!({"actor_id": actor, "method": "count", "session": session});
    let task = client.ok("CallActor", request)["task_id"].clone();
    ended(client, &task);
    client.ok("CloseSession", json!({"session": session}));
    let status = client.ok("GetActorStatus", json!({"actor_id": actor}));
    assert_eq!(status["cause"], "DEATH_CAUSE_OWNER_GONE");
    client.fails_with("GetTaskResult", json!({"task_id": task}), Code::NotFound, "NotFound");
}

fn invalid_actors_and_calls_are_rejected() {
    let world = world(Config::default());
    let client = &world.client;
    let over = json!({"id": NOBODY, "epoch": 7});
    for request in [json!({}), json!({"class": "Counter"}), json!({"class": "C", "actor_id": "x"})]
    {
        client.fails_with("CreateActor", request, Code::InvalidArgument, "Invalid");
    }
    let fenced = json!({"class": "Counter", "session": over});
    client.fails_with("CreateActor", fenced, Code::Aborted, "Fenced");
    let later = json!({"class": "Counter", "protocol": "0"});
    client.fails_with("CreateActor", later, Code::FailedPrecondition, "Incompatible");
    let named = json!({"class": "x".repeat(10_000), "options": {"lifetime": "LIFETIME_DETACHED"}});
    client.fails_with("CreateActor", named, Code::ResourceExhausted, "TooLarge");

    let actor = detached(client, json!({}));
    for request in [json!({}), json!({"actor_id": actor}), json!({"actor_id": "x", "method": "m"})]
    {
        client.fails_with("CallActor", request, Code::InvalidArgument, "Invalid");
    }
    let unknown = json!({"actor_id": NOBODY, "method": "count"});
    client.fails_with("CallActor", unknown, Code::NotFound, "NotFound");
    let fenced = json!({"actor_id": actor, "method": "count", "session": over});
    client.fails_with("CallActor", fenced, Code::Aborted, "Fenced");
    let later = json!({"actor_id": actor, "method": "count", "protocol": "2"});
    client.fails_with("CallActor", later, Code::FailedPrecondition, "Incompatible");

    let both = json!({"actor_id": actor, "name": "one"});
    for request in [json!({}), both, json!({"actor_id": "x"})] {
        client.fails_with("GetActorStatus", request, Code::InvalidArgument, "Invalid");
    }
    client.fails_with("GetActorStatus", json!({"actor_id": NOBODY}), Code::NotFound, "NotFound");
    client.fails_with("DeleteActor", json!({}), Code::InvalidArgument, "Invalid");

    let broken = json!({"class": "Broken", "options": {"lifetime": "LIFETIME_DETACHED"}});
    let broken = client.ok("CreateActor", broken)["actor_id"].clone();
    let status = || client.ok("GetActorStatus", json!({"actor_id": broken}));
    until(|| status()["state"] == "ACTOR_STATE_DEAD");
    assert_eq!(status()["cause"], "DEATH_CAUSE_CONSTRUCTOR_FAILED");
    assert_eq!(status()["error"]["message"], "it cannot be made");
    let gone = json!({"actor_id": broken, "method": "count"});
    client.fails_with("CallActor", gone, Code::DataLoss, "Gone");
}

fn calls_beyond_the_limit_are_rejected() {
    let world = world(Config::default());
    let client = &world.client;
    let actor = detached(client, json!({"max_pending_calls": 1}));
    let held = call(client, &actor, "gate");
    let request = json!({"actor_id": actor, "method": "count"});
    let words = client.fails_with("CallActor", request, Code::ResourceExhausted, "Exhausted");
    assert!(words.contains("the limit is 1 (max_pending_calls)"), "{words}");
    world.gate.open();
    ended(client, &held);
    ended(client, &call(client, &actor, "count"));
}

fn workers_and_the_cluster_are_shown() {
    let world = world(Config::default());
    let client = &world.client;
    let list = || client.ok("ListWorkers", json!({}));
    until(|| list()["workers"][0]["state"] != "WORKER_STATE_JOINING");
    let listed = list();
    let worker = &listed["workers"][0];
    assert_eq!(
        (&worker["state"], &listed["more"]),
        (&json!("WORKER_STATE_HEALTHY"), &json!(false))
    );
    assert_eq!((&worker["total"]["cpu"], &worker["free"]["cpu"]), (&json!(20_000), &json!(20_000)));
    assert_eq!(worker["pid"], std::process::id());
    let begins = |prefix: &Value| {
        let request = json!({"limit": 1, "id_prefix": prefix});
        client.ok("ListWorkers", request)["workers"].as_array().unwrap().len()
    };
    assert_eq!((begins(&worker["worker_id"]), begins(&json!(NOBODY))), (1, 0));
    pages_are_bounded(client, "ListWorkers");
    pages_are_bounded(client, "ListObjects");
    client.ok("ListObjects", json!({}));

    let runs = submit(client, "gate");
    until(|| state(client, &runs) == "TASK_STATE_RUNNING");
    for _ in 0..3 {
        client.ok(
            "SubmitTask",
            json!({"function": "echo", "options": {"resources": {"cpu": 90_000}}}),
        );
    }
    let shown = client.ok("ClusterResources", json!({}));
    assert_eq!((&shown["total"]["cpu"], &shown["free"]["cpu"]), (&json!(20_000), &json!(10_000)));
    assert_eq!(shown["workers"], json!([{"state": "WORKER_STATE_HEALTHY", "count": 1}]));
    assert_eq!((&shown["pending_tasks"], &shown["sessions"]), (&json!(4), &json!(1)));
    let reason = "no worker is large enough for cpu 9: the largest offers cpu 2";
    assert_eq!(shown["waiting"], json!([{"reason": reason, "count": 3}]));
    assert_eq!((&shown["protocol"], &shown["kept_objects"]), (&json!("1"), &json!(0)));
    assert!(shown["controller_epoch"].as_u64().unwrap() > 0 && shown["cluster_id"] != "");
    client.fails_with("WorkerHealth", json!({}), Code::Unimplemented, "Unsupported");
    let log = json!({"task_id": NOBODY});
    client.fails_with("ReadLog", log, Code::Unimplemented, "Unsupported");
}

fn a_drained_worker_finishes_its_running_tasks() {
    let world = world(Config::default());
    let client = &world.client;
    client.fails_with("DrainWorker", json!({"worker_id": NOBODY}), Code::NotFound, "NotFound");
    client.fails_with("DrainWorker", json!({}), Code::InvalidArgument, "Invalid");
    let runs = submit(client, "gate");
    until(|| state(client, &runs) == "TASK_STATE_RUNNING");
    let worker = || client.ok("ListWorkers", json!({}))["workers"][0].clone();
    let request = json!({"worker_id": worker()["worker_id"], "grace_ms": LONG});
    client.ok("DrainWorker", request);
    assert_eq!(worker()["state"], "WORKER_STATE_DRAINING");
    world.gate.open();
    ended(client, &runs);
    assert_eq!(state(client, &runs), "TASK_STATE_FINISHED", "a running task may finish");
}

fn a_worker_answers_for_itself_and_names_the_controller_for_the_rest() {
    let world = world(Config::default());
    let TestCluster { client, workers, controller, gate } = &world;
    let there = &workers[0].1;
    let actor = detached(client, json!({"resources": {"cpu": 5_000}}));
    let held = call(client, &actor, "gate");
    let runs = submit(client, "gate");
    let health = || there.ok("WorkerHealth", json!({}))["workers"][0].clone();
    until(|| health()["tasks"] == 1 && health()["actors"] == 1);
    let shown = health();
    assert_eq!((&shown["total"]["cpu"], &shown["free"]["cpu"]), (&json!(20_000), &json!(5_000)));
    assert_eq!(shown["draining"], false);
    let listed = || there.ok("ListTasks", json!({"states": ["TASK_STATE_RUNNING"]}));
    until(|| listed()["tasks"].as_array().unwrap().len() == 2);
    let listed = listed();
    let ids: BTreeSet<&str> = listed["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["task_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, [held.as_str().unwrap(), runs.as_str().unwrap()].into());
    let actors = there.ok("ListActors", json!({}));
    assert_eq!((&actors["actors"][0]["actor_id"], &actors["more"]), (&actor, &json!(false)));
    let status = there.ok("GetActorStatus", json!({"actor_id": actor}));
    assert_eq!((&status["actor_id"], &status["pending_calls"]), (&actor, &json!(1)));
    assert_eq!(status["state"], "ACTOR_STATE_READY");
    for elsewhere in [json!({"actor_id": NOBODY}), json!({"name": "nobody"})] {
        there.fails_with("GetActorStatus", elsewhere, Code::Unimplemented, "Unsupported");
    }
    let printed = there.ok("ReadLog", json!({"task_id": runs}));
    assert_eq!((&printed["chunks"], &printed["number"]), (&json!([]), &json!(0)), "nothing yet");
    there.ok("ReadLog", json!({"actor_id": actor, "offset": 7}));
    for wrong in
        [json!({}), json!({"task_id": NOBODY, "actor_id": NOBODY}), json!({"task_id": "x"})]
    {
        there.fails_with("ReadLog", wrong, Code::InvalidArgument, "Invalid");
    }
    let patient = json!({"task_id": NOBODY, "timeout_ms": 60_001});
    there.fails_with("ReadLog", patient, Code::ResourceExhausted, "TooLarge");
    gate.open();
    let nothing = json!({"objects": [], "more": false, "here": []});
    assert_eq!(there.ok("ListObjects", json!({})), nothing, "the worker has no store");
    let known = ["ListTasks", "ListActors", "ListObjects", "WorkerHealth", "ReadLog"];
    for operation in there.operations().iter().filter(|name| !known.contains(&&name[..])) {
        let words = there.fails_with(operation, json!({}), Code::Unimplemented, "Unsupported");
        assert!(words.contains(controller.address()), "{words}");
    }
}

#[test]
fn every_operation_except_health_requires_the_token() {
    let world = alone(Config::default());
    let stranger = world.client.without_token();
    for operation in stranger.operations() {
        stranger.fails_with(&operation, json!({}), Code::PermissionDenied, "Denied");
    }
    for service in ["", CONTROL, "marline.v1.Links"] {
        assert_eq!(stranger.health(service).unwrap(), 1, "{service:?} is SERVING");
    }
    assert_eq!(stranger.health("marline.v1.Nothing").unwrap_err().code(), Code::NotFound);
    let Err(status) = ReflectionClient::connect(world.controller.address(), None) else {
        panic!("reflection answers without a token")
    };
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(ReflectionClient::connect(world.controller.address(), Some(TOKEN)).is_ok());
}

#[test]
fn reflection_names_every_service() {
    let world = alone(Config::default());
    let answer = world.client.reflect(MessageRequest::ListServices(String::new())).unwrap();
    let MessageResponse::ListServicesResponse(services) = answer else {
        panic!("the answer does not list services")
    };
    let names: BTreeSet<String> =
        services.service.into_iter().map(|service| service.name).collect();
    for name in ["marline.v1.Control", "marline.v1.Links", "grpc.health.v1.Health"] {
        assert!(names.contains(name), "{names:?}");
    }
    let older = world.client.services_by_v1alpha();
    assert!(older.contains("marline.v1.Control"), "tools that know only v1alpha: {older:?}");
}

#[test]
fn unknown_fields_are_ignored() {
    let world = alone(Config::default());
    let request = world.client.message("SubmitTask", json!({"function": "echo"}));
    let mut bytes = request.encode_to_vec();
    bytes.extend([0xa0, 0x38, 7]); // Field 900, a number.
    let request = DynamicMessage::decode(request.descriptor(), &bytes[..]).unwrap();
    assert_eq!(request.unknown_fields().count(), 1);
    assert!(world.client.send("SubmitTask", request).is_ok());
}

#[test]
fn transport_errors_name_their_kind_and_the_connection_lives() {
    let world = alone(Config::default());
    let client = &world.client;
    const LIMIT: usize = 80 << 20;
    let refused = |operation: &str, bytes: Vec<u8>| {
        client.decode_error(&client.unary(operation, bytes, Raw).unwrap_err())
    };
    let too_large = refused("SubmitTask", vec![0; LIMIT + 1]);
    assert_eq!((too_large.code, &too_large.kind[..]), (Code::ResourceExhausted, "TooLarge"));
    assert!(too_large.message.contains("MAX_MESSAGE_BYTES"), "{}", too_large.message);
    let unreadable = refused("SubmitTask", vec![0xff; 7]);
    assert_eq!((unreadable.code, &unreadable.kind[..]), (Code::InvalidArgument, "Invalid"));
    let unknown = refused("Fly", Vec::new());
    assert_eq!((unknown.code, &unknown.kind[..]), (Code::Unimplemented, "Unsupported"));

    // A message of exactly the limit is read. Its one long field is unknown, and ignored.
    let mut largest = client.message("SubmitTask", json!({"function": "echo"})).encode_to_vec();
    let rest = LIMIT - largest.len() - 2 - 4;
    largest.extend([0xa2, 0x38]); // Field 900, bytes.
    prost_reflect::prost::encoding::encode_varint(rest as u64, &mut largest);
    largest.resize(LIMIT, 0);
    client.unary("SubmitTask", largest, Raw).unwrap();
    assert_eq!(client.ok("ClusterResources", json!({}))["pending_tasks"], 1);
}

/// Returns the errors that docs/protocol.md lists for each operation.
fn documented() -> BTreeSet<(String, Option<String>)> {
    let page = include_str!("../../../docs/protocol.md");
    let (_, table) =
        page.split_once("| operation | what it does | errors |\n|---|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let mut documented = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [operation, _, errors] = cells[..] else { panic!("{row}") };
        let operation = operation.trim_matches('`').to_owned();
        documented.insert((operation.clone(), None));
        // Text in brackets is the condition of an error.
        let mut depth = 0;
        let errors: String = errors
            .chars()
            .filter(|letter| {
                depth += i32::from(*letter == '(') - i32::from(*letter == ')');
                depth == 0 && *letter != ')'
            })
            .collect();
        let errors = errors.split(',').map(str::trim).filter(|error| *error != "none");
        documented.extend(errors.map(|error| (operation.clone(), Some(error.to_owned()))));
    }
    documented
}

#[test]
fn the_stories_call_every_operation_and_meet_every_documented_error() {
    for story in STORIES {
        story();
    }
    let client = alone(Config::default()).client.sibling();
    let documented = documented();
    let operations: BTreeSet<String> = documented.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(operations, client.operations(), "the page names every operation");
    // The tests of `node/waits.rs` reach the limit on waits.
    let elsewhere = ("WaitTasks".to_owned(), Some("Exhausted".to_owned()));
    let general = ["Unsupported", "Denied", "Unavailable"].map(|kind| Some(kind.to_owned()));
    let called: BTreeSet<_> = called()
        .into_iter()
        .filter(|(_, kind)| !general.contains(kind))
        .chain([elsewhere])
        .collect();
    let missing: Vec<_> = documented.difference(&called).collect();
    let undocumented: Vec<_> = called.difference(&documented).collect();
    assert!(
        missing.is_empty() && undocumented.is_empty(),
        "not seen: {missing:?}; not documented: {undocumented:?}"
    );
}
