"""The application that commands join, and what several of them take."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from zoo import __version__
from zoo.config import load_yaml
from zoo.errors import RecipeError, ZooError
from zoo.launch import launched, rank

READER_GONE = 141
"""The exit status of a program that writes to a pipe nobody reads: 128 and the number of SIGPIPE."""


def who() -> str:
    """Return who speaks on standard error: with torchrun, which rank."""
    try:
        return f"zoo, rank {rank()}" if launched() > 1 else "zoo"
    except ZooError:  # of the launcher's variables, which is what is to be said
        return "zoo"


class _Commands(TyperGroup):
    """Ends a command that was stopped from outside, before typer does, which says nothing of it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # trainings, which save first, raise `Interrupted` instead
            print(f"{who()}: interrupted", file=sys.stderr)
            raise SystemExit(130) from None
        except BrokenPipeError:
            raise SystemExit(READER_GONE) from None


COMMANDS = (
    *("demo", "list", "show", "keys", "pretrain", "snapshot", "evaluate", "embed", "finetune"),
    *("compare", "sweep", "diagnose", "centers", "predict", "table", "reproduce", "push", "pull", "convert"),
)
"""In the order in which a user meets them."""


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Pretrained contrastive encoders you can load, reproduce, publish and fine-tune.",
)

DISTRIBUTED = ("pretrain", "finetune", "compare", "reproduce", "sweep")


def _print_versions(asked: bool) -> None:
    if asked:
        libraries = (f"{name} {version(name)}" for name in ("torch", "timm"))  # importing them takes seconds
        print(
            ", ".join([f"contrastive-zoo {__version__}", *libraries, f"Python {platform.python_version()}"])
        )
        raise typer.Exit


Versions = Annotated[
    bool,
    typer.Option("--version", is_eager=True, callback=_print_versions, help="Print versions and exit."),
]


@app.callback()
def prepare(context: typer.Context, versions: Versions = False) -> None:
    """Refuse to do the same thing in several processes at once."""
    if launched() > 1 and context.invoked_subcommand not in DISTRIBUTED:
        raise ZooError(
            f"zoo {context.invoked_subcommand}: started as {launched()} processes, expected one; torchrun is "
            f"for {', '.join(DISTRIBUTED)}"
        )


Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=C", help="Change one value of the recipe; may be given several times."
    ),
]
DATA_HELP = (
    "Images: a folder (CLASS/IMAGE, or train/CLASS/IMAGE and val/CLASS/IMAGE, or parquet files), a parquet "
    'file, or a spec such as "cifar100:DIR". Default: the own ones of recipe or release.'
)
# no Path, which would take the "./" off a folder that is named like a spec
Data = Annotated[str | None, typer.Option("--data", help=DATA_HELP, show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", help="Release folder to make. Default: runs/NAME.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")]


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
    return list_of(f'{option} "{text}"', text if text.lstrip().startswith("[") else f"[{text}]")


def list_of(where: str, text: str) -> list[Any]:
    """Read a list in YAML; an error begins with `where`."""
    values = load_yaml(text, where)
    if not isinstance(values, list):
        raise RecipeError(f"{where}: expected values separated by commas, e.g. 0,1,2")
    return values
