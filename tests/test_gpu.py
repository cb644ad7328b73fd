"""The whole path on a GPU: `pytest -m gpu -n 8`, or with as many processes as there are cores and memory for.

Skipped where there is none. A process whose CUDA context an error has broken fails what comes after, too.
"""

import signal
from itertools import product
from pathlib import Path

import pytest
import torch

import zoo
from tests import test_training
from tests.objective_helpers import SETTINGS
from tests.test_functional_references import LOSSES, Problem, gradients, problem
from tests.test_training import RECIPES, SHORT, run, stop_after
from zoo.data import TrainLoader, open_dataset
from zoo.errors import Interrupted
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective
from zoo.training.build import open_loader
from zoo.training.precision import place
from zoo.training.step import Stepper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
GPU = torch.device("cuda")
EMA = "training.ema={decay: 0.9, warmup: true}"
STOPPING = "training.early_stopping={validation_fraction: 0.2, metric: accuracy, every: 1, patience: 9}"
MIXING = "objective.mix={mixup: 0.8, cutmix: 1.0, probability: 0.9}"


def recipe(kind: str, *overrides: str) -> Recipe:
    return test_training.recipe(kind, "training.device=cuda", *overrides)


def losses(folder: Path) -> list[float]:
    return [row.get("loss", row.get("validation_loss")) for row in RunFolder(folder).rows()]


def loader_and_stepper(r: Recipe) -> tuple[TrainLoader, Stepper]:
    dataset = open_dataset(r.data, "train", None)
    objective = build_objective(r, dataset)
    place(objective, r, GPU)
    loader = open_loader(dataset, r, GPU)
    return loader, Stepper(objective, r, loader.steps_per_epoch, GPU)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [*((kind, ()) for kind in SETTINGS), ("classify", (MIXING, "optimizer.layer_decay=0.7"))],
)
def test_no_step_waits_for_the_gpu(kind: str, changes: tuple[str, ...], precision: str) -> None:
    every = ("training.epochs=3", "training.observe_every=2", f"training.precision={precision}", EMA)
    loader, stepper = loader_and_stepper(recipe(kind, *every, *changes))
    for step, batch in enumerate(loader.stream(0, 8)):
        torch.cuda.set_sync_debug_mode("default" if step < 2 else "error")
        try:
            output = stepper(step, batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert output.loss.isfinite() and "gradient_norm" in output.metrics
    assert all(p.device.type == "cuda" and p.isfinite().all() for p in stepper.parameters)
    row = stepper.observation.class_row({})
    assert row is not None and sum(row["images"]) > 3 * 64


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("kind", ["moco", "moco_v3", "simclr", "paco"])
def test_compiled_encoders_train_alike(kind: str, mode: str, tmp_path: Path) -> None:
    changes = ("training.epochs=3", "training.drop_last=true")
    run(recipe(kind, *changes), tmp_path / "eager")
    run(recipe(kind, *changes, f"training.compile={mode}"), tmp_path / "fast")
    assert losses(tmp_path / "fast") == pytest.approx(losses(tmp_path / "eager"), rel=0.02)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *product(["moco", "paco", "pico"], [(), ("training.compile=reduce-overhead",)]),
        ("paco", (EMA, STOPPING)),
    ],
)
def test_a_stopped_run_goes_on(kind: str, changes: tuple[str, ...], tmp_path: Path) -> None:
    r = recipe(kind, "training.epochs=6", *changes)  # replayed steps are over before a short one is stopped
    run(r, tmp_path / "a")
    stop_after(tmp_path / "b", 3, signal.SIGTERM)
    with pytest.raises(Interrupted):
        run(r, tmp_path / "b")
    run(r, tmp_path / "b", resume=True)
    assert losses(tmp_path / "b") == pytest.approx(losses(tmp_path / "a"), rel=0.02)


def test_a_release_made_on_a_gpu_loads_on_a_cpu(tmp_path: Path) -> None:
    changes = [*SHORT, "training.device=cuda", "training.precision=bf16"]
    release = zoo.pretrain(RECIPES["paco"], out=tmp_path / "r", overrides=changes)
    assert torch.cuda.get_device_name() in release.metrics["training"]["hardware"]
    images = torch.randn(4, 3, 32, 32)
    on_cpu, on_gpu = zoo.load(release.path).eval(), zoo.load(release.path, device="cuda").eval()
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        torch.testing.assert_close(on_gpu(images.cuda()).cpu(), on_cpu(images), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["info_nce", "sup_con", "paco", "balanced_contrast"])
def test_losses_are_those_of_the_cpu(name: str) -> None:
    p = problem(64, 4096, 32, 10, dtype=torch.float32)
    there = Problem(**{key: x.to(GPU) if isinstance(x, torch.Tensor) else x for key, x in vars(p).items()})
    inputs = [x for x in LOSSES[name].inputs.split() if x != "tau"]
    found, expected = (gradients(LOSSES[name].ours, each, inputs) for each in (there, p))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, check_device=False)
