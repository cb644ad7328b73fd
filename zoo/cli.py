"""The command line: parse, call, print."""

from __future__ import annotations

import logging
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zoo import catalog
from zoo.config import load_yaml
from zoo.errors import RecipeError, ReleaseError, ZooError, did_you_mean
from zoo.show import (
    print_conversion,
    print_evaluations,
    print_hub,
    print_names,
    print_reading,
    print_release,
)

if TYPE_CHECKING:
    from zoo.release import Release
    from zoo.release.names import Reading

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Pretrained contrastive encoders you can load, reproduce, publish and fine-tune.",
)

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=C", help="Change one value of the recipe; may be given several times."
    ),
]
Data = Annotated[Path | None, typer.Option("--data", help="Folder with the data, for sources that need one.")]
Out = Annotated[Path | None, typer.Option("--out", help="Release folder to make. Default: runs/NAME.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")]


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error."""
    if not sys.stderr.isatty():  # plain lines in place of the bars of huggingface_hub
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        logging.basicConfig(format="%(message)s")
        logging.getLogger("zoo").setLevel(logging.INFO)
    try:
        app()
    except ZooError as error:
        print(f"zoo: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("zoo: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the releases and pictures.")] = Path(
        "zoo-demo"
    ),
    seed: Annotated[int, typer.Option("--seed", help="Seed of every training.")] = 0,
) -> None:
    """Pretrain MoCo + FT and PaCo on long-tailed digits, release, load back, and compare with baselines."""
    from zoo.demo import run

    run(out, seed)


@app.command("list")
def list_(
    pattern: Annotated[str, typer.Argument(help="Shell pattern for names.")] = "*",
    hub: Annotated[
        str | None,
        typer.Option("--hub", metavar="ORG", help="List the releases of a user or organisation on the Hub."),
    ] = None,
) -> None:
    """List weights and recipes: what each trains on what, the published figure, and what was run here.

    A text without wildcards finds every name that contains it. Behind a target, [V] says that it was read in
    the authors' repository, [M] that it is quoted from memory; "zoo show NAME" has the details.
    """
    wild = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    if hub is not None:
        from zoo.release import list_hub

        found = [release for release in list_hub(hub) if fnmatchcase(release.repo_id, wild)]
        if not found:
            raise ReleaseError(
                f'nothing of "{hub}" on the Hub matches "{pattern}" and carries the tag contrastive-zoo'
            )
        print_hub(found)
        return
    models, recipes = catalog.list_models(wild), catalog.list_recipes(wild)
    if not models and not recipes:
        raise RecipeError(f'nothing matches "{pattern}"; "zoo list" shows all names')
    print_names(models, recipes)


@app.command()
def show(name: Annotated[str, typer.Argument(help="Weights name, folder, org/repo, or recipe.")]) -> None:
    """Show a release's facts and figures and how its name was read, or a recipe as it stands."""
    reading = _release_of(name)
    if reading is not None:
        from zoo.release import Release, source

        print_reading(name, reading)
        print_release(Release.at(source.folder_of(reading)))
    if reading is None or _is_recipe(name):
        path = catalog.recipe_path(name)
        print(f"# {path}\n{path.read_text(encoding='utf-8')}", end="")


def _release_of(name: str) -> Reading | None:
    """Read `name` as a release, unless it is a recipe's and nothing else is known without the network."""
    from zoo.release import names

    is_recipe = _is_recipe(name) or name.endswith((".yaml", ".yml"))
    try:
        reading = names.resolve(name)
    except ReleaseError:
        if is_recipe:
            return None
        if not catalog.list_models(name) and "/" not in name and ":" not in name:
            catalog.recipe_path(name)  # names the nearest recipe
        raise
    return None if is_recipe and reading.kind == "hub" and reading.cached is None else reading


def _is_recipe(name: str) -> bool:
    return Path(name).is_file() or name in catalog.list_recipes()


@app.command()
def pretrain(
    recipe: Annotated[str, typer.Argument(help="Recipe: a shipped name or a file.")],
    data: Data = None,
    out: Out = None,
    overrides: Set = None,
    resume: Resume = False,
) -> None:
    """Train as a recipe says, measure the result, and write its release folder."""
    from zoo import api
    from zoo.training import Recipe

    parsed = Recipe.load(recipe, overrides or [])
    _announce(api.pretrain(parsed, out=out or Path("runs") / parsed.name, data=data, resume=resume))


@app.command()
def finetune(
    recipe: Annotated[str, typer.Argument(help="Recipe, usually of the objective classify.")],
    init: Annotated[str, typer.Option("--init", help="Release to start from: name, folder or org/repo.")],
    head: Annotated[str | None, typer.Option("--head", help="fresh, or centers: the learned ones.")] = None,
    data: Data = None,
    out: Out = None,
    overrides: Set = None,
    resume: Resume = False,
) -> None:
    """Train from a release instead of random weights."""
    from zoo import api
    from zoo.training import Recipe

    parsed = Recipe.load(recipe, overrides or [])
    folder = out or Path("runs") / f"{parsed.name}_finetuned"
    _announce(api.finetune(parsed, init=init, head=head, out=folder, data=data, resume=resume))


