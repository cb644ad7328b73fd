"""The model card, `README.md`, rendered with `card.md.j2` from the release's other files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from filelock import FileLock
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from zoo import backbones
from zoo.errors import ReleaseError
from zoo.files import write_text, writing
from zoo.release import format, provenance, schema
from zoo.release.schema import LIBRARY, in_order, metric_title, split_words

Facts = Mapping[str, Any]
# The text between these lines is the user's; it is kept when the card is rendered again.
_NOTES_BEGIN = "<!-- Notes of your own go below this line: they stay when zoo writes this card again. -->"
_NOTES_END = "<!-- End of your notes; zoo writes everything outside them anew. -->"
NOTES = re.compile(f"({re.escape(_NOTES_BEGIN)}\n)(.*?)({re.escape(_NOTES_END)})", re.DOTALL)
"""Matches the user's notes in a card: group 2, between the marks."""
_ADDRESS = re.compile(r'^release = zoo\.open\("([^"]+)"\)', re.MULTILINE)  # every card has it
_STATED = ("library_name", "license", "license_name", "pipeline_tag", "datasets", "base_model", "model-index")
_HUB_DATASETS = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}


def escaped(text: str) -> str:
    """Escape characters that would end a table cell or begin a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Return a Markdown table without a trailing newline; columns not in `left` are right-aligned."""
    rule = ["---" if place in left else "---:" for place in range(len(head))]
    lines = [[*map(escaped, head)], rule, *([*map(escaped, row)] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def render(folder: Path, config: Facts, *, keep: bool = True) -> str:
    """Return the card of the release in `folder`; `keep` what users added to it: notes, metadata, tags."""
    metrics, recipe, old = format.read_metrics(folder), format.read_recipe(folder), folder / format.CARD
    about, evaluations = config["zoo"], metrics["evaluations"]
    notes = NOTES.search(format.read_text(old)) if keep and old.is_file() else None
    kept, data = provenance.card_metadata(folder) if keep else {}, _metadata(config, recipe, metrics)
    own = [tag for tag in kept.get("tags") or () if isinstance(kept["tags"], list) and isinstance(tag, str)]
    data["tags"] = [*dict.fromkeys([*data["tags"], *own])]
    known = data.to_dict()  # type: ignore[no-untyped-call]
    for key in sorted(kept.keys() - {*_STATED, *known, "" if "license_name" in known else "license_link"}):
        data[key] = kept[key]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["cell"] = escaped
    template = files("zoo.release").joinpath("card.md.j2").read_text(encoding="utf-8")
    body = environment.from_string(template).render(
        config=config,
        metrics=metrics,
        notes=f"{_NOTES_BEGIN}\n{notes[2] if notes else ''}{_NOTES_END}",
        overlapping=any(e.get("train_set", {}) is None for e in evaluations),
        papers=bibtex(about["objective"], recipe),
        pictures={file.stem for file in folder.glob(format.PICTURES)},
        repo=f"ORG/{about['name']}",  # `with_repo_id` fills in the repository
        snapshot=format.snapshot_of(metrics["training"]),
        start=provenance.start_of(recipe),
        stock=not backbones.is_own(config["architecture"]),
        table=_table(evaluations),
        teachers=provenance.teachers_of(recipe),
    )
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body.rstrip()}\n"))


@contextmanager
def editing(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Lock a release, yield config and metrics to change, write both and the card; or raise ReleaseError."""
    if format.is_read_only(folder):
        raise ReleaseError(f"{folder}: read-only, as it is shipped, downloaded or not zoo's; open a copy")
    with writing(str(folder), ReleaseError), FileLock(folder / format.LOCK):
        config, metrics = format.read_config(folder), format.read_metrics(folder)
        yield config, metrics
        schema.check(schema.ReleaseConfig, config, str(folder / format.CONFIG))
        write_text(folder / format.CONFIG, format.to_json(config))
        write_text(folder / format.METRICS, format.to_json(metrics))
        write_text(folder / format.CARD, render(folder, config))


def with_repo_id(card: str, repo_id: str) -> str:
    """Return the card with `repo_id` as the repository that its code loads from."""
    if not (found := _ADDRESS.search(card)):
        return card
    address = re.compile(rf'("(?:hf-hub:)?|https://huggingface\.co/){re.escape(found[1])}(?="|/resolve/)')
    return address.sub(lambda old: f"{old[1]}{repo_id}", card)


def check_card(folder: Path, config: Facts) -> None:
    """Raise a `ReleaseError` if a card's metadata, above all the model-index, differ from the record."""
    file = folder / format.CARD
    recorded = _metadata(config, format.read_recipe(folder), format.read_metrics(folder)).to_dict()  # type: ignore[no-untyped-call]
    try:
        found = ModelCard(format.read_text(file)).data.to_dict()  # type: ignore[no-untyped-call]
    except Exception as error:  # a user may have written anything
        raise ReleaseError(f"{file}: metadata that the Hub does not take: {error!r:.200}") from None
    for key in _STATED:
        said, expected = found.get(key), recorded.get(key)
        if said != expected:
            raise ReleaseError(f"{file}: {key}: found {said!r:.500}, the release records {expected!r:.500}")


def _metadata(config: Facts, recipe: Facts, metrics: Facts) -> ModelCardData:
    """Return the card's metadata; its model-index has the numbers in `metrics`, to two decimals."""
    zoo, objective = config["zoo"], config["zoo"]["objective"]
    task = "image-classification" if config["num_classes"] else "image-feature-extraction"
    dataset, start = hub_dataset(zoo["dataset"]), _on_hub(provenance.start_of(recipe))
    bases = [*dict.fromkeys(filter(None, (start, *map(_on_hub, provenance.teachers_of(recipe)))))]
    stock = not backbones.is_own(config["architecture"])
    license, license_name = provenance.license_on_hub(config["pretrained_cfg"]["license"])
    tags = [task, *["timm", "transformers"] * stock, LIBRARY]
    tags += [objective] * (objective != "unknown")
    tags += ["contrastive-learning"] * (objective not in ("unknown", "classify"))
    tags += ["long-tailed-recognition"] * bool((recipe.get("data") or {}).get("long_tail"))
    tags += ["knowledge-distillation"] * bool((recipe.get("objective") or {}).get("distill"))
    tags += [part.replace("_", "-") for part in _loss_and_method(recipe)]
    data = ModelCardData(
        license=license,
        license_name=license_name,
        library_name="timm" if stock else LIBRARY,
        pipeline_tag=task,
        tags=tags,
        datasets=[dataset] if dataset else None,
        base_model=start if bases == [start] else bases or None,
        model_name=zoo["name"],
        eval_results=list(_results(metrics["evaluations"])) or None,
    )
    if start:
        data["base_model_relation"] = "finetune"
    if metrics.get("example"):
        source = f"https://huggingface.co/ORG/{zoo['name']}/resolve/main/{format.EXAMPLE}"
        data["widget"] = [{"src": source, "example_title": "Example"}]
    return data


def hub_dataset(dataset: Facts) -> str | None:
    """Return a data set's Hub id, or None if it is unknown."""
    names = (str(dataset.get("source")), *str(dataset.get("name")).split()[:1])
    return dataset.get("hub_id") or next(filter(None, map(_HUB_DATASETS.get, names)), None)


def _on_hub(name: str | None) -> str | None:
    """Return the Hub repository of the weights that a recipe names; None if they are not on the Hub."""
    kind, _, rest = (name or "").partition(":")
    return {"timm": f"timm/{rest}", "hf-hub": rest.partition("@")[0]}.get(kind)


def _loss_and_method(recipe: Facts) -> list[str]:
    """Return the names of a recipe's loss and long-tailed method, if it has them."""
    given = ((recipe.get("objective") or {}).get("loss"), recipe.get("method"))
    names = (each.get("name") if isinstance(each, Mapping) else each for each in given)
    return [name for name in names if isinstance(name, str)]


def bibtex(name: str, recipe: Facts) -> str:
    """Return the BibTeX entries for the objective `name` and for the recipe's other methods; or ''."""
    parts = {key for key, value in (recipe.get("objective") or {}).items() if value}
    used = {name, *parts & {"feature_transform", "distill"}, *_loss_and_method(recipe)}
    text = files("zoo.release").joinpath("citations.bib").read_text(encoding="utf-8")
    entries = re.findall(r"^% of: ([^\n]*)\n(@.*?^\})", text, re.DOTALL | re.MULTILINE)
    return "\n\n".join(entry for words, entry in entries if used & {*words.split()})


def _results(evaluations: Sequence[Facts]) -> Iterator[EvalResult]:
    for entry in evaluations:
        settings = _settings({**(entry.get("settings") or {}), "seed": entry.get("seed")})
        config = f"{entry['protocol']} ({settings})" if settings else entry["protocol"]
        if not entry.get("own", True):  # other data may have the same name
            config += f", images {(entry.get('test_set') or {}).get('sha256', '')[:8]}"
        for name, value in entry["metrics"].items():
            if in_order([name]) and value is not None:
                yield EvalResult(
                    task_type="image-"
                    + ("classification" if "accuracy" in entry["metrics"] else "feature-extraction"),
                    dataset_type=hub_dataset(entry.get("test_set") or {}) or entry["data"],
                    dataset_name=entry["data"],
                    # Results that share task, data, config and split would be merged into one.
                    dataset_config=config,
                    dataset_split=split_words(entry),
                    metric_type=name,
                    # The Hub shows this name beside the value, but not the configuration.
                    metric_name=f"{metric_title(name)}, {entry['protocol']} (%)",
                    metric_value=round(value, 2),
                )


def _table(evaluations: Sequence[Facts]) -> str:
    """Return a Markdown table with a row for each evaluation: protocol, data, split, metrics, settings."""
    names = in_order(name for entry in evaluations for name in entry["metrics"])
    head = ["Protocol", "Data", "Split", *(f"{metric_title(name)} (%)" for name in names), "Settings"]
    rows = []
    for entry in evaluations:
        row = [entry["protocol"], entry["data"], split_words(entry)]
        for name in names:
            value, interval = (entry["metrics"].get(key) for key in (name, f"{name}_interval"))
            shown = "" if value is None else f"{value:.2f}"
            row.append(shown if interval is None else f"{shown} ± {interval:.2f}")
        rows.append([*row, _settings(entry.get("settings") or {})])
    return markdown_table(head, rows, left=(0, 1, 2, len(head) - 1))


def _settings(settings: Facts) -> str:
    """Format the settings that are not None as `name: value; ...`."""

    def text(value: object) -> str:
        return f"{value:.6g}" if isinstance(value, float) else str(value).strip("[]")

    known = {key.replace("_", " "): value for key, value in settings.items() if value is not None}
    return "; ".join(f"{key}: {text(value)}" for key, value in known.items())
