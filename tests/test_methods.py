"""The recipe's `method`: its stages, their resumption and sharing, the classifier that is released."""

import signal
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

import zoo
from tests.programs.plain_sweep import draw_nothing
from tests.test_learning import assert_one_gains
from tests.test_training import SHORT, stop_after
from zoo.errors import Interrupted, RecipeError, TrainingError
from zoo.functional import LOWEST_LOGIT
from zoo.modules import Centers
from zoo.recipe import Recipe
from zoo.recipe.sections import Adjusted, NearestCenter
from zoo.release import Release
from zoo.training import RunFolder, stages
from zoo.training.stages import final_classifier, recorded_rows

BASE = "cifar_resnet20.ce_digits_lt50"
BRIEF = (*SHORT, "evaluation=[]")
CRT = "method={name: crt, epochs: 2, lr: 0.05}"
LWS = "method={name: lws, epochs: 2, lr: 0.05}"


def recipe(method: str, *changes: str) -> Recipe:
    return Recipe.load(BASE, [*BRIEF, f"method={method}", *changes])


def assert_same_bits(*releases: Release) -> None:
    for name in ("model.safetensors", "centers.safetensors"):
        one, other = ((release.path / name).read_bytes() for release in releases)
        assert one == other, name


def test_stages_say_in_plain_keys_what_a_method_does() -> None:
    assert stages(Recipe.load(BASE)) == [Recipe.load(BASE)]  # without a method
    assert {name for name in GAINS if len(stages(recipe(name))) == 2} == {"crt", "lws"}
    adjusted = stages(recipe("{name: logit_adjustment, tau: 1.5}"))[0]
    assert adjusted.objective.model_dump()["loss"] == {"name": "logit_adjustment", "tau": 1.5}
    ldam = stages(recipe("ldam_drw"))[0].objective.model_dump()
    assert ldam["loss"] == dict(name="ldam", max_margin=0.5, scale=30.0, reweight_from=0.8, beta=0.9999)
    for name in ("crt", "lws"):
        changes = ("objective.mix={mixup: 0.2}", "training.ema={decay: 0.9}", "optimizer.name=adamw")
        first, second = stages(recipe(f"{{name: {name}, epochs: 3, lr: 0.02}}", *changes))
        assert first.training.ema and first.objective.mix and first.optimizer.name == "adamw"
        assert second.training.sampling == "class_balanced" and second.training.epochs == 3
        assert second.train_only == [] and second.objective.mix is None and not second.training.ema
        assert (second.optimizer.name, second.optimizer.lr) == ("momentum", 0.02)
        assert (second.optimizer.momentum, second.optimizer.weight_decay) == (0.9, 0.0005)
        assert (second.schedule.name, second.schedule.warmup_epochs) == ("cosine", 0)
        assert second.objective.head == {"crt": "linear", "lws": "scaled"}[name]


@pytest.mark.parametrize(
    "method",
    [
        Adjusted(name="tau_normalized"),
        Adjusted(name="post_hoc_logit_adjustment"),
        NearestCenter(name="nearest_center", centers="means", similarity="euclidean"),
    ],
)
def test_a_class_without_training_images_is_never_predicted(method: Any) -> None:
    g = torch.Generator().manual_seed(0)
    weight, bias, features, x = (
        torch.randn(*shape, generator=g) for shape in ((4, 6), (4,), (40, 6), (300, 6))
    )
    learned = Centers(weight, bias, torch.tensor([14, 13, 13, 0]))
    found = final_classifier(method, learned, lambda: (features, torch.arange(40) % 3))
    assert found.weight.isfinite().all() and found.bias[3] == LOWEST_LOGIT
    assert set((30 * x @ found.weight.T + found.bias).argmax(dim=1).tolist()) == {0, 1, 2}


def test_class_means_take_no_bias_of_the_untrained_head() -> None:
    features, labels = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)
    learned = Centers(torch.randn(4, 4), torch.full((4,), 9.0), torch.full((4,), 2))
    method = NearestCenter(name="nearest_center", centers="means", similarity="logit")
    found = final_classifier(method, learned, lambda: (features, labels))
    assert torch.equal(found.weight, torch.eye(4)) and not found.bias.any()


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("method", "number", "rows"), [(CRT, 1, 5), (LWS, 2, 4)])
def test_a_run_stopped_in_a_stage_goes_on(method: str, number: int, rows: int, tmp_path: Path) -> None:
    changes = (*BRIEF, method)
    undisturbed = zoo.pretrain(BASE, out=tmp_path / "a", overrides=changes)
    out = tmp_path / "b"
    stop_after(out / "run" / f"stage-{number}", rows, signal.SIGTERM)
    with pytest.raises(Interrupted, match=r"stopped by SIGTERM after step .*--resume"):
        zoo.pretrain(BASE, out=out, overrides=changes)
    with pytest.raises(TrainingError, match="holds a run already"):
        zoo.pretrain(BASE, out=out, overrides=changes)
    with pytest.raises(TrainingError, match=r"holds a run of another recipe.*method"):
        zoo.pretrain(BASE, out=out, overrides=(*BRIEF, "method={name: cross_entropy}"), resume=True)
    resumed = zoo.pretrain(BASE, out=out, overrides=changes, resume=True)
    assert_same_bits(undisturbed, resumed)
    runs = [RunFolder(folder / "run").stages() for folder in (tmp_path / "a", out)]
    losses = [[row["loss"] for stage in stages for row in stage.rows()] for stages in runs]
    assert losses[0] == losses[1] and len(losses[0]) == 24
    rows, _ = recorded_rows(runs[0])
    assert [row["step"] for row in rows] == list(range(1, 25)) and rows[-1]["epoch"] == 4


