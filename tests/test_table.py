"""`zoo.table`: what is found in folders, what shares a row, what is said of it, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from matplotlib.figure import Figure as Drawing

import zoo
from zoo import catalog
from zoo.api.sweep_file import read_sweep
from zoo.api.sweeps.grid import Run
from zoo.api.sweeps.plan import written_plan
from zoo.api.tables.release_results import group_of
from zoo.api.tables.table import BEGIN, END, published_figures
from zoo.cli import app
from zoo.errors import RecipeError, ReleaseError, ZooError
from zoo.evaluation.figures import results as results_plot
from zoo.evaluation.results.rows import Published, figure
from zoo.evaluation.results.table import cells, duration, measured_groups, reading
from zoo.training import Recipe, RunFolder

ROOT = Path(__file__).resolve().parent.parent
PACO = "cifar_resnet20.paco_digits_lt50"
MOCO = "cifar_resnet20.moco_v2_ft_digits_lt50"


def release(
    folder: Path,
    seed: int,
    accuracy: float | None,
    *changes: str,
    protocol: str = "classifier",
    date: str = "2026-11-01T00:00:00+00:00",
    train: str | None = None,
    **training: Any,
) -> Path:
    """A shipped release as if trained with another seed and outcome; its weights are not looked at."""
    shipped = catalog.release_path(PACO)
    assert shipped is not None
    shutil.copytree(shipped, folder)
    text = Recipe.load(PACO, [*changes, f"training.seed={seed}"]).to_yaml()
    (folder / "recipe.yaml").write_text(text)
    config, metrics = (json.loads((folder / name).read_text()) for name in ("config.json", "metrics.json"))
    config["zoo"]["recipe_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    config["zoo"]["weights_sha256"] = hashlib.sha256(f"{text} {accuracy} {date}".encode()).hexdigest()
    if train is not None:
        config["zoo"]["dataset"]["sha256"] = hashlib.sha256(train.encode()).hexdigest()
    epochs = Recipe.from_yaml(text, "recipe").training.epochs
    metrics["training"] |= {"seed": seed, "date": date, "seconds": 10.0, "epochs": epochs, **training}
    entries = [entry for entry in metrics["evaluations"] if entry["protocol"] == protocol]
    for entry in entries:
        entry["metrics"]["accuracy"] = entry["value"] = accuracy
    metrics["evaluations"] = [] if accuracy is None else entries
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


SHIPPED_IMAGES = zoo.open(PACO).config["zoo"]["dataset"]["sha256"]


def begun(folder: Path, seed: int, epoch: float, images: str | None = SHIPPED_IMAGES) -> None:
    """A run that is not finished."""
    run = folder / "run"
    run.mkdir(parents=True)
    if images is not None:
        (run / "data.json").write_text(json.dumps({"num_images": 344, "sha256": images}))
    (run / "recipe.yaml").write_text(Recipe.load(PACO, [f"training.seed={seed}"]).to_yaml())
    (run / "metrics.jsonl").write_text(json.dumps({"step": 5, "epoch": epoch, "loss": 1.0}) + "\n")


def rows(made: zoo.Results) -> list[dict[str, str]]:
    head, *body = made.cells()
    return [dict(zip(head, row, strict=True)) for row in body]


def in_shell(*arguments: str) -> None:
    typer.main.get_command(app)(list(arguments), standalone_mode=False)


# What shares a row.


def test_mean_and_spread_are_of_the_seeds_and_one_seed_has_no_spread(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((50.0, 52.0, 57.0)):
        release(tmp_path / "a" / str(seed), seed, accuracy)
    release(tmp_path / "b", 0, 40.0, "objective.tau=0.2")
    made = zoo.table(tmp_path)
    first, second = rows(made)
    assert (first["accuracy"], first["seeds"]) == ("53.0 ± 3.6", "n = 3")  # sqrt((9 + 1 + 16) / 2)
    assert (second["accuracy"], second["seeds"]) == ("40.0", "n = 1")
    assert first["method"] == "PaCo" and first["data"] == "digits, long tail 50" and first["epochs"] == "60"
    assert (first["recipe"], second["recipe"]) == (f"{PACO}, tau 0.1", f"{PACO}, tau 0.2")
    assert "published" not in first
    assert "a single seed has no spread" in made.markdown()


def test_half_a_table_from_each_of_two_machines_is_one_table(tmp_path: Path) -> None:
    """Cut off on the first, more seeds on the second, and a run in both counts once."""
    here, there = tmp_path / "here", tmp_path / "there"
    release(here / "paco" / "seed_0", 0, 50.0)
    release(here / "paco" / "seed_1", 1, 54.0)
    begun(here / "paco" / "seed_2", 2, 12.0)  # finished on the other machine
    begun(here / "paco" / "seed_3", 3, 7.25)
    shutil.copytree(here / "paco" / "seed_1", there / "copied")
    release(there / "paco" / "seed_2", 2, 58.0, hardware="NVIDIA H200", seconds=2.0)
    made = zoo.table(here, there)
    (row,) = rows(made)
    assert row["seeds"] == "n = 3" and row["accuracy"] == "54.0 ± 4.0" and len(made.runs) == 3
    assert made.left_out == []
    (open_,) = made.unfinished
    assert (open_.name, open_.seed) == (PACO, 3) and "recorded up to epoch 7.2 of 60" in open_.state
    text = made.markdown()
    assert f"1 run is not finished and not counted: `{PACO}` seed 3 (" in text
    shipped = zoo.open(PACO).metrics["training"]["hardware"]
    assert f"seeds trained on different hardware: {shipped}; NVIDIA H200" in text
    # times of different machines are not averaged
    assert row["time to train"].split("; ")[1] == "2.0 s, NVIDIA H200, fp32"
    assert row["time to train"].startswith(f"10 s, {shipped}")
    again = zoo.table(there, here, here / "paco")
    assert rows(again)[0]["accuracy"] == row["accuracy"] and len(again.runs) == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"train": "other images"}, "training images "),
        ({"changes": ("objective.alpha=0.05",)}, "alpha 0.05"),
        ({"changes": ("training.precision=bf16",)}, "precision bf16"),
        ({"changes": ("training.epochs=30",)}, "30"),
        ({"changes": ("data.subset={per_class: 2}",)}, "recipe "),  # the copy's words do not say it
    ],
)
def test_runs_of_other_data_or_recipes_stand_apart_and_are_told_apart(
    change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    release(tmp_path / "a", 0, 50.0)
    release(tmp_path / "b", 1, 60.0, *change.pop("changes", ()), **change)
    first, second = rows(zoo.table(tmp_path))
    assert {first["accuracy"], second["accuracy"]} == {"60.0", "50.0"}
    first, second = sorted((first, second), key=lambda row: row["accuracy"], reverse=True)
    labels = ("method", "recipe", "data", "epochs")
    assert [first[key] for key in labels] != [second[key] for key in labels]
    assert told in " ".join(first[key] for key in labels)


@pytest.mark.parametrize(
    "change", ["training.compile=default", "training.threads=3", "training.log_every=7", "views.workers=2"]
)
def test_how_a_run_is_computed_splits_no_row(change: str, tmp_path: Path) -> None:
    release(tmp_path / "a", 0, 50.0)
    release(tmp_path / "b", 1, 60.0, change)
    (row,) = rows(zoo.table(tmp_path))
    assert (row["accuracy"], row["recipe"]) == ("55.0 ± 7.1", PACO)


def test_versions_of_torch_and_what_was_odd_are_said(tmp_path: Path) -> None:
    stopping = {"metric": "balanced_accuracy", "validation_images": 30}
    release(tmp_path / "a", 0, 50.0, versions={"torch": "2.11.0"}, early_stopping=stopping)
    release(tmp_path / "b", 1, 60.0, changed_on_resume="training.precision fp32 to bf16 after step 5")
    text = zoo.table(tmp_path).markdown()
    assert "seeds trained with different versions of torch: 2.11.0, 2.15.0" in text
    assert "seed 1: changed while it ran: training.precision fp32 to bf16 after step 5" in text
    assert "early stopping chose the epoch by the balanced accuracy of 30 images put aside" in text
    assert "The last epoch counts" not in text


def test_of_trainings_with_one_seed_the_first_counts_and_the_others_are_named(tmp_path: Path) -> None:
    release(tmp_path / "again", 0, 99.0, date="2026-11-09T00:00:00+00:00")
    release(tmp_path / "first", 0, 50.0)
    made = zoo.table(tmp_path)
    (row,) = rows(made)
    assert (row["accuracy"], row["seeds"], len(made.runs)) == ("50.0", "n = 1", 2)
    assert made.left_out == [
        f'"{tmp_path / "again"}": {PACO}, seed 0, was trained before in "{tmp_path / "first"}", which counts'
    ]
    assert "Not counted: " in made.markdown()


def test_the_classifier_counts_else_the_probe_and_what_most_runs_have(tmp_path: Path) -> None:
    release(tmp_path / "0", 0, 50.0)
    release(tmp_path / "1", 1, 54.0)
    release(tmp_path / "2", 2, 99.0, protocol="linear")  # the classifier was not measured
    made = zoo.table(tmp_path)
    (row,) = rows(made)
    assert (row["measured by"], row["accuracy"], row["seeds"]) == ("classifier", "52.0 ± 2.8", "n = 3")
    assert "seed 2 without this evaluation: figures of 2 of 3 runs" in made.markdown()
    release(tmp_path / "none", 0, None, "objective.tau=0.3")
    nothing = rows(zoo.table(tmp_path / "none"))[0]
    assert (nothing["measured by"], nothing["seeds"]) == ("-", "n = 1") and "accuracy" not in nothing
    (shipped,) = rows(zoo.table(MOCO))
    assert (shipped["measured by"], shipped["method"]) == ("linear", "MoCo v2 + FT")


def test_an_evaluation_on_other_data_is_none_of_its_own(tmp_path: Path) -> None:
    folder = release(tmp_path / "a", 0, 50.0)
    metrics = json.loads((folder / "metrics.json").read_text())
    (entry,) = metrics["evaluations"]
    other = {**entry, "data": "digits", "value": 99.0, "metrics": {**entry["metrics"], "accuracy": 99.0}}
    (folder / "metrics.json").write_text(json.dumps({**metrics, "evaluations": [other, entry]}))
    assert rows(zoo.table(folder))[0]["accuracy"] == "50.0"


# What is written.


def published(tmp_path: Path, recipe: str = PACO, value: float = 90.0, name: str = "mine.yaml") -> Path:
    figures = {"value": value, "metric": "accuracy", "source": "a paper", "differs": "Its images are others"}
    lines = {
        **{"question": "Which?", "source": "nobody", "recipes": [recipe], "set": {}, "seeds": [0]},
        **{"watch": [{"number": "recorded/loss", "title": "loss"}], "found": None},
        "published": {recipe: figures},
    }
    file = tmp_path / name
    file.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in lines.items()))
    return file


def test_a_published_figure_stands_beside_its_recipe_with_what_differs(tmp_path: Path) -> None:
    release(tmp_path / "runs" / "a", 0, 50.0, "training.precision=bf16")
    release(tmp_path / "runs" / "b", 0, 40.0, "training.threads=1", "views.cache=true")
    made = zoo.table(tmp_path / "runs", MOCO, published=[published(tmp_path)])
    assert [(row["method"], row["published"]) for row in rows(made)] == [
        ("MoCo v2 + FT", "-"),
        ("PaCo", "90.0"),
        ("PaCo", "90.0"),
    ]
    said = f"- PaCo (`{PACO}`), published 90.0: a paper. What differs: Its images are others."
    text = made.markdown()
    assert f"{said}\n" in text and f"{said} Here with training.precision bf16, the recipe has fp32." in text


@pytest.mark.parametrize(
    ("change", "protocol", "beside"),
    [
        ("training.threads=1", "classifier", "90.0"),
        ("objective.alpha=0.05", "classifier", "-"),
        ("data.long_tail.imbalance=20", "classifier", "-"),
        ("training.epochs=6", "classifier", "-"),
        ("training.threads=1", "linear", "90.0"),  # where it is not said by what it was measured
        ("training.threads=1", "knn", "-"),
    ],
)
def test_a_published_figure_stands_beside_no_other_training_and_no_other_protocol(
    change: str, protocol: str, beside: str, tmp_path: Path
) -> None:
    release(tmp_path / "runs" / "as_shipped", 0, 40.0)
    release(tmp_path / "runs" / "other", 1, 50.0, change, protocol=protocol)
    release(tmp_path / "alone", 1, 50.0, change, protocol=protocol)
    figures = [published(tmp_path)]
    (alone,) = zoo.table(tmp_path / "alone", published=figures).lines
    shown = "-" if alone.published is None else f"{alone.published.value:.1f}"
    assert shown == beside
    made = zoo.table(tmp_path / "runs", published=figures)
    assert any(line.published for line in made.lines)
    assert made.markdown().count("a paper. What differs: ") == 1


def test_a_figure_of_a_protocol_stands_beside_that_one(tmp_path: Path) -> None:
    release(tmp_path / "runs", 0, 40.0)
    (row,) = zoo.table(tmp_path / "runs").lines
    assert row.row.evaluated is not None
    figures = {"value": 52.0, "metric": "accuracy", "source": "a paper", "differs": "Nothing"}
    fits = {
        (told, measured): Published.model_validate({**figures, "protocol": told}).is_of(
            replace(row.row, evaluated=row.row.evaluated.model_copy(update={"protocol": measured}))
        )
        for told in ("classifier", "linear", "knn")
        for measured in ("classifier", "linear", "linear_full", "knn", "few_shot")
    }
    assert {pair for pair, is_of in fits.items() if is_of} == {
        ("classifier", "classifier"),
        ("linear", "linear"),
        ("linear", "linear_full"),
        ("knn", "knn"),
    }


def test_a_probe_that_weights_classes_is_called_so(tmp_path: Path) -> None:
    """Its few-shot classes would else look better than those of an unweighted one, by the encoder's merit."""
    release(tmp_path / "a", 0, 40.0, protocol="linear")
    release(tmp_path / "b", 0, 40.0, "objective.tau=0.2")
    lines = []
    for line in zoo.table(tmp_path, published=[]).lines:
        evaluated = line.row.evaluated
        assert evaluated is not None
        if evaluated.protocol == "linear":
            settings = {**evaluated.settings, "balanced": True}
            row = replace(line.row, evaluated=evaluated.model_copy(update={"settings": settings}))
            lines += [line._replace(row=row)]
        lines += [line]
    head, *body = cells(lines)
    shown = [row[head.index("measured by")] for row in body]
    assert sorted(shown) == ["classifier", "linear", "linear, balanced"]
    said = reading(lines)
    assert "Linear, balanced: such a probe" in said and "Linear: a linear probe" in said
    drawn = results_plot.labels(lines)
    assert [
        sum(each.endswith(word) for each in drawn) for word in (" linear probe", "balanced linear probe")
    ] == [2, 1]


