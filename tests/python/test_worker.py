"""The worker contract, from Python: tasks, actors, and what happens when things break. `scripts/test-python`."""

from __future__ import annotations

import unittest

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from harness import DEADLINE, FIRST, ClusterTest, Failed, Proxy, error_in, pack, until
from link import Process, uuid7
from marline.v1 import common_pb2 as common
from marline.v1 import control_pb2 as pb
from marline.v1 import link_pb2, link_pb2_grpc


class Tasks(ClusterTest):
    def setUp(self) -> None:
        super().setUp()
        self.process = self.worker(cpus=1)

    def test_a_task_returns_a_value(self) -> None:
        self.assertEqual(self.client.result(self.client.submit("add", 2, 3)), 5)

    def test_values_go_there_and_back_as_they_are(self) -> None:
        value = {"text": "ü", "bytes": b"\0\xff", "list": [1, -2, 1.5, None, True], "map": {"a": {}}}
        self.open_gate()
        self.assertEqual(self.client.result(self.client.submit("hold", value, *self.places())), value)

    def test_a_large_value_arrives(self) -> None:
        value = b"x" * (6 << 20)
        self.open_gate()
        task = self.client.submit("hold", value, *self.places())
        self.client.wait([task])
        following = self.client.submit("hold", FIRST, *self.places(), needs=[task])
        self.client.wait([following])
        self.assertEqual(self.client.GetTaskStatus(task_id=following).state, pb.TASK_STATE_FINISHED)

    def test_a_task_has_as_many_results_as_it_was_asked_for(self) -> None:
        self.assertEqual(self.client.values(self.client.submit("divide", 17, 5, returns=2)), [3, 2])
        with self.assertRaisesRegex(Failed, "3 results are wanted, the code gave 2"):
            self.client.values(self.client.submit("divide", 17, 5, returns=3))

    def test_what_a_task_raises_is_its_error(self) -> None:
        with self.assertRaises(Failed) as caught:
            self.client.result(self.client.submit("fail", "no luck"))
        error = caught.exception.error
        self.assertEqual((caught.exception.kind, error.may_have_run), ("FAILED", True))
        self.assertEqual(getattr(error.failure, "class"), "ValueError")
        self.assertIn("no luck", error.message)
        self.assertRegex(error.failure.traceback, r'(?s)sample.py", line \d+, in fail.*ValueError: no luck')

    def test_a_class_that_is_retried_runs_again(self) -> None:
        classes = {"classes": {"names": ["ValueError"]}}
        options = {"retry_on": classes, "max_retries": {"times": 2}, "retry_delay_ms": 1}
        task = self.client.submit("fail", "no luck", options=options)
        with self.assertRaisesRegex(Failed, "no luck"):
            self.client.result(task)
        self.assertEqual(self.client.GetTaskStatus(task_id=task).attempts, 3)

    def test_a_function_that_the_worker_does_not_have_is_not_found(self) -> None:
        with self.assertRaises(Failed) as caught:
            self.client.result(self.client.submit("python:nothing"))
        self.assertEqual(caught.exception.kind, "NOT_FOUND")
        self.assertFalse(caught.exception.error.may_have_run)

    def test_a_function_that_nobody_provides_waits_and_says_why(self) -> None:
        task = self.client.submit("nothing")
        reason = until(lambda: self.client.GetTaskStatus(task_id=task).waits_for, "it waits")
        self.assertIn("nothing", reason)

    def test_a_running_task_is_cancelled(self) -> None:
        task = self.client.submit("hold", 1, *self.places())
        until(self.journal, "it starts")
        self.assertTrue(self.client.CancelTask(task_id=task).had_not_ended)
        with self.assertRaises(Failed) as caught:
            self.client.result(task)
        self.assertEqual(caught.exception.kind, "CANCELLED")
        until(lambda: len(self.journal()) == 2, "its code stops")
        self.assertEqual([what for what, _, _ in self.journal()], ["started", "stopped"])
        self.assertEqual(self.client.result(self.client.submit("add", 1, 1)), 2, "the worker goes on")

    def test_a_task_that_takes_too_long_is_stopped(self) -> None:
        task = self.client.submit("hold", 1, *self.places(), options={"timeout_ms": 100})
        with self.assertRaises(Failed) as caught:
            self.client.result(task)
        self.assertEqual(caught.exception.kind, "TIMEOUT")

    def test_a_task_gets_the_result_of_another(self) -> None:
        first = self.client.submit("hold", 40, *self.places())
        second = self.client.submit("add", FIRST, 2, needs=[first])
        until(self.journal, "the first starts")
        self.assertEqual(self.client.GetTaskStatus(task_id=second).state, pb.TASK_STATE_PENDING)
        self.open_gate()
        self.assertEqual(self.client.result(second), 42)

    def test_a_thousand_tasks_go_through_the_backlog(self) -> None:
        tasks = [self.client.submit("hold", number, *self.places()) for number in range(1000)]
        until(lambda: (self.status(self.process) or pb.WorkerStatus()).tasks > 2, "a backlog is there")
        self.assertEqual(len(self.journal()), 1, "one CPU, one runs")
        self.open_gate()
        self.client.wait(tasks)
        self.assertEqual([self.client.result(task) for task in tasks], list(range(1000)))
        self.assertEqual(len(self.journal()), 1000, "each ran once")

    def test_a_task_in_the_backlog_is_cancelled_or_taken_back(self) -> None:
        tasks = [self.client.submit("hold", number, *self.places()) for number in range(4)]
        until(lambda: (self.status(self.process) or pb.WorkerStatus()).tasks > 2, "a backlog is there")
        self.client.CancelTask(task_id=tasks[1])
        with self.assertRaises(Failed) as caught:
            self.client.result(tasks[1])
        self.assertEqual(caught.exception.kind, "CANCELLED")
        other = self.worker(cpus=1)
        until(lambda: other.pid in [pid for _, pid, _ in self.journal()], "an idle worker gets some")
        self.assertGreater(self.client.ClusterResources().counters.refused, 0)
        self.open_gate()
        self.assertEqual([self.client.result(tasks[n]) for n in (0, 2, 3)], [0, 2, 3])


