"""Looking at a training must not change it, and must see what is there: figures against loops in float64."""

import math
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import reference
from tests.objective_helpers import VIT
from tests.test_step import CPU, stepper_and_batches
from tests.test_training import RECIPES, recipe, run
from zoo import backbones, functional
from zoo.data import Batch
from zoo.objectives import DataInfo, Objective, ObjectiveConfig, Output
from zoo.training import RunFolder, observe
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
        assert stepper.observation.due(stepper.steps - 1) == (every != "null")
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


def test_rows_are_written_with_the_checkpoints_and_again_after_a_kill(tmp_path: Path) -> None:
    r = recipe("paco", "training.observe_every=5")
    run(r, tmp_path / "a")
    folder = RunFolder(tmp_path / "a")
    rows = folder.class_rows()
    assert [(row["step"], row["epoch"]) for row in rows] == [(6, 1.0), (12, 2.0)]
    assert [row["looks"] for row in rows] == [1, 2]
    assert [sum(row["images"]) for row in rows] == [64, 64 + 24]  # step 5; steps 10 and 12, the last
    folder.checkpoints()[12].unlink()  # as if killed before the last one was written
    with folder.classes_file.open("a") as file:
        file.write('{"step": 13, "images": [1')  # a line cut off by the kill
    run(r, tmp_path / "a", resume=True)
    assert folder.class_rows() == rows
    assert "gradient_norm" in folder.rows()[4] and "gradient_norm" not in folder.rows()[3]


# --- figures of scores, probabilities and centers, against loops in float64 and cases by hand


def rows(count: int, dim: int = 5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dim, generator=generator, dtype=torch.float64), dim=1)


LABELS = torch.tensor([0, 1, 0, 2, 1, 3])
QUEUE_LABELS = torch.tensor([0, 0, 1, -1, 2, 2, 1, 0, -1])
SAMPLES = rows(6, seed=1), rows(6, seed=2), LABELS, rows(9, seed=3), QUEUE_LABELS


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("others", [None, (rows(4, seed=9), torch.tensor([1, 0, 3, 1]))])
def test_probabilities_of_paco_are_those_of_a_loop(gamma: float, others: Any) -> None:
    centers = 3 * rows(6, 4, seed=4)
    settings = dict(tau=0.3, gamma=gamma, others=others, anchors=4)
    found = functional.contrast_probabilities(*SAMPLES, centers, **settings)
    for i in range(4):
        members = reference.contrasts(i, *SAMPLES) + [
            (z, int(y)) for z, y in zip(*(others or ((), ())), strict=True)
        ]
        expected = reference.paco_probabilities(
            SAMPLES[0][i], int(LABELS[i]), members, centers[i], 0.3, gamma
        )
        assert [float(value[i]) for value in found] == pytest.approx(expected, rel=1e-10)
    assert all(len(value) == 4 for value in found)


def test_an_image_without_a_label_is_a_contrast_in_the_probabilities_as_in_the_loss() -> None:
    labels, queue_labels = torch.tensor([0, 1, 2, -1, -1, 3]), torch.tensor([-1, 7, 8, -1, 9])
    others = rows(4, seed=9), torch.tensor([-1, 5, -1, 6])
    given = (*SAMPLES[:2], labels, rows(5, seed=3), queue_labels)
    _, _, pair, positives = functional.contrast_probabilities(*given, tau=0.3, others=others)
    known = labels >= 0
    # of a labelled image the own key is the one positive, so the loss is -log of its probability
    assert positives.tolist() == [1, 1, 1, 0, 0, 1] and pair[~known].isnan().all()
    loss = functional.sup_con(*given, tau=0.3, others=others)
    torch.testing.assert_close(-pair[known].log().mean(), loss)


