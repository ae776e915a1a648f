"""Exceptions arrive with their groups, causes, contexts, notes and tracebacks."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import marline
import pytest

pytestmark = pytest.mark.usefixtures("cluster")


def failure(function: Any) -> Any:
    """Runs a function that fails in a task. Returns the exception that arrives."""
    with pytest.raises(BaseException) as caught:
        marline.get(marline.remote(function).remote())
    return caught.value


def test_a_group_arrives_whole() -> None:
    async def fails() -> None:
        async def one() -> None:
            raise ValueError("first", 7)

        async def other() -> None:
            raise KeyError("second")

        async with asyncio.TaskGroup() as group:
            group.create_task(one())
            group.create_task(other())

    seen = []
    try:
        marline.get(marline.remote(fails).remote())
    except* ValueError as group:
        seen += [repr(error) for error in group.exceptions]
    except* KeyError as group:
        seen += [repr(error) for error in group.exceptions]
    assert seen == ["ValueError('first', 7)", "KeyError('second')"]
    error = failure(fails)
    assert isinstance(error, ExceptionGroup) and isinstance(error, marline.TaskError)
    assert error.message == "unhandled errors in a TaskGroup"
    assert [type(one) for one in error.exceptions] == [ValueError, KeyError]
    assert "in one" in error.remote_traceback


def test_groups_in_groups_and_of_a_class_of_ones_own() -> None:
    class Several(ExceptionGroup[Exception]):
        def derive(self, errors: Any) -> Several:
            return Several(self.message, errors)

    def fails() -> None:
        inner = Several("inner", [OSError(2, "no such thing"), ValueError("deep")])
        inner.add_note("a note on the inner one")
        raise Several("outer", [inner, TypeError("flat")])

    error = failure(fails)
    assert type(error).__name__ == "Several" and isinstance(error, marline.TaskError)
    inner, flat = error.exceptions
    assert (type(inner).__name__, inner.message, inner.__notes__) == (
        "Several",
        "inner",
        ["a note on the inner one"],
    )
    assert str(flat) == "flat"
    assert inner.exceptions[0].errno == 2
    matched, rest = error.split(ValueError)
    assert str(matched.exceptions[0].exceptions[0]) == "deep"
    assert [type(one) for one in rest.exceptions[0].exceptions] == [FileNotFoundError]


def test_causes_contexts_and_notes_arrive() -> None:
    def fails() -> None:
        try:
            try:
                raise KeyError("the context")
            except KeyError:
                raise ValueError("the cause")  # noqa: B904
        except ValueError as cause:
            cause.add_note("a note on the cause")
            error = RuntimeError("the error")
            error.add_note("a note")
            raise error from cause

    error = failure(fails)
    assert isinstance(error, RuntimeError)
    assert error.__notes__ == ["a note"]  # type: ignore[attr-defined]
    cause: Any = error.__cause__
    assert isinstance(cause, ValueError)
    assert (str(cause), cause.__notes__) == ("the cause", ["a note on the cause"])
    assert error.__context__ is cause and error.__suppress_context__
    assert isinstance(cause.__context__, KeyError)
    assert cause.__cause__ is None and not cause.__suppress_context__


def test_leaves_of_a_group_have_their_causes() -> None:
    def fails() -> None:
        try:
            raise ValueError("a leaf") from OSError("its cause")
        except ValueError as leaf:
            raise ExceptionGroup("a group", [leaf]) from None

    error = failure(fails)
    (leaf,) = error.exceptions
    assert str(leaf.__cause__) == "its cause"
    assert error.__context__ is leaf and error.__suppress_context__ and error.__cause__ is None


def test_what_cannot_be_pickled_has_a_stand_in() -> None:
    class Locked(Exception):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.lock = threading.Lock()

    def fails() -> None:
        leaf = ValueError("can")
        leaf.__cause__ = Locked("the cause cannot")
        raise ExceptionGroup("mixed", [leaf, Locked("cannot")])

    error = failure(fails)
    assert isinstance(error, ExceptionGroup)
    good, bad = error.exceptions
    assert repr(good) == "ValueError('can')"
    for stands_in, words in ((bad, "cannot"), (good.__cause__, "the cause cannot")):
        assert isinstance(stands_in, marline.TaskError)
        assert "Locked" in stands_in.class_name and words in str(stands_in)


def test_chains_pass_through_tasks_and_do_not_grow() -> None:
    @marline.remote(num_cpus=0)
    def fails(depth: int) -> None:
        if depth == 0:
            raise ValueError("the root") from KeyError("its cause")
        try:
            marline.get(fails.remote(depth - 1))
        except Exception as error:
            raise RuntimeError(f"level {depth}") from error

    sizes = []
    for depth in range(5):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            marline.get(fails.remote(depth))
        error: BaseException | None = caught.value
        sizes.append(len(pickle.dumps(error)))
        for level in range(depth, 0, -1):
            assert f"level {level}" in str(error)
            assert error is not None
            error = error.__cause__
        assert isinstance(error, ValueError) and isinstance(error, marline.TaskError)
        assert isinstance(error.__cause__, KeyError)
    steps = [later - earlier for earlier, later in itertools.pairwise(sizes)]
    assert max(steps) < 3 * min(steps), steps


def test_of_a_chain_that_is_too_long_the_nearest_arrive() -> None:
    def fails() -> None:
        error = ValueError("the last")
        for number in range(500):
            other = ValueError(str(number))
            other.__context__ = error
            error = other
        raise error

    error: Any = failure(fails)
    assert str(error.__context__) == "498"
    length = 0
    while error is not None:
        error, length = error.__context__, length + 1
    assert length == 100


def test_a_chain_that_is_a_circle_arrives() -> None:
    def fails() -> None:
        one, other = ValueError("one"), ValueError("other")
        one.__cause__, other.__cause__ = other, one
        raise one

    error: Any = failure(fails)
    assert str(error.__cause__) == "other"


def test_errors_that_arrived_can_be_pickled_with_their_chains() -> None:
    def fails() -> None:
        raise ExceptionGroup("a group", [ValueError("one")]) from KeyError("the cause")

    again = pickle.loads(pickle.dumps(failure(fails)))
    assert isinstance(again, ExceptionGroup) and isinstance(again, marline.TaskError)
    assert isinstance(again.__cause__, KeyError)
    assert repr(again.exceptions[0]) == "ValueError('one')"


def test_a_traceback_begins_with_the_users_code(cluster: str) -> None:
    def fail(*_: object) -> None:
        raise LookupError("nothing there")

    def generate() -> Iterator[int]:
        yield 1
        fail()

    async def wait_and_fail() -> None:
        fail()

    class Failing:
        async def fail(self) -> None:
            fail()

    class Unmade(Failing):
        def __init__(self) -> None:
            fail()

    context = marline.default_context()
    ways: dict[str, Callable[[], object]] = {
        "task": lambda: marline.get(marline.remote(fail).remote()),
        "coroutine": lambda: marline.get(marline.remote(wait_and_fail).remote()),
        "method": lambda: marline.get(marline.remote(Failing).remote().fail.remote()),
        "constructor": lambda: marline.get(marline.remote(Unmade).remote().fail.remote()),
        "map": lambda: list(marline.map(fail, [1])),
        "map, again": lambda: list(marline.map(fail, [1], retry_exceptions=True, max_retries=0)),
        "context": lambda: context.run(fail).result(),
        "context, generator": lambda: context.run(generate).result(),
    }
    for way, call in ways.items():
        with pytest.raises(LookupError) as caught:
            call()
        lines = str(caught.value).splitlines()
        begins = lines.index("Traceback (most recent call last):")
        assert __file__ in lines[begins + 1], way


def test_what_has_no_lines_of_the_users_has_no_traceback(cluster: str) -> None:
    def need(needed: int) -> object:
        return threading.Lock()

    class Needy:
        def need(self, needed: int) -> None: ...

    calls: dict[str, Callable[[], object]] = {
        "needed": lambda: marline.get(marline.remote(need).remote()),
        "'needed'": lambda: marline.get(marline.remote(Needy).remote().need.remote()),
        "2 were given": lambda: list(marline.map(need, [1], [2])),
        "cannot be pickled": lambda: marline.get(marline.remote(need).remote(1)),
    }
    for text, call in calls.items():
        with pytest.raises(TypeError, match=text) as caught:
            call()
        assert len(str(caught.value).splitlines()) == 1, caught.value


def test_an_exception_whose_class_takes_other_arguments_arrives_as_itself() -> None:
    class Refused(Exception):
        def __init__(self, code: int, reason: str) -> None:
            super().__init__(f"{code}: {reason}")
            self.code = code

    class Named(Exception):
        def __init__(self, *, code: int) -> None:
            super().__init__(f"code {code}")
            self.code = code

    class Wrapped(Exception):
        def __init__(self, code: object) -> None:
            super().__init__(f"<{code}>")
            self.code = code

    @marline.remote
    def fails(which: int) -> None:
        raise [Refused(1, "why"), Named(code=2), Wrapped(3)][which]

    for which, (cls, text) in enumerate([(Refused, "1: why"), (Named, "code 2"), (Wrapped, "<3>")]):
        with pytest.raises(cls) as caught:
            marline.get(fails.remote(which))
        assert isinstance(caught.value, marline.TaskError)
        assert (caught.value.code, caught.value.args) == (which + 1, (text,))  # type: ignore[attr-defined]
        again = pickle.loads(pickle.dumps(caught.value))
        assert again.code == which + 1