class Actors(ClusterTest):
    def setUp(self) -> None:
        super().setUp()
        self.process = self.worker()

    def state_of(self, actor: str) -> pb.ActorStatus:
        return self.client.GetActorStatus(actor_id=actor)

    def test_an_actor_keeps_its_state_and_the_order_of_calls(self) -> None:
        actor = self.client.create("Counter", 100)
        calls = [self.client.call(actor, "add", number) for number in range(200)]
        self.assertEqual(self.client.result(calls[-1]), 100 + sum(range(200)))
        self.assertEqual(self.client.result(self.client.call(actor, "order")), list(range(200)))
        self.assertEqual(self.state_of(actor).state, pb.ACTOR_STATE_READY)

    def test_a_constructor_that_raises_ends_the_actor_with_its_error(self) -> None:
        actor = self.client.create("Counter", -1)
        call = self.client.call(actor, "add", 1)
        until(lambda: self.state_of(actor).state == pb.ACTOR_STATE_DEAD, "it is dead")
        status = self.state_of(actor)
        self.assertEqual(status.cause, pb.DEATH_CAUSE_CONSTRUCTOR_FAILED)
        self.assertIn("starts at 0 or above", str(status.error))
        self.assertRaises(Failed, self.client.result, call)

    def test_a_method_that_raises_leaves_the_actor_as_it_is(self) -> None:
        actor = self.client.create("Counter", 1)
        with self.assertRaises(Failed) as caught:
            self.client.result(self.client.call(actor, "fail"))
        self.assertEqual(getattr(caught.exception.error.failure, "class"), "KeyError")
        with self.assertRaises(Failed) as caught:
            self.client.result(self.client.call(actor, "nothing"))
        self.assertEqual(caught.exception.kind, "NOT_FOUND")
        self.assertEqual(self.client.result(self.client.call(actor, "add", 1)), 2)

    def test_a_call_gets_the_result_of_a_task(self) -> None:
        actor = self.client.create("Counter", FIRST, needs=[self.client.submit("add", 1, 2)])
        call = self.client.call(actor, "add", FIRST, needs=[self.client.submit("add", 3, 4)])
        self.assertEqual(self.client.result(call), 10)

    def test_calls_are_cancelled_running_or_not(self) -> None:
        actor = self.client.create("Counter", 1)
        running = self.client.call(actor, "hold", *self.places())
        waiting = self.client.call(actor, "add", 1000)
        last = self.client.call(actor, "add", 1)
        until(self.journal, "it starts")
        for call in (waiting, running):
            self.client.CancelTask(task_id=call)
            with self.assertRaises(Failed) as caught:
                self.client.result(call)
            self.assertEqual(caught.exception.kind, "CANCELLED")
        self.assertEqual(self.client.result(last), 2)

    def test_a_named_actor_is_found_or_made_once(self) -> None:
        first = self.client.create("Counter", 5, name="one")
        with self.assertRaises(Failed) as caught:
            self.client.create("Counter", 5, name="one")
        self.assertEqual(caught.exception.kind, "ALREADY_EXISTS")
        again = self.client.create("Counter", 7, name="one", options={"get_if_exists": True})
        self.assertEqual(again, first)
        self.assertEqual(self.client.GetActorStatus(name="one").actor_id, first)
        self.assertEqual(self.client.result(self.client.call(again, "add", 1)), 6)

    def test_a_deleted_actor_is_gone_with_what_it_did(self) -> None:
        actor = self.client.create("Counter", 5)
        running = self.client.call(actor, "hold", *self.places())
        waiting = self.client.call(actor, "add", 1)
        until(self.journal, "it starts")
        self.client.DeleteActor(actor_id=actor)
        for call in (running, waiting):
            self.assertRaises(Failed, self.client.result, call)
        until(lambda: len(self.journal()) == 2, "its code stops")
        self.assertEqual(self.state_of(actor).cause, pb.DEATH_CAUSE_DELETED)
        with self.assertRaises(Failed) as caught:
            self.client.result(self.client.call(actor, "add", 1))
        self.assertEqual(caught.exception.kind, "GONE")
        until(lambda: (self.status(self.process) or pb.WorkerStatus(actors=1)).actors == 0, "it is gone there")


