"""`zoo.diagnose`: a page of figures about one or several trainings."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os.path import isfile
from pathlib import Path

import jinja2
import pandas as pd

from zoo import hub
from zoo.config import listed, parse
from zoo.data import ViewsConfig, open_dataset
from zoo.data.any_data import Data, as_data
from zoo.errors import ZooError
from zoo.evaluation.encode import check_number, open_encoder
from zoo.evaluation.evaluate import open_own, own_data
from zoo.files import RUNS, list_names, write_text, writing
from zoo.release import Release
from zoo.report.pictures import draw
from zoo.report.sample import SMALLEST, take_sample
from zoo.report.style import FIGURES, Kind
from zoo.report.subject import Subject, open_subjects, recipe_table
from zoo.training import pick_device
from zoo.training.progress import say

DIAGNOSED = RUNS / "diagnosed"
_HTML, _NUMBERS, _FIGURES = "report.html", "numbers.json", "figures"


@dataclass(frozen=True)
class Report:
    """The result of `diagnose`; `missing` says by title what all `subjects` lack for a figure."""

    folder: Path
    html: Path
    subjects: Sequence[Subject]
    missing: Mapping[str, str]


def diagnose(
    *names: str | Path | Release | Sequence[str | Path | Release],
    out: str | Path | None = None,
    data: Data = None,
    sample: int = 2000,
    device: str = "auto",
) -> Report:
    """Write a page of figures that compares one or several trainings, and lists figures that lack data.

    Args:
        names: releases (name, folder or repository, see `zoo.open`), or a list of them.
        out: folder for `report.html`, `numbers.json` and `figures/KEY.png|svg`, replacing an earlier report;
            `runs/diagnosed/NAME` when None.
        data: images to encode for all, see `zoo.data.any_data.Data`; each release's own when None. If they
            are the own data of one of the releases, the others also use their own.
        sample: number of test images to encode, at least 4; all if there are fewer.
        device: "auto", "cpu" or "cuda".

    Raises:
        ZooError: for a name that is not a release, invalid data, or a folder with other content.
    """
    check_number("sample", sample, SMALLEST)
    pick_device(device, "device")  # fail before anything is opened
    given = [hub.named(name) for name in listed(names)]
    if not given:
        raise ZooError("diagnose: found no release, expected at least one")
    subjects, folder = open_subjects(given), _folder(out, given)
    own = [data is not None and _is_own(subject, data) for subject in subjects]
    if data is not None and not any(own):
        as_data(data)  # fail if they are invalid
    for subject, is_own in zip(subjects, own, strict=True):
        _take_sample(subject, data if is_own or not any(own) else None, sample, device)
    say("drawing")
    with writing(f'report "{folder}"'):
        files = {key: [folder / _FIGURES / f"{key}{kind}" for kind in (".png", ".svg")] for key in FIGURES}
        for old in (file for both in files.values() for file in both):
            old.unlink(missing_ok=True)  # an earlier report may have had more figures
        left_out = {key: draw(key, subjects, *files[key]) for key in FIGURES}
        drawn = [key for key in FIGURES if len(left_out[key]) < len(subjects)]
        missing = {kind.title: kind.without for key, kind in FIGURES.items() if key not in drawn}
        sources = {key: base64.b64encode(files[key][0].read_bytes()).decode() for key in drawn}
        figures = [(key, FIGURES[key], sources[key], left_out[key]) for key in drawn]
        write_text(folder / _HTML, _render(subjects, figures, missing))
        record = [{"label": s.label, "name": s.name, "numbers": s.numbers} for s in subjects]
        write_text(folder / _NUMBERS, json.dumps(record, indent=2, allow_nan=False) + "\n")
    return Report(folder, folder / _HTML, subjects, missing)


def _folder(out: str | Path | None, names: Sequence[str | Path]) -> Path:
    """Return the report's folder; ZooError if it is a file or has files that no report wrote."""
    joined = "_and_".join(str(name).removeprefix("shipped:") for name in names)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", joined)[:100].strip("._")
    folder = DIAGNOSED / name if out is None else Path(out)
    others = [name for name in list_names(folder) if name not in (_HTML, _NUMBERS, _FIGURES)]
    if isfile(folder) or others:
        found = f"holds {', '.join(others[:3])}" if others else "is a file"
        raise ZooError(f'"{folder}" {found}, expected a new folder or a report; choose another --out')
    return folder


def _is_own(subject: Subject, data: Data) -> bool:
    with suppress(ZooError):
        return subject.release is not None and own_data(subject.release, data).is_own
    return False


def _take_sample(subject: Subject, data: Data, size: int, device: str) -> None:
    """Add to a subject a sample of test images, or the reason why there is none."""
    assert subject.release is not None
    try:
        config, root, is_own = own_data(subject.release, data)
        open_split = partial(open_own, subject.release) if is_own else open_dataset
        train_set, test_set = (open_split(config, split, root) for split in ("train", "test"))
        section, encoder = subject.recipe.get("views"), open_encoder(subject.release, device=device)
        views = section and parse(ViewsConfig, section, f"{subject.name}: views")
        image_size = (subject.recipe.get("data") or {}).get("image_size")
        subject.sample = take_sample(encoder, train_set, test_set, views, image_size, size)
    except ZooError as error:
        subject.no_sample = str(error).rstrip(".")
        return
    if not subject.counted and tuple(subject.sample.class_names) == subject.class_names:
        subject.class_counts = subject.sample.class_counts


def _render(
    subjects: Sequence[Subject],
    figures: Sequence[tuple[str, Kind, str, Mapping[str, str]]],
    missing: Mapping[str, str],
) -> str:
    """Return the page, which has all figures embedded as PNG and needs no other file."""
    columns = ("name", "objective", "trained on", "seed", "images")
    facts = {
        s.label: (s.name, s.objective, s.data, s.seed, s.sample.images if s.sample else s.no_sample)
        for s in subjects
    }
    recipes = recipe_table(subjects)
    tables = {
        "Releases": pd.DataFrame(facts, columns),
        "In what the recipes differ": recipes.loc[:, recipes.nunique() > 1].T,
        "Numbers": pd.DataFrame({subject.label: subject.numbers for subject in subjects}).sort_index(),
        "Not drawn": pd.DataFrame({"without": missing}),
    }
    # names of files, classes and recipes are untrusted text; pandas escapes it too
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("zoo.report", ""), autoescape=True, undefined=jinja2.StrictUndefined
    )
    with pd.option_context("display.max_colwidth", None):
        text = environment.get_template("page.html.j2").render(
            title=subjects[0].name if len(subjects) == 1 else f"{len(subjects)} trainings side by side",
            tables={
                name: table.to_html(border=0, float_format="{:.4g}".format, na_rep="")
                for name, table in tables.items()
                if len(table)
            },
            figures=figures,
        )
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # file names need not be valid text
