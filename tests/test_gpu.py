"""The whole path on a GPU: `pytest -m gpu -n 8`, or with as many processes as there are cores and memory for.

Skipped where there is none. A process whose CUDA context an error has broken fails what comes after, too.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from tests.objective_helpers import SETTINGS
from tests.test_training import RECIPES, SHORT, StopAfter, run
from zoo import functional
from zoo.data import TrainLoader, open_dataset
from zoo.errors import Interrupted
from zoo.evaluation.encode import extract
from zoo.objectives import Output
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective
from zoo.training.build import open_loader
from zoo.training.precision import float32_products, place
from zoo.training.step import Stepper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
GPU = torch.device("cuda")


def recipe(kind: str, *overrides: str) -> Recipe:
    own = {
        "moco": ["objective.feature_transform.start_epoch=1"],
        "moco_v3": ["objective.momentum=0.99"],
        "pico": ["objective.prototype_start=1", "objective.target_momentum=0.9"],
    }
    return Recipe.load(RECIPES[kind], [*SHORT, "training.device=cuda", *own.get(kind, []), *overrides])


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in RunFolder(folder).rows()]


def loader_and_stepper(r: Recipe) -> tuple[TrainLoader, Stepper]:
    dataset = open_dataset(r.data, "train", None)
    objective = build_objective(r, dataset)
    place(objective, r, GPU)
    loader = open_loader(dataset, r, GPU)
    return loader, Stepper(objective, r, loader.steps_per_epoch, GPU)


def train_without_waiting(r: Recipe, steps: int, from_step: int) -> tuple[Stepper, list[Output]]:
    """Take some steps; an operation for which the host waits fails from a step on."""
    loader, stepper = loader_and_stepper(r)
    outputs = []
    for step, batch in enumerate(loader.stream(0, steps)):
        torch.cuda.set_sync_debug_mode("default" if step < from_step else "error")
        try:
            outputs.append(stepper(step, batch))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return stepper, outputs


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", RECIPES)
def test_every_objective_trains(kind: str, precision: str, tmp_path: Path) -> None:
    objective = run(recipe(kind, f"training.precision={precision}"), tmp_path)
    assert all(p.device.type == "cuda" for p in objective.parameters())
    assert all(p.isfinite().all() for p in objective.parameters())


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("kind", ["moco", "moco_v3", "simclr", "paco"])
def test_compiled_encoders_train_alike(kind: str, mode: str, tmp_path: Path) -> None:
    changes = ("training.epochs=3", "training.drop_last=true")
    run(recipe(kind, *changes), tmp_path / "eager")
    run(recipe(kind, *changes, f"training.compile={mode}"), tmp_path / "fast")
    assert losses(tmp_path / "fast") == pytest.approx(losses(tmp_path / "eager"), rel=0.02)


@pytest.mark.parametrize("changes", [(), ("training.compile=reduce-overhead",)])
@pytest.mark.parametrize("kind", ["moco", "paco", "pico"])
def test_a_stopped_run_goes_on(kind: str, changes: tuple[str, ...], tmp_path: Path) -> None:
    r = recipe(kind, "training.epochs=6", *changes)  # replayed steps are over before a short one is stopped
    run(r, tmp_path / "a")
    StopAfter(tmp_path / "b", 3, signal.SIGTERM)
    with pytest.raises(Interrupted):
        run(r, tmp_path / "b")
    run(r, tmp_path / "b", resume=True)
    assert losses(tmp_path / "b") == pytest.approx(losses(tmp_path / "a"), rel=0.02)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_no_step_waits_for_the_gpu(kind: str, precision: str) -> None:
    ema = "training.ema={decay: 0.9, warmup: true}"
    changes = ("training.epochs=3", f"training.precision={precision}", ema)
    train_without_waiting(recipe(kind, *changes), 8, from_step=2)


def test_averaging_and_early_stopping_resume(tmp_path: Path) -> None:
    r = recipe(
        "paco",
        "training.epochs=4",
        "training.ema={decay: 0.9, warmup: true}",
        "training.early_stopping={validation_fraction: 0.2, metric: accuracy, every: 1, patience: 9}",
    )
    run(r, tmp_path / "a")
    StopAfter(tmp_path / "b", 6, signal.SIGTERM)
    with pytest.raises(Interrupted):
        run(r, tmp_path / "b")
    run(r, tmp_path / "b", resume=True)
    found = [
        [row.get("loss", row.get("validation_loss")) for row in RunFolder(folder).rows()]
        for folder in (tmp_path / "a", tmp_path / "b")
    ]
    assert found[1] == pytest.approx(found[0], rel=0.02)


def test_data_lie_on_the_gpu_and_views_are_made_there() -> None:
    loader, _ = loader_and_stepper(recipe("moco"))
    batch = next(iter(loader.stream(0, 1)))
    assert {tensor.device.type for tensor in (*batch.views, batch.labels, batch.index)} == {"cuda"}
    again = next(iter(loader.stream(0, 1)))
    assert all(torch.equal(a, b) for a, b in zip(batch.views, again.views, strict=True))


def test_a_release_made_on_a_gpu_loads_on_a_cpu(tmp_path: Path) -> None:
    changes = [*SHORT, "training.device=cuda", "training.precision=bf16"]
    release = zoo.pretrain(RECIPES["paco"], out=tmp_path / "r", overrides=changes)
    assert torch.cuda.get_device_name() in release.metrics["training"]["hardware"]
    images = torch.randn(4, 3, 32, 32)
    on_cpu, on_gpu = zoo.load(release.path).eval(), zoo.load(release.path, device="cuda").eval()
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        torch.testing.assert_close(on_gpu(images.cuda()).cpu(), on_cpu(images), atol=1e-3, rtol=1e-3)


def test_convolutions_are_rounded_only_where_a_recipe_says_so() -> None:
    """TensorFloat-32 has 10 bits of mantissa, float32 23; cuDNN takes it unasked on Ampere and later.

    The fastest in float32 may be Winograd's algorithm, which rounds more than a sum of products. TF32: 3e-4.
    """
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("has no TensorFloat-32")
    images, conv = torch.randn(64, 64, 32, 32), torch.nn.Conv2d(64, 64, 3, bias=False)
    with torch.no_grad():
        exact = conv.double()(images.double())
        conv.float().cuda()
        errors = {}
        for precision in ("fp32", "tf32"):
            with float32_products(precision, fastest=True):
                errors[precision] = float((conv(images.cuda()).cpu() - exact).abs().max() / exact.abs().max())
        features = extract(
            torch.nn.Sequential(conv, torch.nn.Flatten()), [(images, torch.zeros(64))], device=GPU, count=64
        )
    assert errors["fp32"] < 5e-5 < errors["tf32"]
    probed = (features.features - exact.flatten(1)).abs().max() / exact.abs().max()
    assert float(probed) < 5e-5


@pytest.mark.parametrize("loss", ["info_nce", "sup_con", "paco"])
def test_losses_are_those_of_the_cpu(loss: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def unit(rows: int) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(rows, 32, generator=generator), dim=1)

    q, k, queue = unit(64), unit(64), unit(4096)
    labels = torch.randint(0, 10, (64,), generator=generator)
    queue_labels = torch.randint(-1, 10, (4096,), generator=generator)
    logits = torch.randn(64, 10, generator=generator)
    found = []
    for device in ("cpu", "cuda"):
        given = q.to(device).requires_grad_()
        common: dict[str, Any] = {"tau": 0.2}
        if loss == "info_nce":
            value = functional.info_nce(given, k.to(device), queue.to(device), **common)
        else:
            labelled = (given, *(x.to(device) for x in (k, labels, queue, queue_labels)))
            if loss == "sup_con":
                value = functional.sup_con(*labelled, **common)
            else:
                prior = functional.log_prior(torch.arange(1, 11)).to(device)
                value = functional.paco(*labelled, logits.to(device), prior, alpha=0.05, **common)
        value.backward()
        assert given.grad is not None
        found.append((value.detach().cpu(), given.grad.cpu()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_mixing_and_layers_rates_wait_for_nothing() -> None:
    mixing = "{mixup: 0.8, cutmix: 1.0, probability: 0.9}"
    r = recipe("classify", f"objective.mix={mixing}", "optimizer.layer_decay=0.7")
    train_without_waiting(r, 8, from_step=2)


@pytest.mark.parametrize("kind", RECIPES)
def test_looking_changes_nothing_and_waits_for_nothing(kind: str) -> None:
    losses_of_both, rows = [], []
    for every in ("null", "2"):
        changes = (f"training.observe_every={every}", "training.epochs=4")
        stepper, outputs = train_without_waiting(recipe(kind, *changes), 20, from_step=18)
        assert ("gradient_norm" in outputs[19].metrics) == (every == "2")
        losses_of_both.append([float(output.loss) for output in outputs])
        rows.append(stepper.observation.class_row({}))
    assert losses_of_both[0] == pytest.approx(losses_of_both[1], rel=0.02)
    assert rows[0] is None and rows[1] is not None and sum(rows[1]["images"]) > 10 * 24