def test_what_differs_is_said_once_of_figures_with_one_source(tmp_path: Path) -> None:
    ce = PACO.replace(".paco_", ".ce_")
    release(tmp_path / "runs" / "a", 0, 50.0)
    folder = release(tmp_path / "runs" / "b", 0, 40.0)
    config = json.loads((folder / "config.json").read_text())
    text = Recipe.load(ce).to_yaml()
    (folder / "recipe.yaml").write_text(text)
    config["zoo"] |= {"name": ce, "recipe_sha256": hashlib.sha256(text.encode()).hexdigest()}
    (folder / "config.json").write_text(json.dumps(config))
    files = [published(tmp_path), published(tmp_path, ce, 70.0, "other.yaml")]
    text = zoo.table(tmp_path / "runs", published=files).markdown()
    assert text.count("a paper. What differs: Its images are others.") == 1
    assert f"(`{PACO}`), published 90.0; " in text and f"(`{ce}`), published 70.0: a paper." in text


def test_files_hold_every_number_and_a_table_can_be_made_of_them(tmp_path: Path) -> None:
    release(tmp_path / "runs" / "a", 0, 50.0)
    release(tmp_path / "runs" / "b", 1, 54.0)
    out = tmp_path / "out"
    made = zoo.table(tmp_path / "runs", out=out)
    assert {path.name for path in out.iterdir()} == {
        f"results.{kind}" for kind in ("md", "json", "png", "svg")
    }
    text = (out / "results.md").read_text()
    assert text.startswith("# Results\n") and made.markdown() in text and "(results.png)" in text
    record = json.loads((out / "results.json").read_text())
    assert record["rows"][0]["figures"]["accuracy"] == {"mean": 52.0, "deviation": 8**0.5, "n": 2}
    for run in record["runs"]:
        config, metrics = (
            json.loads((Path(run["place"]) / name).read_text()) for name in ("config.json", "metrics.json")
        )
        (entry,) = metrics["evaluations"]
        kept = {key: value for key, value in entry["metrics"].items() if key != "per_class"}
        (measured,) = run["evaluations"]
        assert measured["metrics"] == kept
        assert (measured["metric"], measured["value"]) == ("accuracy", kept["accuracy"])
        assert run["weights_sha256"] == config["zoo"]["weights_sha256"]
        assert run["train_sha256"] == config["zoo"]["dataset"]["sha256"] == entry["train_set"]["sha256"]
        assert measured["test_sha256"] == entry["test_set"]["sha256"]
        for key in (
            "seed",
            "epochs",
            "seconds",
            "images_per_second",
            "hardware",
            "precision",
            "versions",
            "date",
        ):
            assert run[key] == metrics["training"][key]
    assert zoo.table(out / "results.json").markdown() == made.markdown()
    kept_here = tmp_path / "cards" / "results"  # of runs whose weights lie elsewhere
    kept_here.mkdir(parents=True)
    shutil.copy(out / "results.json", kept_here / "paco.json")
    release(tmp_path / "cards" / "c", 2, 58.0)
    shutil.copytree(tmp_path / "runs" / "a", tmp_path / "cards" / "a")
    (row,) = rows(zoo.table(tmp_path / "cards"))
    assert (row["accuracy"], row["seeds"]) == ("54.0 ± 4.0", "n = 3")
    # what a table has written is none of the runs that lie beside it
    shutil.copy(out / "results.json", tmp_path / "runs" / "results.json")
    shutil.rmtree(tmp_path / "runs" / "b")
    assert rows(zoo.table(tmp_path / "runs"))[0]["seeds"] == "n = 1"


