"""Push over real HTTP, then load with zoo, plain timm and transformers: the same features, bit for bit."""

import json
import subprocess
import sys

import pytest
import torch

import zoo
from tests.interop_helpers import CASES, release_case
from tests.release_helpers import FILLS_BUFFERS

# What other people's programs do; it must not know zoo, except for zoo's own architectures.
READER = """
import json, sys
import torch
job = json.loads(sys.argv[1])
if job["import_zoo"]:
    import zoo
import timm
from huggingface_hub import hf_hub_download
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoModel, AutoModelForImageClassification

found = {}
for repo, (revision, size) in job["repos"].items():
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))
    name = f"hf-hub:{repo}@{revision}"
    encoder = timm.create_model(name, pretrained=True, num_classes=0).eval()
    classifier = timm.create_model(name, pretrained=True).eval()
    model = AutoModel.from_pretrained(repo, revision=revision).eval()
    labelled = AutoModelForImageClassification.from_pretrained(repo, revision=revision).eval()
    AutoImageProcessor.from_pretrained(repo, revision=revision)
    with torch.no_grad():
        found[repo] = {
            "timm features": encoder(images),
            "transformers features": model(images).pooler_output,
            "timm logits": classifier(images),
            "transformers logits": labelled(images).logits,
            "centers": load_file(hf_hub_download(repo, "centers.safetensors", revision=revision)),
        }
    assert list(labelled.config.id2label.values()) == job["labels"], labelled.config.id2label
assert ("zoo" in sys.modules) == job["import_zoo"]
torch.save(found, job["out"])
"""


@pytest.mark.parametrize("own", [False, True], ids=["timm's own", "zoo's own"])
def test_pushed_weights_compute_the_same_everywhere(hub, tmp_path, own):
    made, repos = {}, {}
    for name, case in CASES.items():
        if case.arch.startswith("cifar_") == own and (FILLS_BUFFERS or "positions" not in name):
            release, encoder = release_case(name, tmp_path / case.arch)
            made[f"alice/{release.name}"] = release, encoder
    for repo, (release, _) in made.items():
        commit = zoo.push(release, repo, token=hub.token).rpartition("/")[2]
        repos[repo] = commit, release.preprocess.input_size
    job = {"repos": repos, "import_zoo": own, "out": str(tmp_path / "found.pt")}
    job["labels"] = [f"class {index}" for index in range(5)]
    command = [sys.executable, "-W", "ignore", "-c", READER, json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    elsewhere = torch.load(job["out"], weights_only=True)

    for repo, (release, encoder) in made.items():
        (commit, size), found, centers = repos[repo], elsewhere[repo], release.centers
        images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))
        with torch.no_grad():
            features = encoder(images)
            loaded = zoo.load(f"{repo}@{commit}").eval()(images)
            logits = zoo.load(f"hf-hub:{repo}", revision=commit, head="centers").eval()(images)
        for each in (loaded, found["timm features"], found["transformers features"]):
            assert torch.equal(each, features), repo
        for name in ("timm logits", "transformers logits"):
            assert torch.equal(found[name], logits), repo
        # one product instead of two may sum in another order
        torch.testing.assert_close(logits, features @ centers.weight.T + centers.bias)
        pulled = zoo.open(repo).centers
        for key in ("weight", "bias", "class_counts"):
            assert torch.equal(found["centers"][key].to(getattr(centers, key)), getattr(centers, key)), repo
            assert torch.equal(getattr(pulled, key), getattr(centers, key)), repo
