"""The sections of the card's body, each from facts that the release records to Markdown, or ''."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo import backbones
from zoo.config import is_number
from zoo.errors import capital
from zoo.markdown import markdown_table
from zoo.release.card.citations import bibtex
from zoo.release.card.metadata import facts, metric_title, split_words, stated_settings
from zoo.release.evaluations import ACCURACIES, in_order
from zoo.release.format import snapshot_of, start_of, teachers_of

_PROTOCOLS = {
    "classifier": "the learned class centers as they stand",
    "linear": "logistic regression on the frozen features of the training images",
    "linear_full": "the published linear evaluation, a linear layer on the frozen encoder trained by SGD on "
    "augmented images; the last epoch counts",
    "few_shot": "a classifier on the frozen features of a few training images of each class; mean of the "
    "draws, ± the half width of its 95 % interval (Student's t)",
    "semi_supervised": "the network trained on the labels of a part of the training images; the last epoch "
    "counts",
    "retrieval": "images look for those of their class by cosine similarity of the frozen features; "
    "recall@k, the share that find one among the k nearest, and mean average precision",
    "knn": "vote of the nearest training images, by cosine similarity of the frozen features",
}
_SMALL_INPUT = 64  # pixels; below, what photographs show is lost


def use(config: Mapping[str, Any], repo: str) -> str:
    """How to load it: zoo, timm, transformers."""
    arch, has_classifier = config["architecture"], bool(config["num_classes"])
    register = [f"import zoo  # registers {arch} with timm"] if backbones.is_own(arch) else []
    with_zoo = [
        "import zoo",
        "",
        f'release = zoo.open("{repo}")  # or the folder of this file',
        "transform = release.transform()  # PIL image of any mode -> [3, H, W]",
        "encoder = release.load().eval()  # images [B, 3, H, W] -> features [B, D]",
    ]
    with_timm = [
        *register,
        "import timm",
        "",
        f'encoder = timm.create_model("hf-hub:{repo}", pretrained=True, num_classes=0).eval()',
    ]
    classes = ["AutoImageProcessor", "AutoModel", *["AutoModelForImageClassification"] * has_classifier]
    with_transformers = [
        *register,
        f"from transformers import {', '.join(classes)}",
        "",
        f'processor = AutoImageProcessor.from_pretrained("{repo}")  # takes RGB images',
        f'model = AutoModel.from_pretrained("{repo}").eval()  # .pooler_output: features [B, D]',
    ]
    if has_classifier:
        with_zoo.append('classifier = release.load(head="centers").eval()  # logits [B, C]')
        with_timm.append(f'classifier = timm.create_model("hf-hub:{repo}", pretrained=True).eval()')
        with_transformers.append(
            f'classifier = {classes[-1]}.from_pretrained("{repo}").eval()  # .logits [B, C]'
        )
    blocks = {"zoo": with_zoo, "timm": with_timm, "transformers": with_transformers}
    shown = (f"With {name}:\n\n```python\n" + "\n".join(lines) + "\n```" for name, lines in blocks.items())
    return "## Use\n\n" + "\n\n".join(shown)


def centers(config: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """What the learned class centers are and how to use them."""
    if not config["zoo"]["has_centers"]:
        return ""
    objective = recipe.get("objective")
    settings = objective if isinstance(objective, Mapping) else {}
    text = [
        "`centers.safetensors` holds `weight` [C, D] and `bias` [C], in the space of the encoder's pooled "
        "features, and `class_counts` [C], the training images of each class (-1: not known). The logit of "
        "class c for features x is `weight[c] . x + bias[c]`."
    ]
    if config["num_classes"]:
        text.append(
            f"The classifier in `model.safetensors` (`{config['pretrained_cfg']['classifier']}`) is made of "
            "them, so timm and transformers classify with them too."
        )
    if _adds_prior(settings):
        text.append(
            "In training the log class frequencies were added to these logits; at test time nothing is."
        )
    code = (
        "```python\ncenters = release.centers\n"
        "logits = encoder(images) @ centers.weight.T + centers.bias  # [B, C]\n"
        "```"
    )
    return "## Class centers\n\n" + " ".join(text) + f"\n\n{code}"


def _adds_prior(settings: Mapping[str, Any]) -> bool:
    balanced = settings.get("loss") == "balanced_softmax" or settings.get("name") == "bcl"
    return balanced or bool(settings.get("rebalance"))


def results(evaluations: list[Mapping[str, Any]]) -> str:
    """Every evaluation as a row, with its protocol, data and split."""
    if not evaluations:
        return ""
    classified = [entry for entry in evaluations if "accuracy" in entry["metrics"]]
    others = [entry for entry in evaluations if "accuracy" not in entry["metrics"]]
    names = [name for name in ACCURACIES if any(name in entry["metrics"] for entry in classified)]
    if any("calibration_error" in entry["metrics"] for entry in classified):
        names.append("calibration_error")
    notes = [
        f"{protocol}: {text}."
        for protocol, text in _PROTOCOLS.items()
        if any(entry["protocol"] == protocol for entry in evaluations)
    ]
    if any(
        "tau" in (entry.get("settings") or {}) for entry in evaluations if entry["protocol"] == "classifier"
    ):
        notes.append(
            "classifier with tau: tau times the training set's log prior is subtracted from the logits "
            "(post-hoc logit adjustment)."
        )
    if "balanced_accuracy" in names:
        notes.append("Balanced: mean of the classes' accuracies.")
    if {"many", "medium", "few"} & set(names):
        notes.append(
            "Many, medium, few: classes with more than 100, 20 to 100, fewer than 20 training images."
        )
    if "calibration_error" in names:
        notes.append("Calibration error: expected gap between confidence and accuracy (ECE, 15 bins).")
    if any(entry.get("shared_images") for entry in evaluations):
        notes.append("Images from training: what is measured on them says nothing of new images.")
    if any("train_set" in entry and entry["train_set"] is None for entry in evaluations):
        data = ", ".join(dict.fromkeys(e["data"] for e in evaluations if e.get("train_set", ()) is None))
        notes.append(f"On {data}: no training images were at hand, so nothing tells if these are among them.")
    recalls = in_order(name for entry in others for name in entry["metrics"])
    tables = [
        *(["Top-1 accuracies.", _table(classified, names)] if classified else []),
        *(["Retrieval.", _table(others, recalls)] if others else []),
    ]
    return "## Results\n\n" + "\n\n".join([*tables, "\n".join(f"- {note}" for note in notes)])


def _table(evaluations: list[Mapping[str, Any]], names: list[str]) -> str:
    head = ["Protocol", "Data", "Split", *(f"{metric_title(name)} (%)" for name in names), "Settings"]
    rows = []
    for entry in evaluations:
        metrics = entry["metrics"]
        values = [_percent(metrics.get(name), metrics.get(f"{name}_interval")) for name in names]
        settings = "; ".join(facts(stated_settings(entry)))
        rows.append([entry["protocol"], entry["data"], split_words(entry), *values, settings])
    return markdown_table(head, rows, left=(0, 1, 2, len(head) - 1))


def model(config: Mapping[str, Any]) -> str:
    """Architecture, features and preprocessing."""
    cfg, zoo = config["pretrained_cfg"], config["zoo"]
    size = cfg["input_size"][-1]
    arguments = ", ".join(f"{key}={value!r}" for key, value in config["model_args"].items())
    rows = [
        f"- Architecture: `{config['architecture']}`" + (f" ({arguments})" if arguments else ""),
        f"- Features: {zoo['feature_dim']} per image, pooled",
        f"- Input: {size} x {size} pixels, {cfg['interpolation']} resize, central crop of "
        f"{cfg['crop_pct']:g}, mean {cfg['mean']}, std {cfg['std']}",
    ]
    if config["num_classes"]:
        rows.append(f"- Classifier: {config['num_classes']} classes, made of the learned class centers")
    return "## Model\n\n" + "\n".join(rows)


def training(zoo: Mapping[str, Any], training: Mapping[str, Any], recipe: str) -> str:
    """Data, recipe, hardware, time and seed."""
    rows = [f"- Objective: `{zoo['objective']}`", *_data(zoo["dataset"]), *_run(training)]
    if "epochs" in training:
        rows.append(f"- {_weights(training)}")
    if zoo.get("images_sha256"):
        command = "zoo evaluate" if "snapshot" in training else "zoo reproduce"
        rows.append(
            f"- `images.safetensors` lists the images by their content: `{command}` finds them in "
            "any copy of the data set with the same pixels, whatever its order and file names"
        )
    block = f"<details><summary>The exact recipe</summary>\n\n```yaml\n{recipe.rstrip()}\n```\n\n</details>"
    return "## Training\n\n" + "\n".join(rows) + "\n\n" + block


def _weights(training: Mapping[str, Any]) -> str:
    """Say which of a training's weights these are."""
    average, stopping = training.get("moving_average"), training.get("early_stopping")
    what, snapshot = "a moving average of the weights" if average else "the weights", snapshot_of(training)
    unfinished = ""
    if snapshot is not None:
        unfinished = (
            f"A snapshot of a training that had not ended: {snapshot}, at the learning rate that the recipe "
            "has there. "
        )
    if not isinstance(stopping, Mapping):
        return unfinished + f"These are {what} after " + ("it." if unfinished else "the last epoch.")
    metric = str(stopping.get("metric")).replace("_", " ")
    return unfinished + (
        f"These are {what} after epoch {stopping.get('best_epoch')}, chosen by the {metric} of "
        f"{stopping.get('validation_images')} images put aside from the training set, which no batch had; "
        "the test split decided nothing."
        + (f" Judged was {stopping['judged']}." if "judged" in stopping else "")
    )


