"""Commands on releases: list, show, push, pull, convert."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zoo import catalog
from zoo.cli.app import Out, app, key_values
from zoo.cli.show import (
    print_conversion,
    print_dry_run,
    print_hub,
    print_names,
    print_reading,
    print_release,
)
from zoo.config import dump_yaml
from zoo.errors import RecipeError, ReleaseError, did_you_mean
from zoo.files import is_file

if TYPE_CHECKING:
    from zoo.hub import ModelRef


@app.command("list")
def list_(
    pattern: Annotated[str, typer.Argument(help="Shell pattern for names.")] = "*",
    hub: Annotated[
        str | None,
        typer.Option("--hub", metavar="ORG", help="List the releases of a user or organisation on the Hub."),
    ] = None,
    shipped: Annotated[
        bool, typer.Option("--shipped", help="List the weights alone that zoo.load has without a network.")
    ] = False,
) -> None:
    """List weights with accuracy and size, recipes with the published figure, and sweeps.

    A text without wildcards finds every name that contains it. Accuracies are in percent, by the classifier
    where no other protocol is named. Behind a published figure, [V] says that it was read in the authors'
    repository, [M] that it is quoted from memory; "zoo show NAME" has the details.
    """
    if hub is not None:
        if shipped:
            raise ReleaseError("--shipped: found with --hub, whose releases are not shipped; give either")
        from zoo.hub import list_hub

        shell = catalog.wildcards(pattern)
        found = [each for each in list_hub(hub) if fnmatchcase(each.repo_id.partition("/")[2], shell)]
        if not found:
            raise ReleaseError(
                f'nothing of "{hub}" on the Hub matches "{pattern}" and carries the tag contrastive-zoo'
            )
        print_hub(found)
        return
    models, recipes, sweeps = (
        listed(pattern) for listed in (catalog.list_models, catalog.list_recipes, catalog.list_sweeps)
    )
    if shipped:
        recipes, sweeps = [name for name in recipes if name in models], []
    if not models and not recipes and not sweeps:
        raise RecipeError(
            f'no shipped weights match "{pattern}"; "zoo list --shipped" shows all'
            if shipped
            else f'nothing matches "{pattern}"; "zoo list" shows all names'
        )
    print_names(models, recipes, sweeps)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Weights name, folder, org/repo, recipe or sweep.")],
    full: Annotated[
        bool, typer.Option("--full", help="Print a recipe's every value, defaults included.")
    ] = False,
) -> None:
    """Show a release's facts and figures and how its name was read, or a recipe or sweep as it stands.

    A recipe's file states what makes it that recipe; --full also prints what it leaves to the defaults.
    """
    if name in catalog.list_sweeps() and not is_file(name):
        path = catalog.sweep_path(name)
        print(f"# {path}\n{catalog.recipe_text(path)}", end="")
        return
    reading = _release_of(name)
    if reading is not None:
        from zoo.hub.fetch import folder_of
        from zoo.release import Release

        release = Release.at(folder_of(reading, weights=False))
        print_reading(name, reading)
        print_release(release)
        if full and not _is_recipe(name):
            print(dump_yaml(release.recipe), end="")
    if reading is None or _is_recipe(name):
        path = catalog.recipe_path(name)
        print(f"# {path}\n{_values(path) if full else catalog.recipe_text(path)}", end="")


def _values(recipe: Path) -> str:
    from zoo.recipe import Recipe  # imports torch

    return Recipe.load(recipe).to_yaml()


def _release_of(name: str) -> ModelRef | None:
    """Read `name` as a release, unless it is a recipe's and nothing else is known without the network."""
    from zoo.hub import resolve

    if is_file(name):  # though its path could be a folder's
        return None
    is_recipe = _is_recipe(name) or name.endswith((".yaml", ".yml"))
    try:
        reading = resolve(name)
    except ReleaseError as error:
        if is_recipe:
            return None
        if name in catalog.list_models() or "/" in name or ":" in name:
            raise
        near = did_you_mean(name, [*catalog.list_recipes(), *catalog.list_sweeps()])
        if not near or error.suggests:
            raise
        raise ReleaseError(f"{str(error).rstrip('.')}; nor is it a recipe or sweep.{near}") from None
    return None if is_recipe and reading.kind == "hub" else reading


def _is_recipe(name: str) -> bool:
    return is_file(name) or name in catalog.list_recipes()


