"""Build what a recipe trains: the objective with its initial weights and teachers, and its batches."""

from collections.abc import Sequence

import torch
from torch import nn

from zoo import backbones, hub
from zoo.data import ImageDataset, TrainLoader
from zoo.data.batches import derive_seed
from zoo.errors import DataError, RecipeError, ReleaseError, TrainingError, ZooError, few
from zoo.modules import Centers, Teacher, has_batchnorm
from zoo.modules.ranks import ALONE, Ranks
from zoo.objectives import Classify, DataInfo, Objective, objective_class
from zoo.objectives.base import construct
from zoo.recipe import Recipe
from zoo.release import Release
from zoo.release.provenance import TEACHERS, teacher_sha256, teachers_of
from zoo.release.schema import check_words
from zoo.training.adapt import freeze_encoder
from zoo.training.monitor import split_validation


def build_objective(recipe: Recipe, dataset: ImageDataset) -> Objective:
    """Build the recipe's backbone, with random weights or those of a release, and the objective around it.

    Class counts exclude the validation images of early stopping. Random initial weights depend only on the
    recipe's seed. ZooError for an architecture, release, teacher or data that cannot be used.
    """
    if refused := sorted(backbones.NO_ARGUMENTS & recipe.backbone.args.keys()):
        raise RecipeError(f"backbone.args: {', '.join(refused)} cannot be part of a release; expected init")
    check_words({"model_args": recipe.backbone.args}, "backbone.args")
    kind = objective_class(recipe.objective.name)
    if recipe.objective.learns_centers:
        _check_classes(recipe.objective.name, dataset)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("weights", recipe.training.seed))
        encoder, centers = _encoder(recipe, dataset)
        if recipe.train_only is not None or recipe.adapt is not None or recipe.fixed_batchnorm:
            freeze_encoder(encoder, recipe)
        stored = [recipe.data.image_size or dataset.image(0).height]  # where no view resizes
        for size in {recipe.views.eval.size, *(recipe.views.train_sizes or stored)}:
            backbones.check_encoder(encoder, size)
        training, _ = split_validation(dataset, recipe)
        candidates = None if training.candidates is None else torch.tensor(training.candidates)
        counts = torch.as_tensor(training.class_counts)
        info = DataInfo(counts, candidates, open_teachers(recipe, dataset))
        objective = construct(kind, recipe.objective, encoder, info)
    if recipe.init is not None and recipe.init.head == "centers":
        assert isinstance(objective, Classify)  # the recipe's schema allows no other
        if centers is None or centers.weight.shape != objective.classifier.weight.shape:
            raise TrainingError(f'init.head: "{recipe.init.release}" has no centers that fit; use "means"')
        objective.start_from(centers)
    return objective


def _check_classes(objective: str, dataset: ImageDataset) -> None:
    """Require at least two classes, at least one image of each, and a class for every image."""
    names, unknown = dataset.class_names, int((dataset.labels < 0).sum())
    lacking = tuple(name for name, count in zip(names, dataset.class_counts, strict=True) if count == 0)
    if len(names) < 2 or unknown or lacking:
        found = f"{len(names)} classes ({few(names)}), {unknown:,} images without a label"
        found += f", no image of {few(lacking)}" if lacking else ""
        found += " (numbers begin with 0)" if lacking[:1] == ("0",) else ""
        raise DataError(f'data: found {found}; objective "{objective}" expects two or more, all with images')


def _encoder(recipe: Recipe, dataset: ImageDataset) -> tuple[nn.Module, Centers | None]:
    init, arch, args = recipe.init, recipe.backbone.arch, recipe.backbone.args
    if init is None:
        return backbones.create(arch, **args), None
    try:
        opened = hub.open(init.release)
    except ReleaseError as error:
        raise TrainingError(f"init.release: {error}") from None
    found, made_with = opened.config["architecture"], opened.config["model_args"]
    if found != arch or any(args.get(key) != value for key, value in made_with.items()):
        expected = f"expected backbone.arch {arch} with args {args}"
        raise TrainingError(f'init.release: "{init.release}" is {found} with {made_with}, {expected}')
    if init.head == "centers" and opened.centers and opened.class_names != dataset.class_names:
        expected, found = few(dataset.class_names), few(opened.class_names)
        raise TrainingError(f"init.head: found centers of {found}, expected those of the data, {expected}")
    return opened.load(**args), opened.centers


def open_teachers(recipe: Recipe, dataset: ImageDataset) -> tuple[Teacher, ...]:
    """Build the recipe's teachers, each a classifier of the data's classes in their order."""
    given = (recipe.data.mean, recipe.data.std)
    teachers = list[Teacher]()
    for name in teachers_of(recipe.model_dump()):
        try:
            opened = hub.open(name)
            centers = _of_classes(opened, dataset.class_names)
            encoder = opened.load()
            for size in {recipe.views.eval.size, *recipe.views.train_sizes}:
                backbones.check_input(encoder, size)
        except ZooError as error:
            raise TrainingError(f'{TEACHERS}: "{name}": {error}') from None
        own = (opened.preprocess.mean, opened.preprocess.std)
        teachers.append(Teacher(encoder, centers, own=own, given=given, sha256=teacher_sha256(opened.config)))
    return tuple(teachers)


def _of_classes(opened: Release, class_names: Sequence[str]) -> Centers:
    centers = opened.require_centers()
    objective, method = (opened.recipe.get(key) or {} for key in ("objective", "method"))
    cosine = objective.get("head") == "cosine" and not objective.get("scale")  # LDAM's
    if cosine or method.get("name") == "ldam_drw" or method.get("similarity", "logit") != "logit":
        raise TrainingError("has centers of cosines or distances, expected centers of linear logits")
    place = {name: row for row, name in enumerate(centers.class_names)}
    if unknown := [name for name in class_names if name not in place]:
        raise TrainingError(f"has classes {few(centers.class_names)}, expected also {few(unknown)}")
    rows = [place[name] for name in class_names]
    return Centers(centers.weight[rows], centers.bias[rows], centers.class_counts[rows])


def open_loader(
    dataset: ImageDataset, recipe: Recipe, device: torch.device, ranks: Ranks = ALONE
) -> TrainLoader:
    """Prepare the recipe's training batches; each rank gets its own rows of every batch."""
    section = recipe.training
    return TrainLoader(
        dataset,
        recipe.views,
        **{key: getattr(recipe.data, key) for key in ("mean", "std", "image_size")},
        **{key: getattr(section, key) for key in ("batch_size", "drop_last", "seed", "sampling")},
        device=device,
        rank=ranks.rank,
        world_size=ranks.size,
    )


def require_batches(objective: Objective, images: int, recipe: Recipe, ranks: Ranks = ALONE) -> None:
    """Refuse batches that the ranks cannot share equally, or that give a rank's BatchNorm a single image."""
    section = recipe.training
    last = 0 if section.drop_last else images % section.batch_size
    sizes = sorted({min(section.batch_size, images), last} - {0})
    found = f"training.batch_size: found {section.batch_size}, so batches of {sizes} of the {images} images"
    other = "or training.drop_last: true"
    if any(size % ranks.size for size in sizes):
        raise RecipeError(f"{found}, expected what the {ranks.size} ranks divide, {other}")
    if min(sizes) == ranks.size and has_batchnorm(objective):
        raise RecipeError(f"{found}, expected at least two on each rank for BatchNorm, {other}")