class Failures(ClusterTest):
    arguments = ("--lease", "3s")

    def proxy(self) -> Proxy:
        proxy = Proxy(self.address)
        self.addCleanup(proxy.close)
        return proxy

    def test_work_of_a_killed_worker_runs_again_elsewhere(self) -> None:
        first = self.worker()
        actor = self.client.create("Counter", 10, options={"max_restarts": {"times": 1}})
        self.assertEqual(self.client.result(self.client.call(actor, "add", 5)), 15)
        before = self.client.GetActorStatus(actor_id=actor)
        task = self.client.submit("hold", 7, *self.places(), options={"retry_delay_ms": 1})
        until(self.journal, "it starts")
        second = self.worker()
        first.kill()
        until(lambda: len(self.journal()) == 2, "it starts again")
        self.open_gate()
        self.assertEqual(self.client.result(task), 7)
        self.assertEqual([pid for _, pid, _ in self.journal()], [first.pid, second.pid])
        self.assertEqual(self.client.GetTaskStatus(task_id=task).attempts, 2)
        self.assertEqual(self.client.result(self.client.call(actor, "add", 5)), 15, "its state is fresh")
        self.assertEqual(self.client.result(self.client.call(actor, "pid")), second.pid)
        after = self.client.GetActorStatus(actor_id=actor)
        self.assertGreater(after.epoch, before.epoch)
        self.assertEqual(after.restarts, 1)

    def test_an_actor_without_restarts_dies_with_its_worker(self) -> None:
        process = self.worker()
        actor = self.client.create("Counter", 10)
        call = self.client.call(actor, "hold", *self.places())
        until(self.journal, "it starts")
        process.kill()
        with self.assertRaises(Failed) as caught:
            self.client.result(call)
        self.assertTrue(caught.exception.error.may_have_run)
        self.assertEqual(
            self.client.GetActorStatus(actor_id=actor).cause, pb.DEATH_CAUSE_RESTARTS_USED_UP
        )

    def test_a_broken_connection_costs_nothing(self) -> None:
        proxy = self.proxy()
        process = self.worker(address=proxy.address)
        epoch = self.status(process).epoch
        task = self.client.submit("hold", 7, *self.places())
        until(self.journal, "it starts")
        proxy.cut()
        self.open_gate()
        self.assertEqual(self.client.result(task), 7)
        self.assertEqual(self.client.GetTaskStatus(task_id=task).attempts, 1)
        self.assertEqual(len(self.journal()), 1)
        self.assertEqual(self.status(process).epoch, epoch, "the session went on")

    def test_connections_that_break_again_and_again_lose_and_repeat_nothing(self) -> None:
        proxy = self.proxy()
        self.worker(address=proxy.address)
        self.open_gate()
        actor = self.client.create("Counter", 0)
        tasks, calls = [], []
        for number in range(300):
            tasks.append(self.client.submit("hold", number, *self.places()))
            calls.append(self.client.call(actor, "add", number))
            if number % 20 == 10:
                proxy.cut()
        self.client.wait(tasks + calls)
        self.assertEqual([self.client.result(task) for task in tasks], list(range(300)))
        self.assertEqual(self.client.result(self.client.call(actor, "order")), list(range(300)))
        self.assertEqual(len(self.journal()), 300, "each ran once")
        self.assertEqual(self.client.ClusterResources().counters.lost, 0)

    def test_a_worker_that_hears_nothing_stops_before_its_work_is_given_away(self) -> None:
        proxy = self.proxy()
        cut_off = self.worker(address=proxy.address)
        epoch = self.status(cut_off).epoch
        task = self.client.submit("hold", 7, *self.places(), options={"retry_delay_ms": 1})
        until(self.journal, "it starts")
        other = self.worker()
        proxy.passing.clear()
        until(lambda: len(self.journal()) == 3, "it starts again")
        (_, _, _), (stopped, where, at), (started, there, later) = self.journal()
        self.assertEqual([stopped, where, started, there], ["stopped", cut_off.pid, "started", other.pid])
        self.assertLess(at, later)
        proxy.passing.set()
        until(lambda: (self.status(cut_off) or pb.WorkerStatus()).epoch > epoch, "it joins again")
        self.open_gate()
        self.assertEqual(self.client.result(task), 7)
        self.assertEqual(len(self.journal()), 3)

    def test_a_worker_stays_as_long_as_it_answers(self) -> None:
        process = self.worker()
        epoch = self.status(process).epoch
        joined = self.client.ClusterResources().uptime_ms
        # Twice its lease: pings and pongs alone keep it.
        until(lambda: self.client.ClusterResources().uptime_ms > joined + 6000, "time passes")
        self.assertEqual(self.status(process).epoch, epoch)
        self.assertEqual(self.client.result(self.client.submit("add", 1, 1)), 2)


