"""Writes the rows of a run: as Markdown tables for docs/benchmarks, and as JSON.

The JSON has the form that every benchmark of this project writes.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path

import machine
from contestants import Contestant
from rows import Row

NOTHING = "\N{EN DASH}"


@dataclasses.dataclass
class Circumstances:
    """The facts about a run that a reader of its figures has to know."""

    rounds: int
    scale: int
    versions: dict[str, str]
    # By contestant without figures: why it has none.
    absent: dict[str, str]
    # Whether contestants ran in namespaces.
    isolated: bool
    # Which share of the machine other programs used, before each turn.
    busy: list[float]
    contestants: list[Contestant] = dataclasses.field(default_factory=list)

    def lines(self) -> list[str]:
        isolation = (
            "every contestant in namespaces of its own: no network but `lo`, no processes but its own"
            if self.isolated
            else "no namespaces: they could not be made here"
        )
        share = [f"{value:.0%}" for value in (statistics.median(self.busy), max(self.busy))]
        rough = f"; rough: {self.scale} times fewer calls" if self.scale > 1 else ""
        return [
            f"machine: {machine.describe()}; commit: {machine.commit()}",
            f"medians of {self.rounds} interleaved rounds{rough}; {isolation}",
            f"others used {share[0]} of the machine (median), {share[1]} (at most), before each turn",
            *self.set_ups(),
        ]

    def set_ups(self) -> list[str]:
        known = [
            f"{each.name}: {f'{each.version_of} {self.versions[each.name]}'.strip()}, {each.set_up}"
            for each in self.contestants
            if each.set_up and each.name in self.versions
        ]
        return known + [f"{name}: not measured: {why}" for name, why in self.absent.items()]


def table(answers: list[Row], absent: dict[str, str]) -> list[str]:
    lines = [
        "| shape | metric | ours | rivals | against | ratio | goal |",
        "|---|---|---:|---|---|---:|---:|",
    ]
    for row in answers:
        question = row.question
        rivals = [f"{name} {number(statistics.median(values))}" for name, values in row.rivals.items()]
        missing = [name for name in question.rivals if name in absent]
        rivals += [f"{name} not measured" for name in missing]
        cells = [
            question.shape,
            question.metric,
            f"{number(statistics.median(row.ours))} {question.unit}".strip(),
            ", ".join(rivals),
            question.against or NOTHING,
            ratio(row),
            f"{question.goal:g}" if question.goal else NOTHING,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def ratio(row: Row) -> str:
    value = row.ratio()
    if value is None:
        return "not measured" if row.question.against else NOTHING
    mark = "**" if row.state == "missed" else ""
    return f"{mark}{number(value)}{mark}"


def summary(answers: list[Row]) -> str:
    states = [row.state for row in answers]
    asked = len(states) - states.count("none")
    unmeasured = states.count("not measured")
    words = f"{states.count('missed')} of {asked} goals missed"
    return words + (f", {unmeasured} not measured." if unmeasured else ".")


def spread(answers: list[Row]) -> list[str]:
    """Returns a table of how much the figures varied from turn to turn."""
    lines = [
        "| shape | metric | turns | ours, by turns | against, by turns | ratio, by turns |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in answers:
        if row.question.against and (ratios := row.ratios()):
            other = row.rivals[row.question.against]
            turns = str(len(ratios))
            cells = [row.question.shape, row.question.metric, turns, *map(reach, (row.ours, other, ratios))]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def reach(values: list[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def markdown(answers: list[Row], under: Circumstances, notes: list[str]) -> str:
    lines = [
        *(f"- {line}" for line in under.lines()),
        "- `ratio`: how many times better ours is than `against`; **bold** falls short",
        "",
        *table(answers, under.absent),
        "",
        summary(answers),
        "",
        *spread(answers),
        "",
        *notes,
    ]
    return "\n".join(lines)


def write(path: Path, answers: list[Row], under: Circumstances) -> None:
    document = {
        "commit": machine.commit(),
        "machine": "; ".join([machine.describe(), *under.lines()[1:]]).replace("`", ""),
        "rows": [row.as_json() for row in answers],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
