"""Queue, momentum encoder, ghost BatchNorm, projection heads."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from timm.layers import BatchNormAct2d
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo.errors import TrainingError
from zoo.modules import (
    KeyQueue,
    MomentumEncoder,
    batchnorm,
    convert_ghost_batchnorm,
    evaluating,
    running_statistics,
    synchronize_batchnorm,
)


@pytest.mark.parametrize("batches", [[4, 4, 4, 4], [3, 5, 1, 7, 2], [10], [25], [9, 11, 1]])
@pytest.mark.parametrize("size", [10, 7])
def test_queue_holds_exactly_the_last_rows_in_order(size: int, batches: list[int]) -> None:
    queue = KeyQueue(size, 2)
    history: list[tuple[float, int]] = []
    for batch in batches:
        start = len(history)
        rows = torch.arange(start, start + batch)
        queue.enqueue(rows[:, None].float().expand(-1, 2), rows + 100)
        history += [(float(i), int(i) + 100) for i in rows]
        last = history[-size:]
        assert int(queue.filled) == len(last)
        assert int(queue.pointer) == len(history) % size
        assert int(queue.valid.sum()) == len(last)
        for key, label in last:  # row i of all history lies in slot i mod K, as if enqueued one by one
            assert float(queue.keys[int(key) % size, 0]) == key
            assert int(queue.labels[int(key) % size]) == label
    assert (queue.labels[~queue.valid] == -1).all()


def small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )


def test_teacher_is_a_copy_that_gets_no_gradient_and_follows_parameters_only() -> None:
    student = small_net()
    teacher = MomentumEncoder(student)
    assert not any(p.requires_grad for p in teacher.parameters())
    x = torch.randn(8, 3, 4, 4)
    assert not teacher(x.requires_grad_()).requires_grad
    before = {n: v.clone() for n, v in teacher.module.state_dict().items()}
    with torch.no_grad():
        for p in student.parameters():
            p.add_(1.0)
        student[1].running_mean.fill_(7.0)
    teacher.update([student], 0.9)
    for name, p in teacher.module.named_parameters():
        expected = 0.9 * before[name] + 0.1 * student.get_parameter(name)
        torch.testing.assert_close(p, expected)
    assert torch.equal(teacher.module[1].running_mean, before["1.running_mean"])


@pytest.mark.parametrize("batch", [16, 14, 9, 3, 2])
def test_ghost_groups_have_their_own_statistics(batch: int) -> None:
    groups = 4
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(5)
    nn.init.uniform_(plain.weight)
    nn.init.uniform_(plain.bias)
    ghost = convert_ghost_batchnorm(copy.deepcopy(plain), groups)
    x = torch.randn(batch, 5, 3, 3)
    out = ghost(x)
    used = max(1, min(groups, batch // 2))
    means = []
    for g in range(used):
        reference = copy.deepcopy(plain)
        torch.testing.assert_close(out[g::used], reference(x[g::used]), rtol=1e-5, atol=1e-6)
        means.append((reference.running_mean, reference.running_var))
    torch.testing.assert_close(ghost.running_mean, torch.stack([m for m, _ in means]).mean(0))
    torch.testing.assert_close(ghost.running_var, torch.stack([v for _, v in means]).mean(0))
    assert int(ghost.num_batches_tracked) == 1
    ghost.eval()
    plain.load_state_dict(ghost.state_dict())
    torch.testing.assert_close(ghost(x), plain.eval()(x))


def test_shuffled_keys_come_back_in_order() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))  # without BatchNorm, a function of each row
    x = torch.randn(10, 3, 2, 2)
    torch.testing.assert_close(MomentumEncoder(net, key_groups=4)(x), net(x))


def test_a_key_of_levit_tells_nothing_of_images_in_other_groups() -> None:
    torch.manual_seed(0)
    net = timm.create_model("levit_128s", num_classes=0, img_size=32)
    teacher, x = MomentumEncoder(net, key_groups=2), torch.randn(8, 3, 32, 32)
    keys = []
    for images in (x, torch.cat([x[:1] + 1, x[1:]])):
        torch.manual_seed(1)  # the same groups
        keys.append(teacher(images))
    assert (keys[0] == keys[1]).all(dim=1).sum() == 4  # all of the other group


@pytest.mark.parametrize(
    "arch", ["resnet10t", "efficientnet_b0", "cifar_resnet20", "convnext_atto", "vit_tiny_patch16_224"]
)
def test_ghost_batchnorm_works_in_timm_backbones(arch: str) -> None:
    args = {"img_size": 32, "patch_size": 8} if arch.startswith("vit") else {}
    model = timm.create_model(arch, num_classes=0, **args)
    keys = list(model.state_dict())
    convert_ghost_batchnorm(model, 2)
    assert list(model.state_dict()) == keys
    assert torch.isfinite(model(torch.randn(6, 3, 32, 32))).all()


def test_synchronized_layers_are_torchs_and_the_groups_of_keys_stay() -> None:
    student = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(BatchNormAct2d(4)))
    teacher = MomentumEncoder(student, key_groups=2)
    both = nn.ModuleList([student, teacher])
    keys, parameters = list(both.state_dict()), [*both.parameters()]
    synchronize_batchnorm(both)
    kinds = [type(part).__name__ for part in both.modules() if isinstance(part, _BatchNorm)]
    assert kinds == ["SyncBatchNorm", "SyncBatchNormAct", "GhostBatchNorm2d", "GhostBatchNormAct2d"]
    assert list(both.state_dict()) == keys and all(
        a is b for a, b in zip(both.parameters(), parameters, strict=True)
    )
    ghosts = batchnorm.ghosts(teacher)
    assert running_statistics(both) == [
        buffer for ghost in ghosts for buffer in (ghost.running_mean, ghost.running_var)
    ]
    assert running_statistics(both.eval()) == []


def test_unknown_batchnorm_is_refused_by_name() -> None:
    class Strange(nn.BatchNorm2d):
        pass

    with pytest.raises(TrainingError, match=r'"0" is a Strange.*key_groups'):
        convert_ghost_batchnorm(nn.Sequential(Strange(3)), 4)


def test_after_evaluation_each_part_has_its_own_mode_again() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)))
    module[1][1].eval()
    modes = [part.training for part in module.modules()]
    with pytest.raises(ZeroDivisionError), evaluating(module):
        assert not any(part.training for part in module.modules())
        raise ZeroDivisionError
    assert [part.training for part in module.modules()] == modes
