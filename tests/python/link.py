"""A session with a controller: joining, its lease, and the link that carries messages, in order and once,
over connections that break. What docs/protocol.md says under "Joining" and "Links", and nothing of workers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from marline.v1 import link_pb2 as pb
from marline.v1 import link_pb2_grpc
from ticket import Tickets

log = logging.getLogger("link")
OPTIONS = [
    # The protocol allows messages far above gRPC's own 4 MiB.
    ("grpc.max_receive_message_length", 80 << 20),
    ("grpc.max_send_message_length", 80 << 20),
    # Otherwise channels to one address share their failures: after one, a new channel fails untried for a
    # second, which is long for a lease.
    ("grpc.use_local_subchannel_pool", 1),
]
BATCH_BYTES = 1 << 20
PAUSE = 0.05  # before another connection, or another request to join


class Dropped(Exception):
    """The controller broke the link's rules, or was silent: this connection is of no use."""


class Process:
    """This process, as it joins again and again."""

    def __init__(self, address: str, token_file: str | None, role: pb.WorkerRole) -> None:
        self.address, self.role, self.request = address, role, 0
        self.token_file, self.tickets = token_file, None
        self.id = uuid7()

    def metadata(self) -> list[tuple[str, str]]:
        return self.tickets.metadata() if self.tickets else []

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address, options=OPTIONS)

    async def join(self) -> tuple[pb.JoinReply, float]:
        """The answer, and when the request was sent: the lease counts from there."""
        while True:
            if self.token_file:
                # Which controller it is by now: the one before may have been killed.
                try:
                    self.tickets = await asyncio.to_thread(Tickets, self.address, self.token_file)
                except (ConnectionError, subprocess.TimeoutExpired) as error:
                    log.info("cannot join yet: %s", error)
                    await asyncio.sleep(PAUSE)
                    continue
            self.request += 1
            asked = time.monotonic()
            request = pb.JoinRequest(
                session_id=self.id, request=self.request, protocol="1", version="python-test",
                worker=self.role, process=this_process(),
            )
            try:
                async with self.channel() as channel:
                    links = link_pb2_grpc.LinksStub(channel)
                    return await links.Join(request, metadata=self.metadata(), timeout=5), asked
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise  # it is refused: another try would be, too
                log.info("cannot join yet: %s", error.details())
            await asyncio.sleep(PAUSE)


