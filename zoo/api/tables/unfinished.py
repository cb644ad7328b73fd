"""Which trainings are planned or begun and finished nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from zoo.api.sweep_folder import Planned
from zoo.evaluation.results.rows import NOT_BEGUN, Key, RunResult, Unfinished

_Images = dict[Key, set[str | None]]
_NAMED = 3  # places


class Open(NamedTuple):
    """Trainings that no row counts since they are not finished.

    Attributes:
        unfinished: each once, by name, seed and place.
        taken: what is said of those that may be finished ones; empty where that is certain of all.
    """

    unfinished: list[Unfinished]
    taken: list[str]


def still_open(
    found: Iterable[Unfinished], planned: Sequence[Planned], finished: Iterable[RunResult]
) -> Open:
    """Leave out of what was planned or begun what is finished, and what is planned of that begun elsewhere.

    Two trainings are the same if recipe, seed and training images are. Of a training that has not recorded
    its images, or of a plan of earlier versions, only recipe and seed are known (in a recipe are source and
    selection of the data, not which images lay in the folder): it is taken for a finished one, and that is
    said.

    Args:
        found: begun ones, and those that files of results name.
        planned: of all folders.
        finished: all runs.
    """
    planned_images = {each.place: each.train_sha256 for each in planned}
    done: _Images = {}
    for run in finished:
        done.setdefault((run.group, run.seed), set()).add(run.train_sha256)
    begun, waiting = list[Unfinished](), list[tuple[Key, Unfinished]]()
    for one in found:
        train = one.train_sha256 or planned_images.get(one.place)
        each = one.model_copy(update={"train_sha256": train})
        if each.state.startswith(NOT_BEGUN):  # when a file of results was written
            waiting.append((each.key, each))
        else:
            begun.append(each)
    waiting += [(each.key, each.as_unfinished) for each in planned if each.as_unfinished is not None]

    left = [each for each in begun if not _same(done, each.key, each.train_sha256)]
    taken = [each for each in begun if _same(done, each.key, each.train_sha256)]
    known: _Images = {key: set(images) for key, images in done.items()}
    for key, images in [
        *((each.key, each.train_sha256) for each in left),
        *((each.key, each.train_sha256) for each in planned if each.as_unfinished is None),
    ]:
        known.setdefault(key, set()).add(images)
    # what failed says more than what was not begun, and a plan that knows its images more than another
    waiting.sort(key=lambda pair: (pair[1].state.startswith(NOT_BEGUN), pair[1].train_sha256 is None))
    open_ = list[Unfinished]()
    for key, each in waiting:
        if not _same(known, key, each.train_sha256):
            open_.append(each)
            known.setdefault(key, set()).add(each.train_sha256)
        elif _same(done, key, each.train_sha256):
            taken.append(each)
    once = {each.place: each for each in [*open_, *left]}
    unsure = {each.place: each for each in taken if each.train_sha256 is None}
    return Open(
        sorted(once.values(), key=lambda each: (each.name, each.seed or 0, each.place)),
        _words(list(unsure.values())),
    )


def _same(known: Mapping[Key, set[str | None]], key: Key, train: str | None) -> bool:
    """Whether a training is one of the known; images that are not recorded may be any."""
    images = known.get(key, set())
    return train in images or (bool(images) and (train is None or None in images))


def _words(unsure: Sequence[Unfinished]) -> list[str]:
    if not unsure:
        return []
    places = ", ".join(f'"{each.place}"' for each in unsure[:_NAMED])
    if len(unsure) == 1:
        (one,) = unsure
        return [
            f"{places}: {one.name}, seed {one.seed}, is not finished and has not recorded its images; it is "
            "taken for the finished training of the same recipe and seed"
        ]
    more = f" and {len(unsure) - _NAMED} more" if len(unsure) > _NAMED else ""
    return [
        f"{places}{more} are not finished and have not recorded their images; they are taken for the "
        "finished trainings of the same recipes and seeds"
    ]
