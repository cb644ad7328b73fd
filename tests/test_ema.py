"""The moving average of the weights: against timm's own, and what it leaves alone."""

from pathlib import Path

import pytest
import torch
from timm.utils import ModelEmaV3

from tests.test_step import stepper_and_batches
from tests.test_training import recipe, run
from zoo.errors import RecipeError
from zoo.training import RunFolder

EMA = "training.ema={decay: 0.8, warmup: false}"
WARM = "training.ema={decay: 0.8, warmup: true}"
STEPS = 12


@pytest.mark.parametrize(("kind", "section"), [("classify", EMA), ("classify", WARM), ("gpaco", WARM)])
def test_average_is_timms_bit_for_bit(kind: str, section: str) -> None:
    stepper, batches = stepper_and_batches(recipe(kind, section), STEPS)
    assert stepper.ema is not None
    objective = stepper.objective
    timm_average = ModelEmaV3(objective, decay=0.8, use_warmup=section == WARM)
    for step, batch in enumerate(batches):
        stepper(step, batch)
        timm_average.update(objective, step=step + 1)
    raw = {name: value.clone() for name, value in objective.state_dict().items()}
    stepper.ema.swap()
    theirs, moved = timm_average.module.state_dict(), 0
    for name, value in objective.state_dict().items():
        if any(part in name for part in ("contrast.", "queue.", "teacher", "key")):
            continue  # has a rule of its own
        assert torch.equal(value, theirs[name]), name
        moved += not torch.equal(value, raw[name])
    assert moved > 50  # weights, biases and both running statistics of every layer


@pytest.mark.parametrize("kind", ["pico", "paco"])
def test_queue_key_encoder_prototypes_and_targets_stay_those_of_the_training(kind: str) -> None:
    stepper, batches = stepper_and_batches(recipe(kind, EMA), 5)
    for step, batch in enumerate(batches):
        stepper(step, batch)
    objective = stepper.objective
    raw = {name: value.clone() for name, value in objective.state_dict().items()}
    own_rule = {
        f"{name}.{key}"
        for name, module in objective.named_modules()
        for key in module.state_dict()
        if type(module).__name__ in ("MomentumEncoder", "KeyQueue")
    }
    assert own_rule and stepper.ema is not None
    with stepper.ema.applied():
        inside = {name: value.clone() for name, value in objective.state_dict().items()}
    changed = {name for name in raw if not torch.equal(raw[name], inside[name])}
    assert {"encoder.conv1.weight", "encoder.bn1.running_var"} <= changed
    assert not changed & (own_rule | {"targets", "prototypes", "class_counts", "learned.log_prior"})
    for name, value in objective.state_dict().items():
        assert torch.equal(value, raw[name]), name  # and after the block all is as before it


def test_the_training_takes_no_notice_of_its_average(tmp_path: Path) -> None:
    plain, averaged = (
        run(recipe("paco"), tmp_path / "plain"),
        run(recipe("paco", WARM), tmp_path / "averaged"),
    )
    saved = RunFolder(tmp_path / "averaged").load().state["objective"]
    assert all(torch.equal(saved[name], value) for name, value in plain.state_dict().items())
    assert not torch.equal(averaged.encoder.conv1.weight, plain.encoder.conv1.weight)


def test_an_average_longer_than_the_training_is_refused_with_the_share_of_its_start() -> None:
    """0.999^11: what the weights after the first of 12 steps would be of what is released."""
    with pytest.raises(RecipeError, match=r"training\.ema: .* all 12 steps is 98\.9%"):
        stepper_and_batches(recipe("classify", "training.ema={decay: 0.999, warmup: false}"), 1)
    stepper_and_batches(recipe("classify", "training.ema={decay: 0.999, warmup: true}"), 1)
