"""What a person is told of a sweep before its first training, and after each: how much, how long, where."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from zoo import catalog
from zoo.api.sweeps.grid import Run
from zoo.evaluation.results.table import duration
from zoo.files import is_file
from zoo.training.disk import readable

_NAMED = 3  # recipes


def beginning(runs: Sequence[Run], sweep: str | Path | None, out: Path, done: int) -> list[str]:
    """Say how many runs there are and where they go, and how long the files say that they take.

    Args:
        runs: all of them.
        sweep: its name or file; None where recipes were given.
        out: folder of the sweep.
        done: how many are finished.
    """
    points, seeds = len({run.point for run in runs}), list(dict.fromkeys(run.seed for run in runs))
    finished = f", {done} of them finished" if done else ""
    named = f"{points} point{'s' if points > 1 else ''} x seed{'s' if len(seeds) > 1 else ''} "
    texts = [f'{len(runs)} runs ({named}{", ".join(map(str, seeds))}) into "{out}"{finished}']
    if sweep is not None:
        path = Path(sweep) if is_file(sweep) else catalog.sweep_path(str(sweep))
        takes = catalog.recipe_header(catalog.recipe_text(path)).get("Takes")
        texts += [f"as {path.name} is, without --set, it takes: {takes}"] if takes else []
    else:
        names = dict.fromkeys(run.recipe.name for run in runs)
        for name in [name for name in names if name in catalog.list_recipes()][:_NAMED]:
            takes = catalog.recipe_header(catalog.recipe_text(catalog.recipe_path(name))).get("Takes")
            texts += [f"a run of {name} as it is, without --set, takes: {takes}"] if takes else []
    return texts


class Pace:
    """How fast the runs of a sweep go in this process, by those that it has finished."""

    def __init__(self, out: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the folder of the sweep."""
        self._out, self._clock = out, clock
        self._began = 0.0
        self._seconds: list[float] = []
        self._bytes: list[int] = []

    def start(self) -> None:
        """Note that a run begins."""
        self._began = self._clock()

    def done(self, run: Run, finished: int, left: int) -> list[str]:
        """Say what is to be expected after a run that was finished here.

        Args:
            run: the one.
            finished: runs, by all processes.
            left: runs that are not.
        """
        self._seconds.append(self._clock() - self._began)
        self._bytes.append(_size(run.folder))
        if not left:
            return []
        each, size = (sum(of) / len(of) for of in (self._seconds, self._bytes))
        texts = [
            f"{finished} finished, {left} left: at {duration(each)} a run, the mean of "
            f"{len(self._seconds)} here, {duration(left * each)} by one process"
        ]
        try:
            free = shutil.disk_usage(self._out).free
        except OSError:
            return texts
        if left * size > free:
            texts.append(
                f'"{self._out}" gets full: a run takes {readable(round(size))}, the {left} that are left '
                f"{readable(round(left * size))}, and {readable(free)} are free; make room while it trains"
            )
        return texts


def _size(folder: Path) -> int:
    """Return the bytes of all files below a folder; one that goes meanwhile has none."""
    total = 0
    for path in folder.rglob("*"):
        try:
            found = path.lstat()
        except OSError:
            continue
        total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total
