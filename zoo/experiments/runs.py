"""Trainings of one comparison or sweep, shared by the processes that were started for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from zoo import locks
from zoo.errors import Interrupted, InUse, TrainingError, ZooError
from zoo.experiments.records import RunRecord, from_release
from zoo.files import is_unused
from zoo.launch import alone, job, launched, local_rank, restarted
from zoo.recipe import Recipe
from zoo.release import Release
from zoo.release.format import holds_release
from zoo.training.progress import say
from zoo.training.signals import interruptible


@dataclass(frozen=True, eq=False)
class Run:
    """One training: of a value or method, its `point`, and a seed; its release goes to `folder`."""

    point: str
    seed: int
    recipe: Recipe
    folder: Path

    @property
    def id(self) -> str:
        """Its name, `POINT/seed_N`."""
        return f"{self.point}/seed_{self.seed}"


def different(seeds: Sequence[int]) -> list[int]:
    """Return seeds, each once."""
    if not isinstance(seeds, list | tuple | range) or not seeds:
        raise ZooError(f"seeds: found {seeds!r}, expected a list, e.g. 0, 1, 2")
    return list(dict.fromkeys(seeds))


def require_unused(out: Path, *, resume: bool) -> None:
    """Refuse a folder that holds something, unless one goes on with it, as the processes of one job do."""
    if not (resume or restarted() or launched() > 1 or job() or is_unused(out)):
        raise TrainingError(f'"{out}" is not an empty folder; go on by --resume, or choose another --out')


def train_all(
    runs: Sequence[Run], train: Callable[[Run], Release]
) -> tuple[dict[Run, RunRecord], dict[str, str]] | None:
    """Train, one after another, what nobody has trained or is training, each alone on one GPU.

    A run's lock is released by the system when its process ends, however that is.

    Args:
        runs: of which finished ones are taken as they are.
        train: returns the release of a run, also of a finished one.

    Returns:
        Records of the runs, and why others failed, by `Run.id`; None while other processes train the rest.

    Raises:
        Interrupted: on a signal.
        ZooError: if no run could be trained, or a finished one is of another recipe or other images.
    """
    take_gpu()
    say(f"{len(runs)} runs, {_finished(runs)} of them finished")
    failed = dict[str, str]()
    stop = interruptible(lambda: f"{_finished(runs)} of {len(runs)} runs are finished")
    with stop, alone():
        for number, run in 2 * list(enumerate(runs, 1)):  # again, for what another process gave up
            if run.id in failed or holds_release(run.folder):
                continue
            lock = FileLock(run.folder.parent / f".seed_{run.seed}.lock")
            try:
                locked = locks.acquire(lock, timeout=0)
            except Timeout:  # another process is training it
                continue
            try:
                if not holds_release(run.folder):
                    say(f"{number} of {len(runs)}: {run.id}")
                    train(run)
            except Interrupted:
                raise
            except InUse:  # by a training that was started by itself, or shares its first stage
                continue
            except ZooError as error:
                failed[run.id] = str(error)
                say(f"{run.id} failed: {error}")
            finally:
                if locked:
                    lock.release()
    if any(run.id not in failed and not holds_release(run.folder) for run in runs):
        return None
    if len(failed) == len(runs):
        raise ZooError(f"none of the {len(runs)} runs could be trained: {next(iter(failed.values()))}")
    records = {run: from_release(train(run)) for run in runs if run.id not in failed}
    images = {(run.point, record.train_sha256) for run, record in records.items()}
    if len(images) > len({run.point for run in records}):
        raise TrainingError(
            "finished runs of one point have different training images; give what they began with, or choose "
            "another --out"
        )
    return records, failed


def take_gpu() -> None:
    """Compute on the GPU with this process's number; where there are fewer, several share one."""
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())


def _finished(runs: Sequence[Run]) -> int:
    return sum(holds_release(run.folder) for run in runs)
