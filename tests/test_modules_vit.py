"""What MoCo v3 fixes in a vision transformer: the authors' numbers, through training and saving."""

import pytest
import torch

from zoo import backbones
from zoo.errors import ZooError
from zoo.modules import MomentumEncoder, freeze_patch_embedding, set_sincos_positions

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "num_heads": 2, "depth": 2}


def vit(arch="vit_tiny_patch16_224", **changes):
    return backbones.create(arch, **{**SMALL, **changes})


def authors_positions(height, width, dim):
    """Restate moco-v3's build_2d_sincos_position_embedding without the class token."""
    grid_w, grid_h = torch.meshgrid(torch.arange(width).float(), torch.arange(height).float(), indexing="ij")
    omega = 1.0 / 10000.0 ** (torch.arange(dim // 4).float() / (dim // 4))
    out_w, out_h = (torch.outer(grid.flatten(), omega) for grid in (grid_w, grid_h))
    return torch.cat([out_w.sin(), out_w.cos(), out_h.sin(), out_h.cos()], dim=1)


@pytest.mark.parametrize(
    ("changes", "side", "prefix"),  # tokens that are no patches have position zero
    [
        ({"img_size": 224, "patch_size": 16, "embed_dim": 384}, 14, 1),
        ({"img_size": 48, "patch_size": 16, "embed_dim": 64}, 3, 1),
        ({"reg_tokens": 4}, 4, 5),
        ({"no_embed_class": True, "reg_tokens": 4}, 4, 0),
        ({"dtype": torch.float64}, 4, 1),
    ],
)
def test_positions_are_the_authors_on_a_square_grid(changes, side, prefix):
    model = vit(depth=1, **changes)
    set_sincos_positions(model)
    assert not model.pos_embed.requires_grad and not model.pos_embed[0, :prefix].any()
    expected = authors_positions(side, side, model.embed_dim).to(model.pos_embed.dtype)
    torch.testing.assert_close(model.pos_embed[0, prefix:], expected, rtol=0, atol=1e-6)


def test_a_frozen_embedding_keeps_its_values_and_all_else_learns():
    model = vit()
    freeze_patch_embedding(model)
    set_sincos_positions(model)
    fixed = {"patch_embed.proj.weight", "patch_embed.proj.bias", "pos_embed"}
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == fixed
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    teacher = MomentumEncoder(model)
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=1.0, weight_decay=0.1)
    model(torch.randn(4, 3, 32, 32)).square().mean().backward()
    optimizer.step()
    teacher.update([model], 0.9)
    for network in (model, teacher.module):
        stayed = {name for name, p in network.named_parameters() if torch.equal(p, weights[name])}
        assert stayed == fixed


@pytest.mark.parametrize(
    ("change", "arch", "message"),
    [
        (freeze_patch_embedding, "resnet18", "freeze_patch_embedding: resnet18 has no patch embedding"),
        (set_sincos_positions, "cifar_resnet20", "sincos_positions: cifar_resnet20 has no patch embedding"),
        (set_sincos_positions, "vit_relpos_small_patch16_224", "no learned position embedding .*14 x 14"),
    ],
)
def test_an_encoder_that_has_nothing_to_fix_is_refused(change, arch, message):
    model = backbones.create(arch)
    before = [p.requires_grad for p in model.parameters()]
    with pytest.raises(ZooError, match=message) as caught:
        change(model)
    assert "\n" not in str(caught.value)
    assert [p.requires_grad for p in model.parameters()] == before
