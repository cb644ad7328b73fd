"""What comes after a training: measure it, draw it, write its release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from zoo import hub
from zoo.data import ImageDataset
from zoo.data.config import data_words
from zoo.data.image_ids import list_images
from zoo.errors import TrainingError, ZooError
from zoo.evaluation.encode import Encoder
from zoo.evaluation.measure import ProbeData, measure
from zoo.evaluation.published import ProbeRun
from zoo.images import ImageList
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.release import history as histories
from zoo.release import write_release
from zoo.release.provenance import START, TEACHERS, inherited_license
from zoo.release.tensors import round_centers_to_half, round_to_half
from zoo.report.pictures import draw_pictures
from zoo.report.sample import Sample
from zoo.report.subject import Subject
from zoo.training import Trained
from zoo.training.build import teachers_of
from zoo.training.facts import training_facts
from zoo.training.progress import say
from zoo.training.stages import close, recorded


def finish(
    recipe: Recipe,
    objective: Objective,
    stages: Sequence[Trained],
    train_set: ImageDataset,
    test_set: ImageDataset | None,
    *,
    state: Path,
    out: Path,
    ranks: int = 1,
    images: Mapping[str, ImageList] | None = None,
) -> None:
    """Measure what was trained as the recipe says, draw it, and write its release.

    Args:
        recipe: of the training; its name is the release's.
        objective: trained.
        stages: the trainings, the last one that of `objective`; none where nothing was trained.
        train_set: all training images.
        test_set: None where there are none.
        state: the folder for pictures, and for trainings that protocols do.
        out: the release folder to make.
        ranks: how many trained together.
        images: the lists of images that were given; made from the data when None or empty.
    """
    license = _license(recipe)  # of a start that has gone it is not known: said before hours of measuring
    encoder, centers = objective.encoder, objective.centers()
    half = recipe.training.release_dtype == "float16"
    if half:  # every figure is then of what is released
        round_to_half(encoder)
    # as it lies in memory when it is loaded: in another layout `zoo evaluate` would round otherwise
    encoder.to(memory_format=torch.contiguous_format)
    measured = Encoder.of_recipe(encoder, recipe)
    # all training images, also where a part was for validation: as `zoo evaluate` will have it
    data = ProbeData(measured, train_set, test_set)
    if recipe.method is not None:
        assert centers is not None  # a method is one of the objective `classify`
        centers = close(recipe.method, centers, lambda: data.train)
    if half and centers is not None:
        centers = round_centers_to_half(centers)
    # Its folder is named by the encoder's weights, so what lies there can always be continued.
    probe_run = ProbeRun(recipe.data, state, resume=True)
    entries = [
        measure(protocol, data, test_set, centers, probe_run)
        for protocol in recipe.evaluation
        if test_set is not None
    ]
    dataset = train_set.describe()  # hashes all names
    steps = sum(stage.steps for stage in stages)
    # a snapshot's run may have gone on
    rows, class_rows = (
        [row for row in found if row["step"] <= steps] for found in recorded([stage.run for stage in stages])
    )
    drawn = ["curves"]
    if entries:
        drawn.append("accuracies")
    if test_set is not None:
        drawn.append("a map of the test features")
    counts, sample = torch.from_numpy(train_set.class_counts), None
    if test_set is not None:
        labels = torch.from_numpy(test_set.labels.copy())
        sample = Sample(data.test, labels, train_set.class_names, counts)
    say(f"drawing: {', '.join(drawn)}")
    subject = Subject(
        name=recipe.name,
        objective=recipe.objective.name,
        data=data_words(dataset),
        recipe=recipe.model_dump(mode="json"),
        rows=rows,
        class_rows=class_rows,
        class_names=train_set.class_names,
        class_counts=counts,
        centers=centers,
        evaluations=entries,
        sample=sample,
        label=recipe.name,
        group=recipe.name,
    )
    pictures = draw_pictures(subject, state)
    write_release(
        out,
        name=recipe.name,
        encoder=encoder,
        arch=recipe.backbone.arch,
        model_args=recipe.backbone.args,
        preprocess=measured.preprocess,
        class_names=train_set.class_names,
        centers=centers,
        objective=recipe.objective.name,
        dataset=dataset,
        recipe_text=recipe.to_yaml(),
        metrics={
            "format": 1,
            "training": training_facts(recipe, objective, stages, train_set, ranks),
            "evaluations": entries,
        },
        history=histories.gather(rows, class_rows),
        images=images or _list_images(train_set, test_set),
        pictures=pictures,
        description=recipe.description,
        license=license,
        dtype=recipe.training.release_dtype,
    )


def _list_images(train_set: ImageDataset, test_set: ImageDataset | None) -> dict[str, ImageList]:
    """List the images that were trained and measured on; empty where `list_images` lists none."""
    train = list_images(train_set)
    test = None if train is None or test_set is None else list_images(test_set)
    return {split: each for split, each in (("train", train), ("test", test)) if each is not None}


def _license(recipe: Recipe) -> str:
    """Return the licence of the weights, that of those they were trained or distilled from."""
    sources = [(TEACHERS, name) for name in teachers_of(recipe)]
    sources += [] if recipe.init is None else [(START, recipe.init.release)]
    found = []
    for key, source in sources:
        try:
            found.append(str(hub.open(source).config["pretrained_cfg"]["license"]))
        except ZooError as error:
            raise TrainingError(
                f'{key}: "{source}", which the training began with, cannot be opened any more, and the '
                f"weights keep its licence; put it there again (a link will do): {error}"
            ) from None
    return inherited_license(found)
