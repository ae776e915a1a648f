"""Python and Rust call each other's functions and actors by name, and exchange plain data."""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import subprocess
import zlib
from collections.abc import Iterator
from typing import Any

import marline
import pytest
from harness.waiting import PATIENCE, wait_until
from marline._session import sessions

pytestmark = pytest.mark.usefixtures("cluster")


def polyglot(*words: str) -> list[str]:
    """Returns the command line of the Rust program of these tests, with the cluster's address."""
    program = os.environ.get("MARLINE_POLYGLOT")
    if program is None:
        pytest.skip("MARLINE_POLYGLOT names no program: cargo build -p marline --example polyglot")
    address, token = sessions.current().address_and_token()
    return [program, *words, address, *([token] if token else [])]


@pytest.fixture
def rust(cluster: str) -> Iterator[None]:
    """Starts a worker that is a Rust program."""
    process = subprocess.Popen(polyglot("worker"))
    try:
        wait_until("the Rust worker has joined", lambda: len(marline.nodes()) == 2)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


@dataclasses.dataclass
class Order:
    item: str
    count: int
    price: float
    notes: list[str | None]


@pytest.mark.usefixtures("rust")
def test_functions_of_rust_are_called_with_plain_data() -> None:
    square = marline.function("square", num_cpus=1)
    assert marline.get([square.remote(x) for x in (3, -(2**31))]) == [9, 2**62]
    bill = marline.function("bill")
    expected = {"total": 5.0, "words": "2 of nails, 1 notes", "of": {"nails": 2}}
    order = Order("nails", 2, 2.5, [None, "quick"])
    assert marline.get(bill.remote(order)) == expected
    assert marline.get(bill.remote(dataclasses.asdict(order))) == expected


@pytest.mark.usefixtures("rust")
def test_results_of_rust_are_arguments_of_both() -> None:
    @marline.remote
    def negate(x: int) -> int:
        return -x

    square = marline.function("square")
    nine = square.remote(3)
    assert marline.get(square.remote(nine)) == 81
    assert marline.get(negate.remote(nine)) == -9
    assert marline.get(square.remote(marline.function("python:math.isqrt").remote(nine))) == 9
    assert marline.get(marline.remote(lambda f: marline.get(f.remote(5))).remote(square)) == 25
    with pytest.raises(marline.UnsupportedError, match="only plain data crosses languages"):
        marline.get(square.remote(negate.remote(3)))


@pytest.mark.usefixtures("rust")
def test_large_bytes_go_to_rust_and_come_back_by_value_and_by_reference() -> None:
    @marline.remote
    def first(data: bytes) -> int:
        return data[0]

    invert = marline.function("invert")
    for size in (3, 1 << 20, 70 << 20):  # The last size is above the limit of a message.
        data = b"\x01" * size
        inverted = invert.remote(data)
        assert (marline.get(inverted) == b"\xfe" * size) is True
        assert marline.get(first.remote(inverted)) == 0xFE
        assert (marline.get(invert.remote(inverted)) == data) is True
    kept = marline.put(b"\x01" * (1 << 20))
    assert (marline.get(invert.remote(kept)) == b"\xfe" * (1 << 20)) is True


@pytest.mark.usefixtures("rust")
def test_errors_of_rust_arrive() -> None:
    with pytest.raises(marline.TaskError, match="invalid digit") as caught:
        marline.get(marline.function("parse").remote("seven"))
    assert caught.value.class_name == "core::num::error::ParseIntError"
    with pytest.raises(
        marline.InvalidError, match='argument 1 of "square" cannot be read as i64: found text'
    ):
        marline.get(marline.function("square").remote("three"))


@pytest.mark.usefixtures("rust")
def test_actors_of_rust_are_called() -> None:
    account = marline.actor_class("Account", name="savings").remote(100)
    assert marline.get(account.deposit.remote(7)) == 107
    with pytest.raises(marline.TaskError, match="only 107 is left"):
        marline.get(account.withdraw.remote(1000))
    found = marline.get_actor("savings", plain=True)
    assert marline.get(found.withdraw.remote(100)) == 7

    @marline.remote
    def uses(account: Any) -> Any:
        return marline.get(account.deposit.remote(1))

    assert marline.get(uses.remote(account)) == 8


def test_rust_calls_python(cluster: str) -> None:
    client = subprocess.run(polyglot("client"), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert client.returncode == 0, client.stderr
    lines = dict(line.split(": ", 1) for line in client.stdout.splitlines())
    assert lines["hypot"] == "5"
    assert lines["mean"] == "3"
    assert lines["checksums"].split() == [str(zlib.crc32(b"\x07" * 1_000_000))] * 2
    assert (lines["first"], lines["index of c"]) == ("a", "1")
    assert lines["failed"] == "ValueError"
    assert "a datetime.date is not plain data" in lines["not plain"]
    assert "'math.nothing' cannot be imported" in lines["not there"]


@dataclasses.dataclass
class Point:
    x: float
    y: float


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        [0, 1, 127, 128, 255, 256, 65535, 65536, 2**32, 2**63, 2**64 - 1],
        [-1, -32, -33, -128, -129, -(2**15), -(2**15) - 1, -(2**31) - 1, -(2**63)],
        [0.0, -1.5, 1e300, math.inf],
        ["", "Grüße", "a" * 31, "a" * 32, "b" * 256, "c" * 70_000],
        [b"", b"\x00\xff", b"a" * 256, b"c" * 70_000],
        [[], list(range(15)), list(range(16)), list(range(70_000))],
        {"a": {"b": [1, {}]}, 7: None, "many": {str(n): n for n in range(70_000)}},
    ],
)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    assert marline.get(marline.function("python:copy.copy").remote(value)) == value


def test_tuples_are_lists_and_dataclasses_are_maps() -> None:
    same = marline.function("python:copy.copy")
    assert marline.get(same.remote((1, (2, bytearray(b"x"))))) == [1, [2, b"x"]]
    assert marline.get(same.remote([Point(1, 2.5)])) == [{"x": 1, "y": 2.5}]


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (datetime.date(2024, 1, 1), TypeError, r"a datetime\.date is not plain data"),
        ([{1, 2}], TypeError, r"a set is not plain data"),
        (Point, TypeError, r"a type is not plain data"),
        (2**64, ValueError, "more than 64 bits"),
    ],
)
def test_what_is_not_plain_is_named(value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        marline.function("python:copy.copy").remote(value)


def test_what_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="deeper than"):
        marline.function("python:copy.copy").remote(value)


def test_references_stay_outside_of_data() -> None:
    with pytest.raises(TypeError, match=r"a marline\.ObjectRef is not plain data"):
        marline.function("python:copy.copy").remote([marline.put(1)])
    assert marline.get(marline.function("python:copy.copy").remote(marline.put(1))) == 1


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(TypeError, match="workers provide this one"):
        marline.function("python:math.sqrt", runtime_env={"env_vars": {"A": "b"}})
    with pytest.raises(TypeError, match="a task has no option"):
        marline.function("python:math.sqrt", nonsense=1)
    with pytest.raises(TypeError):
        marline.function("python:math.sqrt").remote(x=4)  # type: ignore[call-arg]
    words = marline.actor_class("python:collections.deque").remote()
    with pytest.raises(TypeError, match="pass them in order"):
        words.append.remote(x=4)
