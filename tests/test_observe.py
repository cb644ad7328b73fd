"""Looking at a training must not change it, and must see what is there."""

from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.tiny import VIT
from tests.test_step import CPU, stepper_and_batches
from tests.test_training import RECIPES, recipe, run
from zoo import backbones
from zoo.data import Batch
from zoo.objectives import DataInfo, Objective, ObjectiveConfig, Output
from zoo.training import RunFolder
from zoo.training.step import Stepper

OBSERVED = {
    "projecting": {"alignment", "uniformity", "tolerance"},
    "paco": {"p_sup", "p_sup_few", "p_sup_optimum_many", "pair_probability", "center_norm_few"},
    "gpaco": {"center_probability", "center_probability_optimum", "same_class_score", "center_cosine"},
    "sup_con": {"pair_probability", "pair_probability_optimum", "negative_variance", "same_class_variance"},
    "moco": {"positive_variance", "positive_variance_ft"},
    "classify": {"center_norm_medium", "center_cosine"},
    "pico": {"center_norm_many"},
}


@pytest.mark.parametrize("kind", RECIPES)
def test_looking_changes_no_bit_of_the_training_and_draws_nothing(kind: str) -> None:
    states, names = [], []
    for every in ("null", "2"):
        r = recipe(kind, f"training.observe_every={every}", "training.batch_size=32")
        stepper, batches = stepper_and_batches(r, 4)
        outputs = [stepper(step, each) for step, each in enumerate(batches)]
        states.append({**stepper.objective.state_dict(), "generator": torch.get_rng_state()})
        names.append([set(output.metrics) for output in outputs])
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    never, observed = names
    assert [observed[0], observed[2]] == [never[0], never[2]]
    expected = {"gradient_norm", "feature_gradient_many", *OBSERVED.get(kind, set())}
    expected |= set() if kind == "classify" else OBSERVED["projecting"]
    assert expected <= observed[3]
    at_hand = {"train_accuracy", "disambiguation_accuracy", "target_confidence", "tau"}
    assert never[3] <= at_hand | {"classification_loss", "contrast_loss"}  # no score, and no distance


def of_images(stepper: Stepper, batch: Batch) -> Tensor:
    """Gradient of each image's own cross-entropy with respect to its features: |W^T (p - y)|."""
    objective: Any = stepper.objective
    with torch.no_grad():
        logits = objective.classifier(objective.encoder(batch.views[0]))
        wrong = logits.softmax(dim=1) - F.one_hot(batch.labels, logits.shape[1])
        return (wrong @ objective.classifier.weight).norm(dim=1)


PLAIN = ("objective.loss=cross_entropy", "training.observe_every=1", *VIT)


@pytest.mark.parametrize("clip", ["null", "0.01"])
def test_gradients_are_of_each_images_own_loss_in_the_steps_since_the_last_row(clip: str) -> None:
    stepper, batches = stepper_and_batches(recipe("classify", *PLAIN, f"training.clip_grad={clip}"), 5)
    objective, norms, centers = stepper.objective, list[Tensor](), torch.zeros(10)
    groups = {"many": objective.class_counts > 100, "few": objective.class_counts < 20}
    for step, batch in enumerate(batches):
        norms.append(of_images(stepper, batch))
        gradients = torch.autograd.grad(objective(batch).loss, stepper.parameters)
        metrics = stepper(step, batch).metrics
        torch.testing.assert_close(metrics["gradient_norm"], nn.utils.get_total_norm(gradients))
        for name, members in groups.items():
            mean = norms[-1][members[batch.labels]].mean()
            torch.testing.assert_close(metrics[f"feature_gradient_{name}"], mean, equal_nan=True)
        if step == 1:
            assert stepper.observation.class_row({})["looks"] == 2
        elif step > 1:
            of_centers = (p is objective.classifier.weight for p in stepper.parameters)
            centers += next(compress(gradients, of_centers)).norm(dim=1) / 3
    row = stepper.observation.class_row({})
    assert row["looks"] == 3 and stepper.observation.class_row({}) is None
    labels, of_all = torch.cat([batch.labels for batch in batches[2:]]), torch.cat(norms[2:])
    for c in range(10):
        of_class = of_all[labels == c]
        assert row["images"][c] == len(of_class)
        mean = pytest.approx(float(of_class.mean()), rel=1e-4) if len(of_class) else None
        assert row["feature_gradient"][c] == mean
        assert row["class_gradient"][c] == pytest.approx(float(of_class.sum()) / 64 / 3, rel=1e-4)
    assert row["center_gradient"] == pytest.approx(centers.tolist(), rel=1e-4)


