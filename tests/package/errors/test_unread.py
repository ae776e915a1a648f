"""The driver prints each failure whose error nobody reads: once, in one line."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import marline
import pytest
from harness.captured_output import CapturedOutput
from harness.clusters import marline_up
from harness.scripts import Script
from harness.waiting import wait_until

NEVER_READ = "nobody read its error"


@marline.remote
def divide(number: float, by: float = 0) -> float:
    return number / by


@marline.remote
def refuse(words: str = "no") -> None:
    raise ValueError(words)


@marline.remote
class Shop:
    def __init__(self, words: str | None = None) -> None:
        if words is not None:
            raise ValueError(words)

    def sell(self, words: str = "sold out") -> None:
        raise LookupError(words)

    def open(self) -> str:
        return "open"


@marline.remote(num_returns="streaming")
def count_down(number: int) -> Iterator[int]:
    yield from range(number, 0, -1)
    raise ValueError("lift-off")


def reported(captured_output: CapturedOutput) -> list[str]:
    """Returns the lines about unread failures so far."""
    return [line for line in captured_output.look().err.splitlines() if line.startswith("(marline)")]


def until_reported(captured_output: CapturedOutput, text: str) -> list[str]:
    captured_output.wait_until(text)
    return reported(captured_output)


def fence(captured_output: CapturedOutput, words: str = "the fence") -> list[str]:
    """Causes one more unread failure and waits for its line. Returns the other lines so far.

    Lines come in order: when this line is there, all earlier ones are.
    """
    gc.collect()  # Drops references that only a traceback or a future keeps.
    refuse.remote(words)
    return [line for line in until_reported(captured_output, f"{words} (") if "fence" not in line]


def test_a_task_that_failed_unread_is_printed_in_one_line(
    captured_output: CapturedOutput, cluster: str
) -> None:
    divide.remote(1)
    (line,) = until_reported(captured_output, "divide")
    assert line.startswith(
        f"(marline) task divide failed, and {NEVER_READ}: ZeroDivisionError: division by zero ("
    )
    assert "get()" in line


def test_a_call_that_failed_unread_names_class_and_method(
    captured_output: CapturedOutput, cluster: str
) -> None:
    shop = Shop.remote()
    shop.sell.remote()
    (line,) = until_reported(captured_output, "Shop")
    assert line.startswith(f"(marline) call Shop.sell failed, and {NEVER_READ}: LookupError: sold out (")


def test_a_failure_is_printed_when_its_reference_is_dropped(
    captured_output: CapturedOutput, cluster: str
) -> None:
    ref = divide.remote(1)
    marline.wait([ref])  # `wait` does not read the error.
    assert ref.done()
    assert fence(captured_output) == []
    del ref
    until_reported(captured_output, "task divide failed")


@pytest.mark.parametrize("how", ["get", "get of several", "await", "future", "argument", "inside", "cancel"])
def test_an_error_that_was_read_is_not_printed(
    how: str, captured_output: CapturedOutput, cluster: str
) -> None:
    @marline.remote
    def take(_: object) -> str:
        return "taken"

    async def wait(ref: marline.ObjectRef) -> None:
        await ref

    ref = divide.remote(1)
    if how == "get":
        with pytest.raises(ZeroDivisionError):
            marline.get(ref)
    elif how == "get of several":
        with pytest.raises(ZeroDivisionError):
            marline.get([ref, refuse.remote("as well")])
    elif how == "await":
        with pytest.raises(ZeroDivisionError):
            asyncio.run(wait(ref))
    elif how == "future":
        concurrent.futures.wait([ref.future()])
    elif how == "argument":
        with pytest.raises(ZeroDivisionError):
            marline.get(take.remote(ref))
    elif how == "inside":
        assert marline.get(take.remote([ref])) == "taken"
        marline.wait([ref])
    else:
        marline.wait([ref])
        marline.cancel(ref)
    del ref
    assert fence(captured_output) == []


def test_cancelled_work_is_not_printed(captured_output: CapturedOutput, cluster: str, tmp_path: Path) -> None:
    @marline.remote
    def stay(path: Path) -> None:
        path.touch()
        while True:
            time.sleep(0.01)

    ref = stay.remote(tmp_path / "runs")
    wait_until("the task runs", (tmp_path / "runs").exists)
    marline.cancel(ref)
    marline.wait([ref])
    del ref
    assert fence(captured_output) == []


def test_work_that_somebody_else_cancelled_is_not_printed(
    captured_output: CapturedOutput, tmp_path: Path
) -> None:
    @marline.remote
    def stay(path: Path) -> None:
        path.touch()
        while True:
            time.sleep(0.01)

    with marline_up(tmp_path) as running, marline.init(running.address, token=running.token):
        ref = stay.remote(tmp_path / "runs")
        wait_until("the task runs", (tmp_path / "runs").exists)
        binary = os.environ.get("MARLINE_BINARY", "marline")
        subprocess.run([binary, "cancel", ref.task_id()], env=running.environment, check=True)
        marline.wait([ref])
        del ref
        assert fence(captured_output) == []


def test_calls_that_a_kill_interrupts_are_not_printed(
    captured_output: CapturedOutput, cluster: str, tmp_path: Path
) -> None:
    @marline.remote
    class Loop:
        def run(self, path: Path) -> None:
            path.touch()
            while True:
                time.sleep(0.01)

    loop = Loop.remote()
    ref = loop.run.remote(tmp_path / "runs")
    wait_until("the call runs", (tmp_path / "runs").exists)
    marline.kill(loop)
    marline.wait([ref])
    del ref, loop
    assert fence(captured_output) == []


def test_equal_failures_are_printed_once_and_different_ones_each(
    captured_output: CapturedOutput, cluster: str
) -> None:
    marline.wait([refuse.remote("again") for _ in range(20)], num_returns=20)
    marline.wait([refuse.remote("differs")])
    divide.remote(1)
    until_reported(captured_output, "divide")
    lines = fence(captured_output)
    assert [line for line in lines if "again" in line] == lines[:1]
    assert len(lines) == 3


def test_a_message_is_one_line_escaped_and_cut(captured_output: CapturedOutput, cluster: str) -> None:
    marline.wait([refuse.remote("\x1b]0;title\x07first\nsecond")])
    marline.wait([refuse.remote("long " * 1000)])
    first, long = fence(captured_output)
    assert r"ValueError: \x1b]0;title\x07first (" in first
    assert "second" not in first
    assert len(long) < 500
    assert "long …" in long


def test_an_actor_whose_constructor_raised_is_printed_with_its_handle(
    captured_output: CapturedOutput, cluster: str
) -> None:
    shop = Shop.options(name="a shop").remote("no licence")
    with pytest.raises(ValueError):  # The name is free when the constructor has failed.
        while marline.get_actor("a shop"):
            time.sleep(0.002)
    assert fence(captured_output) == []
    del shop
    line = next(line for line in until_reported(captured_output, "no licence") if "no licence" in line)
    assert line.startswith(
        "(marline) the constructor of actor Shop failed, and nobody called it: ValueError: no licence ("
    )


def test_an_actor_that_was_called_leaves_its_failure_to_the_call(
    captured_output: CapturedOutput, cluster: str
) -> None:
    shop = Shop.remote("no licence")
    with pytest.raises(ValueError, match="no licence"):
        marline.get(shop.open.remote())
    del shop
    assert fence(captured_output) == []
    Shop.remote("no licence").open.remote()
    lines = until_reported(captured_output, "no licence")
    assert "call Shop.open failed" in lines[-1]


def test_failures_of_a_detached_actor_without_a_handle_are_printed(
    captured_output: CapturedOutput, cluster: str
) -> None:
    Shop.options(name="detached", lifetime="detached").remote("no licence")
    until_reported(
        captured_output, "the constructor of actor Shop failed, and nobody called it: ValueError: no licence"
    )
    shop = Shop.options(name="another", lifetime="detached").remote()
    shop.sell.remote()
    until_reported(captured_output, "call Shop.sell failed")
    marline.kill(shop)


def test_a_failed_stream_is_printed_if_nobody_took_its_end(
    captured_output: CapturedOutput, cluster: str
) -> None:
    items = count_down.remote(2)
    assert [marline.get(item) for item in (next(items), next(items))] == [2, 1]
    with pytest.raises(ValueError, match="lift-off"):
        next(items)
    del items
    assert fence(captured_output) == []
    items = count_down.options(num_cpus=2).remote(1)
    next(items)
    # This task needs both CPUs, so it runs after the stream has failed.
    assert marline.get(divide.options(num_cpus=2).remote(1, 1)) == 1
    assert fence(captured_output, "another fence") == []
    del items
    until_reported(captured_output, "task count_down failed")


def test_work_without_a_result_is_printed(captured_output: CapturedOutput, cluster: str) -> None:
    assert refuse.options(num_returns=0).remote("nothing comes of it") is None
    until_reported(captured_output, "nothing comes of it")


def test_several_results_are_read_with_one_of_them(captured_output: CapturedOutput, cluster: str) -> None:
    one, two = refuse.options(num_returns=2).remote("both")
    with pytest.raises(ValueError, match="both"):
        marline.get(one)
    del one, two
    assert fence(captured_output) == []


def test_a_failure_that_a_task_does_not_read_is_not_printed(
    captured_output: CapturedOutput, cluster: str
) -> None:
    @marline.remote
    def careless() -> list[str]:
        marline.wait([refuse.remote("inside a task")])
        # Meanwhile a thread that prints failures would get its name.
        marline.get(divide.remote(1, 1))
        return [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]

    assert "marline-unread" not in marline.get(careless.remote())
    assert fence(captured_output) == []


def test_a_map_that_fails_prints_nothing_more(captured_output: CapturedOutput, cluster: str) -> None:
    def fail(item: int) -> None:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        list(marline.map(fail, range(20), chunksize=1))
    assert fence(captured_output) == []


FAILS = """
@marline.remote
def fail(words="on purpose"):
    raise ValueError(words)
