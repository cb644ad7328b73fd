"""Errors a user can cause: one line that names the thing, what was found and what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ZooError(Exception):
    """Base of every error that a user's input or environment can cause.

    The command line prints the message alone, without a traceback, and exits with `exit_code`.
    """

    exit_code = 1


class RecipeError(ZooError):
    """A recipe cannot be read, or asks for something impossible."""


class DataError(ZooError):
    """A data set is missing, malformed, or has more unreadable images than the recipe allows."""


class ReleaseError(ZooError):
    """A release is missing, incomplete, or does not match its own record."""


class TrainingError(ZooError):
    """A run cannot start, continue or be saved."""


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


def did_you_mean(found: object, choices: Iterable[str]) -> str:
    """Return `' Did you mean "x"?'` for the nearest of `choices`, or `''` when nothing is near."""
    near = difflib.get_close_matches(str(found), list(choices), n=1, cutoff=0.6)
    return f' Did you mean "{near[0]}"?' if near else ""
