"""The controller's side of the contract: its answers to wrong messages, and gRPC reflection.

The messages go frame by frame, without the rules of `link.py`.
"""

from __future__ import annotations

import itertools
import queue
import threading
import unittest
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from harness import DEADLINE, ClusterTest, OperationFailed, error_in
from link import uuid7
from marline.v1 import control_pb2
from marline.v1 import link_pb2 as pb
from marline.v1 import link_pb2_grpc

NOBODY = b"\1" * 16


class Connection:
    """One connection of a link that sends any frames, also wrong ones."""

    def __init__(self, test: Contract, session: pb.Session, number: int = 1) -> None:
        self.out: queue.Queue[pb.Frames | None] = queue.Queue()
        self.answers: queue.Queue[pb.Frame | OperationFailed | None] = queue.Queue()
        links = link_pb2_grpc.LinksStub(test.client.channel)
        self.stream = links.Attach(iter(self.out.get, None), metadata=test.client.metadata)
        test.addCleanup(self.out.put, None)
        threading.Thread(target=self.read, daemon=True).start()
        self.send(attach={"session": session, "connection": number})

    def send(self, **frame: Any) -> None:
        self.out.put(pb.Frames(frames=[pb.Frame(**frame)]))

    def read(self) -> None:
        try:
            for frames in self.stream:
                for frame in frames.frames:
                    self.answers.put(frame)
            self.answers.put(None)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.CANCELLED:  # the end of the test cancels the stream
                self.answers.put(OperationFailed(error_in(error)))

    def wait_until(self, wanted: Callable[[pb.Frame], Any]) -> Any:
        """Reads frames until `wanted` returns something true for one, and returns that.

        Fails with the controller's error if it ends the connection.
        """
        while True:
            answer = self.answers.get(timeout=DEADLINE)
            if answer is None:
                raise AssertionError("the controller ended the connection without an error")
            if isinstance(answer, OperationFailed):
                raise answer
            if found := wanted(answer):
                return found


