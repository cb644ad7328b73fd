"""`zoo.diagnose`: see what one or several trainings did, as one report."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import zoo
from zoo import release as releases
from zoo.api.diagnoses import wording
from zoo.api.diagnoses.look import Looker, Seen, not_looked_at
from zoo.api.diagnoses.subjects import Opened, open_subject
from zoo.api.facts import versions
from zoo.api.given import check_workers, listed
from zoo.errors import ZooError
from zoo.evaluation.diagnosis.figures import Drawn, draw
from zoo.evaluation.diagnosis.html import Contents, render
from zoo.evaluation.diagnosis.labels import groups, labels, seed_of
from zoo.evaluation.diagnosis.look import SMALLEST
from zoo.evaluation.diagnosis.page import About, Page
from zoo.evaluation.diagnosis.subject import Subject, summary
from zoo.evaluation.diagnosis.tables import (
    accuracy_tables,
    differences_table,
    numbers_tables,
    record_of,
)
from zoo.files import RUNS, is_dir, is_file, names_in, replacing, write_text, writing
from zoo.release import Release
from zoo.training import pick_device
from zoo.training.progress import show_status

__all__ = ["DIAGNOSED", "Page", "Report", "diagnose"]

DIAGNOSED = RUNS / "diagnosed"
"""Where reports lie for which no other folder is given."""

_HTML, _NUMBERS, _FIGURES = "report.html", "numbers.json", "figures"


@dataclass(frozen=True)
class Report:
    """What `diagnose` made.

    Attributes:
        folder: with `report.html`, `numbers.json` and `figures/KEY.png|svg`; without title and
            caption `figures/KEY.bare.svg|png`.
        html: the report.
        figures: each, or why it is missing.
        subjects: with their numbers, in the order given.
    """

    folder: Path
    html: Path
    figures: Sequence[Drawn]
    subjects: Sequence[Subject]


def diagnose(
    *names: str | Path | Release | Sequence[str | Path | Release],
    out: str | Path | None = None,
    data: str | Path | None = None,
    sample: int = 2000,
    seed: int = 0,
    device: str = "auto",
    workers: int | None = None,
    page: Page | Callable[[Sequence[Subject]], Page] | None = None,
) -> Report:
    """Write a report of one or several trainings, side by side: figures, numbers, and how to read them.

    What cannot be had (no record, no centers, no images, ...) is left out of the report, which says why.

    Args:
        names: releases (name, folder or repository, see `zoo.open`) or runs: the folder of a training that is
            not finished, `OUT` or `OUT/run`, of which the newest checkpoint is looked at; or a list of them.
        out: folder of the report; `runs/diagnosed/NAME` when None. An earlier report in it is replaced.
        data: a folder that holds each one's own data source, or a spec such as "digits" to look at all of
            them with; each one's own source when None.
        sample: test images to look at, 4 or more; all where there are fewer.
        seed: of the sample.
        device: "auto", "cpu" or "cuda".
        workers: processes that decode images; those of each recipe when None.
        page: what the report begins with, or makes it from the subjects.

    Raises:
        ZooError: for a name that is neither release nor run, a data spec that is none, a data folder in which
            none has its data, a record that cannot be read (of one with damaged lines the others are taken,
            with a warning), or a folder that holds something else or cannot be written.
    """
    _check(sample, seed, workers)
    looker = Looker(data, sample, seed, pick_device(device, "device"), workers)
    names = _names(names)
    opened = _open_all(names)
    looker.require_use(opened)
    folder = _place(out, opened, names)
    seen = []
    for number, each in enumerate(opened, 1):
        with show_status(f"looking at {each.name} ({number} of {len(opened)})"):
            seen.append(looker.look_at(each))
    subjects = _subjects(opened, seen)
    made = {
        "date": datetime.now(UTC).isoformat(" ", timespec="minutes").replace("+00:00", " UTC"),
        "sample": f"at most {sample:,} test images of each, drawn with seed {seed}",
        "data": "each one's own" if data is None else str(data),
        "versions": ", ".join(f"{name} {number}" for name, number in _versions().items()),
        "command": _command(names, out, data, sample, seed),
    }
    with replacing(folder) as staging:
        with show_status(f"drawing {len(subjects)} side by side" if len(subjects) > 1 else "drawing"):
            figures = draw(subjects, staging / _FIGURES)
        first = page(subjects) if callable(page) else page or Page(wording.title(subjects))
        contents = Contents(
            first,
            [
                About(subject.label, wording.facts(subject, each, found), found.notes)
                for subject, each, found in zip(subjects, opened, seen, strict=True)
            ],
            differences_table(subjects),
            accuracy_tables(subjects),
            numbers_tables(subjects),
            figures,
            made,
        )
        record = {
            "format": 1,
            "title": first.title,
            **made,
            "sample": sample,
            "seed": seed,
            "versions": _versions(),
            "subjects": [
                wording.record(subject, each, found)
                for subject, each, found in zip(subjects, opened, seen, strict=True)
            ],
            "groups": record_of(subjects),
            "figures": [
                {"key": each.key, "title": each.title, "caption": each.caption, "missing": each.missing}
                for each in figures
            ],
        }
        _write(staging / _HTML, render(contents, staging))
        _write(staging / _NUMBERS, json.dumps(record, indent=2, allow_nan=False) + "\n")
    return Report(folder, folder / _HTML, [_moved(each, folder / _FIGURES) for each in figures], subjects)


def unseen(*names: str | Path) -> list[Subject]:
    """Return releases or runs with what they record alone: no encoder is loaded, no image looked at.

    Raises:
        ZooError: as `diagnose`.
    """
    opened = _open_all(names)
    return _subjects(opened, [not_looked_at(each) for each in opened])


def _moved(drawn: Drawn, folder: Path) -> Drawn:
    files = drawn.png, drawn.svg, drawn.bare
    png, svg, bare = (None if file is None else folder / file.name for file in files)
    return replace(drawn, png=png, svg=svg, bare=bare)


def _write(file: Path, text: str) -> None:
    with writing(f'report "{file.parent}"'):
        write_text(file, text)


def _check(sample: int, seed: int, workers: int | None) -> None:
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < SMALLEST:
        raise ZooError(f"sample: found {sample!r}, expected {SMALLEST} or more images")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ZooError(f"seed: found {seed!r}, expected a whole number from 0 on")
    check_workers(workers)


def _names(given: Sequence[Any]) -> tuple[str | Path, ...]:
    """Return the names of what is given, one by one or in one list."""
    return tuple(releases.named(each) for each in listed(given))


def _open_all(names: Sequence[str | Path]) -> list[Opened]:
    if not names:
        raise ZooError("diagnose: found no release or run, expected at least one")
    opened: dict[Path, Opened] = {}
    for name in names:
        each = open_subject(name)
        place = each.folder.resolve()
        if place in opened:
            raise ZooError(f'diagnose: "{name}" is given twice: it lies in "{place}"')
        opened[place] = each
    return list(opened.values())


def _place(out: str | Path | None, opened: Sequence[Opened], names: Sequence[str | Path]) -> Path:
    """Return the report's folder.

    Raises:
        ZooError: if something that no report made lies there, which would be lost.
    """
    folder = Path(out) if out is not None else DIAGNOSED / _default(opened, names)
    others = [name for name in names_in(folder) if name not in (_HTML, _NUMBERS, _FIGURES)]
    if is_file(folder) or others:
        found = f"holds {', '.join(others[:3])}" if others else "is a file"
        raise ZooError(
            f'"{folder}" {found}, expected a new or empty folder, or an earlier report; choose another --out'
        )
    return folder


def _default(opened: Sequence[Opened], names: Sequence[str | Path]) -> str:
    """Name a report by what it is about, folders by the weights' name and a hash of where they lie."""
    first = str(names[0]) if not is_dir(names[0]) else opened[0].name
    more = f"_and_{len(opened) - 1}_more" if len(opened) > 1 else ""
    places = [
        str(each.folder.resolve()) if is_dir(name) else str(name)
        for name, each in zip(names, opened, strict=True)
    ]
    digest = hashlib.sha256("\n".join(places).encode(errors="surrogateescape")).hexdigest()[:6]
    unique = f"-{digest}" if more or is_dir(names[0]) else ""
    return (
        re.sub(r"[^A-Za-z0-9._-]+", "_", first.removeprefix("hf-hub:").removeprefix("shipped:"))
        + more
        + unique
    )


