"""``marline.ActorPool``: distributes work over several actors, one call at a time for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from marline._api import values
from marline._api.actors import ActorHandle
from marline._native import ObjectRef

# Starts a piece of work: called with an actor and a value, it calls a method and returns the
# reference.
Begin = Callable[[Any, Any], Any]


class ActorPool:
    """Distributes work over actors as they become free.

    Submitted work waits for a free actor. Waiting work is started only inside ``submit``, ``push``
    and the ``get_next`` methods: there is no thread behind the pool. An actor whose work has failed
    is free again. So is an actor that has died: its next work fails with ``ActorDiedError``, unless
    the actor may restart (``max_restarts``, ``max_task_retries``).

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
        # Work that waits for an actor, by its number, the oldest first.
        self._waiting: dict[int, tuple[Begin, Any]] = {}
        # References of started work whose results were not taken, by its number.
        self._begun: dict[int, Any] = {}
        # The busy actors, by the reference that each one works on.
        self._busy: dict[ObjectRef, ActorHandle] = {}

    def map(self, fn: Begin, values: Iterable[Any]) -> Iterator[Any]:
        """Yields the results of ``fn(actor, value)`` for all values, in the order of the values.

        Submits all values at once. Drops results of earlier work that were not taken.
        """
        self._submit_all(fn, values)
        return self._take(self.get_next)

    def map_unordered(self, fn: Begin, values: Iterable[Any]) -> Iterator[Any]:
        """Yields the results of ``fn(actor, value)`` for all values, as they come. See ``map``."""
        self._submit_all(fn, values)
        return self._take(self.get_next_unordered)

    def submit(self, fn: Begin, value: Any) -> None:
        """Calls ``fn(actor, value)`` as soon as an actor is free.

        ``fn`` calls a method of the actor and returns the reference.
        """
        self._waiting[self._numbers] = fn, value
        self._numbers += 1
        self._begin_waiting()

    def has_next(self) -> bool:
        """Returns whether there is a result to take, now or later."""
        return bool(self._begun or self._waiting)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Returns the result of the oldest work whose result was not taken.

        After ``timeout`` seconds it raises a ``TimeoutError``, and the next call waits for the same
        result; with ``ignore_if_timedout`` the result is dropped. Without work it raises
        ``StopIteration``.
        """
        number = min([*self._begun, *self._waiting], default=None)
        if number is None:
            raise StopIteration("no more results to get")
        if not self._wait(timeout, lambda: self._is_done(number)):
            if ignore_if_timedout:
                self._drop(number)
            raise TimeoutError("the next result did not come in time")
        return values.get(self._begun.pop(number))

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Returns the first result that comes and was not taken.

        After ``timeout`` seconds it raises a ``TimeoutError``. ``ignore_if_timedout`` has no effect
        here.
        """
        if not self.has_next():
            raise StopIteration("no more results to get")
        done: list[int] = []

        def is_any_done() -> bool:
            done.extend(number for number in self._begun if self._is_done(number))
            return bool(done)

        if not self._wait(timeout, is_any_done):
            raise TimeoutError("no result came in time")
        return values.get(self._begun.pop(done[0]))

    def has_free(self) -> bool:
        """Returns whether an actor is free and no work waits for one."""
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> ActorHandle | None:
        """Takes a free actor out of the pool. Returns ``None`` if no actor is free."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor: ActorHandle) -> None:
        """Adds an actor to the pool. An actor that is in the pool already is a ``ValueError``."""
        members = [*self._idle, *self._busy.values()]
        # Compared by id: two handles of one actor are different objects.
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
        """Starts waiting work on free actors."""
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
        """Waits until ``is_over()`` is true, and starts waiting work meanwhile.

        Returns whether it is.
        """
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
        """Waits until an actor has finished, and starts waiting work on the finished ones."""
        if not self._busy:
            return
        values.wait(list(self._busy), timeout=timeout)
        for ref in [ref for ref in self._busy if ref.done()]:
            self._idle.append(self._busy.pop(ref))
        self._begin_waiting()


def _one_of(result: Any) -> ObjectRef:
    """Returns a reference to wait for: all results of one call come together."""
    ref = result[0] if isinstance(result, list) and result else result
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"the function must return the reference of a call, not {type(ref).__name__}")
    return ref
