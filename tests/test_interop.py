"""Plain timm and transformers read a release of any architecture as zoo does, as the encoder written."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from packaging.version import Version
from PIL import Image
from sklearn.datasets import load_sample_image

import zoo
from tests.interop_helpers import CASES, release_case
from tests.release_helpers import FILLS_BUFFERS, TIMM, plain_timm, release_of, trained_encoder

# With non-persistent buffers, which a model built on the meta device lacks, and with something else of their
# own (tokens, a head that is no single layer, a fixed input size); as small as they get.
ARCHITECTURES: list[tuple[str, int, dict[str, Any]]] = [
    ("lambda_resnet26rpt_256", 128, {"img_size": 128}),
    ("vit_tiny_patch16_dinov3_qkvb", 64, {"img_size": 64, "depth": 2}),
    ("levit_128s", 224, {}),
    ("test_coatnet", 160, {}),
    ("swin_tiny_patch4_window7_224", 64, {"img_size": 64, "embed_dim": 24}),
    ("swinv2_tiny_window16_256", 64, {"img_size": 64, "embed_dim": 24}),
    ("tiny_vit_5m_224", 64, {"depths": (1, 1, 2, 1)}),
    ("test_vit_relpos", 160, {}),
    ("coat_lite_tiny", 64, {"img_size": 64}),
    ("deit_tiny_distilled_patch16_224", 32, {"img_size": 32, "patch_size": 8, "depth": 2}),
    ("resnet18_cifar", 32, {}),
    ("vit_tiny_patch16_224", 32, {"dynamic_img_size": True, "patch_size": 8, "depth": 2}),
]


@pytest.mark.parametrize(("arch", "size", "model_args"), ARCHITECTURES)
def test_features_are_those_of_the_encoder_and_of_plain_timm(arch, size, model_args, tmp_path):
    if not timm.is_model(arch):
        pytest.skip(f"timm {timm.__version__} has no {arch}")
    encoder = trained_encoder(arch, **model_args)  # nothing is as a fresh model of the same seed has it
    release_of(tmp_path / "release", encoder, arch, size, model_args=model_args)
    models = [zoo.load(tmp_path / "release").eval()]
    if not (arch.startswith("swin") and Version("1.0.31") > TIMM):
        # Those take weights without a classifier for an old format's, in timm before 1.0.31.
        models.append(plain_timm(tmp_path / "release", num_classes=0))
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        for model in models:  # the same weights; where one lies in memory decides the order of some sums
            torch.testing.assert_close(model(images), encoder(images), rtol=1e-4, atol=1e-5)
    found = dict([*models[0].named_parameters(), *models[0].named_buffers()])
    given = [*encoder.named_parameters(), *encoder.named_buffers()]
    assert all(not found[name].is_meta and torch.equal(found[name], each) for name, each in given)


@pytest.mark.parametrize("name", CASES)
def test_timm_and_zoo_compute_the_same(name: str, tmp_path: Path) -> None:
    release, encoder = release_case(name, tmp_path / "r")
    images = torch.randn(2, 3, CASES[name].size, CASES[name].size)
    photo = Image.fromarray(load_sample_image("china.jpg"))
    # the same bits; some processors sum in another order where a tensor lies elsewhere in memory
    close = {"rtol": 1e-4, "atol": 1e-5}
    with torch.no_grad():
        assert encoder(images).std() > 0
        torch.testing.assert_close(plain_timm(release.path, num_classes=0)(images), encoder(images), **close)
        for ours, theirs in (
            ({}, {"num_classes": 0}),
            ({"head": "centers"}, {}),
            ({"in_chans": 1}, {"in_chans": 1, "num_classes": 0}),
            ({"features_only": True}, {"features_only": True}),
        ):
            given = images[:, :1] if "in_chans" in ours else images
            found, expected = plain_timm(release.path, **theirs)(given), release.load(**ours).eval()(given)
            torch.testing.assert_close(found, expected, **close)
    model = plain_timm(release.path)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    assert torch.equal(transform(photo), release.transform()(photo))
    assert model.pretrained_cfg["label_names"] == list(release.class_names)  # type: ignore[index]


@pytest.mark.parametrize("name", [each for each in CASES if FILLS_BUFFERS or "positions" not in each])
def test_transformers_and_zoo_give_the_same_answers_and_names(name: str, tmp_path: Path) -> None:
    """The same bits: test_hub_round_trip.py."""
    library = pytest.importorskip("transformers")
    release, _ = release_case(name, tmp_path / "r")
    photo = Image.fromarray(load_sample_image("china.jpg"))
    for auto in (library.AutoModel, library.AutoModelForImageClassification):
        _, told = auto.from_pretrained(release.path, output_loading_info=True)
        assert not told["missing_keys"], told
    pixels = library.AutoImageProcessor.from_pretrained(release.path)(photo)["pixel_values"][0]
    assert torch.equal(pixels, release.transform()(photo))
    answers = library.pipeline("image-classification", model=str(release.path))(photo)
    found = {answer["label"]: answer["score"] for answer in answers}
    assert found == pytest.approx(dict(release.nearest_classes(photo)), abs=1e-6)
    library.AutoModelForImageClassification.from_pretrained(release.path).save_pretrained(tmp_path / "again")
    again = zoo.open(tmp_path / "again")  # a plain timm model: it may have been trained further
    assert again.is_plain and again.class_names == release.class_names
    found, expected = (each.load().eval()(pixels[None]) for each in (again, release))
    assert torch.equal(found, expected)
    config = library.AutoConfig.from_pretrained(release.path)
    assert [config.id2label[index] for index in range(len(config.id2label))] == list(release.class_names)
