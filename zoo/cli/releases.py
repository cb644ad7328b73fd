"""Commands on releases: list, show, push, pull, convert."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from zoo import catalog
from zoo.cli.app import NAME, OUT, app, check_early, key_values
from zoo.cli.show import (
    print_centers,
    print_columns,
    print_conversion,
    print_dry_run,
    print_key,
    print_loading,
    print_names,
    print_release,
)
from zoo.errors import RecipeError, ReleaseError, did_you_mean
from zoo.files import is_file

if TYPE_CHECKING:
    from zoo.hub import ModelRef


@app.command("list")
def list_(
    pattern: str = Argument("*", help="Shell pattern for names."),
    hub: str | None = Option(
        None, "--hub", metavar="ORG", help="List the releases of a user or organisation on the Hub."
    ),
    shipped: bool = Option(
        False, "--shipped", help="List the weights alone that zoo.load has without a network."
    ),
) -> None:
    """List weights with accuracy and size, recipes with the published figure, and sweeps.

    A text without wildcards finds every name that contains it. Accuracies are in percent, by the classifier
    where no other protocol is named. Behind a published figure, [V] says that it was read in the authors'
    repository, [M] that it is quoted from memory; "zoo show NAME" has the details.
    """
    if hub is not None:
        if shipped:
            raise ReleaseError("--shipped: found with --hub, whose releases are not shipped; give either")
        _list_hub(hub, pattern)
        return
    models, recipes, sweeps = (
        names(pattern) for names in (catalog.list_models, catalog.list_recipes, catalog.list_sweeps)
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


def _list_hub(org: str, pattern: str) -> None:
    from zoo.hub import list_hub

    shell = catalog.wildcards(pattern)
    found = [each for each in list_hub(org) if fnmatchcase(each.repo_id.partition("/")[2], shell)]
    if not found:
        raise ReleaseError(
            f'nothing of "{org}" on the Hub matches "{pattern}" and carries the tag contrastive-zoo'
        )
    rows = [("NAME", "OBJECTIVE", "ACCURACY", "DATA", "UPDATED", "")]
    for each in found:
        updated = f"{each.updated:%Y-%m-%d}" if each.updated else ""
        visible = "private" if each.private else ""
        rows.append((each.repo_id, each.objective, each.accuracy, each.data, updated, visible))
    print_columns(rows)


@app.command()
def show(
    name: str = Argument(
        help="Weights name, folder, org/repo; a recipe, a sweep; or a section or key of recipes, e.g. "
        "training, paco, training.ema, lr; keys: all sections."
    ),
    full: bool = Option(
        False, "--full", help="Also a release's centers, and every value of a recipe, defaults included."
    ),
) -> None:
    """Show a release's facts, figures and the lines that load it; a recipe or sweep; or what a key means.

    A recipe's file states what makes it that recipe; --full also prints what it leaves to the defaults.
    """
    if name in catalog.list_sweeps() and not is_file(name):
        path = catalog.sweep_path(name)
        print(f"# {path}\n{catalog.recipe_text(path)}", end="")
        return
    try:
        reading = _release_of(name)
    except ReleaseError as error:
        if not _explain_key(name, error):
            raise
        return
    if reading is not None:
        from zoo.config import dump_yaml
        from zoo.hub.fetch import folder_of
        from zoo.release import Release

        release = Release.at(folder_of(reading, weights=False))
        print(f'"{name}" is read as the {reading}')
        print_release(release)
        print_loading(release, name)
        if full:
            print_centers(release)
            print(f"\n{dump_yaml(release.recipe)}", end="")
        else:
            print(f"\nevery value of its recipe, its class centers:  zoo show {name} --full")
        return
    path = catalog.recipe_path(name)
    text = catalog.recipe_text(path)
    if full:
        from zoo.recipe import Recipe  # imports torch

        text = Recipe.load(path).to_yaml()
    print(f"# {path}\n{text}", end="")


def _release_of(name: str) -> ModelRef | None:
    """Read `name` as a release, unless it is a recipe's and nothing else is known without the network."""
    from zoo.hub import resolve

    if is_file(name):  # though its path could be a folder's
        return None
    is_recipe = name in catalog.list_recipes() or name.endswith((".yaml", ".yml"))
    try:
        reading = resolve(name)
    except ReleaseError:
        if is_recipe:
            return None
        raise
    return None if is_recipe and reading.kind == "hub" else reading


def _explain_key(name: str, error: ReleaseError) -> bool:
    """Print what a key or section of recipes means; return False where the name can be none.

    Raises:
        ReleaseError: naming the nearest of recipes, sweeps and keys, where that is what was meant.
    """
    if name in catalog.list_models() or "/" in name or ":" in name:
        return False
    from zoo.recipe.keys import find_keys

    try:
        found = find_keys("" if name == "keys" else name)
    except RecipeError as unknown:
        near = did_you_mean(name, [*catalog.list_recipes(), *catalog.list_sweeps()])
        near = near or (f" {unknown}" if "Did you mean" in str(unknown) else "")
        if not near or error.suggests:
            return False
        raise ReleaseError(f"{str(error).rstrip('.')}; nor is it a recipe, sweep or key.{near}") from None
    for key in found:
        print_key(key, deep=name != "keys")
    return True


