"""The formulas of what ranks send and keep: against hand-made sums, and against bytes that were sent."""

from __future__ import annotations

import pytest
import torch

from tests.benchmarks.communication import CASES, TOLERANCE, measured, predicted
from tests.benchmarks.traffic import KINDS, Message, memory, messages, model_of
from zoo.objectives import OBJECTIVES
from zoo.recipe import Recipe


@pytest.mark.parametrize(
    ("how", "sent"),
    # 4 ranks, 1,200 bytes: a ring sends quarters thrice and thrice again; own rows thrice; quarters thrice
    [("all-reduce", 1800), ("all-gather", 3600), ("reduce-scatter", 900), ("all-to-all", 900)],
)
def test_a_ring_sends_what_each_step_passes_on(how: str, sent: int) -> None:
    assert Message("", how, 1200, count=5).sent(4) == 5 * sent
    assert Message("", how, 1200).sent(1) == 0


def test_every_objective_has_a_formula() -> None:
    assert {*KINDS} == {*OBJECTIVES}
    assert {case.name.partition(",")[0] for case in CASES} == {*OBJECTIVES}


def test_mocos_messages_are_those_added_up_by_hand() -> None:
    recipe = Recipe.load("resnet50.moco_v2_in1k", ["training.precision=fp32"])
    found = {m.what: m for m in messages(recipe, model_of(recipe, 1000), 1000, 8)}
    encoder, head = 23_508_032, 2048 * 2048 + 2048 + 2048 * 128 + 128
    assert found["gradients"].size == 4 * (encoder + head)
    assert found["images shuffled"].size == 32 * 4 * 3 * 224 * 224
    assert found["their keys"].size == 32 * 4 * 128
    assert found["running statistics"].size == 4 * 2 * 2 * 26_560  # ResNet-50's channels, of both encoders
    assert found["rows for the update"].size == 32 * (8 + 8 + 4 * 128)
    assert len(found) == 5


def test_pacos_comparison_goes_both_ways_and_batchnorm_over_ranks_replaces_its_statistics() -> None:
    changes = ["objective.key_groups=1", "objective.head_batchnorm=false", "training.sync_batchnorm=true"]
    recipe = Recipe.load("resnet50.paco_imagenet_lt", [*changes, "training.batch_size=250"])
    found = {m.what: m for m in messages(recipe, model_of(recipe, 1000), 1000, 4)}
    assert found["what is compared"].size == 63 * 4 * 128  # the largest share
    assert found["its gradients"].size == 4 * 63 * 4 * 128
    assert found["keys, labels compared"].size == 63 * (4 * 128 + 8)
    forward, backward = found["BatchNorm forward"], found["BatchNorm backward"]
    assert (forward.count, backward.count) == (2 * 53, 53)
    assert forward.size * forward.count == pytest.approx(4 * 2 * (2 * 26_560 + 53))
    assert backward.size * backward.count == pytest.approx(4 * 2 * 26_560)
    assert not {"running statistics", "images shuffled"} & {*found}


def test_memory_is_that_of_the_tensors() -> None:
    recipe = Recipe.load("cifar_resnet20.moco_v2_ft_digits_lt50")
    model = model_of(recipe, 10)
    assert model.trained + model.following == 2 * 277_456
    queue = recipe.objective.queue_size * (4 * recipe.objective.dim + 8)
    norms = 2 * 4 * (19 + 1) if recipe.objective.head_batchnorm else 2 * 4 * 19  # of tracked batches, both
    small = memory(recipe, model) - 4 * 4 * 277_456 - queue
    assert 0 <= small <= 2 * norms + 16 + 8 * 10  # pointer and fill count of the queue; class counts


def test_adam_keeps_two_moments() -> None:
    momentum, adam = (
        Recipe.load("resnet50.moco_v3_in1k", [f"optimizer.name={name}"]) for name in ("momentum", "adamw")
    )
    model = model_of(momentum, 1000)
    more = memory(adam, model) - memory(momentum, model)
    assert more == 4 * model.trained


def test_real_steps_send_what_the_formulas_say() -> None:
    some = tuple(case for case in CASES if case.name in {"moco", "pico", "simclr"})
    found = list(measured(some, 2))
    assert len(found) == len(some)
    for case, (name, sent, _) in zip(some, found, strict=True):
        assert name == case.name
        assert sent == pytest.approx(predicted(case, 2), rel=TOLERANCE)


def test_nothing_is_made_to_count_it() -> None:
    recipe = Recipe.load("vit_base_patch16_224.moco_v3_in1k")
    before = torch.get_rng_state()
    assert model_of(recipe, 1000).trained > 80_000_000
    assert torch.equal(torch.get_rng_state(), before)
