"""transformers' Auto classes, in a process without zoo, read a release as zoo does: bit for bit."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from tests.interop_helpers import CASES, labels, picture, release_case, run_program, zoo_outputs
from tests.release_helpers import FILLS_BUFFERS

pytest.importorskip("transformers")


def test_transformers_and_zoo_give_the_same_bits_and_names(tmp_path):
    """All cases in one test: what takes long is transformers' import, in a process of its own."""
    cases = [name for name in CASES if FILLS_BUFFERS or "positions" not in name]
    releases = {name: release_case(name, tmp_path / name.replace(" ", "_"))[0] for name in cases}
    sources = {name: {"source": str(release.path)} for name, release in releases.items()}
    found = run_program("plain_transformers", sources, tmp_path, env={"HF_HUB_OFFLINE": "1"})
    for name, theirs in found.items():
        ours = dict(zoo_outputs(name, releases[name].path, tmp_path))
        assert set(theirs) == {"features", "logits", "pixels", "labels", "top scores", "top labels"}
        for output in ("features", "logits", "pixels"):
            assert torch.equal(theirs[output], ours[output]), (name, output)
        image = Image.open(picture(tmp_path / "picture.png"))
        nearest = releases[name].nearest_classes(image)
        best, scores = labels(theirs["top labels"]), theirs["top scores"].tolist()
        assert best[0] == nearest[0][0]
        assert dict(zip(best, scores, strict=True)) == pytest.approx(dict(nearest), abs=1e-6)
        assert labels(theirs["labels"]) == list(releases[name].class_names)
