"""The driver shows the lines that tasks and actors print.

Each line has the name and process that printed it. Lines keep their order and are shown once.
Repeats are collapsed, and too many lines are dropped and counted.
"""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.captured_output import CapturedOutput
from harness.clusters import SeparateCluster
from harness.processes import is_alive
from harness.waiting import PATIENCE, wait_until
from marline._session import output


@marline.remote
def speak(*lines: str) -> int:
    for line in lines:
        print(line)
    return os.getpid()


def test_lines_are_shown_once_with_name_and_pid_in_order(
    captured_output: CapturedOutput, cluster: str
) -> None:
    lines = [f"line {number}" for number in range(100)]
    pid = marline.get(speak.remote(*lines))
    captured_output.wait_until("line 99")
    assert captured_output.out.splitlines() == [f"(speak pid={pid}) {line}" for line in lines]
    assert captured_output.err == ""


def test_errors_logs_and_warnings_go_to_standard_error(captured_output: CapturedOutput, cluster: str) -> None:
    @marline.remote
    def complain() -> int:
        print("error", file=sys.stderr)
        logging.warning("logged")
        logging.info("of no interest")
        warnings.warn("warned", stacklevel=1)
        print("out")
        return os.getpid()

    prefix = f"(complain pid={marline.get(complain.remote())})"
    captured_output.wait_until(f"{prefix} out\n")
    captured_output.wait_until("warned")
    assert captured_output.out == f"{prefix} out\n"
    assert captured_output.err.splitlines()[:2] == [f"{prefix} error", f"{prefix} WARNING:root:logged"]
    assert "UserWarning: warned" in captured_output.err
    assert "of no interest" not in captured_output.err


def test_output_is_shown_while_the_task_runs(
    captured_output: CapturedOutput, cluster: str, tmp_path: Path
) -> None:
    @marline.remote
    def wait(path: Path) -> None:
        print("begun")
        print("without an end", end="", flush=True)
        while not path.exists():
            time.sleep(0.002)
        print("; done")

    waits = wait.remote(tmp_path / "go")
    captured_output.wait_until("begun\n")
    captured_output.wait_until("without an end\n")
    assert "done" not in captured_output.out
    (tmp_path / "go").touch()
    marline.get(waits)
    captured_output.wait_until("; done\n")


def test_actors_print_under_their_name_or_class(captured_output: CapturedOutput, cluster: str) -> None:
    @marline.remote
    class Counter:
        def __init__(self) -> None:
            print("made")

        def add(self) -> int:
            print("added")
            return os.getpid()

    nameless, named = Counter.remote(), Counter.options(name="bob").remote()
    pids = marline.get([nameless.add.remote(), named.add.remote()])
    for name, pid in zip(["Counter", "bob"], pids, strict=True):
        # The two actors run side by side: their lines may come in any order between them.
        prefix = f"({name} pid={pid}) "
        captured_output.wait_until(prefix + "added\n")
        lines = [line for line in captured_output.out.splitlines() if line.startswith(prefix)]
        assert lines == [prefix + "made", prefix + "added"]


def test_async_and_threaded_actors_print(captured_output: CapturedOutput, cluster: str) -> None:
    @marline.remote
    class Asynchronous:
        async def speak(self) -> None:
            print("from a loop")

    @marline.remote(max_concurrency=2)
    class Threaded:
        def speak(self) -> None:
            print("from a thread")

    first, second = Asynchronous.remote(), Threaded.remote()
    marline.get([first.speak.remote(), second.speak.remote()])
    captured_output.wait_until("from a loop")
    captured_output.wait_until("from a thread")
    assert re.search(r"^\(Asynchronous pid=\d+\) from a loop$", captured_output.out, re.MULTILINE)
    assert re.search(r"^\(Threaded pid=\d+\) from a thread$", captured_output.out, re.MULTILINE)


def test_what_a_task_submits_prints_for_the_driver(captured_output: CapturedOutput, cluster: str) -> None:
    @marline.remote
    def outer() -> int:
        return int(marline.get(speak.remote("inner")))

    pid = marline.get(outer.remote())
    captured_output.wait_until("inner")
    assert captured_output.out == f"(speak pid={pid}) inner\n"


def test_the_last_words_of_what_dies_are_shown(captured_output: CapturedOutput, cluster: str) -> None:
    @marline.remote(max_retries=0)
    def die() -> None:
        print("farewell", end="", flush=True)
        os._exit(3)

    with pytest.raises(marline.WorkerLostError, match="farewell"):
        marline.get(die.remote())
    captured_output.wait_until("farewell\n")
    assert re.fullmatch(r"\(die pid=\d+\) farewell\n", captured_output.out)


