"""Runs user code in threads. Arguments and results are MessagePack."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import msgpack

from marline.v1 import common_pb2 as common
from marline.v1 import link_pb2 as pb

# The MessagePack extension type of an argument that stands for a value of the message.
REFERENCE = 1


class Cancelled(BaseException):
    """An exception that is thrown into the thread of user code to stop it."""


class Unsupported(Exception):
    """The task needs a feature that this worker does not have."""


class Unknown(Exception):
    """This worker has no function, class or method of this name."""


class UserCodeRun:
    """A run of user code in its own thread, which can be asked to stop.

    `done` is called on the asyncio loop with the result, or with the exception.
    """

    def __init__(self, code: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.code, self.done, self.loop = code, done, asyncio.get_running_loop()
        self.began, self.stopped_for, self.stoppable = time.monotonic_ns(), "", True
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        outcome: Any
        try:
            try:
                outcome = self.code()
            except BaseException as error:  # any exception is the outcome of the code
                outcome = error
            with self.lock:
                self.stoppable = False
        except Cancelled as late:  # thrown when the code had already ended
            outcome = late
        self.loop.call_soon_threadsafe(self.done, outcome)

    def stop(self, reason: str) -> None:
        """Throws `Cancelled` into the thread.

        It arrives when the thread next runs Python code, not C code.
        """
        with self.lock:
            if self.stoppable and not self.stopped_for:
                self.stopped_for = reason
                thread = ctypes.c_ulong(self.thread.ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(Cancelled))

    def ran_for_ns(self) -> int:
        return time.monotonic_ns() - self.began


def call(code: Callable[..., Any], payload: common.Payload, values: Iterable[common.Value]) -> Any:
    """Calls user code. Each argument that is a reference is replaced by the value it stands for."""
    sent = list(values)
    return code(*(
        unpack(sent[int.from_bytes(arg.data, "big")].payload) if is_reference(arg) else arg
        for arg in unpack(payload)
    ))


def is_reference(arg: Any) -> bool:
    return isinstance(arg, msgpack.ExtType) and arg.code == REFERENCE


def unpack(payload: common.Payload) -> Any:
    if payload.encoding != common.ENCODING_MESSAGE_PACK:
        raise TypeError(f"this worker reads MessagePack, not {common.Encoding.Name(payload.encoding)}")
    return msgpack.unpackb(payload.inline, strict_map_key=False)


def pack(value: Any) -> common.Payload:
    return common.Payload(encoding=common.ENCODING_MESSAGE_PACK, inline=msgpack.packb(value))


def results(value: Any, returns: int) -> pb.Values:
    values = [value] if returns == 1 else list(value or ())
    if len(values) != returns:
        raise TypeError(f"{returns} results were asked for, the code returned {len(values)}")
    return pb.Values(values=[common.Value(payload=pack(item)) for item in values])


def check_results(spec: pb.TaskSpec) -> None:
    """Fails if a task is to stream its items, which this worker cannot do."""
    if spec.HasField("stream"):
        raise Unsupported("the task is to stream its items: this worker cannot do that")


def error_of(error: BaseException) -> common.Error:
    if isinstance(error, Unknown):
        return common.Error(kind=common.ERROR_KIND_NOT_FOUND, message=str(error))
    if isinstance(error, Unsupported):
        return common.Error(kind=common.ERROR_KIND_UNSUPPORTED, message=str(error))
    failure = {"class": type(error).__name__, "traceback": "".join(traceback.format_exception(error))}
    message = f"{failure['class']}: {error}"
    return common.Error(
        kind=common.ERROR_KIND_FAILED, may_have_run=True, message=message, failure=common.Failure(**failure)
    )
