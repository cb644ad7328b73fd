"""What a kind of file hands to the judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple


class Case(NamedTuple):
    """Files that were written, and the calls that read them.

    Attributes:
        calls: what a user does with the files, by name. Each is judged by itself: success or a `ZooError`.
        names: words of which a refusal's message holds one, because it names the thing.
        note: what was changed, for people.
    """

    calls: Mapping[str, Callable[[], object]]
    names: tuple[str, ...]
    note: str = ""


Kind = Callable[[Random, Path], Case]
"""Write a case's files below an empty folder; all choices come from the `Random`."""


class WrongResultError(Exception):
    """A call succeeded with something that is not what the files hold."""


def command(*arguments: str) -> None:
    """Run the command line in this process; what it raises comes out."""
    from typer.testing import CliRunner

    from zoo.cli import app

    error = CliRunner().invoke(app, arguments).exception
    if error is not None and not isinstance(error, SystemExit):
        raise error


def random_of(kind: str, seed: int, number: int) -> Random:
    """Return the source of all choices of one case."""
    return Random(f"{kind}/{seed}/{number}")
