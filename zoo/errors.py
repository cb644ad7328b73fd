"""Errors that a user can cause: one line with the culprit, what was found and what was expected."""

import difflib
import os
import re
from collections.abc import Collection, Iterable
from itertools import islice

# Control characters, line separators, bidirectional control marks, surrogates.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_OBJECT = re.compile(r" ?<[\w. ]+ object at 0x[0-9a-fA-F]+>|<class '(?:\w+\.)*(\w+)'>")  # of other libraries

EXTRAS = dict.fromkeys(("datasets", "matplotlib", "pandas", "pyarrow", "scipy", "sklearn"), "train")
EXTRAS |= dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "onnx")
"""Packages that loading, prediction and the Hub do not need, and the extra that installs each."""


class ZooError(Exception):
    """Base of every error that a user's input or environment can cause.

    The command line prints the message alone, without a traceback, and exits with `exit_code`.
    """

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        """Store the message as one line with control characters escaped: it may quote untrusted files."""
        super().__init__(one_line(message))


class ArgumentError(ZooError, ValueError):
    """An argument of a function in `zoo.functional` is invalid."""


class ZooWarning(UserWarning):
    """Category of zoo's own warnings, so that they can be filtered separately from other libraries'."""


class RecipeError(ZooError):
    """A recipe cannot be read, or asks for something impossible."""


class DataError(ZooError):
    """A data set is missing, malformed, or has images that cannot be read."""


class ReleaseError(ZooError):
    """A release is missing, incomplete, or does not match its own record."""


class TrainingError(ZooError):
    """A run cannot start, continue or be saved."""


class InUse(TrainingError):
    """Another process has locked the run's folder."""


class RanksLost(TrainingError):
    """Another rank of a distributed training is gone; `resume` continues from the last checkpoint."""

    exit_code = 75


class Interrupted(ZooError):
    """Training stopped on a signal; its state is saved and `resume` continues it."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: the same command with `--resume` will succeed


def rank_and_size() -> tuple[int, int]:
    """Return the rank and the world size from torchrun's environment variables; 0 and 1 without them."""
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError as error:
        raise ZooError(f"RANK, WORLD_SIZE: {error}, expected the whole numbers that torchrun sets") from None


def missing_extra(error: ModuleNotFoundError) -> ZooError:
    """Return an error that says which extra to install; re-raise `error` if no extra has the package."""
    package = str(error.name).partition(".")[0]
    if package not in EXTRAS:
        raise error
    return ZooError(f'needs the package {package}: pip install "contrastive-zoo[{EXTRAS[package]}]"')


def one_line(text: str) -> str:
    """Return untrusted text as one line of at most 4,000 characters, with control characters escaped."""
    shown = UNPRINTABLE.sub(
        lambda found: found[0].encode("unicode_escape").decode(), _OBJECT.sub(r"\1", text)
    )
    return shown if len(shown) <= 4_000 else f"{shown[:3_000]} [...] {shown[-900:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def few(names: Collection[object], most: int = 3) -> str:
    """Return the first `most` names, comma-separated, followed by the total count if there are more."""
    return ", ".join(map(str, islice(names, most))) + (f" ... ({len(names)})" if len(names) > most else "")


def did_you_mean(found: object, choices: Iterable[str]) -> str:
    """Return `' Did you mean "x"?'` for the nearest of `choices`, or `''` when nothing is near.

    The nearest is the shortest with a word that starts with `found`, else the closest spelling; ignores case.
    """
    sought = str(found).casefold()
    names = {str(name).casefold(): str(name) for name in islice(choices, 5_000)}
    begins = re.compile(rf"(?<![a-z0-9]){re.escape(sought)}")
    near = sorted((name for name in names if len(sought) >= 3 and begins.search(name)), key=len)
    near = near or difflib.get_close_matches(sought, names, n=1)
    return f' Did you mean "{names[near[0]]}"?' if near else ""
