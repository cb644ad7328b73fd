"""Trackers beside a run: each in a thread of its own, so that none can stop a training, or slow it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from zoo.errors import TrainingError, ZooWarning, first_line
from zoo.launch import rank
from zoo.recipe import Recipe
from zoo.training.records import objects
from zoo.training.trackers import TRACKERS, About, Tracker, wandb_lacks

NOTES = "trackers.jsonl"
"""In the run's folder."""

PATIENCE = 30.0
"""Seconds that the end of a run waits for trackers to finish."""

_ID = 8  # hexadecimal digits

_Call = Callable[[Tracker], None]


def require_trackers(recipe: Recipe) -> None:
    """Make sure that the packages of the recipe's trackers are there, and that none will ask for a key.

    Raises:
        TrainingError: naming the extra, or how to log in.
    """
    for name in recipe.training.trackers:
        if importlib.util.find_spec(name) is None:
            raise _absent(name, "it is not installed")
    # only the first process has trackers: others' nodes need no key
    if "wandb" in recipe.training.trackers and rank() == 0 and (lack := wandb_lacks()) is not None:
        raise TrainingError(
            f'training.trackers: "wandb" cannot begin a run: {lack.rstrip(".")}. Expected "wandb login" '
            "beforehand (or WANDB_API_KEY), WANDB_MODE=offline in the environment, or training.trackers "
            "without it; metrics.jsonl is written in any case"
        )


def _absent(name: str, why: str) -> TrainingError:
    return TrainingError(
        f'training.trackers: "{name}" needs the package {name}: {why}. Expected '
        f"pip install {name}, or training.trackers without it; metrics.jsonl is written "
        "in any case"
    )


