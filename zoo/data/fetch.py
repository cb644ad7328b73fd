"""A data set's archive, fetched once by processes that all begin with it: those of a sweep, of torchrun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from zoo.locks import turn


@contextmanager
def fetching(folder: Path, *, download: bool) -> Iterator[None]:
    """Let one after another look whether all is in `folder`, and fetch it where it is not.

    Without `download` nothing is fetched, and nobody waits. Whoever waited finds what the one before has
    fetched. Where no file can be written there is nothing to wait for: nobody fetches anything into such a
    place, and what lies there is read.
    """
    with ExitStack() as held:
        if download:
            with suppress(OSError):
                held.enter_context(turn(folder.with_name(f".{folder.name}.lock")))
        yield
