"""Plain timm, in a process without zoo, reads a release as zoo does: bit for bit."""

from __future__ import annotations

import torch

from tests.interop_helpers import CASES, labels, release_case, run_program, timm_source, zoo_outputs
from tests.plain_timm import inputs
from tests.release_helpers import CLASSES


def test_timm_and_zoo_give_the_same_bits(tmp_path):
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
            assert torch.equal(theirs[output], expected), (name, output)
            assert expected.std() > 0, (name, output)
        with torch.no_grad():
            assert torch.equal(theirs["features"], encoder(inputs(CASES[name].size))), name
        assert theirs["fresh_logits"].shape == (2, 7)
        assert {"map0", "map1"} <= set(theirs)
        assert labels(theirs["labels"]) == [f"class {index}" for index in range(CLASSES)]
        assert labels(theirs["labels"]) == list(release.class_names)
