"""The model card: README.md, rendered from what the release itself records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from zoo.release import format

# Top-1 accuracies in percent, in the order of the card's table.
ACCURACIES = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced",
    "many": "Many",
    "medium": "Medium",
    "few": "Few",
}

_LIMITS = """## Limits

The features reflect the training data named above, with their biases. Other domains and image sizes are
untested unless the results say otherwise. Not for decisions about people."""


def render(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the card of the release in `folder`; it states no number that `metrics.json` does not hold."""
    zoo = config["zoo"]
    metrics = format.read_json(folder / format.METRICS)
    recipe = format.read_text(folder / format.RECIPE)
    pictures = sorted(file.name for file in folder.glob(format.PICTURES))
    sections = [
        f"# {zoo['name']}",
        zoo["description"],
        _model(config),
        _training(zoo, metrics["training"], recipe),
        _results(metrics["evaluations"]),
        _pictures(pictures),
        _usage(config),
        _LIMITS,
        "## Licence\n\nApache-2.0. The training data have their own terms.",
    ]
    body = "\n\n".join(section for section in sections if section)
    return str(ModelCard(f"---\n{_metadata(config, metrics).to_yaml()}\n---\n\n{body}\n"))


def _metadata(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> ModelCardData:
    zoo = config["zoo"]
    task = "image-classification" if config["num_classes"] else "image-feature-extraction"
    results = [
        EvalResult(
            task_type="image-classification",
            dataset_type=entry["data"],
            dataset_name=entry["data"],
            # Results that share task, data, config and split would be merged into one.
            dataset_config=" ".join([entry["protocol"], *_facts(entry.get("settings") or {})]),
            dataset_split=entry["split"],
            metric_type=name,
            metric_name=ACCURACIES[name],
            metric_value=value,
        )
        for entry in metrics["evaluations"]
        for name, value in entry["metrics"].items()
        if name in ACCURACIES and _is_number(value)
    ]
    hub_id = zoo["dataset"].get("hub_id")
    return ModelCardData(
        license=format.LICENSE,
        library_name="timm",
        pipeline_tag=task,
        tags=[task, "timm", "transformers", "contrastive-learning", zoo["objective"]],
        datasets=[hub_id] if hub_id else None,
        model_name=zoo["name"],
        eval_results=results or None,
    )


def _model(config: Mapping[str, Any]) -> str:
    cfg, zoo = config["pretrained_cfg"], config["zoo"]
    size = cfg["input_size"][-1]
    arguments = ", ".join(f"{key}={value!r}" for key, value in config["model_args"].items())
    rows = [
        f"- Architecture: `{config['architecture']}`" + (f" ({arguments})" if arguments else ""),
        f"- Features: {zoo['feature_dim']} per image, pooled",
        f"- Input: {size} x {size} pixels, mean {cfg['mean']}, std {cfg['std']}",
    ]
    if config["num_classes"]:
        rows.append(f"- Classifier: {config['num_classes']} classes, made of the learned class centers")
    return "## Model\n\n" + "\n".join(rows)


def _training(zoo: Mapping[str, Any], training: Mapping[str, Any], recipe: str) -> str:
    rows = [f"- Objective: `{zoo['objective']}`"]
    rows += [f"- Data, {fact}" for fact in _facts(zoo["dataset"])]
    rows += [f"- {fact[:1].upper()}{fact[1:]}" for fact in _facts(training)]
    recipe_block = (
        f"<details><summary>The exact recipe</summary>\n\n```yaml\n{recipe.rstrip()}\n```\n\n</details>"
    )
    return "## Training\n\n" + "\n".join(rows) + "\n\n" + recipe_block


def _results(evaluations: list[Mapping[str, Any]]) -> str:
    if not evaluations:
        return ""
    names = [name for name in ACCURACIES if any(name in entry["metrics"] for entry in evaluations)]
    header = ["Protocol", "Data", "Split", *(f"{ACCURACIES[name]} (%)" for name in names), "Settings"]
    lines = [_row(header), _row(["---"] * 3 + ["---:"] * len(names) + ["---"])]
    for entry in evaluations:
        values = [_percent(entry["metrics"].get(name)) for name in names]
        settings = "; ".join(_facts(entry.get("settings") or {}))
        lines.append(_row([entry["protocol"], entry["data"], entry["split"], *values, settings]))
    note = "\n\nMany, medium, few: classes with more than 100, 20 to 100, fewer than 20 training images."
    return "## Results\n\n" + "\n".join(lines) + (note if {"many", "medium", "few"} & set(names) else "")


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _percent(value: Any) -> str:
    return f"{value:.2f}" if _is_number(value) else ""


def _pictures(pictures: list[str]) -> str:
    shown = [f"![{Path(name).stem.replace('_', ' ')}]({name})" for name in pictures]
    return "## Pictures\n\n" + "\n\n".join(shown) if shown else ""


def _usage(config: Mapping[str, Any]) -> str:
    name, has_centers = config["zoo"]["name"], config["zoo"]["has_centers"]
    lines = [
        "import zoo",
        "",
        f'encoder = zoo.load("ORG/{name}").eval()  # or the folder of this file; features [B, D]',
        f'transform = zoo.open("ORG/{name}").transform()  # PIL image -> input',
    ]
    if config["num_classes"]:
        lines.append(f'classifier = zoo.load("ORG/{name}", head="centers").eval()  # logits [B, C]')
    if has_centers:
        lines.append(f'centers = zoo.open("ORG/{name}").centers  # weight [C, D], bias [C], class_counts [C]')
    lines += [
        "",
        "import timm",
        "",
        f'encoder = timm.create_model("hf-hub:ORG/{name}", pretrained=True, num_classes=0).eval()',
    ]
    return "## Use\n\n```python\n" + "\n".join(lines) + "\n```"


def _facts(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield `name: value` for every plain value in nested `data`."""
    for key, value in data.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from _facts(value, f"{name} ")
        elif isinstance(value, (list, tuple)):
            if len(value) <= 8:
                yield f"{name}: {', '.join(map(str, value))}"
        elif value is not None:
            yield f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
