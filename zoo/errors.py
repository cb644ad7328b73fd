"""Errors a user can cause: one line that names the thing, what was found and what was expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from itertools import islice

_MOST_CHOICES = 5_000  # that are compared: a tenth of a second
LONGEST_MESSAGE = 4_000  # characters; what is in the middle of longer ones is left out

# Control characters, line separators, marks that turn the direction of text around, halves of characters.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# How other libraries show what they were given.
_OBJECT = re.compile(r" ?<[\w. ]+ object at 0x[0-9a-fA-F]+>")
_CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")


class ZooError(Exception):
    """Base of every error that a user's input or environment can cause.

    The command line prints the message alone, without a traceback, and exits with `exit_code`.

    Attributes:
        suggests: whether the message says already what was probably meant.
    """

    exit_code = 1

    def __init__(self, message: str = "", *, suggests: bool = False) -> None:
        """Take a message, which may hold words of a file: it becomes one line that no terminal obeys."""
        super().__init__(one_line(message))
        self.suggests = suggests


class ArgumentError(ZooError, ValueError):
    """An argument of an equation in `zoo.functional` is one that it does not hold for."""


class ZooWarning(UserWarning):
    """What zoo itself warns of, so that it can be filtered apart from what other libraries say."""


class RecipeError(ZooError):
    """A recipe cannot be read, or asks for something impossible."""


class DataError(ZooError):
    """A data set is missing, malformed, or has images that cannot be read."""


class ReleaseError(ZooError):
    """A release is missing, incomplete, or does not match its own record."""


class TrainingError(ZooError):
    """A run cannot start, continue or be saved."""


class InUse(TrainingError):
    """Another process holds a run's folder."""


class RanksLost(TrainingError):
    """Another process of a training on several devices is gone; `resume` continues from the last checkpoint.

    The exit status is that of `Interrupted`.
    """

    exit_code = 75


class Interrupted(ZooError):
    """Training stopped on a signal; its state is saved and `resume` continues it.

    The exit status is `EX_TEMPFAIL` of sysexits.h: the same command with `--resume` will succeed.
    """

    exit_code = 75


def one_line(text: str) -> str:
    """Return a text, which may hold words of a file, as one line that no terminal obeys."""
    shown = _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), _cut(text))
    return _cut(_CLASS.sub(r"\1", _OBJECT.sub("", shown)))  # escaped, a text is longer


def is_printable(text: str) -> bool:
    """Whether a text, such as a class's name, can be shown as it is: one line that no terminal obeys."""
    return _UNPRINTABLE.search(text) is None


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:3_000]} [...] {text[-900:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of another library says, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def few(names: Sequence[str]) -> str:
    """Return the first three names, and how many there are where that is more."""
    return ", ".join(names[:3]) + (f" ... ({len(names)})" if len(names) > 3 else "")


def nearest(found: object, choices: Iterable[str]) -> str | None:
    """Return the nearest of `choices`, or None when nothing is near.

    Upper and lower case are the same here. One that begins with `found` comes first, the shortest of several;
    where no whole name is near, the shortest that has `found` as one of its words.
    """
    sought = str(found).casefold()
    names = {str(name).casefold(): str(name) for name in islice(choices, _MOST_CHOICES)}
    long = len(sought) >= 3  # of a letter or two much begins with them
    near = sorted((name for name in names if long and name.startswith(sought)), key=len)
    near = near or difflib.get_close_matches(sought, names, n=1, cutoff=0.6)
    if not near and long:
        whole = re.compile(rf"(?<![a-z0-9]){re.escape(sought)}(?![a-z0-9])")
        near = sorted(filter(whole.search, names), key=len)
    return names[near[0]] if near else None


def did_you_mean(found: object, choices: Iterable[str]) -> str:
    """Return `' Did you mean "x"?'` for the nearest of `choices`, or `''` when nothing is near."""
    near = nearest(found, choices)
    return "" if near is None else f' Did you mean "{near}"?'