def _subjects(opened: Sequence[Opened], seen: Sequence[Seen]) -> list[Subject]:
    who = [each.name for each in opened], [each.recipe for each in opened], [each.folder for each in opened]
    subjects = []
    for each, found, label, group in zip(opened, seen, labels(*who), groups(*who), strict=True):
        subject = Subject(
            label=label,
            name=each.name,
            objective=each.objective,
            data=wording.data_of(each, found),
            seed=seed_of(each.recipe),
            group=group,
            recipe=each.recipe,
            rows=each.rows,
            class_rows=each.class_rows,
            class_names=found.class_names,
            class_counts=found.class_counts,
            centers=found.centers,
            look=found.look,
            without_look=found.without_look,
        )
        evaluations = [] if each.release is None else each.release.metrics["evaluations"]
        subjects.append(replace(subject, numbers=summary(subject, evaluations)))
    return subjects


def _versions() -> dict[str, str]:
    return {"contrastive-zoo": zoo.__version__, **versions()}


def _command(
    names: Sequence[str | Path], out: str | Path | None, data: str | Path | None, sample: int, seed: int
) -> str:
    words = ["zoo", "diagnose", *map(str, names)]
    words += [] if data is None else ["--data", str(data)]
    words += [] if out is None else ["--out", str(out)]
    return shlex.join([*words, "--sample", str(sample), "--seed", str(seed)])