def test_lines_go_to_what_sys_stdout_is_when_they_come(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = io.StringIO()
    monkeypatch.setattr(sys, "stdout", cell)
    marline.get(speak.remote("in a cell"))
    wait_until("the line is shown", lambda: "in a cell" in cell.getvalue())


def test_a_driver_that_cannot_write_goes_on(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        tried = threading.Event()

        def write(self, _: str) -> int:
            self.tried.set()
            raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Broken())
        marline.get(speak.remote("to nobody"))
        assert Broken.tried.wait(PATIENCE)
    cell = io.StringIO()
    monkeypatch.setattr(sys, "stdout", cell)
    marline.get(speak.remote("to somebody"))
    wait_until("the line is shown", lambda: "to somebody" in cell.getvalue())


def test_many_lines_hold_up_nobody_and_those_left_out_are_counted(
    captured_output: CapturedOutput, cluster: str
) -> None:
    @marline.remote
    def chatter(count: int) -> int:
        for number in range(count):
            print(number)
        return count

    chatters = chatter.remote(100_000)
    assert marline.get([chatter.remote(1) for _ in range(20)], timeout=PATIENCE) == [1] * 20
    assert marline.get(chatters, timeout=PATIENCE) == 100_000

    def accounted_lines() -> int:
        # Dropped lines are reported together with the next line.
        marline.get(chatter.remote(1))
        lines = captured_output.look().out.splitlines()
        # Lines are dropped by the worker that printed them, or by a driver that cannot keep up.
        words = r" … ([\d,]+) lines were (dropped, `marline logs [^`]+` has them$|not shown)"
        dropped = (re.search(words, line) for line in lines)
        counts = [int(found[1].replace(",", "")) for found in dropped if found]
        return len(lines) - len(counts) + sum(counts)

    # Other tasks print the first line, too: it may be held back as a repeat.
    wait_until("every line is shown or counted", lambda: accounted_lines() >= 100_000)
    shown = [line for line in captured_output.out.splitlines() if " … " not in line]
    assert 10_000 <= len(shown) < 50_000


@pytest.fixture(params=["embedded", "separate"])
def driver(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., list[str]]]:
    """A function that runs a driver in its own process to its end.

    It returns the lines of its output.
    """
    folder = tmp_path_factory.mktemp("run")
    around = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder)}
    separate = None

    def run(script: str, **environment: str) -> list[str]:
        path = folder / "script.py"
        path.write_text(textwrap.dedent(PREAMBLE) + textwrap.dedent(script))
        done = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            env={**around, **environment},
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()

    try:
        if request.param == "separate":
            separate = SeparateCluster(folder)
            separate.worker("--cpus", "2")
            (folder / "token").write_text(separate.token)
            around |= {"MARLINE_ADDRESS": separate.address, "MARLINE_TOKEN_FILE": str(folder / "token")}
        yield run
    finally:
        if separate is not None:
            separate.end()


PREAMBLE = """
import os, sys, threading
import marline

@marline.remote
def speak(line):
    print(line)

@marline.remote
class Speaker:
    def speak(self, line):
        print(line)
        return os.getpid()
"""


def without_pid(lines: list[str]) -> list[str]:
    return [re.sub(r"pid=\d+", "pid=N", line) for line in lines]


def test_all_earlier_output_is_shown_when_shutdown_returns(driver: Callable[..., list[str]]) -> None:
    shown = driver("""
        marline.init(num_cpus=2)
        marline.get(speak.remote("a task"))
        marline.shutdown()
        print("between")
        marline.init(num_cpus=2)
        speaker = Speaker.remote()
        marline.get(speaker.speak.remote("an actor"))
        marline.shutdown()
        print("end")
        assert "marline-output" not in [thread.name for thread in threading.enumerate()]
    """)
    expected = ["(speak pid=N) a task", "between", "(Speaker pid=N) an actor", "end"]
    assert without_pid(shown) == expected


def test_quick_tasks_are_shown_in_order_to_the_last(driver: Callable[..., list[str]]) -> None:
    shown = driver("""
        marline.init(num_cpus=2)
        for number in range(200):
            marline.get(speak.remote(number))
        marline.shutdown()
    """)
    assert without_pid(shown) == [f"(speak pid=N) {number}" for number in range(200)]


def test_a_driver_that_ends_without_shutdown_shows_all_output(driver: Callable[..., list[str]]) -> None:
    shown = driver("""
        marline.init(num_cpus=2)
        marline.get(speak.remote("a task"))
    """)
    assert without_pid(shown) == ["(speak pid=N) a task"]


def test_nothing_is_shown_after_shutdown(driver: Callable[..., list[str]]) -> None:
    shown = driver("""
        @marline.remote
        class Chatter:
            def start(self):
                threading.Thread(target=self.chat, daemon=True).start()
                return os.getpid()

            def chat(self):
                number = 0
                while True:
                    print(number := number + 1)

        marline.init(num_cpus=2)
        chatter = Chatter.remote()
        pid = marline.get(chatter.start.remote())
        marline.shutdown()
        print(pid)
        print("end", flush=True)
    """)
    assert shown[-1] == "end"
    pid = int(shown[-2])
    wait_until("the actor is gone", lambda: not is_alive(pid))