@pytest.mark.parametrize(
    ("reduction", "settings"),
    [
        ("sum", dict(alpha=0.3, beta=2.0, gamma=0.5)),
        ("mean", dict(alpha=0.05, beta=1.0, gamma=1.0, label_smoothing=0.2)),
    ],
)
def test_the_loss_of_free_scores_is_least_at_the_optimum(reduction: Any, settings: dict[str, Any]) -> None:
    """Contrasts are orthogonal, so an anchor can have any scores with them."""
    basis = torch.eye(8, dtype=torch.float64)
    anchor, logits = (torch.zeros(1, d, dtype=torch.float64, requires_grad=True) for d in (8, 3))
    labels, queue_labels = torch.tensor([1]), torch.tensor([1, 0, 2, 1, -1, 1, 0])
    samples = anchor, basis[:1], labels, basis[1:], queue_labels
    log_prior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    optimizer = torch.optim.LBFGS([anchor, logits], max_iter=2000, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.paco(*samples, logits, log_prior, tau=0.5, reduction=reduction, **settings)
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    gamma = settings["gamma"]
    found = functional.contrast_probabilities(*samples, logits + log_prior, tau=0.5, gamma=gamma)
    assert found.positives.tolist() == [4]
    optimum = functional.paco_optimum(found.positives.double(), **settings)
    for a, b in zip(found, optimum, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=2e-3, atol=1e-5, check_dtype=False)


def test_centers_of_a_simplex_are_as_far_apart_as_can_be() -> None:
    simplex = torch.eye(4) - 0.25
    few = {"few": torch.arange(4) < 2}
    found = observe.center_figures(simplex * torch.arange(1, 5)[:, None], few)
    assert float(found["center_cosine"]) == pytest.approx(-1 / 3)
    assert float(found["center_norm_few"]) == pytest.approx(1.5 * 0.75**0.5)
    assert observe.center_figures(simplex[:1], {}) == {}


def test_means_leave_out_unknown_classes_and_rows_without_a_value() -> None:
    groups = {name: torch.arange(3) == c for c, name in enumerate(("many", "medium", "few"))}
    labels, values = torch.tensor([0, 0, 1, -1]), torch.tensor([1.0, 2.0, 4.0, 8.0])
    found = observe.group_means("p_sup", values, labels, groups)
    assert [float(found[f"p_sup_{name}"]) for name in ("many", "medium")] == [1.5, 4.0]
    assert found["p_sup_few"].isnan()


def figures(labels: Tensor, **held: Any) -> dict[str, float]:
    """Of a step of an objective that says no more than `held`."""
    found = observe.batch_figures(nn.Identity(), labels, held, {})  # type: ignore[arg-type]
    return {name: float(value) for name, value in found.items()}


def moments(scores: list[Tensor]) -> list[Any]:
    values = torch.stack(scores)
    return [pytest.approx(float(values.mean())), pytest.approx(float(values.var(correction=0)))]


@pytest.mark.parametrize("ft", ["", "_ft"])
def test_scores_are_parted_by_class(ft: str) -> None:
    q, queue = SAMPLES[0], SAMPLES[3]
    names = ("q", "k", "queue", "queue_labels", "valid")
    held = dict(zip(names, (q, q, queue, QUEUE_LABELS, torch.ones(9, dtype=torch.bool)), strict=True))
    if ft:
        held |= {f"{name}_ft": value for name, value in held.items()}
        held["queue"] = queue.roll(1, dims=0)
    found = figures(LABELS, **held, classes=LABELS)
    pairs = [(i, j) for i in range(6) for j in range(9) if QUEUE_LABELS[j] >= 0]
    for name, alike in (("same_class", True), ("negative", False)):
        scores = [q[i] @ queue[j] for i, j in pairs if (LABELS[i] == QUEUE_LABELS[j]) == alike]
        assert [found[f"{name}_score{ft}"], found[f"{name}_variance{ft}"]] == moments(scores)
    of_all = figures(LABELS, **held)  # without classes every filled key is a negative
    assert of_all[f"negative_score{ft}"] == pytest.approx(float((q @ queue.T).mean()))


def test_scores_in_a_batch_and_geometry_on_the_sphere() -> None:
    a, b, labels = rows(5, seed=1), rows(5, seed=2), torch.tensor([0, 0, 1, 1, -1])
    found = figures(labels, q=a, k=b)
    apart = [a[i] @ b[j] for i in range(5) for j in range(5) if i != j]
    assert [found["negative_score"], found["negative_variance"]] == moments(apart)
    assert found["positive_variance"] == moments([*(a * b).sum(dim=1)])[1]
    assert found["alignment"] == pytest.approx(float(reference.alignment(a, b)))
    assert found["uniformity"] == pytest.approx(float(reference.uniformity(a, 2.0)))
    assert found["tolerance"] == pytest.approx(float(reference.tolerance(a[:4], labels[:4])))
    alone = figures(labels[:1], q=a[:1], k=b[:1])
    assert math.isnan(alone["uniformity"]) and math.isnan(alone["tolerance"])


def test_variance_of_nearly_equal_scores_is_neither_negative_nor_rounding() -> None:
    """An encoder close to collapse: squares of scores near 1 differ by less than float32 holds."""
    g = torch.Generator().manual_seed(0)
    q, z = (F.normalize(1 + 1e-2 * torch.randn(n, 16, generator=g), dim=1) for n in (32, 64))
    scores = q.double() @ z.double()[:50].T
    mean, variance = observe.moments(q @ z.T, (torch.arange(64) < 50).expand(32, 64))
    assert mean.item() == pytest.approx(scores.mean().item(), rel=1e-6)
    assert variance.item() == pytest.approx(scores.var(correction=0).item(), rel=1e-3)


def test_what_is_observed_is_the_call_that_is_trained_on_and_nothing_of_it_is_changed() -> None:
    class Consistent(Objective):
        def forward(self, batch: Batch) -> Output:
            with torch.no_grad():
                target = self.encoder(batch.views[0])
                target -= target.mean(dim=0)  # in place, as without observation
            return Output((self.encoder(batch.views[0]) - target).square().mean(), {})

    r = recipe("classify", "training.observe_every=1")
    _, (batch, *_) = stepper_and_batches(r, 1)
    encoder = backbones.create("test_vit", img_size=32, patch_size=8)
    objective = Consistent(ObjectiveConfig(name="own"), encoder, DataInfo(torch.ones(10)))
    found = Stepper(objective.train(), r, 6, CPU)(0, batch).metrics
    assert found["gradient_norm"] > 0 and found["feature_gradient_few"] > 0
