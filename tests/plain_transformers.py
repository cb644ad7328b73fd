"""What transformers makes of releases: run as a program, in a process that need not know zoo.

python plain_transformers.py REQUEST.json    # as in `plain_timm.py`
"""

import torch
from plain_timm import inputs, main


def outputs(source, size, image):
    """Every class of transformers that reads a release."""
    from transformers import (
        AutoConfig,
        AutoImageProcessor,
        AutoModel,
        AutoModelForImageClassification,
        pipeline,
    )

    config = AutoConfig.from_pretrained(source)
    encoder, told = AutoModel.from_pretrained(source, output_loading_info=True)
    classifier, also = AutoModelForImageClassification.from_pretrained(source, output_loading_info=True)
    assert not told["missing_keys"] and not also["missing_keys"], (told, also)
    images = inputs(size)
    yield "features", encoder.eval()(images).pooler_output
    yield "logits", classifier.eval()(images).logits
    yield "pixels", AutoImageProcessor.from_pretrained(source)(image)["pixel_values"][0]
    labels = [config.id2label[index] for index in range(len(config.id2label))]
    assert config.label2id == {label: index for index, label in enumerate(labels)}
    answers = pipeline("image-classification", model=source)(image)
    yield "top scores", torch.tensor([answer["score"] for answer in answers])
    yield "top labels", torch.tensor(list("\n".join(a["label"] for a in answers).encode()), dtype=torch.uint8)
    yield "labels", torch.tensor(list("\n".join(labels).encode()), dtype=torch.uint8)


if __name__ == "__main__":
    main(outputs)
