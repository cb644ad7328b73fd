"""What a recipe is called once something else is trained by it than its name says."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from zoo import catalog
from zoo.data import DataConfig
from zoo.data.cifar import as_archive
from zoo.data.config import Source
from zoo.data.memory import Root
from zoo.data.sources import data_name
from zoo.errors import RecipeError
from zoo.objectives.classify import ClassifyConfig
from zoo.objectives.moco import MoCoConfig
from zoo.release.schema import MAX_NAME
from zoo.training import Recipe
from zoo.training.changes import is_same
from zoo.training.teachers import teachers_of

_DIGITS = 6  # of a hash, where a long name is cut
_CHANGED = "_changed"
_SHORT = {"cross_entropy": "ce"}
_LENGTH = r"(?:_e\d+|_short)?"  # of the training, at the end of a tag
_DECISIVE = {"hub": ("repo", "config", "label"), "parquet": ("label",), "memory": ("name",)}
"""What of a source's settings tells data apart; files may move, and a folder is named by `--data`."""


def data_tag(config: DataConfig, root: Root, room: int) -> str:
    """Name the training data as part of a recipe's name, of at most `room` characters.

    Of a folder's long name as much is taken as fits, and of its hash, for another folder's may begin alike.
    """
    end = _drawn(config)
    name = data_name(config.source, root)
    start, room = _as_tag(name), max(0, room - len(end))
    if len(start) > room:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
        start = f"{start[: max(0, room - _DIGITS - 1)]}_{digest}"[:room].strip("_")
    return f"{start}{end}".strip("_") or "data"


def renamed(recipe: Recipe, before: Recipe, overrides: Sequence[str], root: Root) -> Recipe:
    """Return a recipe under a name that is true of it, where overrides changed what its name tells.

    That is the data (another source, long tail or subset), the kind of objective (of a classifier its loss),
    and whether features are transformed. The part of the name's tag that tells it is replaced; where none can
    be told apart, where the method, a contrast's loss, the candidate labels or the teachers are others, or
    where the name would be that of another shipped recipe, `_changed` is appended. A name that is overridden
    stays.

    Args:
        recipe: with the overrides.
        before: without them.
        overrides: `a.b=c`.
        root: the folder of the data, the command line's `--data`.
    """
    other_data, other_objective = _data(recipe) != _data(before), _objective(recipe) != _objective(before)
    other_rest = _rest(recipe) != _rest(before)
    named = any(each.partition("=")[0].strip() == "name" for each in overrides)
    if named or not (other_data or other_objective or other_rest):
        return recipe
    arch, _, tag = before.name.partition(".")
    told: str | None = tag
    if other_objective:
        told = _with_objective(tag, before, recipe)
    if told and other_data:
        told = _with_data(told, before, recipe, MAX_NAME - len(arch) - 1, root)
    name = f"{arch}.{told}"
    if not told or told == tag or other_rest or _is_another(recipe, name):
        end = _CHANGED if tag else f".{_CHANGED[1:]}"
        name = (name if told else before.name)[: MAX_NAME - len(end)] + end
    return recipe.model_copy(update={"name": name})


def _data(recipe: Recipe) -> tuple[Any, ...]:
    """Return what tells training data apart, wherever and in whichever form they lie."""
    return *_source(recipe.data.source), recipe.data.long_tail, recipe.data.subset


def _source(source: Source) -> tuple[Any, ...]:
    source = as_archive(source)
    return source.kind, *(getattr(source, key) for key in _DECISIVE.get(source.kind, ()))


def _objective(recipe: Recipe) -> tuple[str, bool]:
    """Return what recipes' names call the objective, and whether features are transformed."""
    kind = recipe.objective.name
    if isinstance(recipe.objective, ClassifyConfig):
        kind = _SHORT.get(loss := recipe.objective.loss_name, loss)
    return kind, getattr(recipe.objective, "feature_transform", None) is not None


def _rest(recipe: Recipe) -> tuple[Any, ...]:
    """Return what else a name may tell, though not by a part that can be found in it."""
    loss = recipe.objective.loss.name if isinstance(recipe.objective, MoCoConfig) else "info_nce"
    method = None if recipe.method is None else recipe.method.name
    return loss, method, recipe.data.partial_labels, teachers_of(recipe)


def _objective_part(recipe: Recipe) -> str:
    """Return the pattern of the part of a tag that tells the objective: `moco_v2_ft`."""
    kind, transformed = _objective(recipe)
    return f"{kind}{r'(?:_v[12])?' if kind == 'moco' else ''}{'_ft' if transformed else ''}"


def _data_part(recipe: Recipe) -> str:
    """Return the pattern of the part of a tag that tells the data: `cifar100_lt100`, or `cifar100` alone."""
    return f"{re.escape(as_archive(recipe.data.source).kind)}(?:{_drawn(recipe.data)})?"


def _with_objective(tag: str, before: Recipe, now: Recipe) -> str | None:
    """Return the tag with another objective in it; None where the tag may tell more of the one before."""
    part, (kind, transformed) = _objective_part(before), _objective(now)
    if kind != _objective(before)[0]:
        if not re.fullmatch(f"{part}_{_data_part(before)}{_LENGTH}", tag):
            return None
        return _replaced(tag, part, kind + ("_ft" if transformed else ""))
    found = re.match(f"{part}(?![A-Za-z0-9])", tag)
    if found is None:
        return None
    return (f"{found[0]}_ft" if transformed else found[0].removesuffix("_ft")) + tag[found.end() :]


def _with_data(tag: str, before: Recipe, now: Recipe, room: int, root: Root) -> str | None:
    part = _data_part(before)
    left = _replaced(tag, part, "")
    return None if left is None else _replaced(tag, part, data_tag(now.data, root, room - len(left)))


def _replaced(tag: str, part: str, instead: str) -> str | None:
    """Return a tag with the one place of a part in it replaced; None where there is none, or several."""
    made, count = re.subn(f"(?<![A-Za-z0-9]){part}(?![A-Za-z0-9])", instead, tag)
    return made if count == 1 else None


def _is_another(recipe: Recipe, name: str) -> bool:
    """Whether the name is that of a shipped recipe that trains something else."""
    if name not in catalog.list_recipes():
        return False
    try:
        shipped = Recipe.load(name).model_dump(mode="json")
    except RecipeError:
        return True
    return not is_same(shipped, recipe.model_copy(update={"name": name}))


def _drawn(config: DataConfig) -> str:
    """Return what names say of the images that are drawn: `_lt100`, `_4shot`."""
    tail, few = config.long_tail, config.subset
    tags = [f"lt{tail.imbalance:g}"] if tail else []
    if few:
        tags.append(f"{few.per_class}shot" if few.per_class else f"{100 * (few.fraction or 0):g}pct")
    return "".join(f"_{_as_tag(tag)}" for tag in tags)


def _as_tag(text: str) -> str:
    """Return what of a text a recipe can be named with."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