@pytest.mark.usefixtures("no_pictures")
def test_the_second_stage_trains_the_classifier_of_a_frozen_encoder(tmp_path: Path) -> None:
    def trained(method: str) -> Release:
        return zoo.pretrain(BASE, out=tmp_path / method[13:17], overrides=(*BRIEF, method))

    plain, crt, lws = trained("method={name: cross_entropy}"), trained(CRT), trained(LWS)
    encoders = [load_file(r.path / "model.safetensors") for r in (plain, crt, lws)]
    for name, value in encoders[0].items():
        if not name.startswith("fc."):  # BatchNorm's statistics included
            assert all(torch.equal(value, other[name]) for other in encoders[1:]), name
    with_bias = [torch.cat([c.weight, c.bias[:, None]], dim=1) for c in (plain.centers, lws.centers)]
    factors = with_bias[1] / with_bias[0]  # one a class
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors), rtol=1e-3, atol=1e-3)
    assert factors[:, 0].std() > 1e-3
    facts = crt.metrics["training"]
    assert facts["method"] == "crt" and [*facts["stages"]] == ["cross_entropy", "crt"]
    assert [stage["epochs"] for stage in facts["stages"].values()] == [2, 2]
    assert [stage["steps"] for stage in facts["stages"].values()] == [12, 12]
    assert (facts["steps"], facts["epochs"], facts["images"]) == (24, 4, 4 * 344)
    assert facts["seconds"] == pytest.approx(sum(s["seconds"] for s in facts["stages"].values()), abs=0.2)
    assert Recipe.from_yaml((crt.path / "recipe.yaml").read_text(), "r").method.name == "crt"
    assert "kang2020decoupling" in crt.card and "kang2020decoupling" not in plain.card


LONGER = (  # enough to learn
    "training.epochs=20",
    "schedule.warmup_epochs=2",
    "training.device=cpu",
    "training.checkpoint_every=20",
    "evaluation=[{protocol: classifier}]",
)


@mock.patch("zoo.report.finish.draw_pictures", draw_nothing)
def measured(method: str, out: Path, *changes: str, init: Release | None = None) -> float:
    """Train; return the balanced accuracy."""
    start = [] if init is None else [f"init={{release: {init.path}}}"]
    made = zoo.pretrain(BASE, out=out, overrides=(*LONGER, f"method={method}", *start, *changes))
    (entry,) = made.metrics["evaluations"]
    return float(entry["metrics"]["balanced_accuracy"])


# Points of balanced accuracy above plain cross-entropy of as many epochs: about half of the least gain of
# seeds 0, 1 and 2. So early, cross-entropy has hardly learned the rare classes; later the gains are smaller.
GAINS = {
    "balanced_softmax": 4.0,
    "logit_adjustment": 4.0,
    "post_hoc_logit_adjustment": 2.5,
    "class_balanced_sampling": 7.0,
    "crt": 3.5,
    "tau_normalized": 0.8,
    "lws": 1.8,
    "ldam_drw": 1.8,
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> float:
    return measured("cross_entropy", tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("method", GAINS)
def test_each_method_learns_the_rare_classes_better(method: str, plain: float, tmp_path: Path) -> None:
    def gain(seed: int) -> float:
        return measured(method, tmp_path / str(seed), f"training.seed={seed}") - plain

    assert_one_gains(gain, GAINS[method])


def test_centers_of_a_release_classify_and_begin_a_head(paco: Release, tmp_path: Path) -> None:
    method = "{name: nearest_center, centers: learned, similarity: logit}"
    found = zoo.finetune(
        BASE,
        init=paco.path,
        out=tmp_path / "logit",
        overrides=("training.device=cpu", "evaluation=[{protocol: classifier}]", f"method={method}"),
    )
    own = next(e for e in paco.metrics["evaluations"] if e["protocol"] == "classifier")
    (entry,) = found.metrics["evaluations"]
    assert entry["metrics"] == own["metrics"]  # the very classifier, through another door
    assert torch.equal(found.centers.weight, paco.centers.weight)
    facts = found.metrics["training"]
    assert (facts["epochs"], facts["steps"], facts["seconds"], facts["stages"]) == (0, 0, 0, {})
    assert not (found.path / "curves.png").exists() and (found.path / "features.png").exists()
    for centers, similarity in product(("learned", "means"), ("cosine", "euclidean")):
        method = f"{{name: nearest_center, centers: {centers}, similarity: {similarity}}}"
        assert measured(method, tmp_path / f"{centers}-{similarity}", init=paco) > 60  # chance is 10
    method = "{name: from_centers, prior: true}"
    with_prior = measured(method, tmp_path / "prior", "training.epochs=3", init=paco)
    assert with_prior > own["metrics"]["balanced_accuracy"] - 5


def test_methods_that_start_from_centers_say_what_they_miss(moco: Release, tmp_path: Path) -> None:
    given = {"out": tmp_path / "none", "init": moco.path}
    for name in (
        "{name: nearest_center, centers: learned, similarity: cosine}",
        "{name: from_centers, prior: true}",
    ):
        changes = (*BRIEF, f"method={name}")
        with pytest.raises(RecipeError, match=r"init: found null, expected .* for method"):
            zoo.pretrain(BASE, out=tmp_path / "none", overrides=changes)
        with pytest.raises(TrainingError, match=r'init.head: ".*" has no centers that fit'):
            zoo.finetune(BASE, **given, overrides=changes)
    assert not (tmp_path / "none").exists()
    means = "method={name: nearest_center, centers: means, similarity: cosine}"
    assert zoo.finetune(BASE, **given, overrides=(*BRIEF, means)).centers
