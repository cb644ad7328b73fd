"""The command line: parse, call, print. Commands import what they need, so that light ones start fast."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from zoo.cli import experiments, releases, show, training
from zoo.cli.app import app, say
from zoo.errors import ZooError, ZooWarning, first_line, missing_extra, one_line, rank_and_size

for _command in (  # in the order of `zoo --help`
    *(training.demo, show.list_, show.show, training.pretrain, training.finetune, releases.evaluate),
    *(releases.embed, releases.predict, releases.diagnose, experiments.sweep, experiments.compare),
    *(experiments.table, experiments.reproduce, releases.push, releases.pull, releases.convert),
    *(releases.export, training.snapshot),
):
    app.command(_command.__name__.rstrip("_"))(_command)


def main() -> None:
    """Run the command line; a user's error is one line on standard error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as for a daemon
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # class names may not be encodable in cp1252 or ASCII
            stream.reconfigure(errors="backslashreplace")
    # otherwise MKL on AMD processors rounds depending on memory alignment, and runs are not reproducible
    os.environ.setdefault("MKL_CBWR", "AUTO")
    try:
        if not sys.stderr.isatty():  # plain lines instead of progress bars
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
            logging.basicConfig(format="%(message)s")
            logging.getLogger("zoo").setLevel(logging.INFO if rank_and_size()[0] == 0 else logging.WARNING)
        if rank_and_size()[1] > 1:  # torch warns on every rank about settings that we choose on purpose
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app()
    except ModuleNotFoundError as error:
        say(str(missing_extra(error)))
        sys.exit(1)
    except RuntimeError as error:  # which torch raises anywhere; a training says what it kept
        if "DataLoader worker (" not in str(error):
            raise
        say(f"{first_line(error)}; expected more memory, or fewer --workers")
        sys.exit(1)
    except (ZooError, OSError, MemoryError) as error:
        say(str(error) or "out of memory")
        sys.exit(error.exit_code if isinstance(error, ZooError) else 1)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning as one line, without the source line; other libraries' with their category."""
    text = one_line(" ".join(str(message).split()))
    say(f"warning: {text}" if issubclass(category, ZooWarning) else f"warning: {category.__name__}: {text}")
