"""The typer application, shared options, and checks that run before torch is imported."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import typer
from typer import Option
from typer.core import TyperGroup

from zoo import __version__
from zoo.config import load_yaml
from zoo.errors import DataError, RecipeError, ZooError, did_you_mean
from zoo.files import check_writable, exists, is_file
from zoo.launch import launched, rank

BROKEN_PIPE = 141
"""Exit status when nobody reads standard output any more: 128 + SIGPIPE."""

COMMANDS = (
    *("demo", "list", "show", "pretrain", "finetune", "evaluate", "embed", "predict", "diagnose"),
    *("sweep", "compare", "table", "reproduce", "push", "pull", "convert", "snapshot"),
)
"""In the order of `zoo --help`."""

DISTRIBUTED = ("pretrain", "finetune", "reproduce")

NAME = typer.Argument(help="Weights: a shipped name, a folder, org/repo, or timm:ARCH.TAG.")
DATA = Option(
    None,
    "--data",
    show_default=False,
    help="Images: a folder (CLASS/IMAGE, train/CLASS/IMAGE and val/CLASS/IMAGE, or parquet files), a file, "
    'or a spec such as "cifar100:DIR". Default: those of the recipe or release.',
)  # str, because Path would drop the "./" of a folder that is named like a spec
DEVICE = Option("auto", "--device", help="auto, cpu or cuda.")
TRAIN_DEVICE = Option(None, "--device", help="auto, cpu or cuda. Default: the recipe's.", show_default=False)
INIT = Option(None, "--init", help="Weights to start from: a name, a folder, org/repo or timm:ARCH.TAG.")
OUT = Option(None, "--out", help="Release folder to create. Default: runs/NAME.")
RESUME = Option(False, "--resume", help="Continue from the last checkpoint, if there is one.")
SET = Option(None, "--set", metavar="A.B=C", help="Change a value of the recipe; can be repeated.")
WORKERS = Option(None, "--workers", min=0, help="Processes that decode images. Default: the recipe's.")


def say(text: str) -> None:
    """Write one line to standard error in a single call, so that ranks do not interleave."""
    try:
        who = f"zoo, rank {rank()}" if launched() > 1 else "zoo"
    except ZooError:  # malformed launcher variables, which `text` is about
        who = "zoo"
    sys.stderr.write(f"{who}: {text}\n")


class _Group(TyperGroup):
    """Turns Ctrl-C and a closed pipe into an exit status; typer would print "Aborted" or nothing."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # trainings save first and raise `Interrupted` instead
            say("interrupted")
            raise SystemExit(130) from None
        except BrokenPipeError:
            raise SystemExit(BROKEN_PIPE) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Pretrained contrastive encoders you can load, reproduce, publish and fine-tune.",
)


def _print_versions(requested: bool) -> None:
    if requested:
        libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "timm"))
        print(f"contrastive-zoo {__version__}, {libraries}, Python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def check_launch(
    context: typer.Context,
    versions: bool = Option(
        False, "--version", is_eager=True, callback=_print_versions, help="Print versions and exit."
    ),
) -> None:
    """Refuse to run a command that is not distributed under torchrun."""
    if launched() > 1 and context.invoked_subcommand not in DISTRIBUTED:
        raise ZooError(
            f"zoo {context.invoked_subcommand}: started as {launched()} processes, expected one; torchrun is "
            f"for {', '.join(DISTRIBUTED)}"
        )


def check_early(
    *names: str, recipe: str | None = None, data: str | None = None, out: Path | None = None
) -> None:
    """Check arguments before torch is imported, which takes seconds.

    Args:
        names: of releases.
        recipe: a name or file.
        data: a folder, file or spec.
        out: a folder to create.

    Raises:
        ZooError: if one of them does not exist, or `out` is a file.
    """
    if recipe is not None:
        from zoo import catalog

        catalog.recipe_path(recipe)
    if data is not None and not exists(data):
        if "/" in data.partition(":")[0]:
            raise DataError(f'data: no folder or file "{data}"')
        from zoo.data.config import parse_data_spec

        parse_data_spec(data)
    if out is not None and is_file(out):
        raise ZooError(f'--out: found the file "{out}", expected a folder to create')
    if names:
        from zoo.hub import resolve

        for name in names:
            resolve(name)


def check_file(file: Path, *suffixes: str) -> None:
    """Check that an output file has one of the suffixes and can be written."""
    if file.suffix.lower() not in suffixes:
        hint = did_you_mean(file.suffix, suffixes)
        raise ZooError(f'--out: found "{file}", expected a file that ends in {", ".join(suffixes)}.{hint}')
    check_writable(file)


def with_device(overrides: list[str] | None, device: str | None) -> list[str]:
    """Return a recipe's overrides, with --device among them."""
    return [*(overrides or []), *([] if device is None else [f"training.device={device}"])]


def key_values(pairs: list[str] | None, option: str = "--set") -> dict[str, Any]:
    """Parse the KEY=VALUE arguments of an option; values are YAML."""
    settings = dict[str, Any]()
    for pair in pairs or []:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise RecipeError(f'{option} "{pair}": expected KEY=VALUE, e.g. k=200')
        if key in settings:
            raise RecipeError(f'{option}: "{key}" is given twice, expected one value')
        settings[key] = load_yaml(text, f'{option} "{pair}"')
    return settings


def comma_separated(option: str, text: str) -> list[Any]:
    """Parse the values of an option, with or without brackets around them; values are YAML."""
    values = load_yaml(text if text.lstrip().startswith("[") else f"[{text}]", f'{option} "{text}"')
    if not isinstance(values, list):
        raise RecipeError(f'{option} "{text}": expected values separated by commas, e.g. 0,1,2')
    return values
