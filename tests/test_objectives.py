"""Objectives: order of operations, state, gradients, and what they release."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.objective_helpers import FT, QUEUED, WITH_TEACHER, batch, build, step
from zoo import backbones
from zoo.backbones import feature_dim
from zoo.errors import RecipeError, TrainingError
from zoo.modules import Centers
from zoo.objectives import SHIPPED, Batch, DataInfo, Objective, ObjectiveConfig, Output
from zoo.objectives.base import checked, construct

every_objective = pytest.mark.parametrize("name", sorted(SHIPPED))
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@every_objective
def test_forward_changes_statistics_alone_and_everything_but_the_teacher_gets_a_gradient(name: str) -> None:
    objective = build(name)
    assert not any(p.requires_grad for key, p in objective.named_parameters() if "teacher." in key)
    step(objective, batch(1, views=objective.config.num_views))
    before = copy.deepcopy(objective.state_dict())
    objective(batch(2, views=objective.config.num_views)).loss.backward()
    for key, value in objective.state_dict().items():
        assert key.endswith(STATISTICS) or torch.equal(value, before[key]), key
    for key, p in objective.named_parameters():
        if "teacher." in key:
            assert not p.requires_grad and p.grad is None, key
        else:
            assert p.grad is not None and (p.grad.any() or key.endswith("bias")), key
    assert not any(b.requires_grad for b in objective.buffers())


@pytest.mark.parametrize("name", WITH_TEACHER)
def test_update_moves_teacher_then_enqueues_the_keys_of_this_step(name: str) -> None:
    objective, data = build(name), batch(1)
    teacher = copy.deepcopy(objective.teacher)
    expected_keys = F.normalize(teacher(data.views[1]), dim=1)
    # the keys' own batch normalises them: the teacher is not in evaluation mode
    assert not torch.allclose(expected_keys, F.normalize(teacher.eval()(data.views[1]), dim=1), atol=1e-3)
    step(objective, data)
    torch.testing.assert_close(objective.queue.keys[:6], expected_keys)
    if name != "pico":  # its labels are those it predicts
        assert torch.equal(objective.queue.labels[:6], data.labels)
    assert int(objective.queue.filled) == 6
    student = [*objective.encoder.parameters(), *objective.head.parameters()]
    for new, old, own in zip(objective.teacher.parameters(), teacher.parameters(), student, strict=True):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * own)
    for ours, followed in zip(objective.teacher.buffers(), teacher.buffers(), strict=True):
        assert torch.equal(ours, followed)  # statistics are of its own keys, not the student's


def on_fake_gpu(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """The tensor's shape and type on a GPU that need not exist; operations refuse to mix devices there."""
    fake = mode.from_tensor(tensor.detach())
    with mode:
        return fake.to("cuda")


@pytest.mark.filterwarnings("ignore:User provided device_type")  # autocast, where there is no GPU
@every_objective
def test_everything_stays_on_the_training_device(name: str) -> None:
    """The meter joins a step's metrics in one tensor: one metric on the host would stop a run on a GPU."""
    objective = build(name, **({"feature_transform": FT} if name in QUEUED else {}))
    objective.epoch, mode = 5.0, FakeTensorMode()
    for module in objective.modules():
        for key, value in module._parameters.items():
            if value is not None:
                module._parameters[key] = nn.Parameter(on_fake_gpu(mode, value), value.requires_grad)
        for key, value in module._buffers.items():
            module._buffers[key] = None if value is None else on_fake_gpu(mode, value)
    data = batch(1, views=objective.config.num_views)
    views = tuple(on_fake_gpu(mode, view) for view in data.views)
    data = Batch(views, *(on_fake_gpu(mode, x) for x in data[1:]))
    with mode:
        output = objective(data)
        objective.update(data, output)
    assert {x.device.type for x in (output.loss, *output.metrics.values())} == {"cuda"}


@every_objective
def test_weight_decay_reaches_centers_and_heads(name: str) -> None:
    assert not {key for key in build(name).no_weight_decay() if "classifier" in key or "head" in key}


class Mistaken(Objective):
    """An objective of one's own, with a mistake in what its parts return."""

    def __init__(self, config: Any, encoder: nn.Module, info: DataInfo) -> None:
        if config.name == "init":
            self.head = nn.Linear(1, 1)
        super().__init__(config, encoder, info)
        if config.name == "encoder":
            self.encoder = nn.Sequential(encoder)

    def centers(self) -> Any:
        weight = torch.zeros(10, feature_dim(self.encoder))
        return {"tuple": (weight, None), "shape": Centers(weight[:5], weight[:5, 0], weight[:5, 0])}.get(
            self.config.name
        )


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ("init", r"objective: call super\(\)\.__init__"),
        ("encoder", r"Mistaken\.encoder: found another"),
        ("tuple", r"Mistaken\.centers: found \[\[10, 64\], \[\]\], expected Centers of \[10, 64\], \[10\]"),
        ("shape", r"Mistaken\.centers: found \[\[5, 64\], \[5\]\]"),
    ],
)
def test_what_a_release_could_not_hold_is_refused_before_the_training(mistake: str, expected: str) -> None:
    encoder, info = backbones.create("cifar_resnet20"), DataInfo(torch.ones(10))
    with pytest.raises(RecipeError, match=expected):
        construct(Mistaken, ObjectiveConfig(name=mistake), encoder, info)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (torch.zeros(()), "found a Tensor, expected Output"),
        (Output(torch.zeros(2, requires_grad=True), {}), "found loss of another kind"),
        (Output(torch.zeros((), requires_grad=True), {"a": 1.0}), "found a of another kind"),
        (Output(torch.zeros(()), {}), "found a loss without gradient"),
    ],
)
def test_what_forward_must_return_is_said(returned: Any, expected: str) -> None:
    with pytest.raises(TrainingError, match=rf"Linear\.forward: {expected}"):
        checked(returned, nn.Linear(1, 1))
    loss = torch.zeros((), requires_grad=True)
    kept = checked(Output(loss, {"twice": 2 * loss}), nn.Linear(1, 1)).metrics["twice"]
    assert not kept.requires_grad, "or an interval's graphs would be kept"
