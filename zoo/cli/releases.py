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
    pattern: str = Argument("*", help="Shell pattern, or a part of the names."),
    hub: str | None = Option(
        None, "--hub", metavar="ORG", help="List the releases of ORG on the Hub instead."
    ),
    shipped: bool = Option(False, "--shipped", help="Only weights that zoo.load has without a network."),
) -> None:
    """List weights with accuracy and size, recipes with the published figure, and sweeps.

    Accuracies are in percent, by the classifier where no other protocol is named. Published figures were read
    in the authors' repository [V], or are quoted from memory [M].
    """
    if hub is not None:
        _list_hub(hub, pattern)
        return
    models, recipes, sweeps = (
        names(pattern) for names in (catalog.list_models, catalog.list_recipes, catalog.list_sweeps)
    )
    if shipped:
        recipes, sweeps = [name for name in recipes if name in models], []
    if not (models or recipes or sweeps):
        option = " --shipped" if shipped else ""
        raise RecipeError(f'nothing matches "{pattern}"; "zoo list{option}" shows all names')
    print_names(models, recipes, sweeps)


def _list_hub(org: str, pattern: str) -> None:
    from zoo.hub import list_hub

    shell = catalog.wildcards(pattern)
    found = [each for each in list_hub(org) if fnmatchcase(each.repo_id.partition("/")[2], shell)]
    if not found:
        raise ReleaseError(
            f'nothing of "{org}" on the Hub matches "{pattern}" and has the tag contrastive-zoo'
        )
    rows = [("NAME", "OBJECTIVE", "ACCURACY", "DATA", "UPDATED", "")]
    for each in found:
        updated = f"{each.updated:%Y-%m-%d}" if each.updated else ""
        visibility = "private" if each.private else ""
        rows.append((each.repo_id, each.objective, each.accuracy, each.data, updated, visibility))
    print_columns(rows)


@app.command()
def show(
    name: str = Argument(
        help="Weights, a recipe, a sweep, or a key of recipes (training, paco, lr; keys: all sections)."
    ),
    full: bool = Option(False, "--full", help="Also a release's centers, and every value of its recipe."),
) -> None:
    """Show a release's figures and the lines that load it; a recipe or sweep; or what a key means."""
    if name in catalog.list_sweeps() and not is_file(name):
        _print_file(catalog.sweep_path(name))
        return
    try:
        reference = _release_of(name)
    except ReleaseError as error:
        if not _explain_key(name, error):
            raise
        return
    if reference is not None:
        from zoo.config import dump_yaml
        from zoo.hub.fetch import folder_of
        from zoo.release import Release

        release = Release.at(folder_of(reference, weights=False))
        print(f'"{name}" is read as the {reference}')
        print_release(release)
        print_loading(release, name)
        if full:
            print_centers(release)
            print(f"\n{dump_yaml(release.recipe)}", end="")
        else:
            print(f"\nevery value of its recipe, its class centers:  zoo show {name} --full")
        return
    path = catalog.recipe_path(name)
    if full:
        from zoo.recipe import Recipe

        print(f"# {path}\n{Recipe.load(path).to_yaml()}", end="")
    else:
        _print_file(path)


def _print_file(path: Path) -> None:
    print(f"# {path}\n{catalog.recipe_text(path)}", end="")


def _release_of(name: str) -> ModelRef | None:
    """Resolve `name` as a release; None where it is a recipe's, and a release only on the Hub if anywhere."""
    from zoo.hub import resolve

    if is_file(name):
        return None
    is_recipe = name in catalog.list_recipes() or name.endswith((".yaml", ".yml"))
    try:
        reference = resolve(name)
    except ReleaseError:
        if is_recipe:
            return None
        raise
    return None if is_recipe and reference.kind == "hub" else reference


