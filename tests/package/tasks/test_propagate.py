"""Context variables, the trace and log attributes travel with submitted work."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marline
import pytest
from marline._api import propagation
from opentelemetry import trace

# Executors do not import this module: the variable travels with the code that uses it.
request: contextvars.ContextVar[Any] = contextvars.ContextVar("test_request")
user: contextvars.ContextVar[str] = contextvars.ContextVar("test_user", default="nobody")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    marline.propagate(request)
    marline.propagate(user)
    tokens = request.set("r1"), user.set("ada")
    yield
    request.reset(tokens[0])
    user.reset(tokens[1])


def see() -> tuple[Any, str]:
    return request.get("unset"), user.get()


# A function of __main__ travels as code, so no executor has to import this module.
see.__module__ = "__main__"


@marline.remote
def task() -> tuple[Any, str]:
    return see()


@marline.remote
async def coroutine() -> tuple[Any, str]:
    return see()


@marline.remote
class Sync:
    def __init__(self) -> None:
        self.made = see()

    def made_with(self) -> Any:
        return self.made

    def see(self) -> tuple[Any, str]:
        return see()

    def change(self) -> tuple[Any, str]:
        user.set("eve")
        return see()


@marline.remote
class Async:
    def __init__(self) -> None:
        self.made = see()

    async def made_with(self) -> Any:
        return self.made

    async def see(self) -> tuple[Any, str]:
        return see()


def test_variables_travel_into_tasks(cluster: str) -> None:
    assert marline.get([task.remote(), coroutine.remote()]) == [("r1", "ada"), ("r1", "ada")]


def test_a_task_has_the_values_of_its_submission_and_leaves_none_to_the_next(cluster: str) -> None:
    one_by_one = task.options(num_cpus=2)
    refs = []
    for number in range(5):
        token = request.set(number)
        refs.append(one_by_one.remote())
        request.reset(token)
    bare = contextvars.Context().run(one_by_one.remote)
    assert marline.get(refs) == [(number, "ada") for number in range(5)]
    assert marline.get(bare) == ("unset", "nobody"), (
        "a task without values sees the defaults, not the values of the task before"
    )


@pytest.mark.parametrize("actor", [Sync, Sync.options(max_concurrency=4), Async])
def test_variables_travel_into_actors_and_their_constructors(cluster: str, actor: Any) -> None:
    one = actor.remote()
    assert marline.get(one.made_with.remote()) == ("r1", "ada")
    request.set({"deep": [1, 2]})
    assert marline.get(one.see.remote()) == ({"deep": [1, 2]}, "ada")
    assert marline.get(contextvars.Context().run(one.see.remote)) == ("unset", "nobody")


def test_a_variable_that_a_call_sets_is_reset_after_the_call(cluster: str) -> None:
    one = Sync.remote()
    assert marline.get(one.change.remote()) == ("r1", "eve")
    assert marline.get(one.see.remote()) == ("r1", "ada")


def test_variables_travel_on_to_nested_tasks(cluster: str) -> None:
    @marline.remote
    def outer() -> Any:
        return marline.get(task.remote())  # The code of `outer` names no variable.

    assert marline.get(outer.remote()) == ("r1", "ada")


def test_a_module_that_is_imported_later_sees_the_values_that_travelled(cluster: str, tmp_path: Path) -> None:
    lines = "import contextvars, marline\nlate = marline.propagate(contextvars.ContextVar('test_late'))\n"
    (tmp_path / "late_module.py").write_text(lines)
    here: contextvars.ContextVar[str] = marline.propagate(contextvars.ContextVar("test_late"))

    @marline.remote(runtime_env={"py_modules": [str(tmp_path / "late_module.py")]}, num_cpus=2)
    def imports() -> Any:
        import late_module

        return late_module.late.get("unset")

    try:
        here.set("in time")
        assert marline.get(imports.remote()) == "in time"
        assert marline.get(contextvars.Context().run(imports.remote)) == "unset"
        here.set("again")
        assert marline.get(imports.remote()) == "again"
    finally:
        del propagation._variables["test_late"]


def test_two_variables_cannot_travel_under_one_name() -> None:
    twin: contextvars.ContextVar[Any] = contextvars.ContextVar("test_request")
    with pytest.raises(ValueError, match="another context variable travels as 'test_request'"):
        marline.propagate(twin)
    marline.propagate(request)
    with pytest.raises(ValueError, match="travels as 'test_request' already"):
        marline.propagate(request, name="other")


def test_code_that_uses_a_variable_which_does_not_travel_is_told_what_to_do(cluster: str) -> None:
    alone: contextvars.ContextVar[Any] = contextvars.ContextVar("test_alone")

    @marline.remote
    def uses() -> Any:
        return alone.get()

    with pytest.raises(TypeError, match=r"'test_alone' does not travel: call marline\.propagate"):
        uses.remote()


def test_a_value_that_cannot_be_pickled_is_named(cluster: str) -> None:
    request.set(threading.Lock())
    with pytest.raises(TypeError, match=r"\['test_request'\] cannot be pickled"):
        task.remote()


TRACE = 0x0AF7651916CD43DD8448EB211C80319C
SPAN = 0xB7AD6B7169203331


def spanned() -> Any:
    span = trace.SpanContext(TRACE, SPAN, is_remote=False, trace_flags=trace.TraceFlags(1))
    return trace.use_span(trace.NonRecordingSpan(span))


@pytest.mark.parametrize("where", ["task", "sync", "async"])
def test_the_trace_goes_along(cluster: str, where: str) -> None:
    def headers() -> Any:
        return dict(marline.trace_context.get() or {})

    @marline.remote
    def nested() -> Any:
        return marline.get(marline.remote(headers).remote())

    class Traced:
        def headers(self) -> Any:
            return headers()

    class AsyncTraced:
        async def headers(self) -> Any:
            return headers()

    if where == "task":
        call = nested.remote
    else:
        call = marline.remote(Traced if where == "sync" else AsyncTraced).remote().headers.remote
    with spanned():
        assert marline.get(call()) == {"traceparent": f"00-{TRACE:032x}-{SPAN:016x}-01"}
    assert marline.get(call()) == {}


def test_spans_in_a_task_have_the_driver_s_as_parent(cluster: str) -> None:
    @marline.remote(num_cpus=2)
    def current() -> tuple[int, int]:
        from opentelemetry import trace

        context = trace.get_current_span().get_span_context()
        return context.trace_id, context.span_id

    with spanned():
        marline.get(current.remote())  # From now on the executor has imported opentelemetry.
        assert marline.get(current.remote()) == (TRACE, SPAN)
    assert marline.get(current.remote()) == (0, 0)


@marline.remote
class Logs:
    def log(self) -> Any:
        return logged()

    async def log_async(self) -> Any:
        return logged()


def logged() -> Any:
    names = ("marline_task", "marline_task_id", "marline_attempt", "marline_actor")
    record = logging.getLogger().makeRecord("me", logging.INFO, "here", 1, "words", (), None)
    context = marline.get_runtime_context()
    attributes = tuple(getattr(record, name) for name in names)
    return attributes, (context.task_id, context.attempt, context.actor_id)


logged.__module__ = "__main__"


def test_log_records_say_which_task_they_are_of(cluster: str) -> None:
    attributes, context = marline.get(marline.remote(logged).remote())
    assert attributes == ("__main__.logged", *context)
    assert context[0] is not None and context[1:] == (1, None)


@pytest.mark.parametrize("method", ["log", "log_async"])
def test_log_records_say_which_actor_they_are_of(cluster: str, method: str) -> None:
    attributes, context = marline.get(getattr(Logs.remote(), method).remote())
    assert attributes == (method, *context)
    assert context[2] is not None