SAME = """
    marline.init(num_cpus=2)
    speakers = [Speaker.remote() for _ in range(4)]
    for speaker in speakers:
        marline.get(speaker.speak.remote("the same"))
    marline.get([speakers[0].speak.remote("again") for _ in range(3)])
    marline.get([speaker.speak.remote(f"another {n}") for n, speaker in enumerate(speakers)])
    marline.shutdown()
"""


def test_a_line_that_several_processes_print_is_shown_once(driver: Callable[..., list[str]]) -> None:
    shown = without_pid(driver(SAME))
    same = [line for line in shown if "the same" in line]
    repeated = "(Speaker pid=N) the same [repeated 3x across cluster]"
    assert same == ["(Speaker pid=N) the same", repeated]
    assert shown.count("(Speaker pid=N) again") == 3
    assert sum("another" in line for line in shown) == 4


def test_every_line_is_shown_if_repeats_are_not_collapsed(driver: Callable[..., list[str]]) -> None:
    shown = without_pid(driver(SAME, MARLINE_DEDUP_LOGS="0"))
    words = ["the same"] * 4 + ["again"] * 3 + [f"another {n}" for n in range(4)]
    assert sorted(shown) == sorted(f"(Speaker pid=N) {word}" for word in words)


def test_no_line_is_shown_without_log_to_driver(driver: Callable[..., list[str]]) -> None:
    shown = driver("""
        marline.init(num_cpus=2, log_to_driver=False)
        marline.get(speak.remote("unseen"))
        marline.shutdown()
    """)
    assert shown == []


def test_names_are_short() -> None:
    assert output.short("python:module.square#1f0a") == "square"
    assert output.short("python/77aa:module.Outer.<locals>.square#1f0a") == "square"
    assert output.short("python:load data v1.5#1f0a") == "load data v1.5"
    assert output.short("bob: the #1 actor") == "bob: the #1 actor"


class Nothing:
    """A source of output that has ended."""

    def take(self, _: float | None) -> None:
        return None


def piece(hostname: str, **others: Any) -> Any:
    fields = {"is_error": False, "text": None, "dropped": 0, "missed": 0, **others}
    return types.SimpleNamespace(name="python:m.f#1", hostname=hostname, pid=5, log="ID", **fields)


def test_lines_name_other_hosts_and_dropped_lines_are_reported() -> None:
    printer = output.Printer(Nothing())  # type: ignore[arg-type]
    elsewhere = printer._lines(piece("elsewhere", is_error=True, text="text", dropped=1234))
    assert elsewhere == [
        (True, "(f pid=5, host=elsewhere) … 1,234 lines were dropped, `marline logs ID` has them"),
        (True, "(f pid=5, host=elsewhere) text"),
    ]
    here = os.uname().nodename
    [lost] = printer._lines(piece(here, missed=7))
    assert lost == (False, "(marline) … 7 lines were not shown: they came faster than they were read")


def test_repeats_are_shown_after_a_window_and_later_ones_are_held_again() -> None:
    repeats, line = output.RepeatFilter(), output.Line("f", False, "text")
    held = [repeats.hold(0.0, line, f"(f pid={pid})") for pid in (1, 1, 2, 3, 1)]
    assert held == [False, False, True, True, True]
    assert repeats.over(output.WINDOW - 0.1) == []
    assert repeats.over(output.WINDOW) == [(False, "(f pid=1) text [repeated 3x across cluster]")]
    assert repeats.hold(6.0, line, "(f pid=4)")
    # A single repeat in a window is shown like any line, and the line is forgotten.
    assert repeats.over(6.0 + output.WINDOW) == [(False, "(f pid=4) text")]
    assert repeats.due_in() is None
    assert not repeats.hold(20.0, line, "(f pid=5)")
    assert repeats.over(30.0) == []
    blank = output.Line("f", False, "")
    assert [repeats.hold(30.0, blank, f"(f pid={pid})") for pid in (1, 2)] == [False, False]


def test_only_the_most_recent_lines_are_remembered() -> None:
    repeats = output.RepeatFilter()
    for number in range(output.MAX_RECENT + 5):
        repeats.hold(0.0, output.Line("f", False, str(number)), "(f pid=1)")
    repeats.hold(0.0, output.Line("f", False, "0"), "(f pid=2)")
    assert repeats.over(0.0) == [(False, "(f pid=2) 0")]
    assert len(repeats._recent) == output.MAX_RECENT


def test_a_line_without_an_end_is_shown_with_the_task_that_printed_it(
    captured_output: CapturedOutput, cluster: str
) -> None:
    @marline.remote
    def begin() -> int:
        print("begun", end="")
        return os.getpid()

    @marline.remote
    class Clerk:
        async def begin(self) -> int:
            print("begun too", end="")
            return os.getpid()

    captured_output.wait_until(f"(begin pid={marline.get(begin.remote())}) begun\n")
    clerk = Clerk.remote()
    captured_output.wait_until(f"(Clerk pid={marline.get(clerk.begin.remote())}) begun too\n")