def test_the_last_step_is_looked_at_in_any_case() -> None:
    r = recipe("classify", "training.observe_every=1000")
    stepper, (batch, *_) = stepper_and_batches(r, 1)
    assert [step for step in range(stepper.steps) if stepper.observation.due(step)] == [stepper.steps - 1]
    assert "gradient_norm" not in stepper(0, batch).metrics
    assert "gradient_norm" in stepper(stepper.steps - 1, batch).metrics
    never, _ = stepper_and_batches(recipe("classify", "training.observe_every=null"), 1)
    assert not never.observation.due(never.steps - 1)


def test_mixed_images_have_no_gradient_of_their_own() -> None:
    mix = "objective.mix={mixup: 0.8}"
    stepper, (batch, *_) = stepper_and_batches(recipe("classify", *PLAIN, mix), 1)
    metrics = stepper(0, batch).metrics
    assert "gradient_norm" in metrics and "feature_gradient_many" not in metrics
    row = stepper.observation.class_row({})
    assert row["feature_gradient"] is None and row["class_gradient"] is None
    assert sum(row["center_gradient"]) > 0


def test_gradients_are_of_the_encoder_of_any_objective_and_of_all_its_views() -> None:
    class Plain(Objective):
        num_views = 3

        def __init__(self, encoder: nn.Module) -> None:
            super().__init__(ObjectiveConfig(name="plain"), encoder, DataInfo(torch.ones(10)))

        def forward(self, batch: Batch) -> Output:
            return Output(self.encoder(torch.cat(batch.views)).square().sum() / len(batch.labels), {})

    r = recipe("classify", "training.observe_every=1")
    _, (batch, *_) = stepper_and_batches(r, 1)
    batch = batch._replace(views=(batch.views[0], 2 * batch.views[0], -batch.views[0]))
    objective = Plain(backbones.create("test_vit", img_size=32, patch_size=8)).train()
    with torch.no_grad():
        gradient = 2 * torch.stack([objective.encoder(view) for view in batch.views], dim=1)
    expected = gradient.flatten(start_dim=1).norm(dim=1)
    stepper = Stepper(objective, r, 6, CPU)
    stepper(0, batch)
    row = stepper.observation.class_row({})
    assert row["center_gradient"] is None
    for c in batch.labels.unique().tolist():
        of_class = expected[batch.labels == c]
        assert row["feature_gradient"][c] == pytest.approx(float(of_class.mean()), rel=1e-4)


# --- on disk


def test_rows_are_written_with_the_checkpoints_and_again_after_a_kill(tmp_path: Path) -> None:
    r = recipe("paco", "training.observe_every=4")
    run(r, tmp_path / "a")
    folder = RunFolder(tmp_path / "a")
    rows = folder.class_rows()
    assert [(row["step"], row["epoch"]) for row in rows] == [(6, 1.0), (12, 2.0)]
    assert [row["looks"] for row in rows] == [1, 2]
    assert [sum(row["images"]) for row in rows] == [64, 64 + 24]  # step 4; steps 8 and 12
    folder.checkpoints()[12].unlink()  # as if killed before the last one was written
    with folder.classes_file.open("a") as file:
        file.write('{"step": 13, "images": [1')  # a line cut off by the kill
    run(r, tmp_path / "a", resume=True)
    assert folder.class_rows() == rows
    assert "gradient_norm" in folder.rows()[3] and "gradient_norm" not in folder.rows()[4]
