"""`zoo.finetune`: train from a release, on any data, with a recipe or with one made for the release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo import hub
from zoo.api.pretraining import as_recipe, pretrain
from zoo.config import dump_yaml, parse
from zoo.data import DataConfig
from zoo.data.any_data import Data, resolve
from zoo.data.memory import Root
from zoo.errors import DataError, RecipeError
from zoo.evaluation.evaluate import resolve_data
from zoo.files import RUNS
from zoo.recipe import Recipe, templates
from zoo.recipe.naming import words_and_name
from zoo.recipe.overrides import Overrides, as_overrides, changes_in_words
from zoo.release import Release


def finetune(
    recipe: Recipe | str | Path | None = None,
    *,
    init: str | Path | Release,
    out: str | Path | None = None,
    head: str | None = None,
    data: Data = None,
    resume: bool = False,
    overrides: Overrides = (),
) -> Release:
    """Train from a release instead of random weights; otherwise `pretrain`.

    Args:
        recipe: usually of the objective `classify`; None: one made for the release, see `plan_finetuning`.
        init: the release to start from: a weights name, `org/repo[@rev]`, a folder, a `Release`, or
            `timm:ARCH.TAG`.
        out: the release folder to make; None: `runs/NAME_finetuned`, NAME that of the recipe.
        head: "fresh" or "centers" (made of the release's learned centers); the recipe's own when None.
        data: see `pretrain`; needed without a recipe.
        resume: see `pretrain`.
        overrides: see `pretrain`; applied to the recipe with its data in place.

    Raises:
        ZooError: as `pretrain`, and for a release or data that cannot be found.
    """
    own = any(each.strip().startswith("data.") for each in as_overrides(overrides))
    if recipe is None and data is None and not own:  # else hours on the release's own would be a surprise
        raise DataError("finetune: found no recipe and no data, expected one of them, e.g. --data DIR")
    plan = plan_finetuning(recipe, init=init, head=head, data=data, overrides=overrides)
    return pretrain(plan.recipe, out=out or plan.out, data=plan.data, resume=resume)


class Finetuning(NamedTuple):
    """What a fine-tuning will be.

    Attributes:
        recipe: with every value written out.
        data: the place of its data, where one is needed.
        out: where its release goes by default.
    """

    recipe: Recipe
    data: Root
    out: Path


def plan_finetuning(
    recipe: Recipe | str | Path | None,
    *,
    init: str | Path | Release,
    head: str | None = None,
    data: Data = None,
    overrides: Overrides = (),
) -> Finetuning:
    """Return the recipe of a fine-tuning without running it; the arguments are those of `finetune`.

    Without a recipe it is cross-entropy with a new head on the release's architecture, evaluation view, mean
    and std. Up to 64 pixels images are scaled to the size, padded, cropped and mirrored (digits are not),
    above they are cropped, resized and mirrored. Architectures with BatchNorm get SGD, others AdamW with
    layer-wise decay; both a cosine over 600 steps of 64 images, but no fewer than 5 epochs nor more than
    50, or over as many epochs as an override asks for. A tenth of them warm up.

    Raises:
        ZooError: for a recipe, release or data that cannot be found or do not fit.
    """
    overrides = as_overrides(overrides)
    init = hub.portable(init)
    start = templates.find_start(init, opened=recipe is None)
    if recipe is None:
        config, root, _ = resolve_data(data, start.release)
        config = templates.overridden_data(config, overrides)
        plain = templates.finetuning(start, config, root, overrides)
    else:
        given = as_recipe(recipe, overrides)
        plain = given.model_dump(mode="json")
        config, root, is_own = resolve(data, given.data)
        changed = _changes(recipe, plain, overrides)
        ours = given.init
        if ours is None or ours.release not in (start.spelling, str(init)) or head not in (None, ours.head):
            plain["description"] = f"The recipe {given.name}, started from {start.told}{changed}."
        if not is_own:
            _put_data(plain, config, root, f"{start.told}{changed}")
    plain["init"] = (plain.get("init") or {}) | {"release": start.spelling}
    final = Recipe.from_yaml(dump_yaml(plain), str(plain["name"]), overrides).model_dump(mode="json")
    # which no override replaces
    final["init"] |= {"release": start.spelling, **({"head": head} if head else {})}
    planned = parse(Recipe, final, str(final["name"]))
    suffix = "" if "finetuned" in planned.name else "_finetuned"
    return Finetuning(planned, root, RUNS / f"{planned.name}{suffix}")


def _changes(recipe: Recipe | str | Path, plain: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """Return what overrides change of a recipe, as the end of a sentence on it."""
    try:
        before = as_recipe(recipe, ()).model_dump(mode="json")
    except RecipeError:  # whole only with its overrides: there is nothing to compare with
        return ""
    words = changes_in_words(before, plain, overrides)
    return f", with {words}" if words else ""


def _put_data(plain: dict[str, Any], config: DataConfig, root: Root, told: str) -> None:
    """Let a recipe learn from other data, and say so in its name and description."""
    new = {"holdout": None} | config.model_dump(
        mode="json", include={"source", "holdout", "long_tail", "subset"}
    )
    if all(plain["data"].get(key) == value for key, value in new.items()):
        return
    plain["data"] |= new
    beginning = plain["name"] + ("_" if "." in plain["name"] else ".")
    words, name = words_and_name(config, root, beginning)
    plain["description"] = f"The recipe {plain['name']} on {words}, started from {told}."
    plain["name"] = name
