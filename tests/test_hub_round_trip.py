"""Push over real HTTP, then load with zoo, plain timm and transformers: the same features, bit for bit."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import zoo
from tests.release_helpers import FILLS_BUFFERS, release_of, some_centers, trained_encoder

SIZE = 64
TIMMS_OWN = {
    "resnet10t": {},
    "eva02_tiny_patch14_224": {"img_size": 56},  # rotary position buffers, which no file holds
    "swinv2_cr_tiny_ns_224": {"img_size": SIZE, "window_size": 2},  # tables of relative positions
    "convnext_atto": {},
}
if not FILLS_BUFFERS:
    del TIMMS_OWN["eva02_tiny_patch14_224"], TIMMS_OWN["swinv2_cr_tiny_ns_224"]

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


@pytest.mark.parametrize("arches", [TIMMS_OWN, {"cifar_resnet32": {}}], ids=["timm's own", "zoo's own"])
def test_pushed_weights_compute_the_same_everywhere(hub, tmp_path, arches):
    made, repos = {}, {}
    for arch, args in arches.items():
        encoder, size = trained_encoder(arch, **args), args.get("img_size", SIZE)
        centers = some_centers(zoo.backbones.feature_dim(encoder))
        release = release_of(tmp_path / arch, encoder, arch, size, model_args=args, centers=centers)
        repo = f"alice/{arch}.paco_test"
        made[repo] = encoder, centers
        repos[repo] = zoo.push(release, repo, token=hub.token).rpartition("/")[2], size
    job = {"repos": repos, "import_zoo": arches is not TIMMS_OWN, "out": str(tmp_path / "found.pt")}
    job["labels"] = [f"class {index}" for index in range(5)]
    command = [sys.executable, "-W", "ignore", "-c", READER, json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    elsewhere = torch.load(job["out"], weights_only=True)

    for repo, (encoder, centers) in made.items():
        (commit, size), found = repos[repo], elsewhere[repo]
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
        for tensors in (found["centers"], load_file(zoo.open(repo).path / "centers.safetensors")):
            for key in ("weight", "bias", "class_counts"):
                assert torch.equal(tensors[key], getattr(centers, key)), repo
