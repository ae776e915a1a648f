"""A contest: everybody takes a turn in each round, in an order that changes from round to round; a figure is
the median over the rounds. What is told on the command line, what is printed and where rows go is the same
for every benchmark.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import contain
import machine
import report
import rows
from contestants import Contestant, Failed, turn

# A rough run takes a tenth of the calls.
ROUGH = 10
# How long is looked at what others do with the machine, before each turn, in seconds.
LOOK = 0.3


@dataclasses.dataclass(frozen=True)
class Benchmark:
    # As in `make bench-NAME` and target/bench/NAME.json.
    name: str
    about: str | None
    contestants: list[Contestant]
    questions: list[rows.Question]
    rounds: int
    # What else there is to be said of a run's figures, below the tables.
    notes: Callable[[rows.Rounds], list[str]] = lambda _: []


def arguments(benchmark: Benchmark) -> argparse.Namespace:
    known = [one.word for one in benchmark.contestants]
    parser = argparse.ArgumentParser(prog=f"bench-{benchmark.name}", description=benchmark.about)
    parser.add_argument("--quick", action="store_true", help="one round with a tenth of the calls")
    parser.add_argument("--rounds", type=int, help=f"how many rounds ({benchmark.rounds}, or 1 with --quick)")
    parser.add_argument("--only", help=f"some contestants, with commas: {', '.join(known)}")
    path = f"target/bench/{benchmark.name}.json"
    parser.add_argument("--json", type=Path, help=f"where rows go ({path}, unless --only)")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help=argparse.SUPPRESS)
    parser.add_argument("--rivals-python", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--without-rivals", default="", help=argparse.SUPPRESS)
    told = parser.parse_args()
    told.scale = ROUGH if told.quick else 1
    told.rounds = told.rounds or (1 if told.quick else benchmark.rounds)
    told.only = told.only.split(",") if told.only else known
    if unknown := set(told.only) - set(known):
        parser.error(f"no contestant is called {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    return told


class Contest:
    """What was measured so far, and who is out of it."""

    def __init__(self, benchmark: Benchmark, told: argparse.Namespace) -> None:
        self.contestants = benchmark.contestants
        self.told = told
        self.rounds: rows.Rounds = {}
        self.circumstances = report.Circumstances(
            told.rounds, told.scale, {}, {}, contain.words() is not None, [], benchmark.contestants
        )

    def run(self) -> None:
        for number in range(self.told.rounds):
            first = number % len(self.contestants)
            order = self.contestants[first:] + self.contestants[:first]
            for one in order:
                if one.word in self.told.only and one.name not in self.circumstances.absent:
                    self.turns(number, one)

    def turns(self, number: int, one: Contestant) -> None:
        for _ in range(one.turns):
            if one.name not in self.circumstances.absent:
                self.turn(number, one)

    def turn(self, number: int, one: Contestant) -> None:
        self.circumstances.busy.append(machine.busy(LOOK))
        print(f"round {number + 1} of {self.told.rounds}: {one.name}", file=sys.stderr, flush=True)
        try:
            if one.rival and self.told.without_rivals:
                raise Failed(self.told.without_rivals)
            python = self.told.rivals_python if one.rival else self.told.python
            result = turn(one, python or self.told.python, self.told.scale)
        except Failed as why:
            self.circumstances.absent[one.name] = str(why)
            # Half of the rounds would be compared with all of the others'.
            self.rounds.pop(one.name, None)
            print(f"{one.name} is not measured: {why}", file=sys.stderr, flush=True)
            return
        self.circumstances.versions[one.name] = result.version
        self.rounds.setdefault(one.name, []).append(result.figures)


def main(benchmark: Benchmark) -> int:
    told = arguments(benchmark)
    contest = Contest(benchmark, told)
    contest.run()
    made = [rows.answer(question, contest.rounds) for question in benchmark.questions]
    answers = [row for row in made if row is not None]
    if not answers:
        print("nothing of ours was measured: there is nothing to compare with", file=sys.stderr)
        return 1
    print(report.markdown(answers, contest.circumstances, benchmark.notes(contest.rounds)))
    everybody = len(told.only) == len(benchmark.contestants)
    path = told.json or (machine.ROOT / "target" / "bench" / f"{benchmark.name}.json" if everybody else None)
    if path is not None:
        report.write(path, answers, contest.circumstances)
        print(f"rows written to {path}", file=sys.stderr)
    return 0
