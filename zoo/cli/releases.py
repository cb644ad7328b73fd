"""Commands that use or publish a release: evaluate, embed, predict, diagnose, push, pull, convert, export."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer import Argument, BadParameter, Option

from zoo.cli.app import BAD_IMAGES, DATA, DEVICE, NAME, OUT, RESUME, WORKERS, check_early
from zoo.cli.show import in_columns, print_evaluations, print_release
from zoo.config import dump_yaml
from zoo.errors import one_line
from zoo.files import check_writable, write_atomic
from zoo.recipe.overrides import as_overrides


def evaluate(
    protocol: str = Argument(
        help="linear, knn, few_shot, retrieval, classifier, linear_full, semi_supervised; or linear,knn."
    ),
    name: str = NAME,
    data: str | None = DATA,
    settings: list[str] | None = Option(None, "--set", metavar="KEY=VALUE", help="A setting, e.g. k=200."),
    workers: int | None = WORKERS,
    device: str = DEVICE,
    save: bool = Option(True, help="Record the result in metrics.json and card."),
    out: Path | None = Option(None, "--out", help="Folder for a training's state. Default: RELEASE/run."),
    resume: bool = RESUME,
) -> None:
    """Evaluate an encoder, by default with the settings that the release records."""
    chosen = dict(as_overrides(settings or ()))
    check_early(name, data=data, out=out)
    from zoo.evaluation.light import parse_protocol

    protocols = protocol.split(",")
    for each in protocols:
        parse_protocol(each, chosen)  # here, since a wrong key may be an argument of the call below
    import zoo

    release = zoo.open(name)
    chosen |= {"device": device, "workers": workers, "save": save, "out": out, "resume": resume}
    entries = zoo.evaluate(release, protocols, data, **chosen)
    print_evaluations([*entries.values()])
    for entry in entries.values():
        used = [f"{key}={value}" for key, value in (entry["settings"] | entry["chosen"]).items()]
        print(", ".join([f"{entry['test_set']['num_images']:,} test images", *used]))
    where, why = f"recorded in {release.path / 'metrics.json'}", "only a release folder of yours is changed"
    print(where if save and release.writable else f"not recorded: {why if save else '--no-save'}")


def embed(
    name: str = NAME,
    data: str = Option(..., "--data", help='Folder, file, or spec ("cifar100:DIR").'),
    out: Path = Option(..., "--out", help="File to write: .npz or .parquet (needs pyarrow)."),
    split: str | None = Option(None, "--split", help="train or test. Default: all of a folder, else test."),
    max_bad_images: int = BAD_IMAGES,
    workers: int | None = WORKERS,
    device: str = DEVICE,
) -> None:
    """Write the features of images, with their names and labels, to a file: for search, clustering, plots."""
    check_early(name, data=data)
    check_writable(out, "--out", ".npz .parquet")
    import zoo

    options = {"workers": workers, "device": device, "max_bad_images": max_bad_images}
    found = zoo.embed(name, data, split=split, out=out, **options)  # type: ignore[arg-type]
    images, width = found.features.shape
    print(f"{images:,} images x {width} features, written to {out}")


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
    """Classify images with a release's learned class centers."""
    if bool(images) == (data is not None):
        raise BadParameter("expected image files or --data, and not both", param_hint="IMAGES")
    check_early(name, data=data)
    if out is not None:
        check_writable(out, "--out", ".csv")
    import zoo
    from zoo.evaluation.predict import prior_words
    from zoo.training.progress import say

    release, given = zoo.open(name), images[0] if images and len(images) == 1 else images or data
    found = zoo.predict(release, given, top, device=device, workers=workers, max_bad_images=max_bad_images)
    if out is None:
        rows = [(one_line(each.image), label, f"{p:.3f}") for each in found for label, p in each.classes]
        print(in_columns([("FILE", "CLASS", "PROBABILITY"), *rows]))
    else:
        write_atomic(out, lambda file: _write_csv(found, file))
        print(f"{len(found):,} images, written to {out}")
    say(prior_words(release))


def _write_csv(found: Iterable[tuple[str, Any]], file: Path) -> None:
    """Write one row per image and class; an apostrophe keeps spreadsheets from running names as formulas."""
    import pandas as pd

    rows = [(image, rank, *each) for image, classes in found for rank, each in enumerate(classes, 1)]
    table = pd.DataFrame(rows, columns=["file", "rank", "class", "probability"])
    table = table.replace(r"^(?=[=+\-@\t\r])", "'", regex=True)
    table.to_csv(file, index=False, errors="surrogateescape")  # names that are not UTF-8 keep their bytes