@app.command()
def push(
    release: Annotated[str, typer.Argument(help="Release folder, or the name of a release.")],
    repo_id: Annotated[
        str, typer.Argument(help="Repository on the Hub, ORG/NAME; created if there is none.")
    ],
    private: Annotated[bool, typer.Option("--private", help="Create the repository private.")] = False,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch. Default: main.")] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--start",
            metavar="ORG/NAME",
            help="Where a folder is published that training started or learned from; once for each.",
        ),
    ] = None,
    license: Annotated[
        str | None,
        typer.Option("--license", metavar="ID", help="Set the weights' licence first, e.g. cc-by-4.0."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="REV", help="The revision that yours is based on, and may replace."),
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="Send the hashes of training images of your own, too.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check it, and print what would go where; nothing is sent.")
    ] = False,
) -> None:
    """Publish a release on the Hub, after checking it; the same push again changes nothing.

    What others changed there since it was last pulled or pushed is taken over, or refused.
    """
    from zoo.hub import open as open_release
    from zoo.hub.push import check_destination, check_token, prepare, publish, with_start

    if dry_run:
        for option, given in (("--start", start or None), ("--license", license)):
            if given is not None:  # these write into the folder
                raise ReleaseError(
                    f"--dry-run: found with {option}, which changes the release itself before it is pushed, "
                    "expected without"
                )
        print_dry_run(prepare(release, repo_id, revision, images), repo_id, private)
        return
    if start or license is not None:  # these change the folder: not for a push that cannot be
        check_destination(repo_id, revision)
        check_token(repo_id, None)
    opened = open_release(release)
    for published_as in start or ():
        opened = with_start(opened, published_as)
    if license is not None:
        opened = opened.with_license(license)
    published = publish(opened, repo_id, private=private, revision=revision, base=base, images=images)
    if published.changed:
        print(f"pushed {', '.join(published.changed)}")
    else:
        print("nothing to push: the repository holds this release")
    print(f'{published.url}\n\nload it:  zoo.load("{published.repo_id}@{published.version}")')


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help=r"Release: org/repo\[@revision], or another name.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of your own for it. Default: the Hub's cache.")
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit.")] = None,
) -> None:
    """Fetch a release whole and check its hashes."""
    from zoo.hub.pull import pull

    release = pull(name, out=out, revision=revision)
    print(f'{release.name}  {release.path}\n\nload it:  zoo.load("{release.path}")')


@app.command()
def convert(
    file: Annotated[
        Path,
        typer.Argument(
            help="Checkpoint of torch.save, or .safetensors; or the name of one that its authors publish, "
            "e.g. resnet50.moco_v2_800ep."
        ),
    ],
    family: Annotated[
        str | None,
        typer.Option(
            "--family",
            show_default=False,
            help="Whose layout: moco (v1, v2), moco-v3, paco, gpaco, ft, pico, lightly, solo-learn; "
            "timm: any timm model, whoever trained it.",
        ),
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch", help="The encoder's name in timm, e.g. resnet50. Default: what the file tells."
        ),
    ] = None,
    out: Out = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the weights, ARCH.TAG.")] = None,
    encoder: Annotated[
        str, typer.Option("--encoder", help="query: the trained one; momentum: its moving average.")
    ] = "query",
    model_args: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="KEY=VALUE", help="Argument of the architecture, e.g. img_size=32."),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            help="The centers' classes: a file, one a line, or a folder or data spec that has them.",
        ),
    ] = None,
    label_order: Annotated[
        str | None,
        typer.Option(
            "--label-order",
            help="How a folder's classes were numbered: natural (1, 2, 10; timm) or plain (1, 10, 2).",
        ),
    ] = None,
    class_counts: Annotated[
        str | None,
        typer.Option(
            "--class-counts", help="Training images of each class: a file, one a line, or a data spec."
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option("--size", help="Pixels of the input. Default, so below: the authors'.")
    ] = None,
    crop_pct: Annotated[float | None, typer.Option("--crop-pct", help="Part kept by the crop.")] = None,
    interpolation: Annotated[
        str | None,
        typer.Option("--interpolation", help="bilinear or bicubic."),
    ] = None,
    mean: Annotated[
        str | None, typer.Option("--mean", metavar="R,G,B", help="Mean of the pixels; one number for all.")
    ] = None,
    std: Annotated[str | None, typer.Option("--std", metavar="R,G,B", help="Their deviation.")] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="What the encoder was trained on, in words.")
    ] = None,
    license: Annotated[
        str | None, typer.Option("--license", help="Of the weights. Default: of the authors' repository.")
    ] = None,
    description: Annotated[str | None, typer.Option("--description", help="The card's paragraph.")] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option("--leave-out", metavar="KEY|PATTERN", help="Leave these keys out, though unknown."),
    ] = None,
) -> None:
    """Make a release of a checkpoint that another project's code has written; nothing in it is executed."""
    from zoo.conversion.convert import convert

    release = convert(
        file,
        family,
        out,
        arch=arch,
        name=name,
        encoder=encoder,  # type: ignore[arg-type]  # checked there
        model_args=key_values(model_args or [], "--arg"),
        labels=labels,
        label_order=label_order,  # type: ignore[arg-type]
        class_counts=class_counts,
        size=size,
        crop_pct=crop_pct,
        interpolation=interpolation,  # type: ignore[arg-type]
        mean=_channels(mean, "--mean"),
        std=_channels(std, "--std"),
        dataset=dataset,
        license=license,
        description=description,
        leave_out=leave_out or (),
    )
    print_conversion(release, stated=license is None, found=arch is None)
    print(f'\nload it:  zoo.load("{release.path}")')


def _channels(text: str | None, option: str) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(f'{option}: found "{text}", expected three numbers, e.g. 0.5,0.5,0.5') from None
