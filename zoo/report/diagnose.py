"""`zoo.diagnose`: see what one or several trainings did, as one report."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

import zoo
from zoo import hub
from zoo.api.given import check_number, check_workers, listed
from zoo.api.own_images import open_own
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, ViewsConfig, open_dataset
from zoo.data.any_data import Data, as_data, own_root
from zoo.errors import RecipeError, ZooError
from zoo.evaluation.evaluate import own_data
from zoo.files import RUNS, is_dir, is_file, names_in, replacing, write_text, writing
from zoo.modules import Centers
from zoo.release import Release
from zoo.report.figures import Drawn, draw
from zoo.report.labels import seed_of, short_labels
from zoo.report.look import SMALLEST, Look, landmarks_of, look
from zoo.report.opened import Opened, is_folder, open_subject
from zoo.report.page import estimates, render
from zoo.report.subject import Subject, summary
from zoo.training import pick_device
from zoo.training.facts import versions
from zoo.training.progress import show_status

DIAGNOSED = RUNS / "diagnosed"
"""Where reports lie for which no other folder is given."""


class _Settings(NamedTuple):
    """What `diagnose` was given, and whose landmarks have been encoded already."""

    data: Data
    sample: int
    seed: int
    device: torch.device
    workers: int | None
    landmarked: set[str]


_HTML, _NUMBERS, _FIGURES = "report.html", "numbers.json", "figures"


@dataclass(frozen=True)
class Report:
    """What `diagnose` made.

    Attributes:
        folder: with `report.html`, `numbers.json` and `figures/KEY.png|svg`.
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
    data: Data = None,
    sample: int = 2000,
    seed: int = 0,
    device: str = "auto",
    workers: int | None = None,
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

    Raises:
        ZooError: for a name that is neither release nor run, a data spec that is none, a record that cannot
            be read, or a folder that holds something else or cannot be written.
    """
    check_number("sample", sample, SMALLEST)
    check_number("seed", seed, 0)
    check_workers(workers)
    if data is not None and not is_folder(data):
        as_data(data)  # a spec that no data can have is said before anything is opened
    given = [hub.named(name) for name in listed(names)]
    opened = _open_all(given)
    if is_folder(data):
        _require_use(opened, data)
    folder = _place(out, opened, given)
    settings = _Settings(data, sample, seed, pick_device(device, "device"), workers, set())
    subjects = []
    for number, (each, subject) in enumerate(zip(opened, _subjects(opened), strict=True), 1):
        with show_status(f"looking at {each.name} ({number} of {len(opened)})"):
            subjects.append(_seen(each, subject, settings))
    words = ["zoo", "diagnose", *map(str, given)]
    for option, value in (("--data", data), ("--out", out)):
        words += [] if value is None else [option, str(value)]
    used = {"contrastive-zoo": zoo.__version__, **versions()}
    made = {
        "date": datetime.now(UTC).isoformat(" ", timespec="minutes"),
        "command": shlex.join([*words, "--sample", str(sample), "--seed", str(seed)]),
        "versions": ", ".join(f"{name} {number}" for name, number in used.items()),
    }
    title = opened[0].name if len(opened) == 1 else f"{len(opened)} trainings side by side"
    facts = {s.label: _facts(s, o) for s, o in zip(subjects, opened, strict=True)}
    with replacing(folder) as staging:
        with show_status("drawing"):
            figures = draw(subjects, staging / _FIGURES)
        record = {
            "format": 2,
            "title": title,
            "sample": sample,
            "seed": seed,
            **made,
            "versions": used,
            "subjects": [
                {"label": s.label, "group": s.group, **facts[s.label], "numbers": s.numbers} for s in subjects
            ],
            "groups": {
                group: {name: each._asdict() for name, each in numbers.items()}
                for group, numbers in estimates(subjects).items()
            },
        }
        with writing(f'report "{staging}"'):
            write_text(staging / _HTML, render(title, subjects, facts, figures, made))
            write_text(staging / _NUMBERS, json.dumps(record, indent=2, allow_nan=False) + "\n")
    return Report(folder, folder / _HTML, [_moved(each, folder / _FIGURES) for each in figures], subjects)


def unseen(*names: str | Path) -> list[Subject]:
    """Return releases or runs with what they record alone: no encoder is loaded, no image looked at.

    Raises:
        ZooError: as `diagnose`.
    """
    return _subjects(_open_all(names))


def _moved(drawn: Drawn, folder: Path) -> Drawn:
    png, svg = (None if file is None else folder / file.name for file in (drawn.png, drawn.svg))
    return replace(drawn, png=png, svg=svg)


def _open_all(names: Sequence[str | Path]) -> list[Opened]:
    if not names:
        raise ZooError("diagnose: found no release or run, expected at least one")
    opened: dict[Path, Opened] = {}
    for name in names:
        each = open_subject(name)
        if (place := each.folder.resolve()) in opened:
            raise ZooError(f'diagnose: "{name}" is given twice: it lies in "{place}"')
        opened[place] = each
    return list(opened.values())


def _require_use(opened: Sequence[Opened], data: Data) -> None:
    """Refuse a folder in which none of the subjects has its data.

    Raises:
        DataError: naming it.
    """
    with suppress(RecipeError):  # of one that names other data than this version knows: looking says so
        own_root(data, *(parse(DataConfig, each.recipe.get("data"), each.name) for each in opened))


def _place(out: str | Path | None, opened: Sequence[Opened], names: Sequence[str | Path]) -> Path:
    """Return the report's folder.

    Raises:
        ZooError: if something that no report made lies there, which would be lost.
    """
    first = opened[0].name if is_dir(names[0]) else str(names[0])
    more = f"_and_{len(opened) - 1}_more" if len(opened) > 1 else ""
    if more or is_dir(names[0]):  # of the same name may be others
        places = "\n".join(str(each.folder.resolve()) for each in opened)
        more += "-" + hashlib.sha256(places.encode(errors="surrogateescape")).hexdigest()[:6]
    folder = DIAGNOSED / re.sub(r"[^A-Za-z0-9._-]+", "_", first + more) if out is None else Path(out)
    others = [name for name in names_in(folder) if name not in (_HTML, _NUMBERS, _FIGURES)]
    if is_file(folder) or others:
        found = f"holds {', '.join(others[:3])}" if others else "is a file"
        raise ZooError(
            f'"{folder}" {found}, expected a new or empty folder, or an earlier report; choose another --out'
        )
    return folder


def _subjects(opened: Sequence[Opened]) -> list[Subject]:
    """Return what trainings record of themselves, without a look at their images."""
    labels = short_labels([each.name for each in opened], [each.recipe for each in opened])
    places = list(dict.fromkeys(label.group for label in labels))
    subjects = []
    for each, label in zip(opened, labels, strict=True):
        centers = None if each.release is None else each.release.centers
        names = () if each.release is None else tuple(each.release.class_names)
        counts = torch.full((len(names),), -1, dtype=torch.int64) if centers is None else centers.class_counts
        subject = Subject(
            label=label.name,
            name=each.name,
            objective=each.objective,
            data=each.data,
            seed=seed_of(each.recipe),
            group=label.group,
            recipe=each.recipe,
            rows=each.rows,
            class_rows=each.class_rows,
            class_names=names,
            class_counts=counts,
            centers=centers,
            without_look="nothing was looked at",
            place=places.index(label.group),
        )
        subjects.append(_summed(subject, each))
    return subjects


def _summed(subject: Subject, opened: Opened) -> Subject:
    evaluations = [] if opened.release is None else opened.release.metrics["evaluations"]
    return replace(subject, numbers=summary(subject, evaluations))


def _seen(opened: Opened, subject: Subject, settings: _Settings) -> Subject:
    """Return a subject with a look at a sample of test images; without one, with the reason."""
    try:
        train_set, test_set = _open_data(opened, settings.data)
        encoder, centers = opened.load(settings.data)
        changes: dict[str, Any] = {"centers": centers}
        own = not subject.class_names or tuple(train_set.class_names) == subject.class_names
        if own and (not len(subject.class_counts) or int(subject.class_counts.min()) < 0):
            changes["class_counts"] = torch.as_tensor(train_set.class_counts)
        changes["class_names"] = subject.class_names or tuple(train_set.class_names)
        classifies = centers if own else None
        changes["look"] = _look(opened, encoder, classifies, train_set, test_set, settings)
        changes["without_look"] = None
        subject = replace(subject, **changes)
    except ZooError as error:
        subject = replace(subject, without_look=str(error).rstrip("."))
    return _summed(subject, opened)


def _open_data(opened: Opened, data: Data) -> tuple[ImageDataset, ImageDataset]:
    """Open training and test split: a release's own images, or what is given for all."""
    if data is not None and not is_folder(data):
        config, root = as_data(data)[:2]
        return open_dataset(config, "train", root), open_dataset(config, "test", root)
    given = own_data(opened.recipe, opened.name, data)
    if not given.is_own:  # others beside it have their data there
        given = own_data(opened.recipe, opened.name, None)
    if opened.release is None:
        return open_dataset(given.config, "train", given.root), open_dataset(given.config, "test", given.root)
    train_set = open_own(opened.release, given.config, "train", given.root)
    return train_set, open_own(opened.release, given.config, "test", given.root)


