"""Plain timm and transformers read a release as zoo does: bit for bit (test_card.py: also without zoo)."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

import zoo
from tests.interop_helpers import CASES, picture, release_case
from tests.release_helpers import FILLS_BUFFERS, plain_timm


def images_of(name: str) -> torch.Tensor:
    size = CASES[name].size
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", CASES)
def test_timm_and_zoo_compute_the_same(name: str, tmp_path: Path) -> None:
    release, encoder = release_case(name, tmp_path / "r")
    images, photo = images_of(name), Image.open(picture(tmp_path / "picture.png"))
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
def test_transformers_and_zoo_give_the_same_bits_and_names(name: str, tmp_path: Path) -> None:
    library = pytest.importorskip("transformers")
    release, _ = release_case(name, tmp_path / "r")
    images, photo = images_of(name), Image.open(picture(tmp_path / "picture.png"))
    encoder, told = library.AutoModel.from_pretrained(release.path, output_loading_info=True)
    auto = library.AutoModelForImageClassification
    classifier, also = auto.from_pretrained(release.path, output_loading_info=True)
    assert not told["missing_keys"] and not also["missing_keys"], (told, also)
    with torch.no_grad():
        assert torch.equal(encoder.eval()(images).pooler_output, zoo.load(release.path).eval()(images))
        logits = release.load(head="centers").eval()(images)
        assert torch.equal(classifier.eval()(images).logits, logits)
    pixels = library.AutoImageProcessor.from_pretrained(release.path)(photo)["pixel_values"][0]
    assert torch.equal(pixels, release.transform()(photo))
    answers = library.pipeline("image-classification", model=str(release.path))(photo)
    found = {answer["label"]: answer["score"] for answer in answers}
    assert found == pytest.approx(dict(release.nearest_classes(photo)), abs=1e-6)
    config = library.AutoConfig.from_pretrained(release.path)
    assert [config.id2label[index] for index in range(len(config.id2label))] == list(release.class_names)
