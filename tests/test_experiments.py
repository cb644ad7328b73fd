"""Experiments: what shares a row, what a sweep leaves, what tells a reproduction from a fault."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zoo
from tests.programs.plain_sweep import draw_no_figure, draw_nothing
from zoo import catalog
from zoo.errors import RecipeError, TrainingError, ZooError
from zoo.experiments import judge
from zoo.experiments.grid import lay_out, own_labels, require_same
from zoo.experiments.judge import Figure, Images
from zoo.experiments.reading import as_json, read_results
from zoo.experiments.record import RunRecord, from_release
from zoo.experiments.rows import in_rows
from zoo.experiments.statistics import paired, paired_images, summarize, tolerance
from zoo.experiments.sweep_file import read_sweep
from zoo.experiments.table import BEGIN, END, Results

ROOT = Path(__file__).resolve().parent.parent
CE = "cifar_resnet20.ce_digits_lt50"
PACO = "cifar_resnet20.paco_digits_lt50"
TINY: dict[str, Any] = {
    "training.epochs": [2],
    "schedule.warmup_epochs": [0],
    "training.batch_size": [10],
    "training.log_every": [1],
    "training.device": ["cpu"],
    "data.subset": [{"per_class": 2}],  # 20 images
    "evaluation": [[{"protocol": "classifier"}]],
}


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return from_release(zoo.open(PACO), "paco")


@pytest.fixture(scope="module")
def seeds() -> list[RunRecord]:
    """PaCo on digits with eight other seeds."""
    return read_results(catalog.spread_path(PACO))


def another(record: RunRecord, seed: int, accuracy: float, **changes: Any) -> RunRecord:
    """A record as if trained with another seed and outcome."""
    (first, *_) = record.evaluations
    entry = first.model_copy(update={"metrics": {**first.metrics, "accuracy": accuracy}})
    sha256 = f"{seed:02d}{round(1000 * accuracy):06d}".ljust(64, "0")
    return record.model_copy(
        update={
            "seed": seed,
            "evaluations": [entry],
            "weights_sha256": sha256,
            "place": f"s{seed}",
            **changes,
        }
    )


# Statistics.


def test_plus_minus_is_the_deviation_over_seeds_and_one_seed_has_none() -> None:
    assert str(summarize([50.0, 52.0, 57.0])) == "53.0 ± 3.6"  # sqrt((9 + 1 + 16) / 2)
    assert str(summarize([50.0])) == "50.0"


def test_differences_are_paired_by_seed() -> None:
    found = paired([51.0, 62.0, 73.0], [50.0, 60.0, 70.0])  # 1, 2, 3: t(0.975, 2) / sqrt(3) = 2.484
    assert found.mean == pytest.approx(2.0) and found.half_width == pytest.approx(2.484, abs=1e-3)
    assert paired([1.1, 2.1], [1.0, 2.0]).half_width is None, "the same difference with every seed"


def test_paired_images_are_those_that_only_one_gets_right() -> None:
    right, other = np.array([True] * 6 + [False] * 4), np.array([True] * 5 + [False] * 5)
    found = paired_images(right, other)
    assert found.mean == pytest.approx(10.0)
    assert found.half_width == pytest.approx(1.96 * 100 * np.sqrt(0.1 * 0.9 / 9))


def test_a_tolerance_knows_images_seeds_and_how_many_figures_are_judged() -> None:
    alone = tolerance(0.9, 500, None, 1, 0.05)
    assert alone == pytest.approx(1.96 * np.sqrt(2 * 0.9 * 0.1 / 500), rel=1e-3)
    assert tolerance(0.9, 500, (0.02, 5), 1, 0.05) == pytest.approx(
        2.776 * np.sqrt(2 * 0.9 * 0.1 / 500 + 2 * 0.02**2), rel=1e-3
    )
    assert tolerance(0.9, 500, None, 20, 0.05) > alone


# Rows and tables.


def test_the_shipped_records_give_the_recorded_table(tmp_path: Path) -> None:
    golden = (ROOT / "tests" / "golden" / "table.md").read_text()
    readme = tmp_path / "README.md"
    text = (ROOT / "model_cards" / "README.md").read_text()
    head, _, rest = text.partition(BEGIN)
    readme.write_text(f"{head}{BEGIN}\nold\n{END}{rest.partition(END)[2]}")
    made = zoo.table("model_cards", "recipes", readme=readme)
    assert made.markdown() == golden
    assert readme.read_text() == text, "run: zoo table model_cards recipes --readme model_cards/README.md"


def test_runs_share_a_row_if_the_seed_alone_differs(record: RunRecord) -> None:
    runs = [another(record, seed, 50.0 + seed) for seed in range(3)]
    tau = {**record.recipe, "objective.tau": 0.2}
    images = "ab" * 32
    rows, left_out = in_rows(
        [
            *runs,
            another(record, 1, 99.0, date="2099-01-01T00:00:00+00:00"),  # a second training of a seed
            another(record, 0, 40.0, recipe=tau),
            another(record, 0, 30.0, train_sha256=images),
            another(record, 5, 53.0, recipe={**record.recipe, "training.threads": 7}),  # moves no figure
        ]
    )
    assert [(str(row.figures["accuracy"]), len(row.runs)) for row in rows] == [
        ("51.5 ± 1.3", 4),
        ("40.0", 1),
        ("30.0", 1),
    ]
    assert len(left_out) == 1 and '"s1"' in left_out[0]
    frame = Results(rows, runs, {}).frame()
    assert frame["recipe"][1] == f"{PACO}, tau 0.2" and images[:8] in frame["data"][2]


def test_records_come_back_as_they_were_written(seeds: list[RunRecord], tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(as_json(seeds))
    assert read_results(tmp_path / "results.json") == seeds
    made = zoo.table(tmp_path / "results.json", out=tmp_path / "table")
    assert [len(row.runs) for row in made.rows] == [8]
    assert (tmp_path / "table" / "results.png").stat().st_size > 5000
    assert zoo.table(tmp_path / "table" / "results.json").markdown() == made.markdown()


def test_a_release_and_its_copy_count_once_and_an_unfinished_run_is_named(tmp_path: Path) -> None:
    path = catalog.release_path(PACO)
    assert path is not None
    for name in ("a", "b"):
        shutil.copytree(path, tmp_path / name)
    (tmp_path / "c" / "run").mkdir(parents=True)
    shutil.copy(path / "recipe.yaml", tmp_path / "c" / "run" / "recipe.yaml")
    made = zoo.table(tmp_path)
    assert [len(row.runs) for row in made.rows] == [1] and made.unfinished == [str(tmp_path / "c")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read as results"),
        ("{}", "found no results"),
        ('{"format": 3, "runs": []}', "found format 3, expected 1 or 2"),
        ('{"format": 2, "runs": [{"name": "a"}]}', "seed"),
    ],
)
def test_a_file_that_holds_no_results_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(ZooError, match=words):
        zoo.table(file)
    with pytest.raises(ZooError, match="choose another --out"):
        zoo.table(PACO, out=tmp_path)
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        ((), {}, "found no name"),
        ((f"{PACO}0",), {}, PACO),
        ((PACO,), {"published": ["temperatur"]}, 'Did you mean "temperature"'),
        ((PACO,), {"readme": "nothing.md"}, "cannot be read"),
    ],
)
def test_what_no_table_can_be_made_of_is_one_line(
    names: tuple[str, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ZooError, match=words):
        zoo.table(*names, **options)


# Sweeps.


@pytest.fixture(autouse=True)
def _plain_pictures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("zoo.api.finishing.draw_pictures", draw_nothing)
    monkeypatch.setattr("zoo.report.diagnose.draw", draw_no_figure)
    yield


@pytest.mark.parametrize("name", catalog.list_sweeps())
def test_every_shipped_sweep_is_read_and_laid_out(name: str) -> None:
    found = read_sweep(name)
    runs = lay_out(found.recipes[:2], found.set, found.seeds, Path("out"))
    assert len({run.folder for run in runs}) == len(runs) and len(runs) % len(found.seeds) == 0


def test_a_grid_has_every_combination_and_labels_stand_for_values() -> None:
    vary = {"objective.tau": [0.1, 0.2], "training.epochs": [6]}
    runs = lay_out([PACO, CE.replace("ce_", "gpaco_")], vary, [0, 1], Path("out"))
    assert len(runs) == 8
    assert {(run.recipe.objective.name, run.labels["objective.tau"]) for run in runs} == {
        (name, tau) for name in ("paco", "gpaco") for tau in ("0.1", "0.2")
    }
    assert all(run.recipe.training.epochs == 6 for run in runs)
    assert runs[0].folder == Path("out/tau_0.1-paco_digits_lt50/seed_0")
    assert own_labels("key", ["on"], {"on": {"a": 1}, "off": None}) == {"on": {"a": 1}}
    with pytest.raises(RecipeError, match='Did you mean "on"'):
        own_labels("key", ["onn"], {"on": {"a": 1}, "off": None})


@pytest.mark.parametrize(
    ("vary", "seeds", "words"),
    [
        ({}, [0], "nothing varies"),
        ({"training.seed": [1, 2]}, [0], "training.seed"),
        ({"objective.tua": [0.1, 0.2]}, [0], 'Did you mean "tau"'),
        ({"objective.tau": [0.1, 0.1]}, [0], "twice"),
        ({"objective.tau": 0.1}, [0, 1], "expected a list"),
        ({"objective.tau": [0.1, 0.2]}, [1, 1], "seeds"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_any_training(
    tmp_path: Path, vary: dict[str, Any], seeds: list[int], words: str
) -> None:
    with pytest.raises(ZooError, match=words):
        zoo.sweep(PACO, vary=vary, seeds=seeds, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:the loss became")
def test_a_sweep_leaves_releases_and_goes_on_with_them(tmp_path: Path) -> None:
    out, vary = tmp_path / "out", {**TINY, "optimizer.lr": [0.01, 1e30]}
    settings: dict[str, Any] = {"seeds": [0], "out": out, "watch": ["recorded/loss", "accuracy/classifier"]}
    found = zoo.sweep(CE, vary=vary, **settings)
    assert found is not None and list(found.failed) == ["lr_1e+30/seed_0"], "it diverged, the other went on"
    (only,) = found.results.records
    assert only.figures["accuracy/classifier"] == only.evaluations[0].metrics["accuracy"]
    assert {"sweep.md", "sweep.png", "results.json", "report"} < {path.name for path in out.iterdir()}
    before = (out / "lr_0.01" / "seed_0" / "metrics.json").stat().st_mtime_ns
    with pytest.raises(TrainingError, match="--resume"):
        zoo.sweep(CE, vary=vary, **settings)
    more = zoo.sweep(CE, vary={**TINY, "optimizer.lr": [0.01, 0.02]}, resume=True, **settings)
    assert more is not None and len(more.results.records) == 2 and not more.failed
    assert list(more.frame.index) == ["lr 0.01", "lr 0.02"] and len(more.changes) == 2
    assert (out / "lr_0.01" / "seed_0" / "metrics.json").stat().st_mtime_ns == before


def test_a_finished_run_of_other_images_or_weights_is_refused(tmp_path: Path) -> None:
    release = zoo.open(PACO)
    images = release.config["zoo"]["dataset"]["sha256"]
    require_same(release.path, images)
    require_same(tmp_path, "0")  # nothing is finished there
    for wrong, words in (
        (("0",), "other training images: sha256 .*, now 0"),
        ((images, {"init_weights_sha256": "1"}), "other init_weights_sha256: sha256 None, now 1"),
    ):
        with pytest.raises(TrainingError, match=words):
            require_same(release.path, *wrong)


def test_a_run_that_another_process_trains_is_left_to_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "lr_0.01").mkdir(parents=True)
    holds = (
        "import sys, filelock, time; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); "
        "print(1, flush=True); time.sleep(600)"
    )
    lock = out / "lr_0.01" / ".seed_0.lock"
    with subprocess.Popen([sys.executable, "-c", holds, str(lock)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        vary = {**TINY, "optimizer.lr": [0.01, 0.02]}
        assert zoo.sweep(CE, vary=vary, seeds=[0], out=out, resume=True) is None
        other.kill()
    assert not (out / "lr_0.01" / "seed_0").exists() and not (out / "sweep.md").exists()
    assert (out / "lr_0.02" / "seed_0" / "config.json").is_file()


# Comparisons.


def test_methods_are_compared_and_share_their_first_training(tmp_path: Path) -> None:
    changes = {key: values[0] for key, values in TINY.items() if key != "evaluation"}
    methods = ["post_hoc_logit_adjustment", "tau_normalized", "nearest_center"]
    settings: dict[str, Any] = {"init": PACO, "out": tmp_path / "out", "seeds": [0], "overrides": changes}
    found = zoo.compare(CE, methods=methods, **settings)
    assert {*found.summaries} == {*methods} == {*found.frame["method"]} and not found.left_out
    best, *others = (row["balanced_accuracy"].mean for row in found.summaries.values())
    assert all(best >= other for other in others)
    assert len([*(tmp_path / "out" / "stages").glob("cross_entropy-*")]) == 1
    written = read_results(tmp_path / "out" / "results.json")
    assert {record.place for record in written} == {f"{name}/seed_0" for name in methods}
    with pytest.raises(TrainingError, match="--resume"):
        zoo.compare(CE, methods=methods, **settings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": ["crtt"]}, 'Did you mean "crt"'),
        ({"methods": []}, "found none"),
        ({"methods": ["crt", "crt"]}, "given twice"),
        ({"overrides": {"training.seed": 3}}, "--seeds"),
        ({"init": "cifar_resnet20.moco_v2_ft_digits_lt50", "methods": ["from_centers"]}, "has no centers"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ZooError, match=words):
        zoo.compare(CE, **{"init": PACO, "out": tmp_path / "out", **options})


# Reproductions.


def judged(recorded: RunRecord, made: RunRecord, seeds: list[RunRecord], **scalars: float) -> list[Figure]:
    """Judge one training of PaCo by another; `scalars` takes the place of what was recorded."""
    images = Images(np.full(10, 54), np.geomspace(125, 2, 10).astype(int))
    before, after = (judge.scalars(each.figures) for each in (recorded, made))
    found = list(
        judge.pairs("training", before, after | scalars, judge.recorded_scalars([r.figures for r in seeds]))
    )
    for entry in recorded.evaluations:
        again, others = made.evaluated(entry.kind), [each.evaluated(entry.kind) for each in seeds]
        assert again is not None
        metrics = [each.metrics for each in others if each is not None]
        rule = judge.equal_trainings(entry.metrics, images, metrics)
        found += judge.pairs(entry.protocol, entry.metrics, again.metrics, rule)
    return judge.judged(found)


def test_other_seeds_agree_and_another_temperature_does_not(seeds: list[RunRecord]) -> None:
    for place, made in enumerate(seeds[1:], 1):
        others = [each for each in seeds[1:] if each is not made]
        figures = judged(seeds[0], made, others)
        assert len(figures) > 20 and all(figure.agrees for figure in figures), place
    loss = seeds[1].figures["recorded/loss"]
    wrong = judged(seeds[0], seeds[1], seeds[2:], loss=1.1 * loss)
    assert [(f.of, f.name) for f in wrong if not f.agrees] == [("training", "loss")]


def test_one_wrong_figure_fails_and_a_count_must_be_equal(seeds: list[RunRecord]) -> None:
    first, *rest = seeds[1].evaluations
    fallen = {**first.metrics, "accuracy": first.metrics["accuracy"] - 40}
    made = seeds[1].model_copy(update={"evaluations": [first.model_copy(update={"metrics": fallen}), *rest]})
    assert any(not f.agrees and f.name == "accuracy" for f in judged(seeds[0], made, seeds[2:]))
    facts = judge.training_facts(344, stopped_early=False)
    (steps,) = judge.judged(list(judge.pairs("training", {"steps": 132}, {"steps": 133}, facts)))
    assert not steps.agrees
    (speed,) = judge.judged(list(judge.pairs("training", {"seconds": 1.5}, {"seconds": 9.5}, facts)))
    assert speed.verdict == "not judged"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (PACO, {"tolerance": -1}, "expected points from 0 to 100"),
        (CE, {}, "is a recipe without a release"),
        (PACO, {"spread": PACO}, "expected 5 or more"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(
    tmp_path: Path, name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ZooError, match=words):
        zoo.reproduce(name, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_small_training_is_reproduced_and_a_changed_figure_is_caught(tmp_path: Path) -> None:
    changes = {key: values[0] for key, values in TINY.items()}
    small = zoo.pretrain(CE, out=tmp_path / "small", overrides=changes)
    found = zoo.reproduce(small.path, out=tmp_path / "again", tolerance=0)
    assert found is not None and found.agrees and found.same_weights
    file = small.path / "metrics.json"
    data = json.loads(file.read_text())
    data["evaluations"][0]["metrics"]["accuracy"] += 5.0
    del data["evaluations"][0]["value"]
    file.write_text(json.dumps(data))
    caught = zoo.reproduce(small.path, out=tmp_path / "again", resume=True)
    assert caught is not None and [f.name for f in caught.figures if not f.agrees] == ["accuracy"]
