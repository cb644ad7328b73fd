"""The typer application, the options that commands share, and checks that run before torch is imported."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from os.path import exists, isfile
from pathlib import Path
from typing import Any

import typer
from typer import Option
from typer.core import TyperGroup

from zoo import hub
from zoo.config import load_yaml
from zoo.errors import ZooError, rank_and_size
from zoo.recipe.overrides import Overrides

DISTRIBUTED = ("pretrain", "finetune", "reproduce")

NAME = typer.Argument(help="Weights: a shipped name, a folder, org/repo, or timm:ARCH.TAG.")
# Of type str, because Path would drop the "./" of a folder that is named like a spec.
DATA = Option(None, "--data", help='Folder, file, or spec ("cifar100:DIR"). Default: those of the recipe.')
DEVICE = Option("auto", "--device", help="auto, cpu or cuda.")
TRAIN_DEVICE = Option(None, "--device", help="auto, cpu or cuda. Default: the recipe's.")
INIT = Option(None, "--init", help="Weights to start from: a name, a folder, org/repo or timm:ARCH.TAG.")
OUT = Option(None, "--out", help="Folder to create. Default: one in runs/, named after the result.")
RESUME = Option(False, "--resume", help="Continue from the last checkpoint, if there is one.")
SET = Option(None, "--set", metavar="A.B=C", help="Change a value of the recipe; can be repeated.")
BAD_IMAGES = Option(0, "--max-bad-images", min=0, help="Leave out up to this many unreadable images.")
WORKERS = Option(None, "--workers", min=0, help="Processes that decode images. Default: the recipe's.")


def say(text: str) -> None:
    """Write one line to standard error in a single call, so that ranks do not interleave."""
    rank = os.environ.get("RANK")  # not parsed, since `text` may be about malformed launcher variables
    sys.stderr.write(f"zoo: {text}\n" if rank is None else f"zoo, rank {rank}: {text}\n")


class _Group(TyperGroup):
    """Turns Ctrl-C and a closed pipe into an exit status; typer would print "Aborted" or nothing."""

    def invoke(self, ctx: Any) -> None:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:  # trainings save first and raise `Interrupted` instead
            say("interrupted")
            raise SystemExit(130) from None
        except BrokenPipeError:  # `zoo list | head -1`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at exit
            raise SystemExit(141) from None  # 128 + SIGPIPE


app = typer.Typer(cls=_Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_versions(requested: bool) -> None:
    if requested:
        print(", ".join(f"{each} {version(each)}" for each in ("contrastive-zoo", "torch", "timm")))
        raise typer.Exit


@app.callback()
def check_launch(
    context: typer.Context,
    versions: bool = Option(False, "--version", is_eager=True, callback=_print_versions, help="Print them."),
) -> None:
    """Pretrained contrastive encoders you can load, reproduce, publish and fine-tune."""
    if (size := rank_and_size()[1]) > 1 and (command := context.invoked_subcommand) not in DISTRIBUTED:
        raise ZooError(f"zoo {command}: torchrun started {size} processes, expected one")


def check_early(
    *names: str,
    recipe: str | None = None,
    changes: Overrides = (),
    data: str | None = None,
    out: Path | None = None,
) -> None:
    """Check names of releases and other arguments before torch is imported, which takes seconds."""
    if recipe is not None:
        from zoo.recipe import Recipe

        Recipe.load(recipe, changes)
    if data is not None:
        from zoo.data.config import parse_data_spec, path_of

        if not data.startswith("hub:") and not exists(str(path_of(data))):
            parse_data_spec(data)
    if out is not None and isfile(out):
        raise ZooError(f'--out: found the file "{out}", expected a folder to create')
    for name in names:
        hub.resolve(name)


def with_device(overrides: list[str] | None, device: str | None) -> list[str]:
    """Return a recipe's overrides, with --device added."""
    return [*(overrides or []), *([] if device is None else [f"training.device={device}"])]


def comma_separated(option: str, text: str) -> list[Any]:
    """Parse an option's comma-separated values, with or without brackets; values are YAML."""
    return [*load_yaml(text if text.lstrip().startswith("[") else f"[{text}]", f'{option} "{text}"')]