class Contract(ClusterTest):
    def join(self, session: bytes, request: int = 1, protocol: str = "1", **role: Any) -> pb.JoinReply:
        role = {"hostname": "here", "resources": {"cpu": 10_000}, "provides": ["work"], **role}
        message = pb.JoinRequest(session_id=session, request=request, protocol=protocol, worker=role)
        try:
            links = link_pb2_grpc.LinksStub(self.client.channel)
            return links.Join(message, metadata=self.client.metadata, timeout=DEADLINE)
        except grpc.RpcError as error:
            raise OperationFailed(error_in(error)) from None

    def greeted(self) -> Connection:
        """Returns a connection of a new session after both sides have said hello."""
        reply = self.join(uuid7())
        connection = Connection(self, reply.session)
        connection.send(hello={"from": reply.session.epoch, "knows": reply.controller_epoch})
        connection.wait_until(lambda frame: frame.HasField("hello"))
        return connection

    def refused(self, kind: str, words: str, what: Callable[[], Any]) -> None:
        """Checks that the controller refuses `what` with an error of this kind and these words."""
        with self.assertRaisesRegex(OperationFailed, words) as caught:
            what()
        self.assertEqual(caught.exception.kind, kind)

    def test_a_worker_without_the_token_cannot_join(self) -> None:
        token, self.client.tickets.token = self.client.tickets.token, "wrong"
        self.refused("DENIED", "token", lambda: self.join(uuid7()))
        # The token itself, as older releases sent it.
        self.client.tickets.metadata = lambda: [("authorization", f"Bearer {token}")]
        self.refused("INCOMPATIBLE", "marline token", lambda: self.join(uuid7()))

    def test_another_major_version_is_refused_whatever_else_it_says(self) -> None:
        self.refused("INCOMPATIBLE", 'not "2"', lambda: self.join(uuid7(), protocol="2", resources=None))

    def test_an_invalid_request_to_join_is_refused_with_the_reason(self) -> None:
        self.refused("INVALID", "WorkerRole.resources", lambda: self.join(uuid7(), resources=None))
        self.refused("INVALID", "cpu is -1", lambda: self.join(uuid7(), resources={"cpu": -1}))
        self.refused("INVALID", "JoinRequest.session_id", lambda: self.join(b"short"))

    def test_an_earlier_session_is_over_when_the_process_joins_again(self) -> None:
        process = uuid7()
        first = self.join(process).session
        second = self.join(process, request=2).session
        self.assertEqual((second.id, second.epoch > first.epoch), (process, True))
        over = Connection(self, first).wait_until(lambda frame: frame.HasField("over") and frame.over)
        self.assertEqual(over.session, first)

    def test_an_open_connection_is_told_that_its_session_is_over(self) -> None:
        process = uuid7()
        reply = self.join(process)
        connection = Connection(self, reply.session)
        connection.send(hello={"from": reply.session.epoch, "knows": reply.controller_epoch})
        connection.wait_until(lambda frame: frame.HasField("hello"))
        self.join(process, request=2)
        connection.wait_until(lambda frame: frame.HasField("over"))

    def test_a_connection_that_comes_late_is_not_the_end_of_the_session(self) -> None:
        session = self.join(uuid7()).session
        Connection(self, session, number=2).wait_until(lambda frame: frame.HasField("hello"))
        late = Connection(self, session, number=1)
        words = "a later connection of this link arrived"
        self.refused("UNAVAILABLE", words, lambda: late.wait_until(lambda frame: frame.HasField("over")))

    def test_a_connection_that_breaks_the_rules_ends_and_says_which(self) -> None:
        joined = pb.Message(joined={})

        def after_hello(**frame: Any) -> Callable[[], Any]:
            def run() -> None:
                connection = self.greeted()
                connection.send(**frame)
                connection.wait_until(lambda frame: False)

            return run

        def first(**frame: Any) -> Callable[[], Any]:
            def run() -> None:
                connection = Connection(self, self.join(uuid7()).session)
                connection.send(**frame)
                connection.wait_until(lambda frame: False)

            return run

        self.refused("INVALID", "data before hello", first(data={"sequence": 1, "message": joined}))
        self.refused("INVALID", "missing before", after_hello(data={"sequence": 2, "message": joined}))
        self.refused("INVALID", "not sent", after_hello(seen={"seen": 7}))
        self.refused("INVALID", "second hello", after_hello(hello={"from": 1}))
        no_reason = pb.Message(refused={"attempt": {"task": NOBODY, "attempt": 1}})
        self.refused("INVALID", "reason", after_hello(data={"sequence": 1, "message": no_reason}))
        not_a_workers = pb.Message(credit=pb.Credit(tasks=1))
        self.refused("INVALID", "", after_hello(data={"sequence": 1, "message": not_a_workers}))
        states = {worker.state for worker in self.client.ListWorkers().workers}
        self.assertEqual(states, {control_pb2.WORKER_STATE_JOINING}, "no wrong message had an effect")

    def test_reports_of_what_a_worker_does_not_have_change_nothing(self) -> None:
        tried, instance = {"task": NOBODY, "attempt": 1}, {"actor": NOBODY, "epoch": 1}
        error = {"kind": 12, "message": "it failed"}
        lost, forever = {"instance": instance, "error": error}, (1 << 64) - 1
        reports: list[tuple[str, Any]] = [
            ("joined", {}),
            ("joined", {}),
            ("task_started", tried),
            ("attempt_ended", {"attempt": tried, "finished": {}, "next": tried, "ran_for_ns": forever}),
            ("blocked", tried),
            ("resumed", tried),
            ("refused", {"attempt": tried, "reason": pb.REFUSAL_NOT_HERE}),
            ("actor_ready", instance),
            ("actor_failed", lost),
            ("actor_died", lost),
            ("actor_destroyed", {"instance": instance, "idle": True}),
            ("actor_refused", {"instance": instance, "reason": pb.REFUSAL_NOT_HERE}),
            ("dropped", {"instance": instance, "things": [{"actor": NOBODY}]}),
            ("calls_ended", {"reports": [{"task": NOBODY, "method": "m", "instance": instance}]}),
            ("printed", {"source": {"task": tried}, "pid": 1, "text": "for nobody"}),
        ]
        connection = self.greeted()
        numbers = itertools.count(1)
        for kind, report in reports:
            connection.send(data={"sequence": next(numbers), "message": pb.Message(**{kind: report})})
        # The answer to this last message shows that the controller has read all reports.
        watch = pb.Message(watch={"id": NOBODY, "epoch": 1})
        connection.send(data={"sequence": next(numbers), "message": watch})
        watched = connection.wait_until(lambda frame: frame.data.message.HasField("watched"))
        self.assertTrue(watched)
        [worker] = self.client.workers()
        self.assertEqual((worker.tasks, worker.actors, worker.free), (0, 0, worker.total))
        self.assertGreater(self.client.ClusterResources().counters.stale, 0)


class Reflection(ClusterTest):
    """A client without any `.proto` file, as grpcurl is."""

    def test_control_is_described_well_enough_to_be_called(self) -> None:
        channel = grpc.intercept_channel(self.client.channel, WithMetadata(self.client.metadata))
        database = ProtoReflectionDescriptorDatabase(channel)
        services = {"marline.v1.Control", "marline.v1.Links", "grpc.health.v1.Health"}
        self.assertLessEqual(services, set(database.get_services()))
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

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(details._replace(metadata=self.metadata), request)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(details._replace(metadata=self.metadata), requests)


if __name__ == "__main__":
    unittest.main()