def _look(
    opened: Opened,
    encoder: torch.nn.Module,
    centers: Centers | None,
    train_set: ImageDataset,
    test_set: ImageDataset,
    settings: _Settings,
) -> Look:
    view, mean, std = opened.preprocessing()
    section = opened.recipe.get("views")  # a converted release has none
    views = None if section is None else parse(ViewsConfig, section, f"{opened.name}: recipe.yaml: views")
    image = opened.recipe.get("data") or {}
    arch, arguments = opened.architecture()
    # the same for every subject of one architecture, input and data: once is enough
    place = f"{arch} {arguments} {view} {test_set.describe()['sha256']}"
    found = look(
        encoder.eval().requires_grad_(False),
        train_set,
        test_set,
        reading={
            "view": view,
            "mean": mean,
            "std": std,
            "device": settings.device,
            "workers": settings.workers if settings.workers is not None else (views.workers if views else 0),
        },
        views=None if views is None else (views, image.get("image_size")),
        centers=centers,
        sample=settings.sample,
        seed=settings.seed,
        landmarks={} if place in settings.landmarked else landmarks_of(arch, arguments, seed=settings.seed),
    )
    settings.landmarked.add(place)
    return found


def _facts(subject: Subject, opened: Opened) -> dict[str, str]:
    """Return what a reader has to know of a subject."""
    steps = [row["step"] for row in subject.rows if "step" in row]
    recorded = f"{len(steps):,} rows up to step {max(steps, default=0):,}"
    counts, look = subject.class_counts.tolist(), subject.look
    images = ""
    if counts and min(counts) >= 0:
        images = f": {sum(counts):,} images, {max(counts):,} to {min(counts):,} a class"
    looked_at = subject.without_look or ""
    if look is not None:
        looked_at = (
            f"{len(look.index):,} of {look.total:,} test images of {look.data}, drawn with seed {look.seed}"
        )
    return {
        "name": subject.name,
        "state": opened.state,
        "objective": subject.objective,
        "trained on": f"{subject.data}{images}",
        "seed": "not known" if subject.seed is None else str(subject.seed),
        "looked at": looked_at,
        "classified by": "-" if look is None else look.classifier,
        "recorded": recorded if steps else opened.no_record or "nothing",
        "folder": str(opened.folder),
    }
