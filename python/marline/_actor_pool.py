"""``marline.ActorPool``: work for several actors, each busy with one piece at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from marline import _session
from marline._actor import ActorHandle
from marline._native import ObjectRef

# How a piece of work is given to an actor: it calls a method, and returns the reference.
Begin = Callable[[Any, Any], Any]


class ActorPool:
    """Gives work to actors as they become free.

    What is submitted waits for an actor, and begins while some ``get_next`` waits. An actor whose work
    failed is free again. So is one that has died: what it is given then fails with ``ActorDiedError``, unless
    it may be restarted (``max_restarts``, ``max_task_retries``).

    >>> import marline
    >>> @marline.remote
    ... class Doubler:
    ...     def double(self, n):
    ...         return 2 * n
    >>> running = marline.init(num_cpus=2)
    >>> pool = marline.ActorPool([Doubler.remote(), Doubler.remote()])
    >>> list(pool.map(lambda actor, n: actor.double.remote(n), [1, 2, 3, 4]))
    [2, 4, 6, 8]
    >>> pool.submit(lambda actor, n: actor.double.remote(n), 5)
    >>> pool.get_next()
    10
    >>> marline.shutdown()
    """

    def __init__(self, actors: Iterable[ActorHandle]) -> None:
        self._idle = list(actors)
        self._numbers = 0
        # What waits for an actor, by its number: the oldest first.
        self._waiting: dict[int, tuple[Begin, Any]] = {}
        # What was begun and has not been taken, by its number.
        self._begun: dict[int, Any] = {}
        # The actors that are busy, and with what.
        self._busy: dict[ObjectRef, ActorHandle] = {}

    def map(self, fn: Begin, values: Iterable[Any]) -> Iterator[Any]:
        """The results of ``fn(actor, value)`` for all values, in their order.

        All values are submitted at once. Results of what was submitted before are dropped.
        """
        self._submit_all(fn, values)
        return self._take(self.get_next)

    def map_unordered(self, fn: Begin, values: Iterable[Any]) -> Iterator[Any]:
        """The results of ``fn(actor, value)`` for all values, as they come. See ``map``."""
        self._submit_all(fn, values)
        return self._take(self.get_next_unordered)

    def submit(self, fn: Begin, value: Any) -> None:
        """Has an actor do ``fn(actor, value)``, which calls one of its methods, as soon as one is free."""
        self._waiting[self._numbers] = fn, value
        self._numbers += 1
        self._begin_waiting()

    def has_next(self) -> bool:
        """Whether there is a result to take, now or later."""
        return bool(self._begun or self._waiting)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """The result of the oldest that was not taken.

        If that takes too long, it is a ``TimeoutError``, and the next call waits for the same one; with
        ``ignore_if_timedout`` its result is dropped.
        """
        number = min([*self._begun, *self._waiting], default=None)
        if number is None:
            raise StopIteration("no more results to get")
        if not self._wait(timeout, lambda: self._is_done(number)):
            if ignore_if_timedout:
                self._drop(number)
            raise TimeoutError("the next result did not come in time")
        return _session.get(self._begun.pop(number))

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """The result of any that was not taken. ``ignore_if_timedout`` changes nothing here."""
        if not self.has_next():
            raise StopIteration("no more results to get")
        done: list[int] = []

        def is_any_done() -> bool:
            done.extend(number for number in self._begun if self._is_done(number))
            return bool(done)

        if not self._wait(timeout, is_any_done):
            raise TimeoutError("no result came in time")
        return _session.get(self._begun.pop(done[0]))

    def has_free(self) -> bool:
        """Whether an actor is free and no work waits for one."""
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> ActorHandle | None:
        """Takes a free actor out of the pool, if there is one."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor: ActorHandle) -> None:
        """Puts another actor into the pool."""
        members = [*self._idle, *self._busy.values()]
        # Handles of one actor are different objects.
        if any(member._actor.id == actor._actor.id for member in members):
            raise ValueError("the actor is in this pool already")
        self._idle.append(actor)
        self._begin_waiting()

    def _submit_all(self, fn: Begin, values: Iterable[Any]) -> None:
        self._waiting.clear()
        self._begun.clear()
        for value in values:
            self.submit(fn, value)

    def _take(self, get: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield get()

    def _begin_waiting(self) -> None:
        """Gives work to the actors that are free."""
        while self._waiting and self._idle:
            number = next(iter(self._waiting))
            fn, value = self._waiting.pop(number)
            actor = self._idle.pop(0)
            try:
                result = fn(actor, value)
                ref = _one_of(result)
            except BaseException:
                self._idle.append(actor)
                raise
            self._begun[number] = result
            self._busy[ref] = actor

    def _is_done(self, number: int) -> bool:
        return number in self._begun and _one_of(self._begun[number]).done()

    def _drop(self, number: int) -> None:
        self._waiting.pop(number, None)
        self._begun.pop(number, None)

    def _wait(self, timeout: float | None, is_over: Callable[[], bool]) -> bool:
        """Waits until something is the case; work that waits begins meanwhile. Says whether it is."""
        end = None if timeout is None else time.monotonic() + timeout
        self._free(0)
        while not is_over():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            if not self._busy:
                raise RuntimeError("no actor is in this pool: push() one")
            self._free(left)
        return True

    def _free(self, timeout: float | None) -> None:
        """Waits until an actor has finished, and gives work to those that have."""
        if not self._busy:
            return
        _session.wait(list(self._busy), timeout=timeout)
        for ref in [ref for ref in self._busy if ref.done()]:
            self._idle.append(self._busy.pop(ref))
        self._begin_waiting()


def _one_of(result: Any) -> ObjectRef:
    """The reference to wait for: all results of one call come at once."""
    one = result[0] if isinstance(result, list) and result else result
    if not isinstance(one, ObjectRef):
        raise TypeError(f"the function must return the reference of a call, not {type(one).__name__}")
    return one
