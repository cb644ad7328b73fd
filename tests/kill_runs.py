"""Runs killed with SIGKILL at random moments, some on a full disk: every one must end in the same bits.

    python -m tests.kill_runs --count 100 --seed 0

Each run is a child of a warm parent, killed up to three times and started again with the same arguments and
`resume=True` until it is done: one in five is a whole `zoo.pretrain`, the others train only. Its weights
(every tensor of the last checkpoint), its rows of metrics and its released weights are compared with those of
a run that was left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import matplotlib.figure  # noqa: F401  # so that no child has to
import sklearn.datasets  # noqa: F401
import torch

import zoo
import zoo.api.pretraining  # and all it needs
from zoo.data import open_dataset
from zoo.errors import ZooError
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective, train

RECIPES = (
    "cifar_resnet20.moco_v2_ft_digits_lt50",  # a queue with its pointer, a teacher, drawn coefficients
    "cifar_resnet20.paco_digits_lt50",  # and labels, centers
    "cifar_resnet20.pico_digits_q05",  # prototypes, confidences
)
SHORT = (
    "training.epochs=2",
    "schedule.warmup_epochs=1",
    "training.batch_size=64",
    "training.log_every=1",
    "training.checkpoint_every=1",
    "training.checkpoint_minutes=0.002",  # every 0.12 s: many moments at which one is being written
    "training.threads=1",
    "training.device=cpu",
    "evaluation=[{protocol: knn, k: 5, tau: 0.07}]",
)
DONE, REFUSED, CRASHED = 0, 1, 3


def is_whole(number: int) -> bool:
    """Whether a run goes on to its release."""
    return number % 5 == 0


def recipe(number: int) -> Recipe:
    """Return the recipe of run `number`."""
    name = RECIPES[number % len(RECIPES)]
    starts = {"moco": "objective.feature_transform.start_epoch=1", "pico": "objective.prototype_start=1"}
    more = [value for key, value in starts.items() if f".{key}" in name]
    return Recipe.load(name, [*SHORT, *more])


def start(number: int, out: Path, log: Path, limit: int | None = None, *, whole: bool) -> int:
    """Fork a child that trains into `out`; with `limit`, it can write no file of more bytes.

    Args:
        number: of the run.
        out: where it goes.
        log: what it says.
        limit: bytes.
        whole: go on to the release.
    """
    pid = os.fork()
    if pid:
        return pid
    code = CRASHED
    try:
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        torch.set_num_threads(1)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        if whole:
            zoo.pretrain(recipe(number), out=out, resume=True)
        else:
            r = recipe(number)
            data = open_dataset(r.data, "train", None)
            train(build_objective(r, data), data, r, RunFolder(out / "run"), resume=True)
        code = DONE
    except ZooError as error:
        print("ZooError:", error, flush=True)
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finish(pid: int) -> int:
    """Wait for a child; return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def result(out: Path) -> dict[str, str]:
    """Return hashes of what a finished run leaves: all state, all rows, the released weights."""
    run = RunFolder(out / "run")
    digest = hashlib.sha256()
    _hash(run.load(), digest)
    clocks = {"images_per_second"}
    rows = [{key: value for key, value in row.items() if key not in clocks} for row in run.rows()]
    weights = out / "model.safetensors"
    return {
        "state": digest.hexdigest(),
        "rows": hashlib.sha256(json.dumps(rows).encode()).hexdigest(),
        "release": hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else "",
    }


def _hash(value: object, digest: hashlib._Hash) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, dict):
        for key, each in value.items():
            digest.update(str(key).encode())
            _hash(each, digest)
    elif hasattr(value, "_asdict"):
        _hash(
            {key: each for key, each in value._asdict().items() if key not in ("seconds", "written")}, digest
        )
    elif isinstance(value, (list, tuple)):
        for each in value:
            _hash(each, digest)
    else:
        digest.update(repr(value).encode())


def writing(out: Path) -> bool:
    """Whether a checkpoint is half written."""
    folder = out / "run" / "checkpoints"
    names = {file.name for file in folder.glob("*")} | {file.name for file in folder.glob(".*")}
    return any(n.startswith(".") or (n.endswith(".json") and f"{n[:-5]}.pt" not in names) for n in names)


def releasing(out: Path) -> bool:
    """Whether the release is about to be written."""
    return (out / "run" / "features.png").exists()


def place(out: Path, total: int) -> str:
    """Say where a run was killed, by what it has left."""
    run = out / "run"
    if (out / "config.json").exists():
        return "when all was done"
    if writing(out):
        return "in checkpoint writing"
    names = sorted(file.name for file in (run / "checkpoints").glob("step-*.pt"))
    if not names:
        return "before the first checkpoint"
    if names[-1] != f"step-{total:09d}.pt":
        return "in a step"
    if (run / "features.png").exists():
        return "in release writing"
    return "after the last checkpoint (measuring, drawing)"


