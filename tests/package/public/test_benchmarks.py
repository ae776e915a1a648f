"""The Python benchmarks stay correct and runnable.

The tests check the arithmetic of goals and ratios, the isolation of contestants, and that Marline's
own contestants give a figure for every question. The benchmarks are in `benchmarks/python`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import contain
import contestants
import object_rows
import pytest
import report
import rows
from harness.processes import is_alive
from harness.store import REQUIRED
from harness.waiting import wait_until
from rows import OURS, POOL, RAY, Question, versus

SCRIPTS = Path(__file__).parents[3] / "benchmarks" / "python"
needs_isolation = pytest.mark.skipif(
    contain.command_prefix() is None and not REQUIRED, reason="no namespaces can be made here"
)


def row(question: Question, ours: list[float], **rivals: list[float]) -> rows.Row:
    rounds = {OURS: [{question.figure: value} for value in ours]}
    rounds |= {name: [{question.figure: value} for value in values] for name, values in rivals.items()}
    answer = rows.answer(question, rounds)
    assert answer is not None
    return answer


@pytest.mark.parametrize(
    ("unit", "ours", "theirs", "ratio", "state"),
    [
        ("µs", [100.0], [1200.0], 12, "reached"),
        ("µs", [101.0], [1200.0], 1200 / 101, "missed"),
        ("/s", [36.0], [3.0], 12, "reached"),
        ("/s", [3.0], [36.0], 1 / 12, "missed"),
        # The median of the rounds counts: one odd round changes nothing.
        ("µs", [100.0, 90.0, 9e9], [1200.0, 0.1, 9e9], 12, "reached"),
    ],
)
def test_a_goal_is_reached_when_ours_is_so_many_times_better(
    unit: str, ours: list[float], theirs: list[float], ratio: float, state: str
) -> None:
    answer = row(versus("s", "m", "f", unit, RAY, goal=12), ours, Ray=theirs)
    assert answer.ratio() == pytest.approx(ratio)
    assert answer.state == state
    assert ("**" in report.ratio(answer)) == (state == "missed")


def test_a_number_can_be_asked_for() -> None:
    assert row(rows.fixed("s", "m", "f", "/s", 100), [150.0]).ratio() == 1.5
    assert row(rows.fixed("s", "m", "f", "µs", 10), [20.0]).state == "missed"
    assert row(rows.fixed("s", "m", "f", "", 4), [4.0]).state == "reached"


def test_times_are_shown_in_the_unit_of_the_question() -> None:
    assert row(versus("s", "m", "f", "ms", RAY), [2500.0], Ray=[5000.0]).ours == [2.5]


def test_a_goal_against_a_rival_without_figures_is_neither_reached_nor_missed() -> None:
    answer = row(versus("s", "m", "f", "µs", RAY, POOL, goal=2), [1.0], ProcessPoolExecutor=[3.0])
    assert answer.state == "not measured"
    assert answer.as_json()["ratio"] == 0
    (line,) = report.table([answer], {RAY: "it cannot be installed here"})[2:]
    assert line == f"| s | m | 1.00 µs | {POOL} 3.00, {RAY} not measured | {RAY} | not measured | 2 |"
    assert report.summary([answer]) == "0 of 1 goals missed, 1 not measured."


def test_a_contestant_that_ran_owes_every_figure() -> None:
    with pytest.raises(KeyError):
        rows.answer(versus("s", "m", "f", "µs", RAY), {OURS: [{"f": 1.0}], RAY: [{"g": 1.0}]})


def test_rows_are_written_in_the_form_of_every_benchmark(tmp_path: Path) -> None:
    under = report.Circumstances(1, 1, {OURS: "0.1"}, {RAY: "it cannot be installed here"}, True, [0.0])
    path = tmp_path / "bench" / "python.json"
    report.write(
        path, [row(versus("s", "m", "f", "µs", POOL, goal=2), [1.0], ProcessPoolExecutor=[3.0])], under
    )
    written = json.loads(path.read_text())
    assert set(written) == {"commit", "machine", "rows"}
    assert "Ray: not measured: it cannot be installed here" in written["machine"]
    assert written["rows"] == [
        {
            "shape": "s",
            "metric": "m",
            "unit": "µs",
            "better": "lower",
            "ours": 1.0,
            "rivals": {POOL: 3.0},
            "against": POOL,
            "goal": 2,
            "ratio": 3.0,
        }
    ]


@pytest.mark.parametrize(
    ("taking_part", "questions", "words"),
    [
        (contestants.CONTESTANTS, rows.QUESTIONS, []),
        (object_rows.CONTESTANTS, object_rows.QUESTIONS, ["--small"]),
    ],
    ids=["python", "objects"],
)
def test_ours_and_what_needs_no_rival_installed_answer_every_question(
    taking_part: list[contestants.Contestant], questions: list[Question], words: list[str], tmp_path: Path
) -> None:
    rounds: rows.Rounds = {}
    for contestant in taking_part:
        if not contestant.rival:
            out = tmp_path / f"{contestant.word}.json"
            script, *arguments = contestant.command
            command = [sys.executable, str(SCRIPTS / script), *arguments, *words]
            command += ["--scale", "1000", "--out", str(out)]
            subprocess.run(command, check=True, timeout=90)
            rounds[contestant.name] = [json.loads(out.read_text())["figures"]]
    answers = [rows.answer(question, rounds) for question in questions]
    assert None not in answers
    # With few values, the bytes for each are fewer than other memory varies by: that figure may be
    # negative.
    certain = [answer for answer in answers if answer is not None and answer.question.unit != "bytes"]
    assert all(value > 0 for answer in certain for value in answer.ours)


@needs_isolation
def test_an_isolated_program_has_no_network_and_its_processes_end_with_it() -> None:
    prefix = contain.command_prefix()
    assert prefix is not None
    # The program leaves behind a process in another session. That process holds standard output
    # open as long as it lives: `run` returns only when it has ended.
    leaves = (
        "import contain, subprocess\n"
        "print(*contain.interfaces(), flush=True)\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    )
    command = [*prefix, sys.executable, "-c", leaves]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(command, check=True, timeout=60, stdout=subprocess.PIPE, text=True, env=environment)
    assert done.stdout == "lo\n"


def test_ray_is_not_started_without_isolation() -> None:
    if contain.interfaces() == ["lo"]:
        pytest.skip("this machine has no interface but lo")
    with pytest.raises(SystemExit, match="not isolated"):
        contain.require_isolation()


def test_a_contestant_that_takes_too_long_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    (tmp_path / "sleeps.py").write_text(
        "import pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "print('asleep', flush=True)\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "time.sleep(1000)\n"
    )
    monkeypatch.setattr(contestants, "HERE", tmp_path)
    monkeypatch.setattr(contain, "command_prefix", lambda: None)
    # Longer and longer deadlines, until the contestant has started its child in time.
    for deadline in (1, 4, 16, 60):
        sleeper = contestants.Contestant("sleeper", "sleeper", False, ["sleeps.py"], deadline)
        with pytest.raises(contestants.Failed, match=f"it took longer than {deadline} s") as failed:
            contestants.turn(sleeper, Path(sys.executable), 1)
        if pid_file.exists():
            break
    assert "its last output: asleep" in str(failed.value)
    wait_until("the contestant's child has ended", lambda: not is_alive(int(pid_file.read_text())))
