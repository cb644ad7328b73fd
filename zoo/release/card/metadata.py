"""The card's YAML metadata: what the Hub searches by and shows beside the card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from zoo import backbones
from zoo.config import is_number
from zoo.release import licenses
from zoo.release.card.citations import CONTRASTIVE
from zoo.release.evaluations import ACCURACIES, recall_k
from zoo.release.format import EXAMPLE, start_of, teachers_of
from zoo.release.schema import LIBRARY

# The Hub's data sets of the sources that are one, by `data.source.kind`.
_HUB_DATASETS = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
}


def metadata(
    config: Mapping[str, Any], recipe: Mapping[str, Any], metrics: Mapping[str, Any]
) -> ModelCardData:
    """Return the card's metadata; its model-index holds the numbers of `metrics`, to two decimals."""
    zoo = config["zoo"]
    task = "image-classification" if config["num_classes"] else "image-feature-extraction"
    dataset = hub_dataset(zoo["dataset"])
    start = _on_hub(start_of(recipe))
    bases = dict.fromkeys(filter(None, (start, *map(_on_hub, teachers_of(recipe)))))
    stock = not backbones.is_own(config["architecture"])
    license, license_name = licenses.on_hub(config["pretrained_cfg"]["license"])
    data = ModelCardData(
        license=license,
        license_name=license_name,
        library_name="timm" if stock else LIBRARY,
        pipeline_tag=task,
        # `zoo list --hub` takes the tag after the library's for the objective
        tags=[task, *["timm", "transformers"] * stock, LIBRARY, zoo["objective"], *_methods(zoo, recipe)],
        datasets=[dataset] if dataset else None,
        base_model=start if [*bases] == [start] else [*bases] or None,
        model_name=zoo["name"],
        eval_results=list(_results(metrics["evaluations"])) or None,
    )
    if start:
        data["base_model_relation"] = "finetune"
    if metrics.get("example"):
        source = f"https://huggingface.co/ORG/{zoo['name']}/resolve/main/{EXAMPLE}"
        data["widget"] = [{"src": source, "example_title": "Example"}]
    return data


def _methods(zoo: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[str]:
    """Return tags of what the training did, beside the objective's own."""
    objective, data, method = (recipe.get(key) for key in ("objective", "data", "method"))
    settings, given = (found if isinstance(found, Mapping) else {} for found in (objective, data))
    loss = settings.get("loss")
    names = (loss.get("name") if isinstance(loss, Mapping) else loss, method and method.get("name"))
    return [
        *["contrastive-learning"] * (zoo["objective"] in CONTRASTIVE),
        *["long-tailed-recognition"] * bool(given.get("long_tail")),
        *["knowledge-distillation"] * bool(settings.get("distill")),
        *(name.replace("_", "-") for name in names if isinstance(name, str)),
    ]


def hub_dataset(dataset: Mapping[str, Any]) -> str | None:
    """Return the Hub's name of the training data, if it is known there."""
    return dataset.get("hub_id") or _HUB_DATASETS.get(str(dataset.get("source")))


def _results(evaluations: list[Mapping[str, Any]]) -> Iterator[EvalResult]:
    for entry in evaluations:
        settings = "; ".join(facts({**stated_settings(entry), "seed": entry.get("seed")}))
        task = "image-classification" if "accuracy" in entry["metrics"] else "image-feature-extraction"
        for name, value in entry["metrics"].items():
            title = metric_title(name)
            if title is None or not is_number(value):
                continue
            yield EvalResult(
                task_type=task,
                dataset_type=hub_dataset(entry.get("test_set") or {}) or entry["data"],
                dataset_name=entry["data"],
                # Results that share task, data, config and split would be merged into one.
                dataset_config=f"{entry['protocol']} ({settings})" if settings else entry["protocol"],
                dataset_split=split_words(entry),
                metric_type=name,
                # The Hub shows this name beside the value, and not the configuration.
                metric_name=f"{title}, {entry['protocol']} (%)",
                metric_value=round(value, 2),
            )


def stated_settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluation's settings, with the k that voted where there were fewer images than asked for."""
    settings, chosen = dict(entry.get("settings") or {}), entry.get("chosen")
    used = chosen.get("k") if entry["protocol"] == "knn" and isinstance(chosen, Mapping) else None
    if is_number(used) and "k" in settings and used != settings["k"]:
        settings["k"] = f"{used} ({settings['k']} asked)"
    return settings


def split_words(entry: Mapping[str, Any]) -> str:
    """Return the split that an evaluation was made on, and what it has too much or too little of."""
    words, about = [str(entry["split"])], entry.get("test_set") or {}
    for key, whole, what in (
        ("classes_measured", "num_classes", "classes"),
        ("shared_images", "num_images", "images from training"),
    ):
        if entry.get(key):
            words.append(f"{entry[key]} of {about.get(whole, '?')} {what}")
    return ", ".join(words)


def metric_title(name: str) -> str | None:
    """Return what a card calls a metric, in percent; None for one that it does not show."""
    k = recall_k(name)
    if k is not None:
        return f"Recall@{k}"
    if name in ACCURACIES:
        return ACCURACIES[name].capitalize()
    return {"calibration_error": "Calibration error", "map": "mAP"}.get(name)


def _on_hub(name: str | None) -> str | None:
    """Return the repository of weights that a recipe names, where they are on the Hub."""
    kind, _, rest = (name or "").partition(":")
    if kind == "timm":
        return f"timm/{rest}"
    return rest.partition("@")[0] if kind in ("hf-hub", "hf_hub") else None


def facts(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield `name: value` for every plain value in nested `data`; long lists are left out."""
    for key, value in data.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from facts(value, f"{name} ")
        elif isinstance(value, (list, tuple)):
            if len(value) <= 8:
                yield f"{name}: {', '.join(map(str, value))}"
        elif value is not None:
            yield f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}"
