"""The end of a training: evaluate the result, draw its pictures and write the release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from zoo import hub
from zoo.data import ImageDataset
from zoo.data.dataset import data_words, list_images
from zoo.evaluation.encode import Encoder
from zoo.evaluation.measure import ProbeData, measure
from zoo.evaluation.published import ProbeRun
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.release import format, provenance, write_release
from zoo.release.tensors import ImageList, round_to_half
from zoo.report.pictures import draw_pictures
from zoo.report.sample import Sample
from zoo.report.subject import Subject
from zoo.training import Trained
from zoo.training.facts import training_facts
from zoo.training.progress import say
from zoo.training.stages import final_classifier, recorded_rows

Sets = tuple[ImageDataset, ImageDataset | None]
"""The training images, and the test images if there are any."""


def finish(
    recipe: Recipe,
    objective: Objective,
    stages: Sequence[Trained],
    sets: Sets,
    state: Path,
    out: Path,
    *,
    ranks: int = 1,
    images: Mapping[str, ImageList] | None = None,
) -> None:
    """Evaluate a trained objective according to the recipe, draw pictures, and write its release to `out`.

    Pictures and the state of protocols that train are kept in the folder `state`.
    """
    license = inherited_license(recipe)  # fail before hours of evaluation if the initial release is gone
    train_set, test_set = sets
    encoder, centers = objective.encoder, objective.centers()
    half = recipe.training.release_dtype == "float16"
    if half:  # first, so that all figures describe the released weights
        encoder.load_state_dict(round_to_half(encoder.state_dict()))
    # the memory layout of a loaded release: `zoo evaluate` would round differently in another one
    encoder.to(memory_format=torch.contiguous_format)
    measured = Encoder.of_recipe(encoder, recipe)
    # all training images, including a validation split, as in `zoo evaluate`
    data = ProbeData(measured, train_set, test_set)
    if recipe.method is not None:
        assert centers is not None  # methods require the objective `classify`
        centers = final_classifier(recipe.method, centers, lambda: data.train)
    if half and centers is not None:
        centers = centers._replace(**round_to_half(centers.tensors()))  # type: ignore[arg-type]
    # the folder is named by the encoder's weights, so that an existing one can always be resumed
    probe_run = ProbeRun(recipe.data, state, resume=True)
    entries = [
        measure(protocol, data, test_set, centers, probe_run)
        for protocol in recipe.evaluation
        if test_set is not None
    ]
    dataset, steps = train_set.describe(), sum(stage.steps for stage in stages)
    # the run of a snapshot may have continued beyond it
    rows, class_rows = (
        [row for row in found if row["step"] <= steps]
        for found in recorded_rows([stage.run for stage in stages])
    )
    training = training_facts(recipe, objective, stages, train_set, ranks)
    names, counts, sample = train_set.class_names, torch.from_numpy(train_set.class_counts), None
    if recipe.evaluation and test_set is not None:  # otherwise nothing was encoded
        sample = Sample(data.test, torch.from_numpy(test_set.labels.copy()), names, counts)
    say("drawing the release's pictures")
    subject = Subject(
        name=recipe.name,
        objective=recipe.objective.name,
        data=data_words(dataset),
        recipe=recipe.model_dump(mode="json"),
        rows=rows,
        class_rows=class_rows,
        class_names=names,
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
        class_names=names,
        centers=centers,
        objective=recipe.objective.name,
        dataset=dataset,
        recipe_text=recipe.to_yaml(),
        metrics={"training": training, "evaluations": entries},
        history=provenance.gather_history(rows, class_rows),
        images=images or _list_images(*sets),
        pictures=pictures,
        description=recipe.description,
        license=license,
        dtype=recipe.training.release_dtype,
    )


def _list_images(train_set: ImageDataset, test_set: ImageDataset | None) -> dict[str, ImageList]:
    train = list_images(train_set)
    test = None if train is None or test_set is None else list_images(test_set)
    return {split: each for split, each in (("train", train), ("test", test)) if each is not None}


def inherited_license(recipe: Recipe) -> str:
    """Return the weights' licence, inherited from initial weights and teachers; "other" for several."""
    plain = recipe.model_dump()
    sources = filter(None, [*provenance.teachers_of(plain), provenance.start_of(plain)])
    found = {provenance.license_of(each.path, each.config) for each in map(hub.open, sources)}
    others = found - {format.LICENSE}
    return "other" if len(others) > 1 else next(iter(others), format.LICENSE)
