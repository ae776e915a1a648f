"""What the tests need around a worker: a cluster of real processes, a client of the unary operations, and a
proxy that breaks connections. Every wait has a deadline; every process is ended by its id.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import msgpack

from marline.v1 import common_pb2 as common
from marline.v1 import control_pb2 as pb
from marline.v1 import control_pb2_grpc
from ticket import Tickets

HERE = Path(__file__).parent
BINARY = os.environ["MARLINE_BINARY"]
DEADLINE = 20.0
FIRST = msgpack.ExtType(1, (0).to_bytes(4, "big"))  # the first value that comes along


class Failed(Exception):
    """What a task failed with, or what an operation answered instead."""

    def __init__(self, error: common.Error) -> None:
        super().__init__(error.message)
        self.error = error
        self.kind = common.ErrorKind.Name(error.kind).removeprefix("ERROR_KIND_")


class Client:
    """Any client that speaks gRPC: `client.SubmitTask(function="add", …)`, and some shorter forms."""

    def __init__(self, address: str, token_file: str) -> None:
        self.tickets = Tickets(address, token_file)
        self.channel = grpc.insecure_channel(address)
        self.stub = control_pb2_grpc.ControlStub(self.channel)

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return self.tickets.metadata()

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        request = getattr(pb, f"{operation}Request")
        call = getattr(self.stub, operation)

        def unary(**fields: Any) -> Any:
            try:
                return call(request(**fields), metadata=self.metadata, timeout=DEADLINE)
            except grpc.RpcError as error:
                raise Failed(error_in(error)) from None

        return unary

    def submit(self, function: str, *args: Any, **fields: Any) -> str:
        return self.SubmitTask(function=function, args=pack(args), **fields).task_id

    def create(self, class_: str, *args: Any, **fields: Any) -> str:
        options = fields.pop("options", {})
        fields |= {"class": class_, "options": {"lifetime": common.LIFETIME_DETACHED, **options}}
        return self.CreateActor(args=pack(args), **fields).actor_id

    def call(self, actor: str, method: str, *args: Any, **fields: Any) -> str:
        return self.CallActor(actor_id=actor, method=method, args=pack(args), **fields).task_id

    def wait(self, tasks: Iterable[str]) -> None:
        reply = self.WaitTasks(task_ids=tasks, timeout_ms=int(DEADLINE * 900))
        if reply.pending:
            waiting = self.GetTaskStatus(task_id=reply.pending[0])
            raise AssertionError(f"{len(reply.pending)} tasks do not end, the first: {waiting}")

    def values(self, task: str) -> list[Any]:
        self.wait([task])
        reply = self.GetTaskResult(task_id=task)
        if reply.HasField("error"):
            raise Failed(reply.error)
        return [msgpack.unpackb(value.payload.inline) for value in reply.values]

    def result(self, task: str) -> Any:
        [value] = self.values(task)
        return value

    def workers(self) -> list[pb.WorkerStatus]:
        workers = self.ListWorkers().workers
        return [each for each in workers if each.state == pb.WORKER_STATE_HEALTHY]


def pack(args: Iterable[Any]) -> common.Payload:
    return common.Payload(encoding=common.ENCODING_MESSAGE_PACK, inline=msgpack.packb(list(args)))


def error_in(status: grpc.RpcError) -> common.Error:
    details = dict(status.trailing_metadata() or ()).get("grpc-status-details-bin")
    if details is None:
        raise status  # the transport's own
    return common.Error.FromString(details)


def until(condition: Callable[[], Any], what: str) -> Any:
    """What the condition gives when it gives something."""
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {DEADLINE} s in vain: {what}")
        time.sleep(0.01)
    return found


class ClusterTest(unittest.TestCase):
    """A controller for each test, and what else it starts; all of it is gone when the test ends."""

    # What no worker can run fails soon.
    arguments: tuple[str, ...] = ("--unknown-task-wait", "100ms")

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        self.outcome = result or self.defaultTestResult()
        return super().run(self.outcome)

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        command = [BINARY, "controller", "--listen", "127.0.0.1:0", "--json", *self.arguments]
        controller = self.start(command, stdout=subprocess.PIPE)
        assert controller.stdout
        self.addCleanup(controller.stdout.close)
        about = json.loads(controller.stdout.readline())
        self.address, self.token_file = about["address"], about["token_file"]
        self.client = Client(self.address, self.token_file)
        self.addCleanup(self.client.channel.close)

    def start(self, command: list[str], **more: Any) -> subprocess.Popen:
        log = open(self.directory / f"{len(list(self.directory.iterdir()))}.log", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen(command, stderr=log, text=True, **more)
        self.addCleanup(self.end, process, Path(log.name))
        return process

    def end(self, process: subprocess.Popen, log: Path) -> None:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE)
        if any(test is self for test, _ in self.outcome.errors + self.outcome.failures):
            print(f"--- {' '.join(process.args)}\n{log.read_text()}", file=sys.stderr)

    def worker(self, cpus: int = 2, address: str = "") -> subprocess.Popen:
        """A Python worker that has joined."""
        command = [sys.executable, str(HERE / "sample.py"), address or self.address]
        process = self.start([*command, "--token-file", self.token_file, "--cpus", str(cpus)])
        until(lambda: self.status(process), "the worker joins")
        return process

    def proxy(self) -> Proxy:
        proxy = Proxy(self.address)
        self.addCleanup(proxy.close)
        return proxy

    def status(self, process: subprocess.Popen) -> pb.WorkerStatus | None:
        return next((each for each in self.client.workers() if each.pid == process.pid), None)

    def journal(self, *wanted: str) -> list[tuple[str, int, float]]:
        """What `hold` wrote down: what, where, when. Without more said, what started and was stopped."""
        path = self.directory / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [(what, int(pid), float(when)) for what, pid, when in map(str.split, lines)]
        return [entry for entry in entries if entry[0] in (wanted or ("started", "stopped"))]

    def places(self) -> tuple[str, str]:
        """The last two arguments of `hold`."""
        return str(self.directory / "journal"), str(self.directory / "gate")

    def open_gate(self) -> None:
        (self.directory / "gate").touch()

    def backlog(self, process: subprocess.Popen, count: int) -> list[str]:
        """Tasks that hold at a worker with one CPU: one runs, others wait there without a grant.

        Only what ends within two milliseconds or so is sent ahead: the worker shows first that these do.
        """

        def held() -> list[str]:
            self.open_gate()
            self.client.wait(self.client.submit("hold", 0, *self.places()) for _ in range(50))
            for each in ("gate", "journal"):
                (self.directory / each).unlink()
            tasks = [self.client.submit("hold", number, *self.places()) for number in range(count)]
            status = self.status(process)
            if status and status.tasks > 1:
                return tasks
            self.open_gate()
            self.client.wait(tasks)
            return []

        tasks = until(held, "tasks are sent ahead")
        until(self.journal, "one runs")
        return tasks


class Proxy:
    """Between a worker and its controller: cuts connections, or keeps them and lets nothing through."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self.target, self.sockets = (host, int(port)), list[socket.socket]()
        self.passing = threading.Event()
        self.passing.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return  # closed
            far = socket.create_connection(self.target)
            self.sockets += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=pair, daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self.passing.wait()
                sink.sendall(data)
        except OSError:
            pass  # cut
        finally:
            source.close()
            sink.close()

    def cut(self) -> None:
        sockets, self.sockets = self.sockets, []
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed

    def close(self) -> None:
        self.listener.close()
        self.passing.set()
        self.cut()