"""


def outcome(scripts: list[Script], source: str, **environment: str) -> tuple[int, list[str]]:
    """Runs a script. Returns its exit code, and the lines that it printed about unread failures."""
    script = Script(FAILS + source, **environment)
    scripts.append(script)
    code, _, err = script.end()
    return code, [line for line in err.splitlines() if line.startswith("(marline)")]


@pytest.mark.parametrize("off", ["argument", "variable"])
def test_a_setting_turns_the_report_off(off: str, scripts: list[Script]) -> None:
    words = ", log_unread_failures=False" if off == "argument" else ""
    environment = {"MARLINE_LOG_UNREAD_FAILURES": "0"} if off == "variable" else {}
    source = f"marline.init(num_cpus=1{words})\nmarline.wait([fail.remote()])\n"
    source += "ref = fail.remote('held')\nmarline.wait([ref])"
    assert outcome(scripts, source, **environment) == (0, [])


def test_the_setting_is_a_flag() -> None:
    with pytest.raises(TypeError, match="log_unread_failures must be True or False, not 'no'"):
        marline.init(log_unread_failures="no")  # type: ignore[arg-type]


def test_output_that_is_not_shown_leaves_failures_shown(scripts: list[Script]) -> None:
    source = "marline.init(num_cpus=1, log_to_driver=False)\nmarline.wait([fail.remote()])"
    code, lines = outcome(scripts, source)
    assert (code, len(lines)) == (0, 1)


def test_failures_whose_references_are_held_at_the_end_are_printed(scripts: list[Script]) -> None:
    """After the end of the program nobody can read their errors any more."""
    code, (line,) = outcome(scripts, "ref = fail.remote()\nmarline.wait([ref])")
    assert code == 0
    assert "task fail failed" in line
    read = "ref = fail.remote()\ntry:\n    marline.get(ref)\nexcept ValueError:\n    pass"
    assert outcome(scripts, read) == (0, [])
    with_block = "with marline.init(num_cpus=1):\n    ref = fail.remote()\n    marline.wait([ref])"
    assert len(outcome(scripts, with_block)[1]) == 1


def test_a_program_that_an_exception_ends_does_not_print_what_it_holds(scripts: list[Script]) -> None:
    """The exception may be why the program did not read the other errors."""
    source = "refs = [fail.remote(f'{n}') for n in range(3)]\n"
    source += "marline.wait(refs, num_returns=3)\nmarline.get(refs[0])"
    assert outcome(scripts, source) == (1, [])
    with_block = "with marline.init(num_cpus=2):\n    refs = [fail.remote(f'{n}') for n in range(3)]\n"
    with_block += "    marline.wait(refs, num_returns=3)\n    marline.get(refs[0])"
    assert outcome(scripts, with_block) == (1, [])


def test_work_that_the_end_of_the_session_cuts_off_is_not_printed(scripts: list[Script]) -> None:
    source = "marline.init(num_cpus=1)\nrefs = [nap.remote(60) for _ in range(3)]\n"
    source += "nap.remote(60)\nCounter.remote()"
    assert outcome(scripts, source) == (0, [])


def test_distinct_failures_are_limited(scripts: list[Script]) -> None:
    limit = 1_000
    source = "\n".join(
        [
            "marline.init(num_cpus=2)",
            "@marline.remote",
            "class Bulk:",
            "    def fail(self, n): raise ValueError(f'number {n}')",
            "bulk = Bulk.remote()",
            f"refs = [bulk.fail.remote(n) for n in range({limit} + 5)]",
            "marline.wait(refs, num_returns=len(refs))",
        ]
    )
    code, lines = outcome(scripts, source)
    assert code == 0
    assert len(lines) == limit + 1
    assert lines[-1].startswith("(marline) other failures that nobody reads are not printed")


def test_a_fork_leaves_the_failures_of_its_parent_alone(scripts: list[Script]) -> None:
    source = "ref = fail.remote()\nmarline.wait([ref])\npid = os.fork()\n"
    # The fork must have one thread: it does not start the one that prints failures.
    source += "if pid == 0:\n    del ref\n    sys.exit(len(os.listdir('/proc/self/task')) - 1)\n"
    source += "assert os.waitpid(pid, 0)[1] == 0"
    code, lines = outcome(scripts, source)
    assert (code, len(lines)) == (0, 1)


def test_a_driver_of_marline_up_prints_unread_failures(scripts: list[Script], tmp_path: Path) -> None:
    with marline_up(tmp_path) as running:
        file = tmp_path / "token"
        file.write_text(running.token)
        environment = {"MARLINE_ADDRESS": running.address, "MARLINE_TOKEN_FILE": str(file)}
        code, (line,) = outcome(scripts, "marline.wait([fail.remote()])", **environment)
    assert code == 0
    assert "task fail failed" in line
