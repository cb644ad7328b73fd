"""Plain timm, in a process without zoo, reads a release as zoo does: bit for bit."""

from __future__ import annotations

import torch

from tests.interop_helpers import CASES, labels, release_case, run_program, timm_source, zoo_outputs
from tests.plain_timm import inputs
from tests.release_helpers import CLASSES


def assert_close(found: torch.Tensor, expected: torch.Tensor, *what: str) -> None:
    """The weights are the same bits; some processors sum in another order where a tensor lies elsewhere."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=lambda text: f"{what}: {text}")


def test_timm_and_zoo_compute_the_same(tmp_path):
    """All cases in one test: what takes long is timm's import, in a process of its own."""
    releases = {name: release_case(name, tmp_path / name.replace(" ", "_")) for name in CASES}
    home = tmp_path / "hf"
    sources = {name: {"source": timm_source(release, home)} for name, (release, _) in releases.items()}
    env = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    for name, theirs in run_program("plain_timm", sources, tmp_path, env=env).items():
        release, encoder = releases[name]
        ours = dict(zoo_outputs(name, release.path, tmp_path))
        assert set(theirs) - set(ours) == {"labels", "fresh_logits"}
        for output, expected in ours.items():
            assert_close(theirs[output], expected, name, output)
            assert expected.std() > 0, (name, output)
        with torch.no_grad():
            assert_close(theirs["features"], encoder(inputs(CASES[name].size)), name, "features")
        assert theirs["fresh_logits"].shape == (2, 7)
        assert {"map0", "map1"} <= set(theirs)
        assert labels(theirs["labels"]) == [f"class {index}" for index in range(CLASSES)]
        assert labels(theirs["labels"]) == list(release.class_names)