def diagnose(
    names: list[str] = Argument(metavar="NAME...", help="Weights, as for evaluate. Several: side by side."),
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Folder of the report. Default: runs/diagnosed/NAME."),
    device: str = DEVICE,
) -> None:
    """Write a report on trained weights: one HTML page of figures and numbers, which opens offline."""
    check_early(*names, data=data, out=out)
    import zoo

    report = zoo.diagnose(*names, out=out, data=data, device=device)
    unseen = {f"images of {each.label}": each.no_sample for each in report.subjects if each.sample is None}
    lacking = [f"not drawn: {what}: {why}" for what, why in (unseen | {**report.missing}).items()]
    print(f"report: {report.html}", *lacking, sep="\n")


def push(
    release: str = Argument(help="Release folder, or the name of a release."),
    repo_id: str = Argument(help="Repository on the Hub, ORG/NAME; created if it does not exist."),
    private: bool = Option(False, "--private", help="Create the repository private."),
    license: str | None = Option(None, "--license", metavar="ID", help="Set the weights' licence first."),
    base: str | None = Option(None, "--base", metavar="REV", help="The revision that yours is based on."),
    dry_run: bool = Option(False, "--dry-run", help="Check it, and print what would be sent."),
) -> None:
    """Publish a release on the Hub, after checking it and merging what others changed there."""
    check_early(release)
    import zoo
    from zoo.hub.push import prepare

    if dry_run:
        ready, branch, contents = prepare(release, repo_id)
        print(f"{ready.name} can be pushed to {repo_id}, branch {branch}: {', '.join(contents)}")
        return
    opened = zoo.open(release)
    if license is not None:
        opened = opened.with_license(license)
    address = zoo.push(opened, repo_id, private=private, base=base)
    print(f'{address}\n\nload it:  zoo.load("{repo_id}@{address.rpartition("/")[2]}")')


def pull(
    name: str = NAME,
    out: Path | None = Option(None, "--out", help="Folder to copy it to. Default: the Hub's cache."),
) -> None:
    """Download a complete release and check its hashes."""
    check_early(name, out=out)
    import zoo

    release = zoo.pull(name, out=out)
    print(f'{release.name}  {release.path}\n\nload it:  zoo.load("{release.path}")')


def convert(
    file: Path = Argument(help="Checkpoint (torch.save or .safetensors), or a published one's name."),
    family: str | None = Option(None, help="moco, moco-v3, paco, gpaco, ft, pico, solo-learn, timm."),
    arch: str | None = Option(None, help="Its name in timm. Default: what the file says."),
    out: Path | None = OUT,
    name: str | None = Option(None, help="Name of the weights, ARCH.TAG."),
    encoder: str = Option("query", help="query: the trained one; momentum: its moving average."),
    labels: str | None = Option(None, help="Class names: a .txt file with one per line, or data."),
    label_order: str | None = Option(None, help="Of a folder's classes: natural (timm) or plain."),
    class_counts: str | None = Option(None, help="Training images of each class: a file, one per line."),
    settings: list[str] | None = Option(None, "--set", metavar="KEY=VALUE", help="E.g. input_size=160."),
    license: str | None = Option(None, help="Of the weights. Default: the repository's."),
    leave_out: list[str] | None = Option(None, metavar="KEY|PATTERN", help="Leave out these unknown keys."),
) -> None:
    """Convert another project's checkpoint to a release; no code in it is run."""
    check_early(out=out)
    import zoo

    view = dict(as_overrides(settings or ()))
    model: dict[str, Any] = {"arch": arch, "name": name, "encoder": encoder, "preprocess": view}
    classes: dict[str, Any] = {"labels": labels, "label_order": label_order, "class_counts": class_counts}
    release = zoo.convert(file, family, out, license=license, leave_out=leave_out or (), **model, **classes)
    print_release(release)
    print(dump_yaml({"converted": release.recipe["converted"]}), end="")


def export(
    name: str = NAME, onnx: Path = Option(..., "--onnx", help="File to write: .onnx (needs onnxruntime).")
) -> None:
    """Write a release as an ONNX file, with its preprocessing and class names; check it with onnxruntime."""
    check_early(name)
    check_writable(onnx, "--onnx", ".onnx")
    import zoo

    about = zoo.export(name, onnx)
    outputs = "logits and features" if "class_names" in about else "features"
    shape = ["batch", *about["input_size"]]
    print(f"{about['name']}: {outputs} of pixel_values {shape}, written to {onnx}")