class Link:
    """One session, and all that is said in it."""

    def __init__(self, process: Process, reply: pb.JoinReply, asked: float) -> None:
        self.process, self.session, self.controller = process, reply.session, reply.controller_epoch
        self.lease, self.patience = reply.lease_ms / 1000, 2 * reply.ping_interval_ms / 1000
        self.counted_from, self.pongs = asked, dict[int, float]()
        # Said and not acknowledged yet; the numbers of the last message said and seen.
        self.unseen: deque[pb.Data] = deque()
        self.said = self.seen = 0
        # What goes out on the connection there is, once both have said hello.
        self.outbox: asyncio.Queue[pb.Frame] | None = None
        self.heard: Callable[[pb.Message], None] = lambda message: None

    def say(self, **kind: Any) -> None:
        """Says it once, whatever happens to connections."""
        self.said += 1
        self.unseen.append(pb.Data(sequence=self.said, message=pb.Message(**kind)))
        if self.outbox:
            self.outbox.put_nowait(pb.Frame(data=self.unseen[-1]))

    async def lease_left(self, part: float) -> None:
        """Returns when this part of the lease has passed without being renewed."""
        while (left := self.counted_from + part * self.lease - time.monotonic()) > 0:
            await asyncio.sleep(left)

    async def stay_connected(self) -> None:
        """Connects and connects again. Returns when the controller says that the session is over."""
        for number in itertools.count(1):
            try:
                return await self.connected(number)
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                    raise  # this program said something wrong, and would say it again
                log.info("connection %d broke: %s", number, error.details())
            except (asyncio.InvalidStateError, Dropped, TimeoutError) as error:
                log.info("connection %d broke: %r", number, error)
            await asyncio.sleep(PAUSE)

    async def connected(self, number: int) -> None:
        out: asyncio.Queue[pb.Frame] = asyncio.Queue()
        hello = pb.Hello(**{"from": self.session.epoch}, knows=self.controller, seen=self.seen)
        out.put_nowait(pb.Frame(attach=pb.Attach(session=self.session, connection=number)))
        out.put_nowait(pb.Frame(hello=hello))
        async with self.process.channel() as channel:
            call = link_pb2_grpc.LinksStub(channel).Attach(metadata=self.process.metadata())
            writer = asyncio.create_task(self.write(call, out))
            try:
                while True:
                    frames = await asyncio.wait_for(call.read(), self.patience)
                    if frames is grpc.aio.EOF:
                        raise Dropped("the controller ended it")
                    seen = self.seen
                    for frame in frames.frames:
                        if frame.HasField("over"):
                            log.info("the session is over: %s", frame.over.error.message)
                            return
                        self.received(frame, out)
                    if self.seen > seen:
                        out.put_nowait(pb.Frame(seen=pb.Seen(seen=self.seen)))
            finally:
                self.outbox = None
                writer.cancel()
                call.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    async def write(self, call: Any, out: asyncio.Queue[pb.Frame]) -> None:
        while True:
            batch = [await out.get()]
            size = batch[0].ByteSize()
            while not out.empty() and size < BATCH_BYTES:
                batch.append(out.get_nowait())
                size += batch[-1].ByteSize()
            for frame in batch:
                if frame.HasField("data"):
                    frame.data.seen = self.seen
            await call.write(pb.Frames(frames=batch))

    def received(self, frame: pb.Frame, out: asyncio.Queue[pb.Frame]) -> None:
        kind = frame.WhichOneof("kind")
        if kind == "ping":
            self.pinged(frame.ping)
            out.put_nowait(pb.Frame(pong=pb.Pong(number=frame.ping.number)))
        elif kind == "hello":
            if getattr(frame.hello, "from") != self.controller:
                raise Dropped("another controller is there")  # it will say that the session is over
            self.acknowledged(frame.hello.seen)
            for data in self.unseen:
                out.put_nowait(pb.Frame(data=data))
            self.outbox = out
        elif kind in ("data", "seen") and not self.outbox:
            raise Dropped(f"{kind} before hello")
        elif kind == "seen":
            self.acknowledged(frame.seen.seen)
        elif kind == "data":
            self.acknowledged(frame.data.seen)
            if frame.data.sequence > self.seen + 1:
                raise Dropped(f"message {self.seen + 1} is missing")
            if frame.data.sequence == self.seen + 1:  # otherwise it came again, and counts once
                self.seen += 1
                self.heard(frame.data.message)

    def pinged(self, ping: pb.Ping) -> None:
        self.pongs[ping.number] = time.monotonic()
        if ping.heard in self.pongs:
            self.counted_from = self.pongs[ping.heard]
            self.pongs = {number: sent for number, sent in self.pongs.items() if number > ping.heard}

    def acknowledged(self, seen: int) -> None:
        if seen > self.said:
            raise Dropped(f"message {seen} was acknowledged, {self.said} was the last")
        while self.unseen and self.unseen[0].sequence <= seen:
            self.unseen.popleft()


def uuid7() -> bytes:
    head = (time.time_ns() // 1_000_000 & (1 << 48) - 1) << 80
    rest = uuid.uuid4().int & ~(0xFFFF_FFFF_FFFF_F << 76)
    return (head | 7 << 76 | rest).to_bytes(16, "big")


def this_process() -> pb.Process | None:
    """So that a controller on the same machine sees at once that this process has died."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot, open("/proc/self/stat") as stat:
            kernel = f"{boot.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
            started = stat.read().rsplit(")", 1)[1].split()[19]  # the 22nd field of all
    except OSError:
        return None
    return pb.Process(kernel=kernel, pid=os.getpid(), started=int(started))
