"""What a sweep ends in: its figure, its page of the report and its record."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zoo.api.facts import hardware, versions
from zoo.api.sweep_file import SweepFile, Watched
from zoo.api.sweeps.findings import (
    Found,
    Numbers,
    along,
    as_record,
    findings,
    sentences,
    table,
    usual_numbers,
)
from zoo.api.sweeps.grid import Plan, Run
from zoo.evaluation.diagnosis.page import Page, Picture, Table
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.figures.style import BARE
from zoo.evaluation.figures.sweep import plot_sweep
from zoo.evaluation.results.trend import NOTE
from zoo.markdown import markdown_table
from zoo.training import pick_device

NARROW = f"sweep_narrow{BARE}.svg"  # the same in one column, without words, for the report


class Result:
    """A sweep whose trainings are done: its figure, its page and its record, of the runs' numbers."""

    def __init__(
        self, plan: Plan, written: SweepFile | None, command: str, failed: Mapping[str, str], out: Path
    ) -> None:
        self.plan, self.written, self.command, self.failed, self.out = plan, written, command, failed, out

    def watch(self, numbers: Mapping[Run, Numbers]) -> tuple[Watched, ...]:
        return self.plan.watch or usual_numbers(list(numbers.values()))

    def found(self, numbers: Mapping[Run, Numbers]) -> list[Found]:
        return findings(self.plan, numbers, self.watch(numbers))

    def page(self, numbers: Mapping[Run, Numbers], found: Sequence[Found], caption: str) -> Page:
        """Return what the report begins with; `caption` is that of the figure, which is drawn by then."""
        return Page(
            title=self.title,
            paragraphs=[*self.about(), *sentences(self.plan, found, numbers), *self.failures(), NOTE],
            commands=[self.command],
            tables=[self.table(numbers)],
            pictures=[Picture(self.out / NARROW, self.alt(found), caption)],
        )

    @property
    def reported(self) -> bool:
        """Whether there is a report."""
        return self.written is None or self.written.report

    @property
    def title(self) -> str:
        if self.written is not None:
            return self.written.question
        recipes = dict.fromkeys(run.recipe.name for run in self.plan.runs)
        varied = [axis.key for axis in self.plan.axes if axis.key != "recipe"]
        return f"{', '.join(recipes)}: sweep over {' and '.join(varied) or 'seeds'}"

    def about(self) -> list[str]:
        return [] if self.written is None else [f"Source: {self.written.source}"]

    def failures(self) -> list[str]:
        if not self.failed:
            return []
        alike: dict[str, list[str]] = {}  # reasons that differ in the run's folder alone
        for name, why in self.failed.items():
            alike.setdefault(why.replace(name, "POINT/seed_N"), []).append(name)
        texts = "; ".join(
            f"{', '.join(names)}: {self.failed[names[0]] if len(names) == 1 else why}"
            for why, names in alike.items()
        )
        return [f"{len(self.failed)} of {len(self.plan.runs)} runs failed and are left out. {texts}"]

    def table(self, numbers: Mapping[Run, Numbers]) -> Table:
        return table(self.plan, numbers, self.watch(numbers))

    def about_runs(self, subjects: Sequence[Subject]) -> str:
        """Say what all runs have in common: a sweep may vary the rest."""
        recipes = [run.recipe for run in self.plan.runs]
        shared = (
            ("{}", {recipe.backbone.arch for recipe in recipes}),
            ("{}", {subject.data for subject in subjects}),
            ("{} epochs", {recipe.training.epochs for recipe in recipes}),
        )
        words = [text.format(*values) for text, values in shared if len(values) == 1]
        plural = "s" if len(self.plan.seeds) > 1 else ""
        return ", ".join([*words, f"training seed{plural} {', '.join(map(str, self.plan.seeds))}"])

    def alt(self, found: Sequence[Found]) -> str:
        titles = ", ".join(each.watched.title for each in found)
        return f"{titles} against {along(self.plan).title}: every seed, means and intervals, as in the table"

    def draw(self, found: Sequence[Found], subjects: Sequence[Subject]) -> str:
        """Draw it as wide as a screen and as a column, and return the caption."""
        axis, about = along(self.plan), self.about_runs(subjects)
        files = [self.out / "sweep.png", self.out / "sweep.svg"]
        captions = [
            plot_sweep(
                {each.watched.title: each.trends for each in found if each.trends},
                paths,
                axis=axis.title,
                labels=list(axis.values),
                values=axis.numbers,
                about=about,
                columns=columns,
            )
            for paths, columns in ((files, None), ([self.out / NARROW], 1))
        ]
        return captions[-1]

    def markdown(self, numbers: Mapping[Run, Numbers], found: Sequence[Found]) -> str:
        shown = self.table(numbers)
        paragraphs = [
            f"# {self.title}",
            *self.about(),
            f"```\n{self.command}\n```",
            f"{shown.caption}:",
            markdown_table(shown.head, shown.rows),
            *sentences(self.plan, found, numbers),
            *self.failures(),
            NOTE,
            f"![{self.alt(found)}](sweep.png)",
            "Every run's accuracies, time and hardware are in [a table of results](results.md).",
            *(["The [report](report/report.html) lays all runs side by side."] if self.reported else []),
        ]
        return "\n\n".join(paragraphs) + "\n"

    def record(self, numbers: Mapping[Run, Numbers], found: Sequence[Found]) -> dict[str, Any]:
        runs = [
            {
                "point": run.point,
                "values": dict(zip((axis.key for axis in self.plan.axes), run.labels, strict=True)),
                "recipe": run.base,
                "changes": list(run.changes),
                "seed": run.seed,
                "folder": run.id,
                **({"failed": self.failed[run.id]} if run.id in self.failed else {}),
                "numbers": dict(numbers.get(run, {})),
            }
            for run in self.plan.runs
        ]
        return {
            "format": 1,
            "id": uuid.uuid4().hex,
            "question": self.written.question if self.written else None,
            "source": self.written.source if self.written else None,
            "command": self.command,
            "axes": {axis.key: axis.values for axis in self.plan.axes},
            "seeds": list(self.plan.seeds),
            "runs": runs,
            "found": as_record(found),
            "hardware": hardware(pick_device(self.plan.runs[0].recipe.training.device)),
            "versions": versions(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
