"""A session with a controller: joining, the lease, and the link.

The link delivers each message once and in order, although its connections break. This file is the
part of docs/protocol.md under "Joining" and "Links". The worker itself is in `worker.py`.
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
    # Without this, channels to one address share their failures: after a failure, a new channel
    # fails for a second without trying to connect. A second is long for a lease.
    ("grpc.use_local_subchannel_pool", 1),
]
BATCH_BYTES = 1 << 20  # the size from which no more frames are added to a write
PAUSE = 0.05  # seconds before another connection, or another request to join


class Dropped(Exception):
    """This connection is useless: the controller broke the link's rules or was silent."""


class SessionJoiner:
    """Joins a controller, again after each end of a session. The process id stays the same."""

    def __init__(self, address: str, token_file: str | None, role: pb.WorkerRole) -> None:
        self.address, self.role, self.request = address, role, 0
        self.token_file, self.tickets = token_file, None
        self.id = uuid7()

    def metadata(self) -> list[tuple[str, str]]:
        return self.tickets.metadata() if self.tickets else []

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address, options=OPTIONS)

    async def join(self) -> tuple[pb.JoinReply, float]:
        """Joins, and retries until a controller answers.

        Returns the reply, and when the request was sent. The lease counts from that time.
        """
        while True:
            if self.token_file:
                # The controller may be another one by now: ask which, for its tickets.
                try:
                    self.tickets = await asyncio.to_thread(Tickets, self.address, self.token_file)
                except (ConnectionError, subprocess.TimeoutExpired) as error:
                    log.info("cannot join yet: %s", error)
                    await asyncio.sleep(PAUSE)
                    continue
            self.request += 1
            sent = time.monotonic()
            request = pb.JoinRequest(
                session_id=self.id, request=self.request, protocol="1", version="python-test",
                worker=self.role, process=this_process(),
            )
            try:
                async with self.channel() as channel:
                    links = link_pb2_grpc.LinksStub(channel)
                    return await links.Join(request, metadata=self.metadata(), timeout=5), sent
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise  # the controller refused the request, and would refuse it again
                log.info("cannot join yet: %s", error.details())
            await asyncio.sleep(PAUSE)


class Link:
    """One session, and its messages in both directions."""

    def __init__(self, process: SessionJoiner, reply: pb.JoinReply, sent: float) -> None:
        self.process, self.session, self.controller = process, reply.session, reply.controller_epoch
        self.lease, self.patience = reply.lease_ms / 1000, 2 * reply.ping_interval_ms / 1000
        # When the lease was last renewed, and when each pong was sent, by its number.
        self.counted_from, self.pongs = sent, dict[int, float]()
        # The messages that were sent and are not acknowledged yet.
        self.unseen: deque[pb.Data] = deque()
        # The numbers of the last message that was sent, and of the last one that was received.
        self.last_sent = self.seen = 0
        # The frames to send on the current connection. None until both sides have said hello on it.
        self.outbox: asyncio.Queue[pb.Frame] | None = None
        self.on_message: Callable[[pb.Message], None] = lambda message: None

    def send(self, **kind: Any) -> None:
        """Sends a message. It is delivered once, even if connections break."""
        self.last_sent += 1
        self.unseen.append(pb.Data(sequence=self.last_sent, message=pb.Message(**kind)))
        if self.outbox:
            self.outbox.put_nowait(pb.Frame(data=self.unseen[-1]))

    async def lease_left(self, part: float) -> None:
        """Returns when this part of the lease has passed without a renewal."""
        while (left := self.counted_from + part * self.lease - time.monotonic()) > 0:
            await asyncio.sleep(left)

    async def stay_connected(self) -> None:
        """Connects, again after each failure.

        Returns when the controller says that the session is over.
        """
        for number in itertools.count(1):
            try:
                return await self.connected(number)
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                    raise  # a mistake of this program, which it would repeat
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
                        raise Dropped("the controller ended the connection")
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
                raise Dropped("the controller was restarted")  # it will end the session
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
            if frame.data.sequence == self.seen + 1:  # otherwise it is a repeat, and is ignored
                self.seen += 1
                self.on_message(frame.data.message)

    def pinged(self, ping: pb.Ping) -> None:
        self.pongs[ping.number] = time.monotonic()
        if ping.heard in self.pongs:
            self.counted_from = self.pongs[ping.heard]
            self.pongs = {number: sent for number, sent in self.pongs.items() if number > ping.heard}

    def acknowledged(self, seen: int) -> None:
        if seen > self.last_sent:
            raise Dropped(f"message {seen} was acknowledged, {self.last_sent} was the last")
        while self.unseen and self.unseen[0].sequence <= seen:
            self.unseen.popleft()


def uuid7() -> bytes:
    head = (time.time_ns() // 1_000_000 & (1 << 48) - 1) << 80
    rest = uuid.uuid4().int & ~(0xFFFF_FFFF_FFFF_F << 76)
    return (head | 7 << 76 | rest).to_bytes(16, "big")


def this_process() -> pb.Process | None:
    """Returns how the system identifies this process, or None where that is unknown.

    With it, a controller on the same machine sees at once that this process has died.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot, open("/proc/self/stat") as stat:
            kernel = f"{boot.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
            started = stat.read().rsplit(")", 1)[1].split()[19]  # field 22 of the line
    except OSError:
        return None
    return pb.Process(kernel=kernel, pid=os.getpid(), started=int(started))
