"""Backbones: the CIFAR ResNets against their papers, their timm interface, and the errors of `create`."""

import platform
import subprocess
import sys

import pytest
import timm
import torch
from torch.nn import functional as F

from zoo import backbones
from zoo.errors import ZooError


@pytest.mark.parametrize(("depth", "paper"), [(20, 0.27), (32, 0.46), (110, 1.7)])
def test_cifar_resnets_have_the_papers_number_of_parameters(depth, paper):
    model = backbones.create(f"cifar_resnet{depth}", num_classes=10)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert round(count / 1e6, 1 if depth == 110 else 2) == paper
    weighted = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(weighted) == depth


def test_cifar_resnet_computes_what_the_paper_describes():
    torch.manual_seed(0)
    model = backbones.create("cifar_resnet20", num_classes=10).train()
    images = torch.randn(4, 3, 32, 32)
    state = {key: value.clone() for key, value in model.state_dict().items()}

    def conv_norm(x, conv, norm, stride=1):
        x = F.conv2d(x, state[f"{conv}.weight"], stride=stride, padding=1)
        mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, unbiased=False)
        scale, shift = state[f"{norm}.weight"].view(1, -1, 1, 1), state[f"{norm}.bias"].view(1, -1, 1, 1)
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    x = conv_norm(images, "conv1", "bn1").relu()
    for stage in (1, 2, 3):
        for block in range(3):
            prefix, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = conv_norm(x, f"{prefix}.conv1", f"{prefix}.bn1", stride).relu()
            y = conv_norm(y, f"{prefix}.conv2", f"{prefix}.bn2")
            shortcut = torch.zeros_like(y)
            start = (y.shape[1] - x.shape[1]) // 2
            shortcut[:, start : start + x.shape[1]] = x[:, :, ::stride, ::stride]
            x = (y + shortcut).relu()
    logits = x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]

    torch.testing.assert_close(model(images), logits, rtol=1e-3, atol=1e-4)


def test_cifar_resnet_has_timms_interface():
    model = timm.create_model("cifar_resnet20", num_classes=7, in_chans=1, drop_rate=0.5).eval()
    images = torch.randn(2, 1, 32, 32)
    maps = model.forward_features(images)
    torch.testing.assert_close(model(images), model.get_classifier()(maps.mean((2, 3))))
    model.train()
    assert not torch.equal(model.forward_head(maps), model.forward_head(maps)), "dropout is off in training"
    model.eval().reset_classifier(0, "max")
    torch.testing.assert_close(model(images), maps.amax((2, 3)))


@pytest.mark.parametrize(
    ("arch", "original", "known"),  # from https://github.com/kuangliu/pytorch-cifar, of this form
    [("resnet18_cifar", "resnet18", 11_173_962), ("resnet50_cifar", "resnet50", 23_520_842)],
)
def test_small_image_resnets_are_timms_behind_another_stem(arch, original, known):
    torch.manual_seed(0)
    model = timm.create_model(arch, zero_init_last=False).train()
    assert sum(parameter.numel() for parameter in model.parameters()) == known
    reference = timm.create_model(original, num_classes=10).train()
    state = dict(model.state_dict())
    assert list(state) == list(reference.state_dict())
    stem = state.pop("conv1.weight")
    reference.load_state_dict(state, strict=False)
    images = torch.randn(2, 3, 32, 32)
    x = reference.act1(reference.bn1(F.conv2d(images, stem, padding=1)))
    for stage in (reference.layer1, reference.layer2, reference.layer3, reference.layer4):
        x = stage(x)
    assert x.shape[2:] == (4, 4)
    torch.testing.assert_close(model(images), reference.fc(x.mean((2, 3))), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("arch", "args", "reductions"),
    [
        ("cifar_resnet20", {}, [1, 2, 4]),
        ("cifar_resnet20", {"out_indices": (0, 2)}, [1, 4]),
        ("resnet50_cifar", {}, [1, 1, 2, 4, 8]),
    ],
)
def test_feature_maps_have_the_reductions_they_say(arch, args, reductions):
    maps = timm.create_model(arch, features_only=True, **args).eval()
    found, info = maps(torch.randn(1, 3, 32, 32)), maps.feature_info
    assert [m.shape[1] for m in found] == info.channels()
    assert [32 // m.shape[2] for m in found] == info.reduction() == reductions


@pytest.mark.parametrize(
    ("arch", "model_args", "message"),
    [
        ("resnet5", {}, 'unknown architecture "resnet5". Did you mean "resnet50"?'),
        ("vit_tiny_patch16_224", {"imgsize": 32}, 'takes no argument "imgsize". Did you mean "img_size"?'),
        ("resnet18_cifar", {"stem_type": "deep"}, "stem_type has no effect: the stem is one 3x3 convolution"),
    ],
)
def test_create_explains_what_an_architecture_refuses(arch, model_args, message):
    with pytest.raises(ZooError) as caught:
        backbones.create(arch, **model_args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_check_input_says_which_argument_helps_and_leaves_no_trace():
    model = backbones.create("vit_tiny_patch16_224", depth=1)
    with pytest.raises(ZooError, match=r"takes no 32 x 32 images: .*img_size=32 and a smaller patch_size"):
        backbones.check_input(model, 32)
    model = backbones.create("cifar_resnet20").train()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    backbones.check_input(model, 32)
    assert model.training and model.bn1.training
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


FAULTS = """
import resource, torch, zoo.backbones

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(16 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

outside = faults()
with zoo.backbones.keeping_memory():
    with zoo.backbones.keeping_memory():
        faults()
    print(outside, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc's options are glibc's")
def test_inside_the_block_the_kernel_clears_no_pages_of_large_tensors_again() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    outside, inside = map(int, done.stdout.split())
    assert inside < 100 < 10_000 < outside, "pages of ten tensors of 64 MiB"


def test_a_model_of_ones_own_needs_what_a_release_reads() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 4))
    with pytest.raises(ZooError, match="found no num_features and no num_classes and no pretrained_cfg"):
        backbones.check_encoder(model, 8)
