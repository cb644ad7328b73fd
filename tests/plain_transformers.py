"""What transformers makes of releases: run as a program, in a process that need not know zoo.

    python plain_transformers.py REQUEST.json

REQUEST.json as in `plain_timm.py`, with `source` a folder or a repository's name, and perhaps `revision`.
"""

import torch
from plain_timm import inputs, main


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


if __name__ == "__main__":
    main(outputs)
