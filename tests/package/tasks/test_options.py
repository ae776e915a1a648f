"""Options: a wrong one is refused where it is given, and a right one has its effect."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import pytest
from harness.waiting import PATIENCE, wait_until
from marline._api import option_values, options

# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def function() -> int:
    return 1


class Sitter:
    def sit(self) -> int:
        return os.getpid()

    def nap(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def die(self, tries: Path) -> None:
        with tries.open("a") as file:
            file.write("x")
        os._exit(1)


NUMBERS: list[tuple[str, list[Any]]] = [
    ("num_cpus", [-1, "2", float("nan"), float("inf"), [1]]),
    ("num_gpus", [-1, "2", float("nan")]),
    ("memory", [-1, "2", 1.5, 2**70]),
    ("resources", ["disk", {"disk": -1}, {"disk": "2"}, {1: 1}, {"": 1}, {"CPU": 1}, {"GPU": 1}]),
    ("preemptible", [None, "yes", 1]),
    ("name", [1, b"name"]),
]
OF_STORES: list[tuple[str, list[Any]]] = [
    ("object_store_memory", [-1, 0, 1000, True, "2", 1.5, 2**70]),
    ("object_spilling_directory", [3, b"/tmp", "/no/such/folder", __file__, "/proc"]),
]
OF_TASKS: list[tuple[str, list[Any]]] = [
    ("max_retries", [-2, None, "3", 1.5, True]),
    ("retry_exceptions", [None, "KeyError", KeyError, [1], 1]),
    ("num_returns", [-1, None, "2", 1.5, 10_001]),
    ("max_unconsumed", [-1, 0, "2", 1.5, 65_537]),
]
OF_ACTORS: list[tuple[str, list[Any]]] = [
    ("max_restarts", [-2, None, "3", 1.5]),
    ("max_task_retries", [-2, None, "3", 1.5]),
    ("max_concurrency", [0, -1, "3", 1.5, 2**40]),
    ("max_pending_calls", [0, -2, None, "3", 1.5, 2**40]),
    ("get_if_exists", [None, "yes", 1]),
    ("lifetime", ["detatched", "DETACHED", 1]),
    ("idle_ttl", [0, -1, "3", float("nan")]),
    ("checkpoint_every", [0, -1, "3", 1.5]),
    ("checkpoint_interval", [0, -1, "3"]),
]


def pairs(rows: list[tuple[str, list[Any]]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in rows for value in values]


REFUSED = r"{name}\b.* must be .*, not |{name} has .*, which has an option of its own"


def test_each_option_has_a_default_and_a_check() -> None:
    known = options.TASK_OPTIONS | options.ACTOR_OPTIONS
    assert set(options.Options._fields) == known
    # `options.py` itself checks these two.
    assert known - {"namespace", "runtime_env"} <= set(option_values._CHECKS)


@pytest.mark.parametrize(("name", "value"), pairs(NUMBERS + OF_TASKS))
def test_a_wrong_option_of_a_task_is_refused_at_once(name: str, value: Any) -> None:
    for give in (lambda **options: marline.remote(**options)(function), marline.remote(function).options):
        with pytest.raises((TypeError, marline.InvalidError), match=REFUSED.format(name=name)):
            give(**{name: value})


@pytest.mark.parametrize(("name", "value"), pairs(NUMBERS + OF_ACTORS))
def test_a_wrong_option_of_an_actor_is_refused_at_once(name: str, value: Any) -> None:
    for give in (lambda **options: marline.remote(**options)(Sitter), marline.remote(Sitter).options):
        with pytest.raises((TypeError, marline.InvalidError), match=REFUSED.format(name=name)):
            give(**{name: value})


@pytest.mark.parametrize(("name", "value"), pairs(NUMBERS[:4] + OF_STORES))
def test_a_wrong_option_of_a_cluster_is_refused_and_nothing_is_started(name: str, value: Any) -> None:
    with pytest.raises((TypeError, marline.InvalidError), match=name):
        marline.init(**{name: value})
    assert not marline.is_initialized()


@pytest.mark.parametrize(
    ("target", "option", "words"),
    [
        (function, "num_cpu", "a task has no option 'num_cpu' .is 'num_cpus' meant"),
        (function, "max_restarts", "a task has no option 'max_restarts'"),
        (Sitter, "max_concurency", "an actor has no option 'max_concurency' .is 'max_concurrency' meant"),
        (Sitter, "life_time", "is 'lifetime' meant"),
        (Sitter, "timeout", "an actor has no option 'timeout': there are checkpoint_every, "),
    ],
)
def test_an_unknown_option_is_refused_with_a_suggestion(target: Any, option: str, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        marline.remote(**{option: 1})(target)


@pytest.mark.usefixtures("cluster")
def test_option_values_that_are_usual_in_ray_mean_the_same() -> None:
    nothing = marline.remote(num_cpus=None, num_gpus=None, memory=None, resources=None, max_retries=-1)(
        function
    )
    assert marline.get(nothing.remote()) == 1
    sitter = marline.remote(max_concurrency=None, max_pending_calls=-1, lifetime="non_detached")(
        Sitter
    ).remote()
    assert len(set(marline.get([sitter.sit.remote() for _ in range(10)]))) == 1
    assert marline.remote(memory=2e9)(function)._options.memory == 2_000_000_000


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_lost_task_is_retried_max_retries_times(retries: int, tmp_path: Path) -> None:
    tries = tmp_path / "tries"

    @marline.remote(max_retries=retries)
    def die() -> None:
        with tries.open("a") as file:
            file.write("x")
        os._exit(1)

    with pytest.raises(marline.WorkerLostError):
        marline.get(die.remote())
    assert len(tries.read_text()) == retries + 1


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_lost_call_is_retried_max_task_retries_times(retries: int, tmp_path: Path) -> None:
    sitter = marline.remote(max_restarts=-1, max_task_retries=retries)(Sitter).remote()
    with pytest.raises(marline.WorkerLostError):
        marline.get(sitter.die.remote(tmp_path / "tries"))
    assert len((tmp_path / "tries").read_text()) == retries + 1


class Unlucky(Exception):
    pass


class VeryUnlucky(Unlucky):
    pass


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("is_local", [False, True])
def test_subclasses_of_retried_exceptions_are_retried(is_local: bool, tmp_path: Path) -> None:
    base, kind = Unlucky, VeryUnlucky
    if is_local:

        class Own(Exception):
            pass

        class Kind(Own):
            pass

        base, kind = Own, Kind  # type: ignore[assignment, misc]

    def tries(raised: type[Exception], again: Any) -> int:
        file = tmp_path / f"{raised.__name__}-{again}".replace("/", "")

        @marline.remote(max_retries=1, retry_exceptions=again)
        def fails() -> None:
            with file.open("a") as tried:
                tried.write("x")
            raise raised("as asked")

        with pytest.raises(raised, match="as asked"):
            marline.get(fails.remote())
        return len(file.read_text())

    assert [tries(KeyError, [LookupError]), tries(KeyError, (OSError, Exception))] == [2, 2]
    assert tries(LookupError, [KeyError]) == 1, "a base class of a retried exception is not retried"
    assert [tries(kind, [base]), tries(kind, [kind]), tries(base, [kind])] == [2, 2, 1]


@pytest.mark.usefixtures("cluster")
def test_a_call_has_a_time_limit_and_the_actor_goes_on() -> None:
    sitter = marline.remote(Sitter).remote()
    pid = marline.get(sitter.sit.remote())
    with pytest.raises(marline.GetTimeoutError, match=r"nap.* took longer than its timeout"):
        marline.get(sitter.nap.options(timeout=0.05).remote(PATIENCE))
    assert marline.get(sitter.sit.remote()) == pid


@pytest.mark.usefixtures("cluster")
def test_an_actor_that_nobody_calls_ends_after_its_time() -> None:
    sitter = marline.remote(name="idle", idle_ttl=0.1, lifetime="detached")(Sitter).remote()
    marline.get(sitter.sit.remote())
    wait_until("the actor has ended", lambda: "idle" not in marline.list_named_actors())
    with pytest.raises(marline.ActorDiedError, match="was idle for too long"):
        marline.get(sitter.sit.remote())


@pytest.mark.usefixtures("cluster")
def test_a_name_is_not_given_out_as_an_actor_of_another_class() -> None:
    @marline.remote
    class Other:
        pass

    sitter = marline.remote(name="the one")(Sitter).remote()
    with pytest.raises(marline.AlreadyExistsError, match=r"Sitter, not a .*Other"):
        Other.options(name="the one", get_if_exists=True).remote()
    with pytest.raises(marline.InvalidError, match="give it one"):
        Other.options(get_if_exists=True).remote()
    del sitter


@pytest.mark.usefixtures("cluster")
def test_max_concurrency_limits_how_many_coroutines_run() -> None:
    @marline.remote(max_concurrency=2)
    class Narrow:
        def __init__(self) -> None:
            self.now = self.most = 0

        async def enter(self) -> int:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.01)
            self.now -= 1
            return self.most

    narrow = Narrow.remote()
    assert max(marline.get([narrow.enter.remote() for _ in range(8)])) == 2


@pytest.mark.usefixtures("cluster")
def test_tasks_that_need_all_cpus_take_turns(tmp_path: Path) -> None:
    inside = tmp_path / "inside"

    @marline.remote(num_cpus=2)
    def alone() -> bool:
        is_alone = not inside.exists()
        inside.touch()
        time.sleep(0.05)
        inside.unlink()
        return is_alone

    assert all(marline.get([alone.remote() for _ in range(4)]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"address": 3}, "address must be 'local', 'auto', 'host:port' or 'unix:/path', not 3"),
        ({"token": 3}, "token must be a string, not int"),
        ({"log_to_driver": "no"}, "log_to_driver must be True or False, not 'no'"),
        ({"num_cpu": 3}, r"unexpected keyword argument 'num_cpu' \(is 'num_cpus' meant\?\)"),
    ],
)
def test_init_refuses_wrong_arguments_and_says_why(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        marline.init(**arguments)
    assert not marline.is_initialized()
