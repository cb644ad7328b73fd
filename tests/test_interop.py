"""Plain timm and transformers, in processes without zoo, read a release as zoo does: bit for bit."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from tests.interop_helpers import CASES, labels, picture, release_case, run_program, timm_source, zoo_outputs
from tests.plain_timm import inputs
from tests.release_helpers import FILLS_BUFFERS


def test_timm_and_zoo_compute_the_same(tmp_path):
    """All cases in one test: what takes long is timm's import, in a process of its own."""
    releases = {name: release_case(name, tmp_path / name.replace(" ", "_")) for name in CASES}
    home = tmp_path / "hf"
    sources = {name: timm_source(release, home) for name, (release, _) in releases.items()}
    found = run_program("plain_timm", sources, tmp_path, HF_HOME=str(home), HF_HUB_OFFLINE="1")
    for name, theirs in found.items():
        release, encoder = releases[name]
        ours = dict(zoo_outputs(name, release.path, tmp_path))
        assert set(theirs) - set(ours) == {"labels", "fresh_logits"} and {"map0", "map1"} <= set(theirs)
        with torch.no_grad():
            ours["features"] = encoder(inputs(CASES[name].size))
        for output, expected in ours.items():
            # the same bits; some processors sum in another order where a tensor lies elsewhere in memory
            torch.testing.assert_close(theirs[output], expected, rtol=1e-4, atol=1e-5, msg=f"{name} {output}")
            assert expected.std() > 0, (name, output)
        assert theirs["fresh_logits"].shape == (2, 7)
        assert labels(theirs["labels"]) == list(release.class_names)


def test_transformers_and_zoo_give_the_same_bits_and_names(tmp_path):
    """All cases in one test: what takes long is transformers' import, in a process of its own."""
    pytest.importorskip("transformers")
    cases = [name for name in CASES if FILLS_BUFFERS or "positions" not in name]
    releases = {name: release_case(name, tmp_path / name.replace(" ", "_"))[0] for name in cases}
    sources = {name: str(release.path) for name, release in releases.items()}
    for name, theirs in run_program("plain_transformers", sources, tmp_path, HF_HUB_OFFLINE="1").items():
        ours = dict(zoo_outputs(name, releases[name].path, tmp_path))
        for output in ("features", "logits", "pixels"):
            assert torch.equal(theirs[output], ours[output]), (name, output)
        nearest = releases[name].nearest_classes(Image.open(picture(tmp_path / "picture.png")))
        best = dict(zip(labels(theirs["top labels"]), theirs["top scores"].tolist(), strict=True))
        assert best == pytest.approx(dict(nearest), abs=1e-6)
        assert labels(theirs["labels"]) == list(releases[name].class_names)