class Tracking:
    """The trackers of one run.

    What they were told stands in `run/trackers.jsonl`: the id by which a resumed run is found again, and the
    last step of each. A step that a tracker has is not sent again when the run falls back to an earlier
    checkpoint, except to one that can take rows back; one that is new, or was killed, gets the earlier rows.

    Args:
        recipe: names the trackers.
        folder: of the run; exists.
        step: the run goes on after it.
        rows: the rows of metrics.jsonl up to there.

    Raises:
        TrainingError: where a tracker's package cannot be imported.
    """

    def __init__(self, recipe: Recipe, folder: Path, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._last = step
        self._workers: list[_Worker] = []
        names = dict.fromkeys(recipe.training.trackers)
        if not names:
            return
        for name in names:
            _import(name)
        notes = Notes(folder / NOTES)
        for name in names:
            known = notes.of(name)
            if "id" not in known:
                notes.add(name, {"id": uuid.uuid4().hex[:_ID]})
                known = notes.of(name)
            about = About(
                recipe.name, known["id"], folder, recipe.model_dump(mode="json"), recipe.to_yaml(), step
            )
            self._workers.append(_Worker(name, about, known, notes, rows))

    def log(self, row: Mapping[str, float | int | None]) -> None:
        """Send a row of metrics.jsonl."""
        self._last = int(row["step"] or 0)
        for worker in self._workers:
            worker.log(self._last, row)

    def drop_after(self, step: int) -> None:
        """Rows after `step` are dropped, and will come again."""
        self._last = min(self._last, step)
        for worker in self._workers:
            worker.drop_after(step)

    def flush(self) -> None:
        """Have written what was sent: the state after it is being saved."""
        for worker in self._workers:
            worker.put(lambda tracker: tracker.flush())

    def results(self, values: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        """Send what was measured and drawn at the end, once."""
        for worker in self._workers:
            worker.results(self._last, values, pictures)

    def close(self) -> None:
        """End for now. Waits for the trackers, but not for long; says which have failed."""
        until = time.monotonic() + PATIENCE
        for worker in self._workers:
            worker.put(None)
        for worker in self._workers:
            worker.end(max(0.0, until - time.monotonic()))


class _Worker:
    """One tracker and its thread."""

    def __init__(
        self,
        name: str,
        about: About,
        known: Mapping[str, Any],
        notes: Notes,
        rows: Iterable[Mapping[str, Any]],
    ) -> None:
        self._name, self._about, self._notes = name, about, notes
        self._kind = TRACKERS[name]
        self._has = int(known.get("step", 0))  # up to here nothing is sent again
        self._sent = self._has
        self._told: int | None = None
        self._finished = bool(known.get("results", False))
        if self._kind.can_drop:
            self._has = min(self._has, about.step)
        self._failure: str | None = None
        self._warned = False
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()
        for row in rows:  # which it lacks: it is new, or was killed before it had written them
            self.log(row["step"], row)

    def log(self, step: int, row: Mapping[str, float | int | None]) -> None:
        values = {
            name: value
            for name, value in row.items()
            if name != "step" and isinstance(value, int | float) and math.isfinite(value)
        }
        if step > self._has and values:
            self._sent = max(self._sent, step)
            self.put(lambda tracker: self._log(tracker, step, values))

    def _log(self, tracker: Tracker, step: int, values: Mapping[str, float]) -> None:
        # noted first: a process that is killed in between has a row too few there, and none twice
        self._notes.add(self._name, {"step": step - 1 if tracker.keeps_late else step})
        self._told = step
        tracker.log(step, values)

    def drop_after(self, step: int) -> None:
        if self._kind.can_drop:
            self._has = min(self._has, step)
            self.put(lambda tracker: tracker.drop_after(step))
        else:
            self._has = self._sent

    def results(self, step: int, values: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        if not self._finished:
            self._finished = True
            self.put(lambda tracker: self._results(tracker, step, values, pictures))

    def _results(
        self, tracker: Tracker, step: int, values: Mapping[str, float], pictures: Mapping[str, Path]
    ) -> None:
        self._notes.add(self._name, {"results": True})
        tracker.results(step, values, pictures)

    def put(self, call: _Call | None) -> None:
        """Have the thread do it, after what it was given before; None ends it."""
        self._warn()
        if self._failure is None or call is None:
            self._calls.put(call)

    def end(self, seconds: float) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._failure = self._failure or f"has not finished after {PATIENCE:g} s"
        self._warn()

    def _warn(self) -> None:
        """Say once, in the thread of the training, that the tracker has failed."""
        if self._failure is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"training.trackers: {self._name} has failed and gets nothing more: {self._failure}. The "
                "training goes on; metrics.jsonl has every row",
                ZooWarning,
                stacklevel=2,
            )

    def _work(self) -> None:
        try:
            tracker: Tracker = self._kind(self._about)
            while (call := self._calls.get()) is not None:
                call(tracker)
            tracker.close()
            if self._told is not None:
                self._notes.add(self._name, {"step": self._told})
        except BaseException as error:  # whatever a library of others does, SystemExit included
            self._failure = first_line(error)[:300]


class Notes:
    """`trackers.jsonl`: lines of facts about each tracker, of which the last counts; odd ones do not.

    Raises:
        TrainingError: for what is no file, or cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._facts: dict[str, dict[str, Any]] = {}
        for fact in objects(self._file, warn=False):
            if isinstance(name := fact.pop("tracker", None), str):
                self._facts.setdefault(name, {}).update(_valid(fact))

    def of(self, name: str) -> dict[str, Any]:
        """Return what is known of a tracker: `id`, `step` and `results`, as far as there."""
        return dict(self._facts.get(name, {}))

    def add(self, name: str, fact: Mapping[str, Any]) -> None:
        """Append a fact, whichever thread it is that calls."""
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"tracker": name, **fact}) + "\n")
        self._facts.setdefault(name, {}).update(fact)


def _valid(fact: Mapping[str, Any]) -> dict[str, Any]:
    """Return those facts that are of their type; the file lies in the open."""
    id, step, results = fact.get("id"), fact.get("step"), fact.get("results")
    valid: dict[str, Any] = {}
    if isinstance(id, str) and len(id) == _ID and not set(id) - set("0123456789abcdef"):
        valid["id"] = id
    if type(step) is int and 0 <= step < 1 << 53:
        valid["step"] = step
    if isinstance(results, bool):
        valid["results"] = results
    return valid


def _import(name: str) -> None:
    """Import a tracker's package in the thread of the training, before it begins."""
    module = {"tensorboard": "torch.utils.tensorboard"}.get(name, name)
    try:
        importlib.import_module(module)
    except Exception as error:  # a package that does not fit others raises anything
        raise _absent(name, f"it cannot be imported: {first_line(error)}") from None


def scalars_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the numbers of a release's evaluations as `evaluation/PROTOCOL/METRIC`; further ones of a
    protocol are `PROTOCOL_2` and so on.
    """
    values: dict[str, float] = {}
    seen: dict[str, int] = {}
    for entry in entries:
        protocol = str(entry["protocol"])
        seen[protocol] = seen.get(protocol, 0) + 1
        label = protocol if seen[protocol] == 1 else f"{protocol}_{seen[protocol]}"
        for name, value in entry["metrics"].items():
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                values[f"evaluation/{label}/{name}"] = value
    return values
