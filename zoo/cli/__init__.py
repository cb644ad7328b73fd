"""The command line: parse, call, print. Each command imports what it needs, so that light ones start fast."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Any

# imported for the commands that they register
from zoo.cli import experiments as experiments
from zoo.cli import measuring as measuring
from zoo.cli import releases as releases
from zoo.cli import training as training
from zoo.cli.app import BROKEN_PIPE, COMMANDS, app, say
from zoo.errors import ZooError, ZooWarning, one_line
from zoo.launch import launched, rank

__all__ = ["app", "main"]

app.registered_commands.sort(
    key=lambda command: COMMANDS.index(command.name or getattr(command.callback, "__name__", ""))
)


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # class names may hold what cp1252 or ASCII cannot encode
            stream.reconfigure(errors="backslashreplace")
    if not sys.stderr.isatty():  # plain lines instead of progress bars
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        logging.basicConfig(format="%(message)s")
    try:
        if not sys.stderr.isatty():
            logging.getLogger("zoo").setLevel(logging.INFO if rank() == 0 else logging.WARNING)
        if launched() > 1:  # torch warns on every rank of settings that we make on purpose
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app()
    except ZooError as error:
        say(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        place = f'"{error.filename}": ' if error.filename else ""
        say(f"{place}{error.strerror or error}")
        sys.exit(1)
    finally:
        _flush()


def _flush() -> None:
    """Flush while a closed pipe (`zoo list | head -1`) can still be ignored."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            with Path(os.devnull).open("wb") as devnull:
                os.dup2(devnull.fileno(), stream.fileno())
            sys.exit(BROKEN_PIPE)
        except OSError:
            pass  # a full disk: Python reports it at exit


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning as one line, without the line of code; other libraries' with their category."""
    text = one_line(" ".join(str(message).split()))
    say(f"warning: {text}" if issubclass(category, ZooWarning) else f"warning: {category.__name__}: {text}")
