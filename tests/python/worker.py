"""A small Marline worker, written against docs/protocol.md and proto/marline/v1 alone.

    worker.main(functions=[add], classes=[Counter])

All decisions are made on one asyncio loop, so there are no locks. User code runs in threads. The
worker does not listen: calls of its actors come through the controller.

It leaves out references inside of values, pickle, GPUs, concurrent calls of one actor, the idle
time of actors, and cancelling by force: a thread can only be asked to stop. If a thread does not
stop in time for the lease, the process ends.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from link import Link, SessionJoiner
from marline.v1 import common_pb2 as common
from marline.v1 import link_pb2 as pb
from usercode import Cancelled, Unknown, UserCodeRun, call, check_results, error_of, results

log = logging.getLogger("worker")
Key = tuple[bytes, int]  # a task and its attempt, or an actor and its epoch


@dataclass
class Actor:
    """An instance of an actor: its object and its calls, of which one runs at a time."""

    instance: pb.Instance
    object: Any = None
    waiting: deque[pb.ExecuteActorMethod] = field(default_factory=deque)
    run: UserCodeRun | None = None  # the run of the constructor, or of the current call
    current: Key | None = None  # the call that runs
    leaving: bool = False  # accepts no more calls, and ends when it has none
    ending: bool = False  # ends as soon as its run has stopped


class WorkerSession:
    """The work of a worker in one session. A method `on_KIND` handles messages of that kind."""

    def __init__(self, link: Link, functions: dict[str, Callable], classes: dict[str, type]) -> None:
        self.link, self.functions, self.classes = link, functions, classes
        self.running: dict[Key, tuple[pb.AssignTask, UserCodeRun]] = {}
        self.backlog: dict[Key, pb.AssignTask] = {}
        self.actors: dict[Key, Actor] = {}
        self.draining = self.over = False
        self.has_left = asyncio.Event()
        link.on_message = self.on_message

    async def live(self) -> bool:
        """Works until the session is over and all user code has stopped.

        Returns whether the worker left.
        """
        self.send(joined=pb.Nothing())
        # When a fifth of the lease is left, user code is stopped. When a tenth is left, it must
        # have stopped.
        lease = asyncio.create_task(self.link.lease_left(0.8))
        connection = asyncio.create_task(self.link.stay_connected())
        done, _ = await asyncio.wait({lease, connection}, return_when=asyncio.FIRST_COMPLETED)
        lease.cancel()
        connection.cancel()
        self.over = True
        for actor in self.actors.values():
            actor.waiting.clear()
        for run in self.runs():
            run.stop("over")
        too_late = asyncio.create_task(self.link.lease_left(0.9))
        while self.runs():
            if too_late.done():
                log.error("user code does not stop in time for the lease: this process exits")
                os._exit(1)
            await asyncio.sleep(0.01)
        too_late.cancel()
        done.pop().result()  # raises if the connection failed by a mistake of this program
        return self.has_left.is_set()

    def runs(self) -> list[UserCodeRun]:
        return [run for _, run in self.running.values()] + [a.run for a in self.actors.values() if a.run]

    def send(self, **kind: Any) -> None:
        if not self.over:
            self.link.send(**kind)

    def on_message(self, message: pb.Message) -> None:
        kind = message.WhichOneof("kind")
        handler = getattr(self, f"on_{kind}", None)
        if handler:  # other messages are for features that this worker leaves out
            handler(getattr(message, kind))

    # Tasks.

    def on_assign_task(self, task: pb.AssignTask) -> None:
        key = (task.spec.id, task.attempt)
        if self.draining:
            self.refuse(key, pb.REFUSAL_DRAINING)
        elif task.HasField("grant"):
            self.start(task)
        elif any(other.shape == task.shape for other, _ in self.running.values()):
            self.backlog[key] = task
        else:
            self.refuse(key, pb.REFUSAL_TAKEN_BACK)

    def refuse(self, key: Key, reason: pb.Refusal) -> None:
        self.send(refused=pb.Refused(attempt=attempt(key), reason=reason))

    def start(self, task: pb.AssignTask) -> None:
        key = (task.spec.id, task.attempt)

        def code() -> pb.Values:
            check_results(task.spec)
            function = self.functions.get(task.spec.function)
            if not function:
                raise Unknown(f"there is no function {task.spec.function!r} here")
            return results(call(function, task.spec.args, task.values), task.spec.returns)

        self.send(task_started=attempt(key))
        run = UserCodeRun(code, lambda outcome: self.task_ended(key, outcome))
        self.running[key] = (task, run)
        self.stop_in_time(run, task.spec)

    def stop_in_time(self, run: UserCodeRun, spec: pb.TaskSpec) -> None:
        if spec.options.HasField("timeout_ms"):
            asyncio.get_running_loop().call_later(spec.options.timeout_ms / 1000, run.stop, "timeout")

    def task_ended(self, key: Key, outcome: Any) -> None:
        task, run = self.running.pop(key)
        if isinstance(outcome, Cancelled) and run.stopped_for == "draining":
            self.refuse(key, pb.REFUSAL_DRAINING)
        else:
            end = ending(key, outcome, run)
            successor = next((k for k, each in self.backlog.items() if each.shape == task.shape), None)
            if successor:
                end.next.CopyFrom(attempt(successor))
            self.send(attempt_ended=end)
            if successor and not self.over:
                self.start(self.backlog.pop(successor))
        self.leave_if_done()

    def on_take_back(self, tried: pb.Try) -> None:
        key = (tried.task, tried.attempt)
        if self.backlog.pop(key, None):
            self.refuse(key, pb.REFUSAL_TAKEN_BACK)

    def on_cancel_attempt(self, cancel: pb.CancelAttempt) -> None:
        key = (cancel.attempt.task, cancel.attempt.attempt)
        if key in self.running:
            self.running[key][1].stop("cancelled")
        elif self.backlog.pop(key, None):
            self.send(attempt_ended=ending(key, Cancelled(), None))
        for actor in self.actors.values():
            if actor.run and actor.current == key:
                actor.run.stop("cancelled")
            for waiting in [each for each in actor.waiting if (each.spec.id, each.attempt) == key]:
                actor.waiting.remove(waiting)
                self.send(attempt_ended=ending(key, Cancelled(), None))

    # Actors.

    def on_instantiate_actor(self, order: pb.InstantiateActor) -> None:
        actor = Actor(pb.Instance(actor=order.spec.id, epoch=order.epoch))
        name = getattr(order.spec, "class")
        if self.draining:
            self.send(actor_refused=pb.ActorRefused(instance=actor.instance, reason=pb.REFUSAL_DRAINING))
            return

        def code() -> Any:
            if name not in self.classes:
                raise Unknown(f"there is no class {name!r} here")
            return call(self.classes[name], order.spec.args, order.values)

        def done(outcome: Any) -> None:
            actor.run = None
            if isinstance(outcome, BaseException) and not actor.ending:
                del self.actors[order.spec.id, order.epoch]
                self.send(actor_failed=pb.ActorLost(instance=actor.instance, error=error_of(outcome)))
                self.leave_if_done()
            elif not actor.ending and not actor.leaving:
                actor.object = outcome
                self.send(actor_ready=actor.instance)
            self.go_on(actor)

        self.actors[order.spec.id, order.epoch] = actor
        actor.run = UserCodeRun(code, done)

    def on_execute_actor_method(self, order: pb.ExecuteActorMethod) -> None:
        actor = self.actors.get((order.spec.method.actor, order.epoch))
        if not actor or actor.leaving or actor.ending:
            self.refuse((order.spec.id, order.attempt), pb.REFUSAL_NOT_HERE)
            return
        actor.waiting.append(order)
        self.go_on(actor)

    def go_on(self, actor: Actor) -> None:
        """Starts the next call of an actor if none runs, or ends an actor that is to end."""
        key = (actor.instance.actor, actor.instance.epoch)
        if actor.run or self.over or key not in self.actors:
            return
        if actor.ending or (actor.leaving and not actor.waiting):
            del self.actors[key]
            self.send(actor_destroyed=pb.ActorDestroyed(instance=actor.instance))
            self.leave_if_done()
        elif actor.waiting:
            self.execute(actor, actor.waiting.popleft())

    def execute(self, actor: Actor, order: pb.ExecuteActorMethod) -> None:
        key, name = (order.spec.id, order.attempt), order.spec.method.method

        def code() -> pb.Values:
            check_results(order.spec)
            method = None if name.startswith("_") else getattr(actor.object, name, None)
            if not method:
                raise Unknown(f"{type(actor.object).__name__} has no method {name!r}")
            return results(call(method, order.spec.args, order.values), order.spec.returns)

        def done(outcome: Any) -> None:
            run, actor.run, actor.current = actor.run, None, None
            if not actor.ending:  # otherwise the end of the actor answers the call, too
                self.send(attempt_ended=ending(key, outcome, run))
            self.go_on(actor)

        self.send(task_started=attempt(key))
        actor.current, actor.run = key, UserCodeRun(code, done)
        self.stop_in_time(actor.run, order.spec)

    def on_destroy_actor(self, instance: pb.Instance) -> None:
        actor = self.actors.get((instance.actor, instance.epoch))
        if actor:
            self.end(actor)

    def end(self, actor: Actor) -> None:
        actor.ending = True
        while actor.waiting:
            order = actor.waiting.popleft()
            self.refuse((order.spec.id, order.attempt), pb.REFUSAL_NOT_HERE)
        if actor.run:
            actor.run.stop("destroyed")
        self.go_on(actor)

    # Leaving.

    def on_drain_grace_ms(self, grace_ms: int) -> None:
        asyncio.get_running_loop().call_later(grace_ms / 1000, self.grace_is_over)
        if self.draining:
            return
        self.draining = True
        self.send(draining=pb.Nothing())
        for key in self.backlog:
            self.refuse(key, pb.REFUSAL_DRAINING)
        self.backlog.clear()
        for actor in list(self.actors.values()):
            actor.leaving = True
            self.go_on(actor)
        self.leave_if_done()

    # The controller is about to end. This worker ends with it. Other workers may join the next
    # controller.
    on_wind_up_grace_ms = on_drain_grace_ms

    def grace_is_over(self) -> None:
        for _, run in self.running.values():
            run.stop("draining")
        for actor in list(self.actors.values()):
            self.end(actor)

    def leave_if_done(self) -> None:
        if self.draining and not self.running and not self.actors and not self.has_left.is_set():
            self.has_left.set()
            self.send(leaving=pb.Nothing())  # the controller answers that the session is over


def attempt(key: Key) -> pb.Try:
    return pb.Try(task=key[0], attempt=key[1])


def ending(key: Key, outcome: Any, run: UserCodeRun | None) -> pb.AttemptEnded:
    end = pb.AttemptEnded(attempt=attempt(key), ran_for_ns=run.ran_for_ns() if run else 0)
    if not isinstance(outcome, BaseException):
        end.finished.CopyFrom(outcome)
    elif not run or run.stopped_for == "cancelled":
        end.cancelled.SetInParent()
    elif run.stopped_for == "timeout":
        end.failed.kind, end.failed.may_have_run = common.ERROR_KIND_TIMEOUT, True
        end.failed.message = "the attempt took longer than its timeout"
    else:
        end.failed.CopyFrom(error_of(outcome))
    return end


async def serve(process: SessionJoiner, functions: dict[str, Callable], classes: dict[str, type]) -> None:
    left = False
    while not left:
        link = Link(process, *await process.join())
        log.info("joined as epoch %d", link.session.epoch)
        left = await WorkerSession(link, functions, classes).live()


def main(functions: Sequence[Callable], classes: Sequence[type], provides: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description="A Marline worker in Python.")
    parser.add_argument("address", help="the address of the controller: HOST:PORT or unix:/path")
    parser.add_argument("--token-file", help="the file with the cluster's token")
    parser.add_argument("--cpus", type=float, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(name)s: %(message)s")
    functions_by_name = {function.__name__: function for function in functions}
    classes_by_name = {class_.__name__: class_ for class_ in classes}
    role = pb.WorkerRole(
        hostname=socket.gethostname(), pid=os.getpid(),
        resources=common.Resources(cpu=round(options.cpus * 10_000)),
        provides=[*functions_by_name, *(f"actor:{name}" for name in classes_by_name), *provides],
    )
    process = SessionJoiner(options.address, options.token_file, role)
    asyncio.run(serve(process, functions_by_name, classes_by_name))