class Draining(ClusterTest):
    def test_a_worker_that_drains_finishes_and_leaves(self) -> None:
        first = self.worker(cpus=1)
        name = self.status(first).worker_id
        actor = self.client.create(
            "Counter", 1, options={"max_restarts": {"times": 0}, "placement": {"cpu": 0}}
        )
        self.client.result(self.client.call(actor, "add", 1))
        tasks = [self.client.submit("hold", n, *self.places(), options={"max_retries": {"times": 0}}) for n in range(4)]
        until(lambda: (self.status(first) or pb.WorkerStatus()).tasks > 2, "a backlog is there")
        until(self.journal, "one runs")
        self.client.DrainWorker(worker_id=name, grace_ms=int(DEADLINE * 1000))
        second = self.worker(cpus=1)
        until(lambda: len(self.journal()) == 2, "the backlog goes elsewhere")
        self.open_gate()
        self.assertEqual([self.client.result(task) for task in tasks], [0, 1, 2, 3])
        self.assertEqual(first.wait(DEADLINE), 0)
        self.assertEqual([pid for _, pid, _ in self.journal()], [first.pid] + [second.pid] * 3)
        self.assertEqual(self.client.result(self.client.call(actor, "pid")), second.pid)
        self.assertEqual(self.client.ClusterResources().counters.lost, 0)

    def test_what_runs_when_the_grace_is_over_is_given_back_at_no_cost(self) -> None:
        first = self.worker(cpus=1)
        name = self.status(first).worker_id
        task = self.client.submit("hold", 7, *self.places(), options={"max_retries": {"times": 0}})
        until(self.journal, "it runs")
        self.client.DrainWorker(worker_id=name, grace_ms=1)
        self.assertEqual(first.wait(DEADLINE), 0)
        second = self.worker(cpus=1)
        until(lambda: len(self.journal()) == 3, "it starts again")
        self.open_gate()
        self.assertEqual(self.client.result(task), 7)
        self.assertEqual([pid for _, pid, _ in self.journal()], [first.pid, first.pid, second.pid])