def _data(dataset: Mapping[str, Any]) -> list[str]:
    """The training data in a line, and what that line does not say in lines of its own."""
    rest = dict(dataset)
    line = f"- Data: {rest.pop('name', 'not recorded')}"
    if "split" in rest:
        line += f", {rest.pop('split')} split"
    if {"num_images", "num_classes"} <= rest.keys():
        images, classes = rest.pop("num_images"), rest.pop("num_classes")
        line += f", {images:,} images " + (f"of {classes} classes" if classes else "without classes")
    counts = rest.pop("class_counts", None)
    if counts:
        most, least = counts["largest"], counts["smallest"]
        line += (
            f", {most:,} of each" if most == least else f", from {most:,} down to {least:,} images a class"
        )
    if "sha256" in rest:
        rest["SHA-256 of the selected images' names and labels"] = rest.pop("sha256")
    return [line, *(f"- {capital(fact)}" for fact in facts(rest))]


def _run(training: Mapping[str, Any]) -> list[str]:
    """How long it ran on what, in a line, and what that line does not say in lines of its own."""
    rest = {key: fact for key, fact in training.items() if key != "snapshot"}  # told by what the weights are
    rows = []
    if {"epochs", "steps", "images", "seconds", "images_per_second", "hardware"} <= rest.keys():
        epochs, steps, images = (rest.pop(key) for key in ("epochs", "steps", "images"))
        seconds, rate, hardware = (rest.pop(key) for key in ("seconds", "images_per_second", "hardware"))
        rows.append(
            f"- Run: {epochs:,} epochs, {steps:,} steps, {images:,} images in {seconds:,.1f} s "
            f"({rate:,.1f} images/s) on {hardware}"
        )
    versions = rest.pop("versions", None)
    rows += [f"- {capital(fact)}" for fact in facts(rest)]
    if versions:
        rows.append("- Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    return rows


def limits(config: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    """What not to expect, from what is known about data and run."""
    dataset, size = config["zoo"]["dataset"], config["pretrained_cfg"]["input_size"][-1]
    rows = [
        "- The features carry the biases of the training data: what is in them, how they were collected and "
        "labelled, and what they leave out. Other domains are untested unless the results say otherwise.",
    ]
    counts = dataset.get("class_counts")
    if counts and counts["smallest"] < counts["largest"]:
        rows.append(
            f"- Classes were seen unequally often, from {counts['largest']:,} images down to "
            f"{counts['smallest']:,}: expect rare ones to be recognised less well."
        )
    if size <= _SMALL_INPUT:
        rows.append(
            f"- Images are reduced to {size} x {size} pixels: detail is lost, and larger inputs are untested."
        )
    if "seed" in training:
        rows.append("- One run with one seed; another seed gives other figures.")
    rows.append("- Not meant for decisions about people.")
    return "## Limits and biases\n\n" + "\n".join(rows)


def licence(license: str, recipe: Mapping[str, Any]) -> str:
    """The licence of the weights, and whose terms hold beside it."""
    known = {
        "unknown": "The weights' licence is not known; ask those who trained them.",
        "other": "See the source.",
    }
    text = known.get(license, f"The weights are released under `{license}`.")
    start = start_of(recipe)
    if start is not None:
        text += f" Their training started from `{start}`: what its licence asks for holds for them, too."
    if teachers := teachers_of(recipe):
        listed = ", ".join(f"`{name}`" for name in teachers)
        text += f" They learned to say what {listed} {'says' if len(teachers) == 1 else 'say'}: so do these."
    return f"## Licence\n\n{text} The training data have their own terms."


def citation(objective: str, recipe: Mapping[str, Any]) -> str:
    """The papers of the methods used."""
    entries = bibtex(objective, recipe)
    return (
        f"## Citation\n\nIf you use these weights, cite the method:\n\n```bibtex\n{entries}\n```"
        if entries
        else ""
    )


def _percent(value: Any, interval: Any = None) -> str:
    if not is_number(value):
        return ""
    return f"{value:.2f} ± {interval:.2f}" if is_number(interval) else f"{value:.2f}"
