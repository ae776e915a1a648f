"""Runs a benchmark: its command line, its rounds, its output.

Each contestant takes its turns in every round. The order changes from round to round. A figure is
the median over the rounds. Command line, output and JSON file are the same for every benchmark.
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

# With --quick, this many times fewer calls are measured.
ROUGH = 10
# How many seconds the load of other programs on the machine is measured before each turn.
LOOK = 0.3


@dataclasses.dataclass(frozen=True)
class Benchmark:
    # The NAME of `make bench-NAME` and target/bench/NAME.json.
    name: str
    about: str | None
    contestants: list[Contestant]
    questions: list[rows.Question]
    rounds: int
    # Returns lines about the figures of a run, to be printed below the tables.
    notes: Callable[[rows.Rounds], list[str]] = lambda _: []


def arguments(benchmark: Benchmark) -> argparse.Namespace:
    known = [contestant.word for contestant in benchmark.contestants]
    parser = argparse.ArgumentParser(prog=f"bench-{benchmark.name}", description=benchmark.about)
    parser.add_argument("--quick", action="store_true", help="one round with a tenth of the calls")
    parser.add_argument("--rounds", type=int, help=f"how many rounds ({benchmark.rounds}, or 1 with --quick)")
    parser.add_argument("--only", help=f"measure these contestants only, with commas: {', '.join(known)}")
    path = f"target/bench/{benchmark.name}.json"
    parser.add_argument("--json", type=Path, help=f"write the rows to this file ({path}, unless --only)")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help=argparse.SUPPRESS)
    parser.add_argument("--rivals-python", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--without-rivals", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.scale = ROUGH if options.quick else 1
    options.rounds = options.rounds or (1 if options.quick else benchmark.rounds)
    options.only = options.only.split(",") if options.only else known
    if unknown := set(options.only) - set(known):
        parser.error(f"no contestant is called {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    return options


class Contest:
    """The rounds of a benchmark: the figures so far, and the contestants that failed."""

    def __init__(self, benchmark: Benchmark, options: argparse.Namespace) -> None:
        self.contestants = benchmark.contestants
        self.options = options
        self.rounds: rows.Rounds = {}
        isolated = contain.command_prefix() is not None
        self.circumstances = report.Circumstances(
            options.rounds, options.scale, {}, {}, isolated, [], benchmark.contestants
        )

    def run(self) -> None:
        for number in range(self.options.rounds):
            first = number % len(self.contestants)
            order = self.contestants[first:] + self.contestants[:first]
            for contestant in order:
                if contestant.word in self.options.only and contestant.name not in self.circumstances.absent:
                    self.turns(number, contestant)

    def turns(self, number: int, contestant: Contestant) -> None:
        for _ in range(contestant.turns):
            if contestant.name not in self.circumstances.absent:
                self.turn(number, contestant)

    def turn(self, number: int, contestant: Contestant) -> None:
        self.circumstances.busy.append(machine.busy(LOOK))
        progress = f"round {number + 1} of {self.options.rounds}: {contestant.name}"
        print(progress, file=sys.stderr, flush=True)
        try:
            if contestant.rival and self.options.without_rivals:
                raise Failed(self.options.without_rivals)
            python = self.options.rivals_python if contestant.rival else self.options.python
            result = turn(contestant, python or self.options.python, self.options.scale)
        except Failed as why:
            self.circumstances.absent[contestant.name] = str(why)
            # Without this, some rounds of this contestant would be compared with all rounds of the
            # others.
            self.rounds.pop(contestant.name, None)
            print(f"{contestant.name} is not measured: {why}", file=sys.stderr, flush=True)
            return
        self.circumstances.versions[contestant.name] = result.version
        self.rounds.setdefault(contestant.name, []).append(result.figures)


def main(benchmark: Benchmark) -> int:
    options = arguments(benchmark)
    contest = Contest(benchmark, options)
    contest.run()
    rows_or_none = [rows.answer(question, contest.rounds) for question in benchmark.questions]
    answers = [row for row in rows_or_none if row is not None]
    if not answers:
        print("no contestant of Marline was measured: there is nothing to compare", file=sys.stderr)
        return 1
    print(report.markdown(answers, contest.circumstances, benchmark.notes(contest.rounds)))
    path = options.json
    if path is None and len(options.only) == len(benchmark.contestants):
        path = machine.ROOT / "target" / "bench" / f"{benchmark.name}.json"
    if path is not None:
        report.write(path, answers, contest.circumstances)
        print(f"rows written to {path}", file=sys.stderr)
    return 0