@app.command()
def push(
    release: str = Argument(help="Release folder, or the name of a release."),
    repo_id: str = Argument(help="Repository on the Hub, ORG/NAME; created if there is none."),
    private: bool = Option(False, "--private", help="Create the repository private."),
    revision: str | None = Option(None, "--revision", help="Branch. Default: main."),
    start: list[str] | None = Option(
        None,
        "--start",
        metavar="ORG/NAME",
        help="Where a folder is published that training started or learned from; once for each.",
    ),
    license: str | None = Option(
        None, "--license", metavar="ID", help="Set the weights' licence first, e.g. cc-by-4.0."
    ),
    base: str | None = Option(
        None, "--base", metavar="REV", help="The revision that yours is based on, and may replace."
    ),
    images: bool = Option(False, "--images", help="Send the hashes of training images of your own, too."),
    dry_run: bool = Option(
        False, "--dry-run", help="Check it, and print what would go where; nothing is sent."
    ),
) -> None:
    """Publish a release on the Hub, after checking it; the same push again changes nothing.

    What others changed there since it was last pulled or pushed is taken over, or refused.
    """
    from zoo.hub import open as open_release
    from zoo.hub.push import prepare, with_start
    from zoo.hub.push import push as publish

    if dry_run:
        for option, given in (("--start", start or None), ("--license", license)):
            if given is not None:  # these write into the folder
                raise ReleaseError(
                    f"--dry-run: found with {option}, which changes the release itself before it is pushed, "
                    "expected without"
                )
        print_dry_run(prepare(release, repo_id, revision, images), repo_id, private)
        return
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
    print(f'{published}\n\nload it:  zoo.load("{published.repo_id}@{published.version}")')


@app.command()
def pull(
    name: str = NAME,
    out: Path | None = Option(None, "--out", help="Folder of your own for it. Default: the Hub's cache."),
    revision: str | None = Option(None, "--revision", help="Branch, tag or commit."),
) -> None:
    """Fetch a release whole and check its hashes."""
    check_early(out=out)
    import zoo

    release = zoo.pull(name, out=out, revision=revision)
    print(f'{release.name}  {release.path}\n\nload it:  zoo.load("{release.path}")')


@app.command()
def convert(
    file: Path = Argument(
        help="Checkpoint or bare encoder of torch.save, or .safetensors; or the name of one that its "
        "authors publish, e.g. resnet50.moco_v2_800ep."
    ),
    family: str | None = Option(
        None,
        "--family",
        show_default=False,
        help="Whose layout: moco (v1, v2), moco-v3, paco, gpaco, ft, pico, lightly, solo-learn; "
        "timm: any timm model, whoever trained it.",
    ),
    arch: str | None = Option(
        None, "--arch", help="The encoder's name in timm, e.g. resnet50. Default: what the file tells."
    ),
    out: Path | None = OUT,
    name: str | None = Option(None, "--name", help="Name of the weights, ARCH.TAG."),
    encoder: str = Option("query", "--encoder", help="query: the trained one; momentum: its moving average."),
    model_args: list[str] | None = Option(
        None, "--arg", metavar="KEY=VALUE", help="Argument of the architecture, e.g. img_size=32."
    ),
    labels: str | None = Option(
        None,
        "--labels",
        help="The centers' classes: a file, one a line, or a folder or data spec that has them.",
    ),
    label_order: str | None = Option(
        None,
        "--label-order",
        help="How a folder's classes were numbered: natural (1, 2, 10; timm) or plain (1, 10, 2).",
    ),
    class_counts: str | None = Option(
        None, "--class-counts", help="Training images of each class: a file, one a line, or a data spec."
    ),
    size: int | None = Option(None, "--size", help="Pixels of the input. Default, so below: the authors'."),
    crop_pct: float | None = Option(None, "--crop-pct", help="Part kept by the crop."),
    interpolation: str | None = Option(None, "--interpolation", help="bilinear or bicubic."),
    mean: str | None = Option(None, "--mean", metavar="R,G,B", help="Mean of the pixels."),
    std: str | None = Option(None, "--std", metavar="R,G,B", help="Their deviation."),
    dataset: str | None = Option(None, "--dataset", help="What the encoder was trained on, in words."),
    license: str | None = Option(
        None, "--license", help="Of the weights. Default: of the authors' repository."
    ),
    leave_out: list[str] | None = Option(
        None, "--leave-out", metavar="KEY|PATTERN", help="Leave these keys out, though unknown."
    ),
) -> None:
    """Make a release of a checkpoint that another project's code has written; nothing in it is executed."""
    arguments = key_values(model_args or [], "--arg")
    channels = {"mean": _channels(mean, "--mean"), "std": _channels(std, "--std")}
    check_early(out=out)
    import zoo

    release = zoo.convert(
        file,
        family,
        out,
        arch=arch,
        name=name,
        encoder=encoder,  # type: ignore[arg-type]  # checked there
        model_args=arguments,
        labels=labels,
        label_order=label_order,  # type: ignore[arg-type]
        class_counts=class_counts,
        size=size,
        crop_pct=crop_pct,
        interpolation=interpolation,  # type: ignore[arg-type]
        **channels,
        dataset=dataset,
        license=license,
        leave_out=leave_out or (),
    )
    print_conversion(release, stated=license is None, found=arch is None)


def _channels(text: str | None, option: str) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(f'{option}: found "{text}", expected three numbers, e.g. 0.5,0.5,0.5') from None
