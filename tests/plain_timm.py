"""What plain timm makes of releases: run as a program, in a process that need not know zoo.

    python plain_timm.py REQUEST.json    # as `interop_helpers.run_program` writes it

The tensors in the file `out` are called `KEY/NAME`, with the names of `outputs`.
"""

import importlib
import json
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)


def inputs(size):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(7))


def outputs(source, size, image):
    """Every way in which timm reads a release."""
    import timm

    def load(**kwargs):
        return timm.create_model(source, pretrained=True, **kwargs).eval()

    encoder, classifier, images = load(num_classes=0), load(), inputs(size)
    yield "features", encoder(images)
    yield "logits", classifier(images)
    yield "fresh_logits", load(num_classes=7)(images)
    yield "gray", load(num_classes=0, in_chans=1)(images[:, :1])
    for index, feature_map in enumerate(load(features_only=True)(images)):
        yield f"map{index}", feature_map
    data_config = timm.data.resolve_model_data_config(encoder)
    yield "pixels", timm.data.create_transform(**data_config, is_training=False)(image)
    labels = classifier.pretrained_cfg.get("label_names") or ()
    yield "labels", torch.tensor(list("\n".join(labels).encode()), dtype=torch.uint8)


def main(outputs):
    """Write what `outputs` yields of each model of the request."""
    request = json.loads(Path(sys.argv[1]).read_text())
    if request["import_zoo"]:
        importlib.import_module("zoo")
    from PIL import Image
    from safetensors.torch import save_file

    image = Image.open(request["images"])
    tensors = {}
    with torch.no_grad():
        for key, model in request["models"].items():
            for name, tensor in outputs(**model, image=image):
                tensors[f"{key}/{name}"] = tensor.contiguous()
    assert ("zoo" in sys.modules) == request["import_zoo"]
    save_file(tensors, request["out"])


if __name__ == "__main__":
    main(outputs)
