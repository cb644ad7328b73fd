"""Commands that compute with a trained encoder: evaluate, embed, predict, diagnose."""

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

BAD_IMAGES = Option(0, "--max-bad-images", min=0, help="Leave out so many unreadable images, and name them.")


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
        None, "--out", help="Folder for a training's state. Default: in RELEASE/run or runs/."
    ),
    resume: bool = RESUME,
) -> None:
    """Measure an encoder, by default with the settings that the release records.

    For monitoring and ablation, on features that are computed once:
    linear, a linear probe, its penalty chosen inside the training set;
    knn, a vote of the nearest training images;
    few_shot, a classifier on shots=N images of each class, over 5 draws;
    retrieval, recall@k and mAP among test images, or in gallery=train;
    classifier, the learned centers as they stand, or less tau=T times the log prior.

    For figures that are compared with papers:
    linear_full, the published linear evaluation. 100 epochs of SGD on
    augmented images train a linear layer on the frozen encoder;
    semi_supervised, the network fine-tuned on fraction=0.1 or 0.01 of the
    labels. Both show progress, and go on with --resume when stopped.

    Test labels are used for nothing but the final count.
    """
    chosen = key_values(settings or [])
    check_early(name, data=data, out=out)
    import zoo
    from zoo.evaluation.evaluate import parse_protocol

    parse_protocol(protocol, chosen)  # a setting may have the name of one of the arguments below
    release = zoo.open(name)
    entry = zoo.evaluate(
        release,
        protocol,
        data,
        device=device,
        workers=workers,
        save=save,
        out=out,
        resume=resume,
        **chosen,
    )
    print_evaluations([entry])
    facts = {**entry["settings"], **{f"chosen {key}": value for key, value in entry["chosen"].items()}}
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

    The file has a row of float32 for each image, as the encoder gave it (not of length 1), the images' names
    (paths relative to the folder), and labels with class names where there are any. A folder of folders of
    images, DIR/CLASS/IMAGE, has classes; any other has none.
    """
    check_file(out, ".npz", ".parquet")
    check_early(name, data=data)
    import zoo

    found = zoo.embed(
        name,
        data,
        split=split,  # type: ignore[arg-type]  # which it checks
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
    images: list[Path] | None = Argument(None, help="Image files, and folders of images at any depth."),
    data: str | None = Option(None, "--data", help="Or all images of a folder or data spec."),
    top: int = Option(1, "--top", min=1, help="How many classes of each image."),
    out: Path | None = Option(None, "--out", help="Write the table to this .csv file instead."),
    max_bad_images: int = BAD_IMAGES,
    workers: int | None = WORKERS,
    device: str = DEVICE,
) -> None:
    """Classify images with a release's learned class centers.

    The probability is the softmax of the classifier's logits; no class prior is added. Centers of PaCo and of
    losses for long tails (Balanced Softmax, ...) have learned none, those of plain cross-entropy that of
    their training set. Standard error says which it is.
    """
    if bool(images) == (data is not None):
        raise BadParameter("found both or neither; give IMAGES or --data", param_hint="IMAGES")
    if out is not None:
        check_file(out, ".csv")
    check_early(name, data=data)
    import zoo
    from zoo.evaluation.predict import prior_words
    from zoo.training.progress import say

    release = zoo.open(name)
    given = images if data is None else data
    found = zoo.predict(release, given, top, device=device, workers=workers, max_bad_images=max_bad_images)
    if out is None:
        rows = [
            (one_line(each.image), label, f"{share:.3f}") for each in found for label, share in each.classes
        ]
        print_columns([("FILE", "CLASS", "PROBABILITY"), *rows])
    else:
        with writing(f'"{out}"'):
            write_atomic(out, lambda file: _write_csv(found, file))
        print(f"{len(found):,} images, written to {out}")
    say(prior_words(release))


def _write_csv(found: tuple[Prediction, ...], file: Path) -> None:
    """Write a row for each class of each image; of a name that is no UTF-8 the bytes are kept."""
    with file.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(("file", "rank", "class", "probability"))
        for image, classes in found:
            for place, (label, share) in enumerate(classes, 1):
                rows.writerow((_as_text(image), place, _as_text(label), share))


def _as_text(name: str) -> str:
    """Keep a spreadsheet from running a name as a formula: in front of one it shows an apostrophe."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


@app.command()
def diagnose(
    names: list[str] = Argument(
        metavar="NAME...",
        help="Weights names, folders or org/repo. Several: side by side.",
    ),
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Folder of the report. Default: runs/diagnosed/NAME."),
    sample: int = Option(2000, "--sample", help="Test images to encode."),
    device: str = DEVICE,
) -> None:
    """See what trainings did: one HTML page of figures and numbers, which opens offline."""
    check_early(data=data, out=out)
    import zoo

    report = zoo.diagnose(*names, out=out, data=data, sample=sample, device=device)
    for subject in report.subjects:
        if subject.sample is None:
            print(f"{subject.label}: {subject.no_sample}")
    for title, reason in report.missing.items():
        print(f"not drawn: {title}: {reason}")
    print(f"report: {report.html}")
