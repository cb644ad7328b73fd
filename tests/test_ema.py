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


@pytest.mark.parametrize(
    ("kind", "section"),
    [("classify", EMA), ("classify", WARM), ("gpaco", WARM), ("pico", EMA), ("paco", EMA)],
)
def test_average_is_timms_bit_for_bit_but_for_what_has_a_rule_of_its_own(kind: str, section: str) -> None:
    stepper, batches = stepper_and_batches(recipe(kind, section), STEPS)
    objective = stepper.objective
    timm_average = ModelEmaV3(objective, decay=0.8, use_warmup=section == WARM)
    for step, batch in enumerate(batches):
        stepper(step, batch)
        timm_average.update(objective, step=step + 1)
    raw = {name: value.clone() for name, value in objective.state_dict().items()}
    with stepper.ema.applied():
        inside = {name: value.clone() for name, value in objective.state_dict().items()}
    kinds = {name: type(module).__name__ for name, module in objective.named_modules()}
    apart = tuple(f"{name}." for name, kind in kinds.items() if kind in ("MomentumEncoder", "KeyQueue"))
    learned_otherwise = {"targets", "prototypes", "class_counts", "learned.log_prior"}
    for name, value in timm_average.module.state_dict().items():
        own = name.startswith(apart) or name in learned_otherwise
        assert torch.equal(inside[name], raw[name] if own else value), name
        assert torch.equal(objective.state_dict()[name], raw[name]), name  # after the block as before it
    moved = [name for name in raw if not torch.equal(raw[name], inside[name])]
    assert len(moved) > 50  # weights, biases and both running statistics of every layer


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
