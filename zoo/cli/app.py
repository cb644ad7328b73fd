"""The application that commands join, what several of them take, and what is checked before torch loads."""

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

READER_GONE = 141
"""The exit status of a program that writes to a pipe nobody reads: 128 and the number of SIGPIPE."""

COMMANDS = (
    *("demo", "list", "show", "pretrain", "finetune", "evaluate", "embed", "predict", "diagnose"),
    *("sweep", "compare", "table", "reproduce", "push", "pull", "convert", "snapshot"),
)
"""In the order in which a user meets them."""

DISTRIBUTED = ("pretrain", "finetune", "compare", "reproduce", "sweep")

NAME = typer.Argument(help="Weights name, folder, org/repo, or timm:ARCH.TAG for timm's own weights.")
DATA = Option(
    None,
    "--data",
    help="Images: a folder (CLASS/IMAGE, or train/CLASS/IMAGE and val/CLASS/IMAGE, or parquet files), a "
    'parquet file, or a spec such as "cifar100:DIR". Default: the own ones of recipe or release.',
    show_default=False,
)  # text and no Path, which would take the "./" off a folder that is named like a spec
DEVICE = Option("auto", "--device", help="auto, cpu or cuda.")
TRAINED_ON = Option(None, "--device", help="auto, cpu or cuda. Default: the recipe's.", show_default=False)
INIT = Option(None, "--init", help="Release to start from: name, folder, org/repo or timm:ARCH.TAG.")
OUT = Option(None, "--out", help="Release folder to make. Default: runs/NAME.")
RESUME = Option(False, "--resume", help="Go on from the last checkpoint, if there is one.")
SET = Option(None, "--set", metavar="A.B=C", help="Change a value of the recipe; may be given several times.")
WORKERS = Option(None, "--workers", min=0, help="Processes that decode images. Default: the recipe's.")


def who() -> str:
    """Return who speaks on standard error: with torchrun, which rank."""
    try:
        return f"zoo, rank {rank()}" if launched() > 1 else "zoo"
    except ZooError:  # of the launcher's variables, which is what is to be said
        return "zoo"


def say(text: str) -> None:
    """Write one line on standard error, in one call: ranks that share it then never share a line."""
    sys.stderr.write(f"{who()}: {text}\n")


class _Commands(TyperGroup):
    """Ends a command that was stopped from outside, before typer does, which says nothing of it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # trainings, which save first, raise `Interrupted` instead
            say("interrupted")
            raise SystemExit(130) from None
        except BrokenPipeError:
            raise SystemExit(READER_GONE) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Pretrained contrastive encoders you can load, reproduce, publish and fine-tune.",
)


def _print_versions(asked: bool) -> None:
    if asked:
        libraries = (f"{name} {version(name)}" for name in ("torch", "timm"))  # importing them takes seconds
        print(
            ", ".join([f"contrastive-zoo {__version__}", *libraries, f"Python {platform.python_version()}"])
        )
        raise typer.Exit


@app.callback()
def prepare(
    context: typer.Context,
    versions: bool = Option(
        False, "--version", is_eager=True, callback=_print_versions, help="Print versions and exit."
    ),
) -> None:
    """Refuse to do the same thing in several processes at once."""
    if launched() > 1 and context.invoked_subcommand not in DISTRIBUTED:
        raise ZooError(
            f"zoo {context.invoked_subcommand}: started as {launched()} processes, expected one; torchrun is "
            f"for {', '.join(DISTRIBUTED)}"
        )


def check_early(
    *names: str, recipe: str | None = None, data: str | None = None, out: Path | None = None
) -> None:
    """Refuse what can be seen to be wrong before torch is imported, which takes seconds.

    Args:
        names: of releases.
        recipe: a name or file.
        data: a folder, file or spec.
        out: a folder to make.

    Raises:
        ZooError: for a name, folder or spec that is nothing, or a folder that is a file.
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
        raise ZooError(f'--out: found the file "{out}", expected a folder to make')
    if names:
        from zoo.hub import resolve

        for name in names:
            resolve(name)


def check_file(file: Path, *endings: str) -> None:
    """Make sure that a file to write ends in one of `endings` and can be written."""
    if file.suffix.lower() not in endings:
        hint = did_you_mean(file.suffix, endings)
        raise ZooError(f'--out: found "{file}", expected a file that ends in {", ".join(endings)}.{hint}')
    check_writable(file)


def changes(overrides: list[str] | None, device: str | None) -> list[str]:
    """Return the overrides of a recipe, the device that was asked for among them."""
    return [*(overrides or []), *([] if device is None else [f"training.device={device}"])]


def key_values(pairs: list[str], option: str = "--set") -> dict[str, Any]:
    """Read `KEY=VALUE` texts of an option; values are YAML."""
    settings = dict[str, Any]()
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise RecipeError(f'{option} "{pair}": expected KEY=VALUE, e.g. k=200')
        if key in settings:
            raise RecipeError(f'{option}: "{key}" is given twice, expected one value of it')
        settings[key] = load_yaml(text, f'{option} "{pair}"')
    return settings


def listed(option: str, text: str) -> list[Any]:
    """Read the values of an option, with or without the brackets of a list; they are YAML."""
    values = load_yaml(text if text.lstrip().startswith("[") else f"[{text}]", f'{option} "{text}"')
    if not isinstance(values, list):
        raise RecipeError(f'{option} "{text}": expected values separated by commas, e.g. 0,1,2')
    return values
