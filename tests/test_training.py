"""The loop: exact resume, signals, metrics, and a loss curve that must not move."""

import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from zoo.data import open_dataset
from zoo.errors import Interrupted, RecipeError
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective, train
from zoo.training.optim import build_optimizer, build_schedule

RECIPES = {
    "bcl": "cifar_resnet20.bcl_digits_lt50",
    "moco": "cifar_resnet20.moco_v2_ft_digits_lt50",
    "paco": "cifar_resnet20.paco_digits_lt50",
    "classify": "cifar_resnet20.balanced_softmax_digits_lt50",
    "gpaco": "cifar_resnet20.gpaco_digits_lt50",
    "margin": "cifar_resnet20.margin_digits_lt50",
    "moco_v3": "cifar_resnet20.moco_v3_digits_lt50",
    "pico": "cifar_resnet20.pico_digits_q05",
    "simclr": "cifar_resnet20.simclr_digits_lt50",
    "sup_con": "cifar_resnet20.sup_con_digits_lt50",
}
SHORT = (
    "training.epochs=2",
    "schedule.warmup_epochs=1",
    "training.log_every=1",
    "training.checkpoint_every=1",
    "training.batch_size=64",  # 6 steps an epoch, the last of 24 images
    "training.device=cpu",
)


def recipe(kind: str, *overrides: str) -> Recipe:
    begin = {"moco": ["objective.feature_transform.start_epoch=0"], "pico": ["objective.prototype_start=1"]}
    return Recipe.load(RECIPES[kind], [*SHORT, *begin.get(kind, []), *overrides])


def run(r: Recipe, folder: Path, *, resume: bool = False) -> Objective:
    dataset = open_dataset(r.data, "train", None)
    return train(build_objective(r, dataset), dataset, r, RunFolder(folder), resume=resume).objective


def assert_same_state(a: Objective, b: Objective) -> None:
    other = b.state_dict()
    for name, value in a.state_dict().items():
        assert torch.equal(value, other[name]), name


def stop_after(folder: Path, rows: int, number: int) -> None:
    """Send this process a signal once metrics.jsonl has `rows` rows, as a person or a scheduler would."""
    file = folder / "metrics.jsonl"

    def watch() -> None:
        while not (file.is_file() and len(file.read_text().splitlines()) >= rows):
            time.sleep(0.001)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True).start()


DISTILL = "objective.distill={teachers: [cifar_resnet20.paco_digits_lt50], weight: 0.9, tau: 4.0}"
EMA = "training.ema={decay: 0.8, warmup: true}"
CHANGES = {
    "classify": (DISTILL, "objective.mix={mixup: 0.8, cutmix: 1.0, probability: 1.0}", EMA),
    "moco": ("objective.feature_transform.start_epoch=1", "training.precision=bf16"),
    "paco": ("objective.momentum={kind: cosine, start: 0.9, end: 1.0}", EMA),
    "simclr": ("adapt=lora", "train_only=['*.bn1.*']", EMA),
}
SIGNALS = {"moco": signal.SIGINT, "paco": signal.SIGHUP, "pico": signal.SIGUSR1}


@pytest.mark.parametrize("kind", RECIPES)
def test_a_run_stopped_by_a_signal_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    r, number = recipe(kind, *CHANGES.get(kind, ())), SIGNALS.get(kind, signal.SIGTERM)
    undisturbed = run(r, tmp_path / "a")
    stop_after(tmp_path / "b", 3, number)
    stopped = rf"stopped by {number.name} after step .* of \d+; the state .*--resume"
    with pytest.raises(Interrupted, match=stopped):
        run(r, tmp_path / "b")
    rows = RunFolder(tmp_path / "a").rows()
    assert 3 <= RunFolder(tmp_path / "b").load().step < len(rows)
    for _ in range(2):  # the second opens a finished one
        assert_same_state(undisturbed, run(r, tmp_path / "b", resume=True))
        again = RunFolder(tmp_path / "b").rows()
        assert [(r["step"], r["loss"]) for r in rows] == [(r["step"], r["loss"]) for r in again]


def test_the_seed_decides_everything_and_the_global_generator_nothing(tmp_path: Path) -> None:
    r = recipe("moco", "training.epochs=2")
    torch.manual_seed(1)
    first = run(r, tmp_path / "a")
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = run(r, tmp_path / "b")
    assert torch.equal(before, torch.get_rng_state())  # and training leaves it alone
    assert_same_state(first, second)
    other = run(recipe("moco", "training.seed=1"), tmp_path / "c")
    assert not torch.equal(first.encoder.conv1.weight, other.encoder.conv1.weight)


def test_schedules_are_exact_at_their_corners() -> None:
    r = recipe("classify", "training.epochs=40", "schedule.warmup_epochs=4")

    def curve(**changes) -> list[float]:
        optimizer = build_optimizer(torch.nn.Linear(1, 1), r.optimizer.model_copy(update={"lr": 0.8}))
        schedule = build_schedule(optimizer, r.schedule.model_copy(update=changes), 40, 10)
        steps = map(schedule.step_update, range(400))
        return [optimizer.param_groups[0]["lr"] for _ in steps]

    cosine = curve(name="cosine")
    assert cosine[0] == 0.0
    assert cosine[20] == pytest.approx(0.4)  # half of the warm-up
    assert cosine[200] == pytest.approx(0.4)  # half of the cosine, which the warm-up is part of
    assert cosine[399] < 1e-4
    after = curve(name="cosine", warmup_prefix=True)
    assert after[:40] == cosine[:40]
    # moco-v3's adjust_learning_rate: half a cosine from the end of the warm-up to the end of the training
    expected = [0.4 * (1 + math.cos(math.pi * (step - 40) / 360)) for step in range(40, 400)]
    assert after[40:] == pytest.approx(expected)
    assert cosine[40] == pytest.approx(0.4 * (1 + math.cos(math.pi / 10)))  # already on its way
    # with the first update after 20 whole epochs, and after 30
    multistep = curve(name="multistep", milestones=[20, 30], warmup_epochs=0)
    assert multistep == pytest.approx([0.8] * 200 + [0.08] * 100 + [0.008] * 100)
    warmed_up = curve(name="multistep", milestones=[20, 30])  # counted from the beginning, not from its end
    assert warmed_up[:41] == pytest.approx([0.8 * step / 40 for step in range(41)])
    assert warmed_up[41:] == multistep[41:]
    assert curve(name="constant", warmup_epochs=0) == [pytest.approx(0.8)] * 400


def test_optimizer_mistakes_are_named() -> None:
    linear = torch.nn.Linear(1, 1)
    r = recipe("classify")
    with pytest.raises(RecipeError, match=r'optimizer\.name: found "adamww".*Did you mean "adamw"'):
        build_optimizer(linear, r.optimizer.model_copy(update={"name": "adamww"}))
    if not torch.cuda.is_available():
        with pytest.raises(RecipeError, match=r'optimizer: .*"fusedadamw" refuses'):
            build_optimizer(linear, r.optimizer.model_copy(update={"name": "fusedadamw"}))
    with pytest.raises(RecipeError, match=r"optimizer: .*args.*no_such"):
        build_optimizer(linear, r.optimizer.model_copy(update={"name": "adamw", "args": {"no_such": 1}}))