def _announce(release: Release) -> None:
    print_release(release)
    print(f'\nload it:  zoo.load("{release.path}")')


@app.command()
def evaluate(
    protocol: Annotated[str, typer.Argument(help="linear, knn or classifier.")],
    release: Annotated[str, typer.Argument(help="Weights name, folder or org/repo.")],
    data: Annotated[
        str | None,
        typer.Option("--data", help='Folder with the release\'s own data, or a spec such as "cifar100:DIR".'),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the protocol, e.g. k=200."),
    ] = None,
    save: Annotated[bool, typer.Option(help="Record the result in metrics.json and card.")] = True,
) -> None:
    """Measure an encoder: linear probe, nearest neighbours, or the classifier of its centers."""
    from zoo import api

    chosen = _settings(settings or [])
    schema = api.PROTOCOLS.get(protocol)
    for key in chosen:
        names = sorted({*schema.model_fields} - {"protocol"}) if schema else []
        if schema and key not in names:
            raise RecipeError(
                f'--set: unknown setting "{key}" of {protocol}.{did_you_mean(key, names)} '
                f"It has: {', '.join(names) or 'none'}"
            )
    entry = api.evaluate(release, protocol, data, save=save, **chosen)
    print_evaluations([entry])
    facts = {**entry["settings"], **{f"chosen {name}": value for name, value in entry["chosen"].items()}}
    print(f"{entry['test_set']['num_images']} test images; {facts}")


def _settings(pairs: list[str], option: str = "--set") -> dict[str, Any]:
    settings = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise RecipeError(f'{option} "{pair}": expected KEY=VALUE, e.g. k=200')
        settings[key] = load_yaml(text, f'{option} "{pair}"')
    return settings


@app.command()
def push(
    release: Annotated[str, typer.Argument(help="Release folder, or the name of a release.")],
    repo_id: Annotated[
        str, typer.Argument(help="Repository on the Hub, ORG/NAME; created if there is none.")
    ],
    private: Annotated[bool, typer.Option("--private", help="Create the repository private.")] = False,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch. Default: main.")] = None,
) -> None:
    """Publish a release on the Hub, after checking it; the same push again changes nothing."""
    from zoo.release.push import publish

    published = publish(release, repo_id, private=private, revision=revision)
    if published.changed:
        print(f"pushed {', '.join(published.changed)}")
    else:
        print("nothing to push: the repository holds this release")
    print(f'{published.url}\n\nload it:  zoo.load("{published.repo_id}@{published.version}")')


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="Release: org/repo[@revision], or another name.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of your own for it. Default: the Hub's cache.")
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit.")] = None,
) -> None:
    """Fetch a release whole and check its hashes."""
    from zoo.release.pull import pull

    release = pull(name, out=out, revision=revision)
    print(f'{release.name}  {release.path}\n\nload it:  zoo.load("{release.path}")')


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(help="Checkpoint of torch.save, or .safetensors.")],
    family: Annotated[
        str,
        typer.Option(
            "--family",
            help="Whose layout: moco (v1, v2), moco-v3, paco, gpaco, ft, pico, lightly or solo-learn.",
        ),
    ],
    arch: Annotated[str, typer.Option("--arch", help="The encoder's name in timm, e.g. resnet50.")],
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
            "--labels", help="The centers' classes: a file, one a line, or a data spec that has them."
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
    mean: Annotated[str | None, typer.Option("--mean", metavar="R,G,B", help="Mean of the pixels.")] = None,
    std: Annotated[str | None, typer.Option("--std", metavar="R,G,B", help="Their deviation.")] = None,
    dataset: Annotated[
        str, typer.Option("--dataset", help="What the encoder was trained on, in words.")
    ] = "not recorded",
    license: Annotated[
        str | None, typer.Option("--license", help="Of the weights. Default: of the authors' repository.")
    ] = None,
    description: Annotated[str | None, typer.Option("--description", help="The card's paragraph.")] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option("--leave-out", metavar="KEY|PREFIX.*", help="Leave these keys out, though unknown."),
    ] = None,
) -> None:
    """Make a release of a checkpoint that another project's code has written; nothing in it is executed."""
    from zoo import api

    release = api.convert(
        file,
        family,
        out,
        arch=arch,
        name=name,
        encoder=encoder,  # type: ignore[arg-type]  # checked there
        model_args=_settings(model_args or [], "--arg"),
        labels=labels,
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
    print_conversion(release)
    print(f'\nload it:  zoo.load("{release.path}")')


def _channels(text: str | None, option: str) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(f'{option}: found "{text}", expected three numbers, e.g. 0.5,0.5,0.5') from None


if __name__ == "__main__":
    main()