def _explain_key(name: str, error: ReleaseError) -> bool:
    """Print what a key or section of recipes means; return False where there is none of that name.

    Raises:
        ReleaseError: with the nearest recipe, sweep or key, where there is one.
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
        print_key(key)
    return True


@app.command()
def push(
    release: str = Argument(help="Release folder, or the name of a release."),
    repo_id: str = Argument(help="Repository on the Hub, ORG/NAME; created if it does not exist."),
    private: bool = Option(False, "--private", help="Create the repository private."),
    revision: str | None = Option(None, "--revision", help="Branch. Default: main."),
    start: list[str] | None = Option(
        None,
        "--start",
        metavar="ORG/NAME",
        help="Where a local start or teacher is published; can be repeated.",
    ),
    license: str | None = Option(None, "--license", metavar="ID", help="Set the weights' licence first."),
    base: str | None = Option(None, "--base", metavar="REV", help="The revision that yours is based on."),
    images: bool = Option(False, "--images", help="Also publish hashes of training images of your own."),
    dry_run: bool = Option(False, "--dry-run", help="Check it, and print what would be sent."),
) -> None:
    """Publish a release on the Hub, after checking it; pushing it again changes nothing.

    What others changed there since it was last pulled or pushed is merged, or the push is refused.
    """
    from zoo.hub import open as open_release
    from zoo.hub.push import prepare, with_start
    from zoo.hub.push import push as publish

    if dry_run:
        if start or license is not None:
            raise ReleaseError("--dry-run: expected without --start and --license, which change the release")
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
    out: Path | None = Option(None, "--out", help="Folder to copy it to. Default: the Hub's cache."),
    revision: str | None = Option(None, "--revision", help="Branch, tag or commit."),
) -> None:
    """Download a release whole and check its hashes."""
    check_early(out=out)
    import zoo

    release = zoo.pull(name, out=out, revision=revision)
    print(f'{release.name}  {release.path}\n\nload it:  zoo.load("{release.path}")')


@app.command()
def convert(
    file: Path = Argument(help="Checkpoint (torch.save or .safetensors), or a published one's name."),
    family: str | None = Option(
        None,
        "--family",
        help="Whose layout: moco (v1, v2), moco-v3, paco, gpaco, ft, pico, lightly, solo-learn or timm.",
    ),
    arch: str | None = Option(None, "--arch", help="Its name in timm. Default: what the file says."),
    out: Path | None = OUT,
    name: str | None = Option(None, "--name", help="Name of the weights, ARCH.TAG."),
    encoder: str = Option("query", "--encoder", help="query: the trained one; momentum: its moving average."),
    model_args: list[str] | None = Option(
        None, "--arg", metavar="KEY=VALUE", help="Argument of the architecture, e.g. img_size=32."
    ),
    labels: str | None = Option(
        None, "--labels", help="Class names: a file with one a line, or a folder or data spec."
    ),
    label_order: str | None = Option(
        None, "--label-order", help="Of a folder's classes: natural (1, 2, 10; timm) or plain (1, 10, 2)."
    ),
    class_counts: str | None = Option(
        None, "--class-counts", help="Training images of each class: a file with one a line, or a data spec."
    ),
    size: int | None = Option(None, "--size", help="Pixels of the input. Default, as below: the authors'."),
    crop_pct: float | None = Option(None, "--crop-pct", help="Part kept by the crop."),
    interpolation: str | None = Option(None, "--interpolation", help="bilinear or bicubic."),
    mean: str | None = Option(None, "--mean", metavar="R,G,B", help="Mean of the pixels."),
    std: str | None = Option(None, "--std", metavar="R,G,B", help="Their standard deviation."),
    dataset: str | None = Option(None, "--dataset", help="What the encoder was trained on, in words."),
    license: str | None = Option(None, "--license", help="Of the weights. Default: the repository's."),
    leave_out: list[str] | None = Option(
        None, "--leave-out", metavar="KEY|PATTERN", help="Leave out these unknown keys."
    ),
) -> None:
    """Make a release of another project's checkpoint; no code in it is run."""
    arguments = key_values(model_args, "--arg")
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
    print_conversion(release)


def _channels(text: str | None, option: str) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(f'{option}: found "{text}", expected three numbers, e.g. 0.5,0.5,0.5') from None
