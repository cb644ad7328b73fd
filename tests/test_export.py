"""A release as an ONNX file: what onnxruntime makes of it, and what the file says of itself."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import zoo
from tests import warm
from tests.release_helpers import randomised, release_of, some_centers, trained_encoder
from zoo.errors import ReleaseError, ZooError

PACO, MOCO = "cifar_resnet20.paco_digits_lt50", "cifar_resnet20.moco_v2_ft_digits_lt50"
SMALL_VIT = {"img_size": 32, "patch_size": 8, "depth": 2}


def saved(folder: Path, arch: str, **args: Any) -> Path:
    """Save a model of random weights as timm does."""
    torch.manual_seed(0)
    timm.models.save_for_hf(randomised(timm.create_model(arch, **args)), folder, safe_serialization=True)
    return folder


def of_1x1_convolution(folder: Path) -> Path:
    """A release whose centers are beside an encoder that has no linear layer for them."""
    encoder = trained_encoder("resnetv2_18")
    release_of(folder, encoder, "resnetv2_18", centers=some_centers(512))
    return folder


CASES: dict[str, Any] = {
    "digits, CIFAR ResNet": lambda _: PACO,
    "features alone": lambda _: MOCO,
    "CNN of timm": lambda folder: saved(folder, "test_efficientnet", num_classes=7),
    "ViT of timm": lambda folder: saved(folder, "vit_tiny_patch16_224", num_classes=5, **SMALL_VIT),
    "two classifiers": lambda folder: saved(folder, "deit_tiny_distilled_patch16_224", **SMALL_VIT),
    "centers beside the encoder": of_1x1_convolution,
    "padding by TensorFlow's rule": lambda _: "tf_efficientnet_lite0.paco_cifar100_lt100",
}
PARAMS = [pytest.param(each, marks=pytest.mark.slow) if "Tensor" in each else each for each in CASES]


@pytest.fixture(scope="module", params=PARAMS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A release, its ONNX file, and what the export returned."""
    folder = tmp_path_factory.mktemp("export")
    release = zoo.open(CASES[request.param](folder / "release"))
    return release, folder / "model.onnx", zoo.export(release, folder / "model.onnx")


def test_onnxruntime_makes_of_any_batch_what_torch_makes(exported: Any) -> None:
    release, file, _ = exported
    onnx.checker.check_model(file, full_check=True)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    encoder, centers = release.load().eval(), release.centers
    linear = centers is not None and release.config["num_classes"]
    classifier = release.load(head="centers").eval() if linear else None
    size = release.preprocess.input_size
    assert [(each.name, each.shape) for each in session.get_inputs()] == [
        ("pixel_values", ["batch", 3, size, size])
    ]
    for batch in (1, 5):
        images = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(batch))
        found = session.run(None, {"pixel_values": images.numpy()})
        with torch.no_grad():
            features = encoder(images)
            expected = [] if centers is None else [centers.logits(features)]
            if classifier is not None:
                torch.testing.assert_close(expected[0], classifier(images), rtol=1e-4, atol=1e-4)
        names = ["features"] if centers is None else ["logits", "features"]
        assert [each.name for each in session.get_outputs()] == names
        for array, tensor in zip(found, [*expected, features], strict=True):
            assert array.shape == tensor.shape
            assert np.abs(array - tensor.numpy()).max() < 1e-4 * max(1, float(tensor.abs().max()))
        if centers is not None:
            assert np.array_equal(found[0].argmax(1), expected[0].argmax(1))


def test_the_metadata_are_json_that_make_an_image_the_input(exported: Any) -> None:
    release, file, about = exported
    metadata = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    read = {key: json.loads(value) for key, value in metadata.items()}
    assert read == json.loads(json.dumps(about))
    assert (read["name"], read["license"]) == (release.name, release.config["pretrained_cfg"]["license"])
    names = list(release.class_names) if release.centers else None
    assert read.get("class_names") == names
    keys = ("input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std")
    transform = timm.data.create_transform(**{key: read[key] for key in keys})
    image = Image.effect_noise((41, 37), 60).convert("RGB")
    assert torch.equal(transform(image), release.transform()(image))


def test_the_file_is_whole_by_itself_and_names_no_path_of_this_machine(exported: Any) -> None:
    _, file, _ = exported
    content = file.read_bytes()
    assert [each.name for each in file.parent.iterdir() if each.is_file()] == [file.name]
    for path in (Path(torch.__file__).parents[1], Path(zoo.__file__).parent, file.parent):
        assert str(path).encode() not in content


def test_a_file_that_is_there_is_replaced_whole_or_stays(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "new" / "model.onnx"
    zoo.export(MOCO, file)
    first = file.read_bytes()

    class Unlike(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean((2, 3)) + (0 if torch.compiler.is_exporting() else 1)

    class Unexportable(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean((2, 3)) if images.mean().item() > 0 else images.amax((2, 3))

    release = zoo.open(MOCO)
    for module, told in ((Unlike, "onnxruntime computes other features than torch"), (Unexportable, "")):
        monkeypatch.setattr(type(release), "load", lambda self, module=module: module())
        with pytest.raises(ReleaseError, match=f"^{MOCO}: cannot be exported: {told}") as error:
            zoo.export(release, file)
        assert str(error.value).isprintable()
    assert file.read_bytes() == first and [*file.parent.iterdir()] == [file]
    monkeypatch.undo()
    zoo.export(PACO, file)
    assert onnxruntime.InferenceSession(file).get_outputs()[0].name == "logits"


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    done = warm.zoo("export", MOCO, "--onnx", tmp_path / "a.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{MOCO}: features of pixel_values ['batch', 3, 8, 8], written to " in done.stdout
    assert (tmp_path / "a.onnx").is_file()


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("cifar_resnet20.paco_digit_lt50", "--onnx", "a.onnx"), 1, f'Did you mean "{PACO}"'),
        (("./nowhere", "--onnx", "a.onnx"), 1, 'no folder "nowhere"'),
        ((PACO, "--onnx", "a.pt"), 1, '--onnx: found "a.pt", expected a file that ends in .onnx'),
        ((PACO, "--onnx", "folder.onnx"), 1, '"folder.onnx" cannot be written: it is a folder'),
        ((PACO, "--onnx", "file/a.onnx"), 1, '"file/a.onnx" cannot be written'),
        ((PACO,), 2, "--onnx"),
    ],
)
def test_a_mistake_is_one_line(arguments, status, expected, tmp_path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "file").touch()
    done = warm.run("-m", "zoo", "export", *arguments, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert expected in done.stderr and "Traceback" not in done.stderr
    assert status == 2 or done.stderr.count("\n") == 1
    assert not [*tmp_path.glob("*.onnx/*"), *tmp_path.glob("**/a.*")]


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_a_package_that_is_not_there_is_one_line(package: str, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "zoo.convert.export")
    monkeypatch.delitem(vars(zoo), "export")
    with pytest.raises(ZooError) as error:
        zoo.export  # noqa: B018
    assert str(error.value) == f'needs the package {package}: pip install "contrastive-zoo[onnx]"'
