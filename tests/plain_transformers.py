"""What transformers makes of releases: run as a program, in a process that need not know zoo.

    python plain_transformers.py REQUEST.json

REQUEST.json as in `plain_timm.py`, with `source` a folder or a repository's name, and perhaps `revision`.
"""

import importlib
import json
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)


def inputs(size):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(7))


def outputs(source, size, image, revision=None):
    """Every class of transformers that reads a release."""
    from transformers import (
        AutoConfig,
        AutoImageProcessor,
        AutoModel,
        AutoModelForImageClassification,
        pipeline,
    )

    config = AutoConfig.from_pretrained(source, revision=revision)
    loading = {"revision": revision, "output_loading_info": True}
    encoder, told = AutoModel.from_pretrained(source, **loading)
    classifier, told_too = AutoModelForImageClassification.from_pretrained(source, **loading)
    assert not told["missing_keys"], told
    assert not told_too["missing_keys"], told_too
    images = inputs(size)
    yield "features", encoder.eval()(images).pooler_output
    yield "logits", classifier.eval()(images).logits
    yield "pixels", AutoImageProcessor.from_pretrained(source, revision=revision)(image)["pixel_values"][0]
    labels = [config.id2label[index] for index in range(len(config.id2label))]
    assert config.label2id == {label: index for index, label in enumerate(labels)}
    answers = pipeline("image-classification", model=source, revision=revision)(image)
    yield "top scores", torch.tensor([answer["score"] for answer in answers])
    yield "top labels", torch.tensor(list("\n".join(a["label"] for a in answers).encode()), dtype=torch.uint8)
    yield "labels", torch.tensor(list("\n".join(labels).encode()), dtype=torch.uint8)


def main(request):
    if request["import_zoo"]:
        importlib.import_module("zoo")
    from PIL import Image
    from safetensors.torch import save_file

    image = Image.open(request["images"])
    tensors = {}
    with torch.no_grad():
        for key, model in request["models"].items():
            for name, tensor in outputs(model["source"], model["size"], image, model.get("revision")):
                tensors[f"{key}/{name}"] = tensor.contiguous()
    assert ("zoo" in sys.modules) == request["import_zoo"]
    save_file(tensors, request["out"])


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
