"""The package's benchmarks do not rot: their arithmetic, their cage, and that ours answers every question."""

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
from conftest import lives, until
from rows import OURS, POOL, RAY, Question, versus
from store import REQUIRED

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "python"
caged = pytest.mark.skipif(contain.words() is None and not REQUIRED, reason="no namespaces can be made here")


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
        # Of rounds the median, whatever one of them does.
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


def test_times_are_told_in_the_unit_of_the_question() -> None:
    assert row(versus("s", "m", "f", "ms", RAY), [2500.0], Ray=[5000.0]).ours == [2.5]


def test_who_was_not_measured_misses_no_goal_and_reaches_none() -> None:
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
            script, *told = contestant.command
            command = [sys.executable, str(SCRIPTS / script), *told, *words]
            command += ["--scale", "1000", "--out", str(out)]
            subprocess.run(command, check=True, timeout=90)
            rounds[contestant.name] = [json.loads(out.read_text())["figures"]]
    answers = [rows.answer(question, rounds) for question in questions]
    assert None not in answers
    # Of a few values, what each takes is less than what comes and goes meanwhile.
    certain = [answer for answer in answers if answer is not None and answer.question.unit != "bytes"]
    assert all(value > 0 for answer in certain for value in answer.ours)


@caged
def test_a_cage_has_no_network_and_its_processes_end_with_it() -> None:
    words = contain.words()
    assert words is not None
    # It leaves behind a process in a session of its own, which holds standard output as long as it lives.
    leaves = (
        "import contain, subprocess\n"
        "print(*contain.interfaces(), flush=True)\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    )
    command = [*words, sys.executable, "-c", leaves]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(command, check=True, timeout=60, stdout=subprocess.PIPE, text=True, env=environment)
    assert done.stdout == "lo\n"


def test_outside_of_a_cage_ray_is_not_started() -> None:
    if contain.interfaces() == ["lo"]:
        pytest.skip("this machine has no other interface")
    with pytest.raises(SystemExit, match="not in a cage"):
        contain.insist()


def test_who_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "pid"
    (tmp_path / "sleeps.py").write_text(
        "import pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "print('asleep', flush=True)\n"
        f"pathlib.Path({str(told)!r}).write_text(str(child.pid))\n"
        "time.sleep(1000)\n"
    )
    monkeypatch.setattr(contestants, "HERE", tmp_path)
    monkeypatch.setattr(contain, "words", lambda: None)
    for deadline in (1, 4, 16, 60):  # Until it has come so far in time.
        sleeper = contestants.Contestant("sleeper", "sleeper", False, ["sleeps.py"], deadline)
        with pytest.raises(contestants.Failed, match=f"it took longer than {deadline} s") as failed:
            contestants.turn(sleeper, Path(sys.executable), 1)
        if told.exists():
            break
    assert "it said last: asleep" in str(failed.value)
    until("its child is gone", lambda: not lives(int(told.read_text())))