def test_a_file_of_before_evaluations_had_a_value_is_read_and_one_with_another_value_is_not(
    tmp_path: Path,
) -> None:
    made = zoo.table(release(tmp_path / "a", 0, 50.0), out=tmp_path)
    record = json.loads((tmp_path / "results.json").read_text())
    (entry,) = record["runs"][0]["evaluations"]
    entry["value"] = 60.0
    (tmp_path / "results.json").write_text(json.dumps(record))
    expected = "value.: found 60.0, as .metric. 'accuracy'; expected 50.0, which .metrics. has"
    with pytest.raises(ZooError, match=f"results.json.*runs.0.evaluations.0: .{expected}"):
        zoo.table(tmp_path / "results.json")
    del entry["metric"], entry["value"]
    (tmp_path / "results.json").write_text(json.dumps(record))
    again = zoo.table(tmp_path / "results.json")
    assert again.markdown() == made.markdown() and again.record()["runs"] == made.record()["runs"]


def test_files_are_the_old_ones_until_all_new_ones_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = release(tmp_path / "a", 0, 50.0), tmp_path / "out"
    zoo.table(folder, out=out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    release(tmp_path / "b", 1, 60.0)

    def full(file: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("zoo.api.tables.table.write_text", full)
    with pytest.raises(ZooError, match="cannot be written: No space left on device"):
        zoo.table(tmp_path / "a", tmp_path / "b", out=out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def drawn_on(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Drawing], list[str]]:
    """Where what is drawn from now on is put, with its captions."""
    drawings, captions = [], []

    @contextmanager
    def kept(paths: Any, size: Any, caption: str, title: Any) -> Iterator[Drawing]:
        captions.append(caption)
        drawings.append(Drawing(figsize=size))
        yield drawings[-1]

    monkeypatch.setattr(results_plot, "figure_to", kept)
    return drawings, captions


def test_balanced_data_are_not_shown_twice(tmp_path: Path) -> None:
    """All classes have more than 100 images then, and their accuracy is the accuracy."""
    release(tmp_path / "a", 0, 50.0)
    (line,) = zoo.table(tmp_path, published=[]).lines
    for figures, shown in (
        ({"accuracy": figure([4.0]), "many": figure([4.0])}, ["accuracy"]),
        ({"accuracy": figure([4.0]), "many": figure([5.0])}, ["accuracy", "many"]),
    ):
        assert measured_groups([line._replace(row=replace(line.row, figures=figures))]) == shown


def test_each_data_set_has_its_own_block_and_each_panel_its_own_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(tmp_path / "a", 0, 50.0)
    release(tmp_path / "b", 0, 40.0, "objective.tau=0.2")
    made = zoo.table(tmp_path, published=[])
    few = [line._replace(data="another, long tail 100") for line in made.lines]
    few = [
        line._replace(row=replace(line.row, figures={"accuracy": figure([4.0]), "few": figure([2.0])}))
        for line in few
    ]
    drawings, captions = drawn_on(monkeypatch)
    assert results_plot.plot_results([*few, *made.lines], "x.png")
    axes = drawings[0].axes
    headings = [each.texts[0].get_text() for each in axes if each.texts]
    assert headings == ["another, long tail 100", "digits, long tail 50"]
    panels = [each for each in axes if each.lines]
    assert [each.get_title(loc="left") for each in panels] == [
        *("accuracy", "few"),
        *("accuracy", "many", "medium", "few"),
    ]
    low, high = panels[0].get_xlim(), panels[3].get_xlim()
    assert low[0] < 4.0 < low[1] < 20 < high[0] < 100.0 < high[1]  # with room around a dot
    assert high[1] - high[0] > 5.0  # two that are alike do not fill it
    # panels of a metric stand below each other, and no row's name repeats what the heading says
    assert panels[0].get_position().x0 == panels[2].get_position().x0
    assert panels[1].get_position().x0 == panels[5].get_position().x0
    for block in (panels[0], panels[2]):
        names = [each.get_text() for each in block.get_yticklabels()]
        assert names == ["PaCo, tau 0.1", "PaCo, tau 0.2"]
    assert "Every panel has an x axis of its own" in captions[0]


def test_the_picture_shows_every_seed_the_means_and_what_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, accuracy in enumerate((50.0, 52.0, 57.0)):
        release(tmp_path / str(seed), seed, accuracy)
    release(tmp_path / "single", 0, 40.0, "objective.tau=0.2", "objective.alpha=0.05")
    made = zoo.table(tmp_path, published=[published(tmp_path)])
    drawings, captions = drawn_on(monkeypatch)
    assert results_plot.plot_results(made.lines, "x.png")
    axes = drawings[0].axes[0]
    drawn = [tuple(map(float, line.get_xdata())) for line in axes.lines]
    assert (50.0, 52.0, 57.0) in drawn and (40.0,) in drawn and (53.0,) in drawn
    assert drawn.count((90.0, 90.0)) == 1  # the other is of another recipe
    images = made.lines[1].row.evaluated.metrics["test_images"]
    half = 196 * (0.4 * 0.6 / images) ** 0.5
    (interval,) = [each for each in drawn if len(each) == 2 and each[0] < 40 < each[1]]
    assert interval == pytest.approx((40 - half, 40 + half))
    assert "thin lines through those alone: 95 % interval" in captions[0]
    names = [each.get_text() for each in axes.get_yticklabels()]
    assert names == ["PaCo, tau 0.1, alpha 0.01", "PaCo, tau 0.2, alpha 0.05"]
    assert "digits, long tail 50, test split, measured by classifier" in captions[0]
    assert not results_plot.plot_results([], "x.png")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.0, "1.0 s"), (47.8, "48 s"), (99.9, "100 s"), (100, "2 min"), (5_990, "100 min"), (9_000, "2.5 h")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_equal_values_have_a_spread_of_nothing() -> None:
    assert str(figure([40.0, 40.0])) == "40.0 ± 0.0" and str(figure([40.0])) == "40.0"


# In the README.


def test_the_table_of_the_readme_is_what_the_repository_s_files_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = Path("model_cards/README.md").read_text()
    copy = tmp_path / "README.md"
    copy.write_text(text)
    zoo.table("model_cards", "recipes", readme=copy)
    command = "zoo table model_cards recipes --readme model_cards/README.md"
    assert copy.read_text() == text, f"run: {command}"
    assert command in text


def test_the_command_prints_the_table_and_changes_the_readme_between_its_marks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    release(tmp_path / "runs" / "a", 0, 50.0)
    begun(tmp_path / "runs" / "b", 1, 2.0)
    Path("README.md").write_text(f"# Mine\n{BEGIN}\nold\n{END}\nThe rest.")
    in_shell("table", "runs", "--readme", "README.md")
    text = Path("README.md").read_text()
    assert text.startswith(f"# Mine\n{BEGIN}\n\n| method |") and text.endswith(f"\n\n{END}\nThe rest.")
    assert "old" not in text and "| 50.0 |" in text
    said = capsys.readouterr().out
    assert PACO in said and "written: README.md" in said
    assert "- 1 run is not finished and not counted: " in said
    assert not Path("runs/table").exists()
    in_shell("table", "runs")
    assert Path("runs/table/results.md").is_file()
    in_shell("table", "runs")  # what it wrote is no run


def test_the_command_says_what_its_figures_are_and_what_is_to_be_known_of_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, accuracy in enumerate((50.0, 54.0)):
        release(tmp_path / "a" / str(seed), seed, accuracy, changed_on_resume=f"<threads|{seed}>")
    options = ["--out", str(tmp_path / "out"), "--published", str(published(tmp_path))]
    in_shell("table", str(tmp_path / "a"), *options)
    said = capsys.readouterr().out
    about, table, notes = said.split("\n\n")[:3]
    assert about.startswith("Top-1 accuracy in percent on the test split. Mean over seeds ± sample standard")
    assert "\n" not in about and "52.0 ± 2.8" in table
    published_note, *row_notes = notes.splitlines()
    assert "published 90.0: a paper. What differs: Its images are others." in published_note
    assert row_notes[0].endswith("seed 0: changed while it ran: <threads|0>.") and len(row_notes) == 2
    release(tmp_path / "b", 0, 50.0)
    in_shell("table", str(tmp_path / "b"), *options)
    said = capsys.readouterr().out
    assert "±" not in said and "\n\n\n" not in said and "Each of a single seed: without a spread." in said
    begun(tmp_path / "c", 1, 2.0)
    in_shell("table", str(tmp_path / "c"), *options)
    said = capsys.readouterr().out
    assert said.startswith("no finished run\n\n- 1 run is not finished and not counted: ")


# What is not counted, or refused.


def test_a_damaged_release_in_a_folder_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    release(tmp_path / "good", 0, 50.0)
    (release(tmp_path / "edited", 1, 60.0) / "recipe.yaml").write_text(Recipe.load(PACO).to_yaml())
    (release(tmp_path / "cut", 2, 60.0) / "config.json").write_text('{"zoo')
    (release(tmp_path / "gone", 3, 60.0) / "metrics.json").unlink()
    made = zoo.table(tmp_path)
    (row,) = rows(made)
    assert row["seeds"] == "n = 1"
    cut, edited, gone = made.left_out
    assert "cut" in cut and "not valid JSON" in cut
    assert edited.endswith("recipe.yaml is not the one that config.json records")
    assert "metrics.json is missing" in gone
    with pytest.raises(ReleaseError, match=r"recipe\.yaml is not the one"):
        zoo.table(tmp_path / "edited")


def test_runs_of_a_plan_that_failed_or_were_not_begun_are_named(tmp_path: Path) -> None:
    for machine in ("a", "b"):
        plan_of(tmp_path / machine, seeds=4)
    release(tmp_path / "a" / "p" / "seed_0", 0, 50.0)
    release(tmp_path / "b" / "p" / "seed_1", 1, 54.0)
    begun(tmp_path / "b" / "p" / "seed_2", 2, 1.0)
    (tmp_path / "b" / "p" / "seed_2" / "failed.json").write_text('{"reason": "the loss became NaN"}')
    made = zoo.table(tmp_path / "a", tmp_path / "b")
    states = {(each.name, each.seed): each.state for each in made.unfinished}
    assert states == {(PACO, 2): "failed: the loss became NaN", (PACO, 3): "not begun, p"}
    assert len(zoo.table(tmp_path / "a").unfinished) == 3
    assert rows(made)[0]["seeds"] == "n = 2"


def plan_of(
    folder: Path,
    *changes: str,
    seeds: int = 6,
    command: str = "zoo sweep p_sup",
    images: str | None = SHIPPED_IMAGES,
) -> Path:
    """What a sweep over seeds of one point writes before its first training."""
    folder.mkdir(parents=True, exist_ok=True)
    recipes = [Recipe.load(PACO, [*changes, f"training.seed={seed}"]) for seed in range(seeds)]
    runs = [
        Run("p", (), seed, recipe, changes, folder / "p" / f"seed_{seed}", PACO)
        for seed, recipe in enumerate(recipes)
    ]
    known = {} if images is None else {run.id: images for run in runs}
    (folder / "plan.json").write_text(json.dumps(written_plan(f"{command} --out {folder}", runs, known)))
    return folder


def test_what_was_finished_elsewhere_is_not_called_unfinished_whatever_it_is_merged_from(
    tmp_path: Path,
) -> None:
    """Two halves of a sweep, whose file lies at another path on each machine."""
    a = plan_of(tmp_path / "a", command="zoo sweep /home/a/mine.yaml")
    b = plan_of(tmp_path / "b", command="zoo sweep /home/b/mine.yaml")
    for seed in range(6):
        release((a if seed < 3 else b) / "p" / f"seed_{seed}", seed, 50.0 + seed)
    in_b = zoo.table(b, out=b)
    assert {(each.name, each.seed, each.state) for each in in_b.unfinished} == {
        (PACO, seed, "not begun, p") for seed in range(3)
    }
    for names in ((a, b), (b, a), (a, b / "results.json"), (b / "results.json", a)):
        made = zoo.table(*names)
        assert rows(made)[0]["seeds"] == "n = 6" and made.unfinished == []
    # begun on one, planned on the other: said once, as it is
    shutil.rmtree(a / "p" / "seed_0")
    begun(a / "p" / "seed_0", 0, 7.0)
    for names in ((a, b), (b / "results.json", a)):
        (open_,) = zoo.table(*names).unfinished
        assert open_.seed == 0 and "recorded up to epoch 7.0" in open_.state
    # begun nowhere: once, though both have planned it
    shutil.rmtree(a / "p" / "seed_0")
    for names in ((a, b), (b / "results.json", a)):
        assert [(each.seed, each.state) for each in zoo.table(*names).unfinished] == [(0, "not begun, p")]


def test_a_trial_of_a_sweep_hides_none_of_its_missing_runs(tmp_path: Path) -> None:
    whole = plan_of(tmp_path / "whole", seeds=4)
    command = "zoo sweep p_sup --set training.epochs=6"
    trial = plan_of(tmp_path / "trial", "training.epochs=6", seeds=4, command=command)
    for seed in range(4):
        release(trial / "p" / f"seed_{seed}", seed, 20.0, "training.epochs=6")
    for seed in range(2):
        release(whole / "p" / f"seed_{seed}", seed, 50.0)
    made = zoo.table(trial, whole)
    assert sorted((row["epochs"], row["seeds"]) for row in rows(made)) == [("6", "n = 4"), ("60", "n = 2")]
    assert {each.place for each in made.unfinished} == {str(whole / "p" / f"seed_{seed}") for seed in (2, 3)}


OTHER_IMAGES = hashlib.sha256(b"other images").hexdigest()


def test_an_unfinished_training_on_other_images_is_none_of_the_finished_ones(tmp_path: Path) -> None:
    release(tmp_path / "a", 0, 50.0)
    begun(tmp_path / "same", 0, 7.0)
    assert zoo.table(tmp_path).unfinished == []
    begun(tmp_path / "other", 0, 7.0, OTHER_IMAGES)
    made = zoo.table(tmp_path, out=tmp_path / "out")
    (open_,) = made.unfinished
    assert open_.place == str(tmp_path / "other") and open_.train_sha256 == OTHER_IMAGES
    assert made.left_out == []
    (tmp_path / "other" / "run" / "data.json").unlink()  # of an earlier version, or of the first seconds
    made = zoo.table(tmp_path)
    assert made.unfinished == []
    assert made.left_out == [
        f'"{tmp_path / "other"}": {PACO}, seed 0, is not finished and has not recorded its images; it is '
        "taken for the finished training of the same recipe and seed"
    ]
    # a file of results keeps what was known of a training that is finished since
    release(tmp_path / "since", 0, 51.0, train="other images")
    assert zoo.table(tmp_path / "out" / "results.json", tmp_path / "since").unfinished == []
    (open_,) = zoo.table(tmp_path / "out" / "results.json", tmp_path / "a").unfinished
    assert open_.train_sha256 == OTHER_IMAGES


def test_the_stage_of_a_method_tells_which_images_it_is_of(tmp_path: Path) -> None:
    release(tmp_path / "a", 0, 50.0)
    begun(tmp_path / "other", 0, 7.0, None)
    stage = RunFolder(tmp_path / "stages" / "crt-12ab")
    stage.path.mkdir(parents=True)
    stage.recipe_file.touch()
    stage.data_file.write_text(json.dumps({"num_images": 1, "sha256": OTHER_IMAGES}))
    RunFolder(tmp_path / "other" / "run").note_stages([stage])
    assert [each.train_sha256 for each in zoo.table(tmp_path).unfinished] == [OTHER_IMAGES]


@pytest.mark.parametrize(
    ("images", "open_", "said"), [(OTHER_IMAGES, 2, 0), (SHIPPED_IMAGES, 0, 0), (None, 0, 1)]
)
def test_what_is_planned_on_other_images_is_none_of_the_finished_ones(
    images: str | None, open_: int, said: int, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path / "planned", seeds=2, images=images)
    for seed in range(2):
        release(tmp_path / "done" / str(seed), seed, 50.0)
    made = zoo.table(tmp_path)
    assert (len(made.unfinished), len(made.left_out)) == (open_, said)
    if said:
        assert 'seed_0", "' in made.left_out[0] and "are taken for the finished trainings" in made.left_out[0]
    # begun in the plan's folder, before it has noted its images: the plan has
    begun(plan / "p" / "seed_0", 0, 1.0, None)
    assert {each.train_sha256 for each in zoo.table(tmp_path).unfinished} == ({images} if open_ else set())


def test_a_folder_in_which_nothing_was_begun_hides_no_planned_run(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "a", seeds=2)
    release(plan / "p" / "seed_0", 0, 50.0)
    (plan / "p" / "seed_1" / "run").mkdir(parents=True)  # stopped while it read the data
    assert [(each.seed, each.state) for each in zoo.table(plan).unfinished] == [(1, "not begun, p")]


def test_a_planned_run_that_failed_before_it_began_is_said(tmp_path: Path) -> None:
    folder = plan_of(tmp_path / "a", seeds=2)
    release(folder / "p" / "seed_0", 0, 50.0)
    (folder / "p" / "seed_1").mkdir()
    (folder / "p" / "seed_1" / "failed.json").write_text('{"reason": "no such weights"}')
    assert [each.state for each in zoo.table(folder).unfinished] == ["failed: no such weights"]


def test_runs_alone_make_a_table_without_rows(tmp_path: Path) -> None:
    begun(tmp_path / "a", 0, 1.0)
    made = zoo.table(tmp_path, out=tmp_path / "out")
    assert made.markdown().startswith("No finished run.\n\n- 1 run is not finished")
    assert not (tmp_path / "out" / "results.png").exists()


def test_names_that_are_nothing_of_a_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"found no name, expected folders, releases or results\.json"):
        zoo.table()
    (tmp_path / "notes").mkdir()
    with pytest.raises(ZooError, match=r"found notes, expected releases or runs in it, at any depth"):
        zoo.table(tmp_path)
    with pytest.raises(ZooError, match=rf'Did you mean "{PACO}"'):
        zoo.table(f"{PACO}0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as results"),
        ("[]", "found no results, expected a results.json that"),
        ('{"runs": []}', "found no results"),
        ('{"format": 2, "runs": [], "rows": [], "unfinished": []}', "found format 2, expected 1"),
        ('{"format": 1, "runs": [{}], "rows": [], "unfinished": []}', 'missing key "runs.0.name"'),
    ],
)
def test_a_file_that_holds_no_results_is_refused_and_never_written_over(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(ZooError, match=message):
        zoo.table(file)
    with pytest.raises(ZooError, match=rf"{message}.*choose another --out"):
        zoo.table(PACO, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"] and file.read_text() == text


def test_a_number_that_no_accuracy_can_be_is_found_in_a_file_of_results(tmp_path: Path) -> None:
    zoo.table(PACO, out=tmp_path)
    file = tmp_path / "results.json"
    record = json.loads(file.read_text())
    record["runs"][0]["seconds"] = "fast"
    file.write_text(json.dumps(record))
    with pytest.raises(ZooError, match=r'"runs\.0\.seconds": found .fast.'):
        zoo.table(file)
    record["runs"][0] |= {"seconds": 1.0, "sed": 1}
    file.write_text(json.dumps(record))
    with pytest.raises(ZooError, match=r'unknown key "runs\.0\.sed"\. Did you mean "seed"'):
        zoo.table(file)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nothing", "found 0 x .* and 0 x"),
        (f"{BEGIN}\n", "found 1 x .* and 0 x"),
        (f"{END}\n{BEGIN}\n", "found 1 x .* and 1 x .*expected one of each, in this order"),
        (f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n", "found 2 x .* and 2 x"),
    ],
)
def test_a_readme_without_its_two_marks_is_left_as_it_is(text: str, found: str, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(ZooError, match=found):
        zoo.table(PACO, readme=readme, out=tmp_path / "out")
    assert readme.read_text() == text and not (tmp_path / "out").exists()


def test_published_figures_come_from_sweeps_that_agree(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r'"temperatur" is neither a shipped sweep .*Did you mean "temperature"'
    ):
        zoo.table(PACO, published=["temperatur"])
    with pytest.raises(ZooError, match="expected a list of sweeps"):
        zoo.table(PACO, published="temperature")
    files = [published(tmp_path), published(tmp_path, value=91.0, name="other.yaml")]
    with pytest.raises(RecipeError, match=rf"other\.yaml.* says of {PACO} something else"):
        zoo.table(PACO, published=files)


def test_shipped_sweeps_agree_on_every_published_figure() -> None:
    found = published_figures(None)
    assert {name: found[name].value for name in found if name.endswith("paco_cifar100_lt100")} == {
        "cifar_resnet32.paco_cifar100_lt100": 52.0,
        "cifar_resnet32.gpaco_cifar100_lt100": 52.3,
    }
    for sweep in catalog.list_sweeps():
        assert read_sweep(sweep).published.items() <= found.items()


def test_a_folder_that_is_a_file_is_no_out(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ZooError, match="is no folder; choose another --out"):
        zoo.table(PACO, out=tmp_path / "out")


def test_a_recipe_is_the_same_whichever_form_of_cifar_it_names() -> None:
    name = "cifar_resnet32.paco_cifar100_lt100_e100"
    files = "kind: parquet, train: train-*.parquet, test: test-*.parquet, image: img"

    def group(*changes: str) -> str:
        return group_of(Recipe.load(name, changes).model_dump(mode="json"))

    assert group("data.source={kind: cifar100, download: false}") == group()
    assert group(f"data.source={{{files}, label: fine_label}}") == group()
    others = [f"data.source={{{files}, label: coarse_label}}", "data.source={kind: cifar10}"]
    assert len({group(), *map(group, others)}) == 3
