"""Queue, momentum encoder, ghost BatchNorm, and what MoCo v3 fixes in a vision transformer."""

import copy
from typing import Any

import pytest
import timm
import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo import backbones
from zoo.backbones import evaluating
from zoo.errors import TrainingError, ZooError
from zoo.modules import (
    KeyQueue,
    MomentumEncoder,
    batchnorm,
    convert_ghost_batchnorm,
    running_statistics,
    synchronize_batchnorm,
)
from zoo.objectives.moco_v3 import freeze_patch_embedding, set_sincos_positions


@pytest.mark.parametrize("batches", [[3, 5, 1, 7, 2], [10], [25], [9, 11, 1]])
def test_queue_holds_exactly_the_last_rows_in_order(batches: list[int]) -> None:
    size, count = 10, 0
    queue = KeyQueue(size, 2)
    for batch in batches:
        rows = torch.arange(count, count + batch)
        queue.enqueue(rows[:, None].float().expand(-1, 2), rows + 100)
        count += batch
        last = torch.arange(max(0, count - size), count)
        assert [int(queue.filled), int(queue.pointer)] == [len(last), count % size]
        # row i of all history lies in slot i mod K, as if enqueued one by one
        assert torch.equal(queue.keys[last % size, 0].long(), last)
        assert torch.equal(queue.labels[last % size], last + 100)
        assert int(queue.valid.sum()) == len(last) and (queue.labels[~queue.valid] == -1).all()


@pytest.mark.parametrize("batch", [16, 9, 3])
def test_ghost_groups_have_their_own_statistics(batch: int) -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(5)
    nn.init.uniform_(plain.weight)
    ghost = convert_ghost_batchnorm(copy.deepcopy(plain), 4)
    x = torch.randn(batch, 5, 3, 3)
    out, used, norms = ghost(x), min(4, batch // 2), []
    for g in range(used):
        norms.append(copy.deepcopy(plain))
        torch.testing.assert_close(out[g::used], norms[-1](x[g::used]), rtol=1e-5, atol=1e-6)
    for name in ("running_mean", "running_var"):
        mean = torch.stack([norm.get_buffer(name) for norm in norms]).mean(0)
        torch.testing.assert_close(ghost.get_buffer(name), mean)
    assert int(ghost.num_batches_tracked) == 1
    plain.load_state_dict(ghost.state_dict())
    torch.testing.assert_close(ghost.eval()(x), plain.eval()(x))


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


def test_synchronized_layers_are_torchs_and_the_groups_of_keys_stay() -> None:
    student = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(BatchNormAct2d(4)))
    both = nn.ModuleList([student, MomentumEncoder(student, key_groups=2)])
    keys, parameters = list(both.state_dict()), [*both.parameters()]
    synchronize_batchnorm(both)
    kinds = [type(part).__name__ for part in both.modules() if isinstance(part, _BatchNorm)]
    assert kinds == ["SyncBatchNorm", "SyncBatchNormAct", "GhostBatchNorm2d", "GhostBatchNormAct2d"]
    assert list(both.state_dict()) == keys
    assert all(a is b for a, b in zip(both.parameters(), parameters, strict=True))
    own = [buffer for ghost in batchnorm.ghosts(both) for buffer in (ghost.running_mean, ghost.running_var)]
    assert running_statistics(both) == own and running_statistics(both.eval()) == []


def test_unknown_batchnorm_is_refused_by_name() -> None:
    strange = type("Strange", (nn.BatchNorm2d,), {})
    with pytest.raises(TrainingError, match=r'"0" is a Strange.*key_groups'):
        convert_ghost_batchnorm(nn.Sequential(strange(3)), 4)


def test_after_evaluation_each_part_has_its_own_mode_again() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)))
    module[1][1].eval()
    modes = [part.training for part in module.modules()]
    with pytest.raises(ZeroDivisionError), evaluating(module):
        assert not any(part.training for part in module.modules())
        raise ZeroDivisionError
    assert [part.training for part in module.modules()] == modes


def vit(**changes: Any) -> Any:
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "num_heads": 2, "depth": 1}
    return backbones.create("vit_tiny_patch16_224", **small | changes)


def authors_positions(side: int, dim: int) -> Tensor:
    """Restate moco-v3's build_2d_sincos_position_embedding without the class token."""
    grids = torch.meshgrid(torch.arange(side).float(), torch.arange(side).float(), indexing="ij")
    omega = 1.0 / 10000.0 ** (torch.arange(dim // 4).float() / (dim // 4))
    out_w, out_h = (torch.outer(grid.flatten(), omega) for grid in grids)
    return torch.cat([out_w.sin(), out_w.cos(), out_h.sin(), out_h.cos()], dim=1)


@pytest.mark.parametrize(
    ("changes", "prefix"),  # tokens that are no patches have position zero
    [({}, 1), ({"reg_tokens": 4}, 5), ({"no_embed_class": True, "reg_tokens": 4}, 0)],
)
def test_positions_are_the_authors_on_a_square_grid(changes: dict[str, Any], prefix: int) -> None:
    model = vit(**changes)
    set_sincos_positions(model)
    assert not model.pos_embed.requires_grad and not model.pos_embed[0, :prefix].any()
    expected = authors_positions(4, model.embed_dim)
    torch.testing.assert_close(model.pos_embed[0, prefix:], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "arch", "message"),
    [
        (freeze_patch_embedding, "cifar_resnet20", "freeze_patch_embedding: cifar_resnet20 has no patch emb"),
        (set_sincos_positions, "vit_relpos_small_patch16_224", "no learned position embedding .*14 x 14"),
    ],
)
def test_an_encoder_that_has_nothing_to_fix_is_refused(change: Any, arch: str, message: str) -> None:
    model = backbones.create(arch)
    with pytest.raises(ZooError, match=message):
        change(model)
    assert all(p.requires_grad for p in model.parameters())
