"""The command line: parse, call, print."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from zoo import catalog
from zoo.config import load_yaml
from zoo.errors import RecipeError, ZooError, did_you_mean

if TYPE_CHECKING:
    from zoo.release import Release

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
def list_(pattern: Annotated[str, typer.Argument(help="Shell pattern for names.")] = "*") -> None:
    """List weights and recipes: what each trains on what, the published figure, and what was run here.

    A text without wildcards finds every name that contains it. Behind a target, [V] says that it was read in
    the authors' repository, [M] that it is quoted from memory; "zoo show NAME" has the details.
    """
    wild = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    models, recipes = catalog.list_models(wild), catalog.list_recipes(wild)
    if not models and not recipes:
        raise RecipeError(f'nothing matches "{pattern}"; "zoo list" shows all names')
    rows = [("NAME", "OBJECTIVE", "DATA", "TARGET", "RUN HERE", "WEIGHTS")]
    for name in sorted({*models, *recipes}):
        facts = _summary(name) if name in recipes else ("",) * 4
        rows.append((name, *facts, "shipped" if name in models else ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:  # plain lines, one a name: for people, grep and cut alike
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _summary(name: str) -> tuple[str, str, str, str]:
    """Objective, data, target and what was run, read without the schema: listing imports no torch."""
    path = catalog.recipe_path(name)
    text = path.read_text(encoding="utf-8")
    recipe, header = load_yaml(text, path.name), catalog.recipe_header(text)
    target, _, source = header.get("Target", "").partition(";")
    # read in the authors' repository, or from memory; a text without a figure may speak of others' figures
    mark = None if target == "none" else re.search(r"\[[VM]\]", source)
    here = re.split("[:;]", header.get("Here", ""))[0]
    data = header.get("Data") or _data(recipe["data"])
    return _objective(recipe["objective"]), data, f"{target} {mark[0]}" if mark else target, here


def _objective(section: Mapping[str, Any]) -> str:
    kind, loss = str(section["name"]), section.get("loss")
    if isinstance(loss, str):  # classify is named by its loss
        kind = loss
    elif loss is not None and loss["name"] != "info_nce":
        kind += f" {loss['name']}"
    return kind + (" + FT" if section.get("feature_transform") else "")


def _data(section: Mapping[str, Any]) -> str:
    source = section["source"]
    kind = str(source["kind"])
    parts = [f"{kind} {source['label']}" if kind == "parquet" else kind]
    if section["long_tail"]:
        parts.append(f"long tail {section['long_tail']['imbalance']:g}")
    partial = section.get("partial_labels")
    if partial:
        parts.append(f"{partial['kind']} candidates {partial.get('rate', '')}".rstrip())
    return ", ".join(parts)


@app.command()
def show(name: Annotated[str, typer.Argument(help="Weights name, folder, org/repo, or recipe.")]) -> None:
    """Show a release's facts and figures, or a recipe as it stands."""
    shown = False
    is_repository = "/" in name and not _is_recipe(name) and not name.endswith((".yaml", ".yml"))
    if Path(name or "-").is_dir() or name in catalog.list_models() or is_repository:
        from zoo import release

        _show_release(release.open(name))
        shown = True
    if not shown or _is_recipe(name):
        path = catalog.recipe_path(name)
        print(f"# {path}\n{path.read_text(encoding='utf-8')}", end="")


def _is_recipe(name: str) -> bool:
    return Path(name).is_file() or name in catalog.list_recipes()


def _show_release(release: Release) -> None:
    console = Console()
    zoo = release.config["zoo"]
    print(f"{release.name}  {release.path}")
    console.print(
        f"{release.config['architecture']}, objective {zoo['objective']}, {len(release.class_names)} classes"
    )
    if release.centers is not None:
        classes, features = release.centers.weight.shape
        console.print(f"centers: {classes} classes x {features} features")
    training = release.metrics.get("training", {})
    if training:
        console.print(
            f"trained {training['epochs']} epochs in {training['seconds']:,.0f} s on {training['hardware']}, "
            f"seed {training['seed']}"
        )
    _print_evaluations(console, release.metrics.get("evaluations", []))


def _print_evaluations(console: Console, entries: list[dict[str, Any]]) -> None:
    from zoo.evaluation.report import table

    for data in dict.fromkeys(entry["data"] for entry in entries):
        rows = {_label(entry): entry["metrics"] for entry in entries if entry["data"] == data}
        console.print(table(rows, title=f"{data}: top-1 accuracy in percent, test split", first="protocol"))


def _label(entry: Mapping[str, Any]) -> str:
    neighbours = f" k={entry['settings']['k']}" if "k" in entry["settings"] else ""
    return f"{entry['protocol']}{neighbours}"


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
    _print_release(api.pretrain(parsed, out=out or Path("runs") / parsed.name, data=data, resume=resume))


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
    _print_release(api.finetune(parsed, init=init, head=head, out=folder, data=data, resume=resume))


def _print_release(release: Release) -> None:
    _show_release(release)
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
    _print_evaluations(Console(), [entry])
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
    _print_conversion(release)
    print(f'\nload it:  zoo.load("{release.path}")')


def _channels(text: str | None, option: str) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(f'{option}: found "{text}", expected three numbers, e.g. 0.5,0.5,0.5') from None


def _print_conversion(release: Release) -> None:
    source, preprocess = release.recipe["converted"], release.preprocess
    print(f"{release.name}  {release.path}")
    print(f"from {source['file']}, {source['family']}, {source['encoder']} encoder", end="")
    print("" if source["epoch"] is None else f", epoch {source['epoch']}")
    for what, count in source["tensors"].items():
        print(f"  taken     {what}: {count} tensors")
    for what, keys in source["left_out"].items():
        print(f"  left out  {what}: {keys}")
    print(
        f"  input     {preprocess.input_size} pixels, crop {preprocess.crop_pct:g}, "
        f"{preprocess.interpolation}, mean {preprocess.mean}, std {preprocess.std}"
    )
    print(f"  licence   {release.config['pretrained_cfg']['license']}")


if __name__ == "__main__":
    main()