def kill_when(condition: Callable[[Path], bool], out: Path, pid: int, delay: float) -> int | None:
    """Kill the child `delay` seconds after the condition is met; return its code if it ends before."""
    while not condition(out):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0002)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    code = finish(pid)
    return None if code == -signal.SIGKILL else code


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[], None] | None]:
    """Mount a file system of `size` bytes; yield what makes it larger, or None where that is not allowed."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=256m", str(folder)], check=True) and None
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Campaign:
    """Counts what was done to how many runs, and what became of them."""

    def __init__(self, seed: int, work: Path) -> None:
        self.random = random.Random(seed)
        self.work = work
        self.counts: Counter[str] = Counter()
        self.where: Counter[str] = Counter()
        self.failures: list[str] = []
        self.references: dict[tuple[int, bool], tuple[dict[str, str], float, int, int]] = {}

    def reference(self, number: int) -> tuple[dict[str, str], float, int, int]:
        """Return hashes, seconds, bytes of a checkpoint and steps of the recipe's undisturbed run."""
        key = number % len(RECIPES), is_whole(number)
        if key not in self.references:
            name = f"reference-{number}"
            out, log = self.work / name, self.work / f"{name}.log"
            began = time.monotonic()
            if finish(start(number, out, log, whole=key[1])) != DONE:
                raise SystemExit(f"the undisturbed run failed:\n{log.read_text()}")
            took = time.monotonic() - began
            newest = RunFolder(out / "run").checkpoints()[0]
            self.references[key] = result(out), took, newest.stat().st_size, int(newest.stem[5:])
        return self.references[key]

    def run(self, number: int) -> None:
        """Disturb one run up to three times, let it finish, and compare."""
        expected, seconds, size, total = self.reference(number)
        log = self.work / f"run-{number}.log"
        kind = self.random.choice(("files", "disk", "", "", ""))
        room = int(self.random.uniform(0.02, 3.2) * size)
        self.counts["tried"] += 1
        with contextlib.ExitStack() as stack:
            grow = (
                stack.enter_context(small_disk(self.work / f"disk-{number}", room))
                if kind == "disk"
                else None
            )
            out = self.work / f"disk-{number}" / "out"
            if kind:
                self.counts["with the disk limited"] += 1
                limit = None if grow else int(self.random.uniform(0, 1.1) * size)
                self._disturb(number, out, log, seconds, total, limit, kill=self.random.random() < 0.3)
                if grow:
                    grow()
            for _ in range(self.random.randint(0 if kind else 1, 3)):
                if not self._disturb(number, out, log, seconds, total, None, kill=True):
                    break
            code = finish(start(number, out, log, whole=is_whole(number)))
            if code != DONE:
                self._fail(number, f"ended with {code}", log)
                return
            found = result(out)
            names = ["state", "rows", *(["release"] if is_whole(number) else [])]
            different = [name for name in names if found[name] != expected[name]]
            if different:
                self._fail(number, f"differs in {', '.join(different)}", log)
            else:
                self.counts[f"identical in {', '.join(names)}"] += 1
        shutil.rmtree(out.parent, ignore_errors=True)

    def _disturb(
        self, number: int, out: Path, log: Path, seconds: float, total: int, limit: int | None, *, kill: bool
    ) -> bool:
        """Start the run and kill it, or let a full disk end it; return False if it came to its end."""
        pid = start(number, out, log, limit, whole=is_whole(number))
        if not kill:
            code: int | None = finish(pid)
        else:
            ways = ("start", "time", "time", "checkpoint", *(["release"] if is_whole(number) else []))
            how, delay = self.random.choice(ways), self.random.random()
            if how == "time":
                code = kill_when(lambda _: True, out, pid, delay * seconds)
            elif how == "start":
                code = kill_when(lambda _: True, out, pid, 0.2 * delay * seconds)
            elif how == "checkpoint":
                seen = [0, self.random.randint(1, 60)]  # polls in which one is half written

                def half(out: Path) -> bool:
                    seen[0] += writing(out)
                    return seen[0] >= seen[1]

                code = kill_when(half, out, pid, 0)
            else:
                code = kill_when(releasing, out, pid, 0.3 * delay)
        if code is None:
            self.counts["kills"] += 1
            self.where[place(out, total)] += 1
            return True
        if code == REFUSED:
            self.counts["ended by a full disk with one clear line"] += 1
            return True
        if code != DONE:
            self._fail(number, f"crashed with {code}", log)
        return False

    def _fail(self, number: int, what: str, log: Path) -> None:
        self.failures.append(
            f"run {number} ({RECIPES[number % len(RECIPES)]}) {what}\n{log.read_text()[-2000:]}"
        )

    def report(self) -> str:
        """Return the counts, one a line."""
        lines = [f"{name}: {count}" for name, count in self.counts.items()]
        lines += [f"  killed {name}: {count}" for name, count in sorted(self.where.items())]
        return "\n".join([*lines, f"failed: {len(self.failures)}", *self.failures])


def main() -> None:
    """Run the campaign; the exit status is 1 if any run is not identical."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-runs-") as work:
        campaign = Campaign(arguments.seed, Path(work))
        for number in range(arguments.count):
            campaign.run(number)
            if sys.stderr.isatty():
                print(f"\r{number + 1}/{arguments.count}", end="", file=sys.stderr)
        print(campaign.report())
        sys.exit(bool(campaign.failures))


if __name__ == "__main__":
    main()
