"""Commands on images of one's own: their features, their classes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zoo.cli.app import DATA_HELP, app
from zoo.cli.show import print_columns
from zoo.errors import ZooError, one_line
from zoo.files import check_writable, write_atomic, writing

if TYPE_CHECKING:
    from zoo.api import Prediction

Name = Annotated[str, typer.Argument(help="Weights name, folder or org/repo.")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", help="Processes that decode images. Default: the release's recipe's."),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


@app.command()
def embed(
    name: Annotated[
        str, typer.Argument(help="Weights name, folder, org/repo, or timm:ARCH.TAG for timm's own weights.")
    ],
    *,
    data: Annotated[str, typer.Option("--data", help=DATA_HELP)],
    out: Annotated[
        Path, typer.Option("--out", help="File to write: .npz, .safetensors or .parquet (needs pyarrow).")
    ],
    split: Annotated[
        str | None, typer.Option("--split", help="train or test. Default: all of a folder, else test.")
    ] = None,
    max_bad_images: Annotated[
        int,
        typer.Option("--max-bad-images", min=0, help="Leave out so many unreadable images, and name them."),
    ] = 0,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Write the features of images to a file: for search, clustering, plots.

    The file has a row of float32 for each image, as the encoder gave it (not of length 1), the images' names
    (paths relative to the folder), and labels with class names where there are any. A folder of folders of
    images, DIR/CLASS/IMAGE, has classes; any other has none.
    """
    from zoo import api

    found = api.embed(
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
    name: Name,
    images: Annotated[list[Path], typer.Argument(help="Image files, and folders of images at any depth.")],
    top: Annotated[int, typer.Option("--top", min=1, help="How many classes of each image.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the table to this .csv file instead of printing it.")
    ] = None,
    max_bad_images: Annotated[
        int,
        typer.Option("--max-bad-images", min=0, help="Leave out so many unreadable images, and name them."),
    ] = 0,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Classify images with a release's learned class centers.

    The probability is the softmax of the classifier's logits; no class prior is added. Centers of PaCo and of
    losses for long tails (Balanced Softmax, ...) have learned none, those of plain cross-entropy that of
    their training set. Standard error says which it is.
    """
    from zoo import api, release
    from zoo.training.progress import say

    if out is not None:
        if out.suffix.lower() != ".csv":
            raise ZooError(f'--out: found "{out}", expected a file that ends in .csv')
        check_writable(out)
    opened = release.open(name)
    found = api.predict(opened, images, top, device=device, workers=workers, max_bad_images=max_bad_images)
    if out is None:
        rows = [
            (one_line(each.image), label, f"{share:.3f}") for each in found for label, share in each.classes
        ]
        print_columns([("FILE", "CLASS", "PROBABILITY"), *rows])
    else:
        with writing(f'"{out}"'):
            write_atomic(out, lambda file: _write_csv(found, file))
        print(f"{len(found):,} images, written to {out}")
    say(api.prior_words(opened))


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
