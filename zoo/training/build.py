"""From a recipe to an objective that can be trained."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import timm
import torch
from torch import nn

from zoo import backbones, hub
from zoo.data import ImageDataset
from zoo.errors import DataError, RecipeError, ReleaseError, TrainingError, did_you_mean, few
from zoo.hub.names import TIMM
from zoo.modules import Centers
from zoo.objectives import OBJECTIVES, Classify, DataInfo, Objective
from zoo.recipe import Recipe
from zoo.release.build import NO_ARGUMENTS
from zoo.release.schema import check_words
from zoo.seeding import derive_seed
from zoo.training.monitor import split_validation
from zoo.training.teachers import open_teachers


def build_objective(recipe: Recipe, dataset: ImageDataset) -> Objective:
    """Build the recipe's backbone, from random weights or a release, and the objective around it.

    What the objective knows of the data is of the part that it learns from, without the validation part.
    Initial weights are a function of the recipe's seed alone, whatever the global generator holds.

    Raises:
        ZooError: for an unknown architecture, one that cannot take the views' size or makes no pooled
            features, arguments that no release can have, a release that does not fit it, or a teacher that
            cannot be asked about the data; a DataError
            where an objective that learns classes finds a single one, or no image of one of them.
    """
    _check_arguments(recipe.backbone.arch, recipe.backbone.args)
    if OBJECTIVES[recipe.objective.name].centers is not Objective.centers:
        _check_classes(recipe.objective.name, dataset)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("weights", recipe.training.seed))
        encoder, centers = _encoder(recipe, dataset)
        for size in {recipe.views.eval.size, *recipe.views.train_sizes}:
            backbones.check_encoder(encoder, size)
        if recipe.init is not None:
            _freeze(encoder, recipe.init.freeze)
        info = _info(split_validation(dataset, recipe).training)._replace(
            teachers=open_teachers(recipe, dataset)
        )
        objective = OBJECTIVES[recipe.objective.name](recipe.objective, encoder, info)
    if recipe.init is not None and recipe.init.head == "centers":
        assert isinstance(objective, Classify)  # the recipe's schema allows no other
        if centers is None:
            raise TrainingError(f'init.head: release "{recipe.init.release}" has no centers; use "fresh"')
        objective.start_from(centers)
    return objective


def learns_without_labels(recipe: Recipe) -> bool:
    """Whether the recipe can be trained on images without classes."""
    return OBJECTIVES[recipe.objective.name].learns_without_labels(recipe.objective)


def _check_arguments(arch: str, args: Mapping[str, Any]) -> None:
    """Refuse what could not be released; writing the release would find out after the training."""
    refused = sorted(NO_ARGUMENTS & args.keys())
    if not refused:
        check_words({"model_args": args}, "backbone.args")
        return
    told = f"backbone.args: {', '.join(refused)} cannot be part of a release; expected arguments of {arch}"
    if "pretrained" in refused:
        known = timm.list_pretrained(f"{arch}.*")
        told += (
            f'. To start from timm\'s own weights write init: {{release: "{TIMM}{_default_of(arch, known)}"}}'
            if known
            else f". timm has no weights of {arch}"
        )
    raise RecipeError(told)


def _default_of(arch: str, known: Sequence[str]) -> str:
    """Return which of an architecture's weights timm takes where none are named."""
    name = f"{arch}.{timm.get_pretrained_cfg(arch).tag}"
    return name if name in known else known[0]


def _check_classes(objective: str, dataset: ImageDataset) -> None:
    names, counts = dataset.class_names, dataset.class_counts
    if len(names) < 2:
        raise DataError(
            f'data: found {len(names)} class ({few(names)}), expected at least 2: objective "{objective}" '
            "tells classes apart"
        )
    if unknown := int((dataset.labels < 0).sum()):
        raise DataError(
            f"data: {unknown:,} of the {len(dataset):,} training images have no label (-1), expected a class "
            f'of each: objective "{objective}" tells classes apart'
        )
    lacking = tuple(name for name, count in zip(names, counts, strict=True) if count == 0)
    if lacking:
        raise DataError(
            f"data: the training split has no image of {len(lacking)} of its {len(names)} classes "
            f'({few(lacking)}), expected at least one of each: objective "{objective}" learns every class'
        )


def _info(dataset: ImageDataset) -> DataInfo:
    candidates = None if dataset.candidates is None else torch.tensor(dataset.candidates)
    return DataInfo(torch.as_tensor(dataset.class_counts), candidates)


def _encoder(recipe: Recipe, dataset: ImageDataset) -> tuple[nn.Module, Centers | None]:
    if recipe.init is None:
        return backbones.create(recipe.backbone.arch, **recipe.backbone.args), None
    try:
        opened = hub.open(recipe.init.release)
    except ReleaseError as error:
        raise TrainingError(f"init.release: {error}") from None
    found = opened.config["architecture"]
    if found != recipe.backbone.arch:
        raise TrainingError(
            f'init.release: "{recipe.init.release}" is a {found}, but backbone.arch is {recipe.backbone.arch}'
        )
    made_with, args = opened.config["model_args"], recipe.backbone.args
    if any(args.get(key) != value for key, value in made_with.items()):
        raise TrainingError(
            f'init.release: "{recipe.init.release}" was made with backbone.args {made_with}, but the recipe '
            f"has {args}; write the same"
        )
    if recipe.init.head == "centers" and opened.class_names != dataset.class_names:
        raise TrainingError(
            f'init.head: the centers of "{recipe.init.release}" are of other classes than the data '
            f'({few(opened.class_names)}; {few(dataset.class_names)}); use "fresh"'
        )
    return opened.load(**args), opened.centers


def _freeze(encoder: nn.Module, patterns: list[str]) -> None:
    parameters = dict(encoder.named_parameters())
    for pattern in patterns:
        matching = fnmatch.filter(parameters, pattern)
        if not matching:
            raise TrainingError(
                f'init.freeze: no parameter of the encoder matches "{pattern}".'
                f"{did_you_mean(pattern, parameters)} It has e.g. {few(tuple(parameters))}"
            )
        for name in matching:
            parameters[name].requires_grad_(False)
