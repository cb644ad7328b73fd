"""Commands that use a trained encoder: evaluate, embed, predict, diagnose."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, BadParameter, Option

from zoo.cli.app import DATA, DEVICE, NAME, RESUME, WORKERS, app, check_early, check_file, key_values
from zoo.cli.show import print_columns, print_evaluations, settings_text
from zoo.errors import one_line
from zoo.files import write_atomic, writing

if TYPE_CHECKING:
    from zoo.evaluation import Prediction

BAD_IMAGES = Option(0, "--max-bad-images", min=0, help="Leave out up to so many unreadable images.")


@app.command()
def evaluate(
    protocol: str = Argument(
        help="linear, knn, few_shot, retrieval, classifier, linear_full or semi_supervised."
    ),
    name: str = NAME,
    data: str | None = DATA,
    settings: list[str] | None = Option(
        None,
        "--set",
        metavar="KEY=VALUE",
        help="Setting of the protocol, e.g. k=200. Default: as the release records it.",
    ),
    workers: int | None = WORKERS,
    device: str = DEVICE,
    save: bool = Option(True, help="Record the result in metrics.json and card."),
    out: Path | None = Option(
        None, "--out", help="Folder for a training's state. Default: RELEASE/run or runs/."
    ),
    resume: bool = RESUME,
) -> None:
    """Evaluate an encoder, by default with the settings that the release records.

    On frozen features, which are computed once: linear (logistic regression, its penalty chosen by
    cross-validation), knn, few_shot (shots=N images of each class), retrieval (recall@k and mAP),
    classifier (the learned class centers; tau=T subtracts T times the log prior).

    By training, comparable with papers: linear_full (100 epochs of SGD on augmented images),
    semi_supervised (all weights, on fraction=0.1 or 0.01 of the labels).
    """
    chosen = key_values(settings)
    check_early(name, data=data, out=out)
    import zoo
    from zoo.evaluation.evaluate import parse_protocol

    parse_protocol(protocol, chosen)  # here, since a wrong key may be the name of an argument below
    release = zoo.open(name)
    entry = zoo.evaluate(
        release, protocol, data, device=device, workers=workers, save=save, out=out, resume=resume, **chosen
    )
    print_evaluations([entry])
    facts = entry["settings"] | {f"chosen {key}": value for key, value in entry["chosen"].items()}
    print(f"{entry['test_set']['num_images']:,} test images" + (f"; {settings_text(facts)}" if facts else ""))
    if save and release.writable:
        print(f"recorded in {release.path / 'metrics.json'} and its card")
    else:
        print("not recorded: " + ("only a release folder of yours is changed" if save else "--no-save"))


@app.command()
def embed(
    name: str = NAME,
    data: str = Option(..., "--data", help=DATA.help),
    out: Path = Option(..., "--out", help="File to write: .npz or .parquet (needs pyarrow)."),
    split: str | None = Option(
        None, "--split", help="train or test. Default: all of a folder, else test.", show_default=False
    ),
    max_bad_images: int = BAD_IMAGES,
    workers: int | None = WORKERS,
    device: str = DEVICE,
) -> None:
    """Write the features of images to a file: for search, clustering, plots.

    One float32 row per image, as the encoder returns it (not normalised), the images' names (paths relative
    to the folder), and labels with class names where there are any.
    """
    check_file(out, ".npz", ".parquet")
    check_early(name, data=data)
    import zoo

    found = zoo.embed(
        name,
        data,
        split=split,  # type: ignore[arg-type]  # checked there
        out=out,
        workers=workers,
        device=device,
        max_bad_images=max_bad_images,
    )
    images, width = found.features.shape
    classes = f", {len(found.class_names)} classes" if found.class_names else ""
    print(f"{images:,} images x {width} features{classes}, written to {out}")


@app.command()
def predict(
    name: str = NAME,
    images: list[Path] | None = Argument(None, help="Image files, or a folder of images at any depth."),
    data: str | None = Option(None, "--data", help="Or all images of a folder or data spec."),
    top: int = Option(1, "--top", min=1, help="Classes to print for each image."),
    out: Path | None = Option(None, "--out", help="Write the table to this .csv file instead."),
    max_bad_images: int = BAD_IMAGES,
    workers: int | None = WORKERS,
    device: str = DEVICE,
) -> None:
    """Classify images with a release's learned class centers.

    The probability is the softmax of the logits. Standard error says whether the centers hold the class prior
    of their training set, as those of plain cross-entropy do.
    """
    if images and data is not None:
        raise BadParameter("found both IMAGES and --data, expected one of them", param_hint="IMAGES")
    if not images and data is None:
        raise BadParameter("missing; or give --data", param_hint="IMAGES")
    if out is not None:
        check_file(out, ".csv")
    check_early(name, data=data)
    import zoo
    from zoo.evaluation.predict import prior_words
    from zoo.training.progress import say

    release = zoo.open(name)
    given = (images[0] if images and len(images) == 1 else images) if data is None else data
    found = zoo.predict(release, given, top, device=device, workers=workers, max_bad_images=max_bad_images)
    if out is None:
        rows = [(one_line(each.image), label, f"{p:.3f}") for each in found for label, p in each.classes]
        print_columns([("FILE", "CLASS", "PROBABILITY"), *rows])
    else:
        with writing(f'"{out}"'):
            write_atomic(out, lambda file: _write_csv(found, file))
        print(f"{len(found):,} images, written to {out}")
    say(prior_words(release))


def _write_csv(found: tuple[Prediction, ...], file: Path) -> None:
    """Write one row per image and class; file names that are not UTF-8 keep their bytes."""
    with file.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(("file", "rank", "class", "probability"))
        for image, classes in found:
            for place, (label, probability) in enumerate(classes, 1):
                rows.writerow((_escape_formula(image), place, _escape_formula(label), probability))


def _escape_formula(name: str) -> str:
    """Prefix names that a spreadsheet would run as a formula with an apostrophe."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


@app.command()
def diagnose(
    names: list[str] = Argument(metavar="NAME...", help="Weights, as for evaluate. Several: side by side."),
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Folder of the report. Default: runs/diagnosed/NAME."),
    sample: int = Option(2000, "--sample", help="Test images to encode."),
    device: str = DEVICE,
) -> None:
    """Show what trainings did: one HTML page of figures and numbers, which opens offline."""
    check_early(data=data, out=out)
    import zoo

    report = zoo.diagnose(*names, out=out, data=data, sample=sample, device=device)
    for subject in report.subjects:
        if subject.sample is None:
            print(f"{subject.label}: {subject.no_sample}")
    for title, reason in report.missing.items():
        print(f"not drawn: {title}: {reason}")
    print(f"report: {report.html}")
