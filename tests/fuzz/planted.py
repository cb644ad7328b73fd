"""Readers with planted bugs, which have to be found: `python -m tests.fuzz tests.fuzz.planted:hangs`."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.fuzz.case import Case, random_of
from zoo.errors import ZooError


def _case(folder: Path, read: Callable[[], object]) -> Case:
    (folder / "mine.txt").write_text("x")
    return Case({"read": read}, ("mine.txt",))


def traceback(random: Random, folder: Path) -> Case:
    """A key that is not looked for before it is used."""
    return _case(folder, lambda: {}["name"])


def hangs(random: Random, folder: Path) -> Case:
    """A file that never ends."""
    return _case(folder, lambda: time.sleep(1000))


def _odd(random: Random, kind: str) -> bool:
    """Whether a case has an odd number, which it does not know otherwise."""
    return any(random.getstate() == random_of(kind, 0, number).getstate() for number in range(1, 99, 2))


def deaf_at_odd_numbers(random: Random, folder: Path) -> Case:
    """A reader that swallows whatever is raised, and goes on."""

    def read() -> None:
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                continue

    return _case(folder, read if _odd(random, f"{__name__}:deaf_at_odd_numbers") else int)


def dies_at_odd_numbers(random: Random, folder: Path) -> Case:
    """A library that ends the process."""
    return _case(folder, os.abort if _odd(random, f"{__name__}:dies_at_odd_numbers") else int)


def fills(random: Random, folder: Path) -> Case:
    """More memory than there is that a header asks for; the reader takes the refusal for the file's fault."""

    def read() -> None:
        try:
            bytearray(sys.maxsize // 2)
        except MemoryError as error:
            raise ZooError(f"mine.txt cannot be read: {type(error).__name__}") from None

    return _case(folder, read)


def grows(random: Random, folder: Path) -> Case:
    """A reader that keeps what it unpacks, 300 MB."""
    return _case(folder, lambda: len([b"x" * (1 << 20) for _ in range(300)]))


class _Payload:
    def __reduce__(self) -> tuple[object, ...]:
        return eval, ("__import__('os').environ.setdefault('ZOO_FUZZ_CANARY', '1')",)


def runs(random: Random, folder: Path) -> Case:
    """A pickle that is loaded."""
    data = pickle.dumps(_Payload())
    return _case(folder, lambda: pickle.loads(data))


def writes(random: Random, folder: Path) -> Case:
    """An archive whose entries climb out of the folder that they are unpacked to."""
    return _case(folder, lambda: (folder / "../escaped.txt").write_text("x"))


def message(random: Random, folder: Path) -> Case:
    """A refusal that says what Python says."""

    def read() -> None:
        raise ZooError("mine.txt: Traceback (most recent call last): ...")

    return _case(folder, read)


def nameless(random: Random, folder: Path) -> Case:
    """A refusal that does not say which file."""

    def read() -> None:
        raise ZooError("not valid")

    return _case(folder, read)


def fine(random: Random, folder: Path) -> Case:
    """Nothing is wrong: half of the cases are refused as they should be."""

    def read() -> None:
        if random.random() < 0.5:
            raise ZooError("mine.txt: found nothing, expected a number")

    return _case(folder, read)
