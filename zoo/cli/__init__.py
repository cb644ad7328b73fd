"""The command line: parse, call, print. Each command imports what it needs, so that light ones stay light."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from zoo.cli import experiments as experiments  # imported for the commands that they add
from zoo.cli import measuring as measuring
from zoo.cli import releases as releases
from zoo.cli import training as training
from zoo.cli.app import COMMANDS, READER_GONE, app, say
from zoo.errors import ZooError, ZooWarning, one_line
from zoo.launch import launched, rank

__all__ = ["app", "main"]

# they joined in the order of the imports above
app.registered_commands.sort(
    key=lambda each: COMMANDS.index(each.name or getattr(each.callback, "__name__", ""))
)


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error."""
    for stream in (sys.stdout, sys.stderr):  # names of classes and files may hold what cp1252 or ASCII cannot
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if not sys.stderr.isatty():  # plain lines in place of the bars of huggingface_hub
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        if launched() > 1:  # torch tells each rank of a setting of ours, zoo.training.parallel, that is meant
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        with warnings.catch_warnings(), _log_lines():
            warnings.showwarning = _show_warning
            app()
    except ZooError as error:
        say(str(error))
        sys.exit(error.exit_code)
    except OSError as error:  # of a folder or disk, which the system's own words name
        place = f'"{error.filename}": ' if error.filename else ""
        say(f"{place}{error.strerror or error}")
        sys.exit(1)
    finally:
        _write_what_is_left()


def _write_what_is_left() -> None:
    """Flush, while that can still fail in silence: who reads what is printed may be gone, as `head` is."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # closed before the start
                stream.flush()
        except BrokenPipeError:
            with Path(os.devnull).open("wb") as nowhere:  # Python flushes once more, and would complain
                os.dup2(nowhere.fileno(), stream.fileno())
            sys.exit(READER_GONE)
        except OSError:  # a full disk, say: that Python may complain of
            pass


@contextmanager
def _log_lines() -> Iterator[None]:
    """Off a terminal print what zoo logs as plain lines; what other libraries log they print themselves."""
    log = logging.getLogger("zoo")
    before = log.handlers, log.propagate, log.level
    if not sys.stderr.isatty():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO if rank() == 0 else logging.WARNING)
    try:
        yield
    finally:
        log.handlers, log.propagate = before[:2]
        log.setLevel(before[2])


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as one line; those of other libraries say of which category they are."""
    del filename, lineno, file, line  # of whom reads the code
    text = one_line(" ".join(str(message).split()))
    shown = text if issubclass(category, ZooWarning) else f"{category.__name__}: {text}"
    say(f"warning: {shown}")