class Contract(ClusterTest):
    """What a worker may rely on when it does something wrong."""

    def join(self, session: bytes, request: int = 1, protocol: str = "1", token: str = "") -> link_pb2.JoinReply:
        message = link_pb2.JoinRequest(
            session_id=session, request=request, protocol=protocol, worker=link_pb2.WorkerRole(hostname="here")
        )
        metadata = [("authorization", f"Bearer {token or self.token}")]
        links = link_pb2_grpc.LinksStub(self.client.channel)
        try:
            return links.Join(message, metadata=metadata, timeout=DEADLINE)
        except grpc.RpcError as error:
            raise Failed(error_in(error)) from None

    def attach(self, *frames: link_pb2.Frame) -> list[link_pb2.Frame]:
        """What the controller answers until it ends the connection."""
        links = link_pb2_grpc.LinksStub(self.client.channel)
        stream = links.Attach(
            iter([link_pb2.Frames(frames=frames)]), metadata=self.client.metadata, timeout=DEADLINE
        )
        answers = list[link_pb2.Frame]()
        try:
            for each in stream:
                answers += each.frames
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
        return answers

    def test_without_the_token_nobody_joins(self) -> None:
        with self.assertRaises(Failed) as caught:
            self.join(uuid7(), token="wrong")
        self.assertEqual(caught.exception.kind, "DENIED")

    def test_another_major_version_is_refused(self) -> None:
        with self.assertRaises(Failed) as caught:
            self.join(uuid7(), protocol="2")
        self.assertEqual(caught.exception.kind, "INCOMPATIBLE")

    def test_an_earlier_session_is_over_when_the_process_joins_again(self) -> None:
        process = uuid7()
        first = self.join(process).session
        second = self.join(process, request=2).session
        self.assertEqual((second.id, second.epoch > first.epoch), (process, True))
        [answer] = self.attach(link_pb2.Frame(attach=link_pb2.Attach(session=first, connection=1)))
        self.assertEqual(answer.over.session, first)

    def test_data_before_hello_ends_the_connection(self) -> None:
        session = self.join(uuid7()).session
        joined = link_pb2.Message(joined=link_pb2.Nothing())
        self.attach(
            link_pb2.Frame(attach=link_pb2.Attach(session=session, connection=1)),
            link_pb2.Frame(data=link_pb2.Data(sequence=1, message=joined)),
        )
        [worker] = self.client.ListWorkers().workers
        self.assertEqual(worker.state, pb.WORKER_STATE_JOINING)


class Reflection(ClusterTest):
    """A client without any `.proto` file, as grpcurl is."""

    def test_control_is_described_well_enough_to_be_called(self) -> None:
        channel = grpc.intercept_channel(self.client.channel, WithMetadata(self.client.metadata))
        database = ProtoReflectionDescriptorDatabase(channel)
        self.assertLessEqual(
            {"marline.v1.Control", "marline.v1.Links", "grpc.health.v1.Health"}, set(database.get_services())
        )
        control = DescriptorPool(database).FindServiceByName("marline.v1.Control")
        self.assertIn("SubmitTask", control.methods_by_name)
        method = control.methods_by_name["ClusterResources"]
        ask = channel.unary_unary(
            f"/{control.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        reply = ask(GetMessageClass(method.input_type)(), timeout=DEADLINE)
        self.assertEqual(reply.protocol, "1")


class WithMetadata(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    def __init__(self, metadata: list[tuple[str, str]]) -> None:
        self.metadata = metadata

    def intercept_unary_unary(self, continuation, details, request):
        return continuation(details._replace(metadata=self.metadata), request)

    def intercept_stream_stream(self, continuation, details, requests):
        return continuation(details._replace(metadata=self.metadata), requests)


if __name__ == "__main__":
    unittest.main()
