"""`zoo.diagnose`: see what one or several trainings did, as one page of figures."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2
import pandas as pd

import zoo
from zoo import hub
from zoo.config import listed, parse
from zoo.data import DataConfig, ImageDataset, ViewsConfig, open_dataset
from zoo.data.any_data import Data, as_data, own_root
from zoo.errors import RecipeError, ZooError
from zoo.evaluation.encode import check_number, open_encoder
from zoo.evaluation.evaluate import open_own, own_data
from zoo.files import RUNS, is_dir, is_file, names_in, replacing, write_text, writing
from zoo.release import Release
from zoo.report.pictures import draw
from zoo.report.sample import SMALLEST, take_sample
from zoo.report.style import FIGURES
from zoo.report.subject import Subject, open_subjects, recipe_table
from zoo.training import pick_device
from zoo.training.progress import say

DIAGNOSED = RUNS / "diagnosed"
"""Where reports lie for which no other folder is given."""

_HTML, _NUMBERS, _FIGURES = "report.html", "numbers.json", "figures"


@dataclass(frozen=True)
class Report:
    """What `diagnose` made.

    Attributes:
        folder: of the report.
        html: the page.
        subjects: with their numbers, in the order given.
        missing: why figures were not drawn, by their titles.
    """

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
    """Write a page of figures of one or several trainings, side by side.

    What cannot be had (no record, no centers, no images, ...) is left out of the page, which says why.

    Args:
        names: releases (name, folder or repository, see `zoo.open`), or a list of them.
        out: folder for `report.html`, `numbers.json` and `figures/KEY.png|svg`; `runs/diagnosed/NAME` when
            None. An earlier report in it is replaced.
        data: a folder that holds each one's own data source, or a spec such as "digits" to encode images of
            for all of them; each one's own source when None.
        sample: test images to encode, 4 or more; all where there are fewer.
        device: "auto", "cpu" or "cuda".

    Raises:
        ZooError: for a name that is no release, a data spec that is none, a record that cannot be read, or a
            folder that holds something else or cannot be written.
    """
    check_number("sample", sample, SMALLEST)
    pick_device(device, "device")  # a wrong one is said before anything is opened
    given = [hub.named(name) for name in listed(names)]
    if not given:
        raise ZooError("diagnose: found no release, expected at least one")
    if data is not None and not _is_folder(data):
        as_data(data)  # a spec that no data can have is said before anything is opened
    opened = open_subjects(given)
    if _is_folder(data):  # in which at least one has its data
        with suppress(RecipeError):  # of one that names other data than this version knows: said below
            own_root(data, *(parse(DataConfig, each.recipe.get("data"), each.name) for each in opened))
    folder = _folder(out, given)
    subjects = [_sampled(subject, data, sample, device) for subject in opened]
    say("drawing")
    with replacing(folder) as staging, writing(f'report "{folder}"'):
        left_out = {
            key: draw(key, subjects, *(staging / _FIGURES / f"{key}{kind}" for kind in (".png", ".svg")))
            for key in FIGURES
        }
        missing = {
            FIGURES[key].title: "; ".join(dict.fromkeys(reasons.values()))
            for key, reasons in left_out.items()
            if len(reasons) == len(subjects)
        }
        write_text(staging / _HTML, _render(subjects, left_out, missing, staging / _FIGURES))
        record = [{"label": s.label, "name": s.name, "numbers": s.numbers} for s in subjects]
        write_text(staging / _NUMBERS, json.dumps(record, indent=2, allow_nan=False) + "\n")
    return Report(folder, folder / _HTML, subjects, missing)


def _is_folder(data: Data) -> bool:
    """Whether data are given as a folder, in which each training has its own."""
    return isinstance(data, str | Path) and is_dir(data)


def _folder(out: str | Path | None, names: Sequence[str | Path]) -> Path:
    """Return the report's folder.

    Raises:
        ZooError: if something that no report made lies there, which would be lost.
    """
    name = re.sub(
        r"[^A-Za-z0-9._-]+", "_", "_and_".join(str(name).removeprefix("shipped:") for name in names)
    )
    folder = DIAGNOSED / name[:100].strip("._") if out is None else Path(out)
    others = [name for name in names_in(folder) if name not in (_HTML, _NUMBERS, _FIGURES)]
    if is_file(folder) or others:
        found = f"holds {', '.join(others[:3])}" if others else "is a file"
        raise ZooError(
            f'"{folder}" {found}, expected a new or empty folder, or an earlier report; choose another --out'
        )
    return folder


def _sampled(subject: Subject, data: Data, size: int, device: str) -> Subject:
    """Return a subject with a sample of test images; without one, with the reason."""
    assert subject.release is not None
    try:
        train_set, test_set = open_sets(subject.release, data)
        encoder = open_encoder(subject.release)
        section = subject.recipe.get("views")  # a converted release has none
        taken = take_sample(
            encoder,
            train_set,
            test_set,
            views=None if section is None else parse(ViewsConfig, section, f"{subject.name}: views"),
            image_size=(subject.recipe.get("data") or {}).get("image_size"),
            size=size,
            device=device,
        )
    except ZooError as error:
        return replace(subject, no_sample=str(error).rstrip("."))
    if not subject.counted and tuple(taken.class_names) == subject.class_names:
        subject = replace(subject, class_counts=taken.class_counts)
    return replace(subject, sample=taken)


def open_sets(release: Release, data: Data) -> tuple[ImageDataset, ImageDataset]:
    """Open training and test split: a release's own images, or what is given for all."""
    given = own_data(release.recipe, release.name, data)
    if not given.is_own and _is_folder(data):  # others beside it have their data there
        given = own_data(release.recipe, release.name, None)
    config, root = given.config, given.root
    if not given.is_own:
        return open_dataset(config, "train", root), open_dataset(config, "test", root)
    return open_own(release, config, "train", root), open_own(release, config, "test", root)


def _render(
    subjects: Sequence[Subject],
    left_out: Mapping[str, Mapping[str, str]],
    missing: Mapping[str, str],
    folder: Path,
) -> str:
    """Return the page, which holds all figures of a folder as PNG and needs no other file."""
    facts = {
        subject.label: {
            "name": subject.name,
            "objective": subject.objective,
            "trained on": subject.data,
            "seed": subject.seed,
            "images": subject.sample.images if subject.sample else subject.no_sample,
        }
        for subject in subjects
    }
    recipes = recipe_table(subjects)
    tables = {
        "Releases": pd.DataFrame(facts),
        "In what the recipes differ": recipes.loc[:, recipes.nunique() > 1].T,
        "Numbers": pd.DataFrame({subject.label: subject.numbers for subject in subjects}).sort_index(),
    }
    sources = {
        key: base64.b64encode((folder / f"{key}.png").read_bytes()).decode()
        for key, reasons in left_out.items()
        if len(reasons) < len(subjects)
    }
    # names of files, classes and recipes are others' text, which pandas escapes too
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
            figures=[(key, FIGURES[key], sources[key], left_out[key]) for key in sources],
            missing=missing,
            version=zoo.__version__,
        )
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # a file's name need not be text
