"""The harness: a cluster of real processes, a client, and a proxy that breaks connections.

Every wait has a deadline. Every process is ended by its id.
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
DEADLINE = 20.0  # seconds
# An argument that stands for the first value of `needs`.
FIRST = msgpack.ExtType(1, (0).to_bytes(4, "big"))


class OperationFailed(Exception):
    """A task failed, or the controller refused an operation. `error` says why."""

    def __init__(self, error: common.Error) -> None:
        super().__init__(error.message)
        self.error = error
        self.kind = common.ErrorKind.Name(error.kind).removeprefix("ERROR_KIND_")


class Client:
    """A plain gRPC client: `client.SubmitTask(function="add", …)`, and some shorter forms."""

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
                raise OperationFailed(error_in(error)) from None

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
            raise AssertionError(f"{len(reply.pending)} tasks have not ended, the first: {waiting}")

    def values(self, task: str) -> list[Any]:
        self.wait([task])
        reply = self.GetTaskResult(task_id=task)
        if reply.HasField("error"):
            raise OperationFailed(reply.error)
        return [msgpack.unpackb(value.payload.inline) for value in reply.values]

    def result(self, task: str) -> Any:
        [value] = self.values(task)
        return value

    def workers(self) -> list[pb.WorkerStatus]:
        workers = self.ListWorkers().workers
        return [worker for worker in workers if worker.state == pb.WORKER_STATE_HEALTHY]


def pack(args: Iterable[Any]) -> common.Payload:
    return common.Payload(encoding=common.ENCODING_MESSAGE_PACK, inline=msgpack.packb(list(args)))


def error_in(status: grpc.RpcError) -> common.Error:
    details = dict(status.trailing_metadata() or ()).get("grpc-status-details-bin")
    if details is None:
        raise status  # an error of the transport
    return common.Error.FromString(details)


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Waits until the condition returns something true, and returns that. Fails with `what`."""
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {DEADLINE} s in vain: {what}")
        time.sleep(0.01)
    return found


class ClusterTest(unittest.TestCase):
    """A test with its own controller. All processes that it starts are ended with it.

    If the test fails, the logs of its processes are printed.
    """

    # A task that no worker can run fails soon.
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
        """Starts the Python worker of `sample.py`, and waits until it has joined."""
        command = [sys.executable, str(HERE / "sample.py"), address or self.address]
        process = self.start([*command, "--token-file", self.token_file, "--cpus", str(cpus)])
        wait_until(lambda: self.status(process), "the worker joins")
        return process

    def proxy(self) -> Proxy:
        proxy = Proxy(self.address)
        self.addCleanup(proxy.close)
        return proxy

    def status(self, process: subprocess.Popen) -> pb.WorkerStatus | None:
        return next((worker for worker in self.client.workers() if worker.pid == process.pid), None)

    def journal(self, *wanted: str) -> list[tuple[str, int, float]]:
        """Returns the entries that `hold` wrote: event, process and time.

        Without `wanted`, only the events "started" and "stopped".
        """
        path = self.directory / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [(what, int(pid), float(when)) for what, pid, when in map(str.split, lines)]
        return [entry for entry in entries if entry[0] in (wanted or ("started", "stopped"))]

    def places(self) -> tuple[str, str]:
        """Returns the last two arguments of `hold`: the journal and the gate."""
        return str(self.directory / "journal"), str(self.directory / "gate")

    def open_gate(self) -> None:
        (self.directory / "gate").touch()

    def backlog(self, process: subprocess.Popen, count: int) -> list[str]:
        """Submits tasks to a worker with one CPU: one runs, the others wait in its backlog.

        The controller sends only tasks ahead that end within about two milliseconds. So quick tasks
        run first, until the controller has seen that. Returns the tasks, which wait for the gate.
        """

        def held() -> list[str]:
            self.open_gate()
            self.client.wait(self.client.submit("hold", 0, *self.places()) for _ in range(50))
            for file in ("gate", "journal"):
                (self.directory / file).unlink()
            tasks = [self.client.submit("hold", number, *self.places()) for number in range(count)]
            status = self.status(process)
            if status and status.tasks > 1:
                return tasks
            self.open_gate()
            self.client.wait(tasks)
            return []

        tasks = wait_until(held, "tasks are sent ahead")
        wait_until(self.journal, "one task runs")
        return tasks


class Proxy:
    """A TCP proxy between a worker and its controller.

    It cuts connections, or holds back all data.
    """

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
        for connection in sockets:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # already closed

    def close(self) -> None:
        self.listener.close()
        self.passing.set()
        self.cut()
