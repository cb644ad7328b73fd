"""The command on learned class centers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zoo.cli.app import app
from zoo.cli.show import print_columns


@app.command()
def centers(
    name: Annotated[str, typer.Argument(help="Weights name, folder or org/repo.")],
    images: Annotated[
        list[Path] | None,
        typer.Option(
            "--image", metavar="FILE", help="Print its nearest classes; may be given several times."
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="How many classes of an image.")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", help="Draw the similarity of all classes as .png or .pdf.")
    ] = None,
) -> None:
    """Show class centers: images, length, nearest other class of each; or the nearest classes of images."""
    from zoo.hub import open

    release = open(name)
    found = release.require_centers()
    if images:
        from zoo.data.decode import read_image

        decoded = [(file, read_image(file, str(file))) for file in images]
        rows = [("IMAGE", "CLASS", "PROBABILITY")]
        for file, image in decoded:
            nearest = release.nearest_classes(image, k)
            rows += [(str(file), label, f"{probability:.3f}") for label, probability in nearest]
        print_columns(rows)
    else:
        table = [("CLASS", "TRAINING IMAGES", "NORM", "BIAS", "NEAREST OTHER CLASS", "COSINE")]
        norms, biases, counts = found.weight.norm(dim=1), found.bias.tolist(), found.class_counts.tolist()
        alone = len(found.class_names) < 2
        cosines, others = ([0.0], [0]) if alone else (each.tolist() for each in found.nearest_other())
        for c, label in enumerate(found.class_names):
            count = f"{counts[c]:,}" if counts[c] >= 0 else "-"
            other = ("-", "-") if alone else (found.class_names[others[c]], f"{cosines[c]:.2f}")
            table.append((label, count, f"{norms[c]:.2f}", f"{biases[c]:+.2f}", *other))
        print_columns(table)
    if out is not None:
        from zoo.api import class_map

        print(f"\npicture: {class_map(release, out)}")
