"""Experiments: what shares a row, what a sweep leaves, what tells a reproduction from a fault."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import zoo
from zoo import catalog
from zoo.errors import TrainingError, ZooError
from zoo.experiments.records import RunRecord, from_release, read_results
from zoo.experiments.reproduce import judge
from zoo.experiments.sweep import differences, lay_out, read_sweep
from zoo.experiments.table import BEGIN, END, mean_text, published_figures, tabulate

pytestmark = pytest.mark.usefixtures("no_pictures")

ROOT = Path(__file__).resolve().parent.parent
CE = "cifar_resnet20.ce_digits_lt50"
PACO = "cifar_resnet20.paco_digits_lt50"
ONE: dict[str, Any] = {
    **{"training.epochs": 2, "training.batch_size": 10, "training.log_every": 1, "training.device": "cpu"},
    **{"schedule.warmup_epochs": 0, "data.subset": {"per_class": 2}},  # 20 images
    "evaluation": [{"protocol": "classifier"}],
}
TINY = {key: [value] for key, value in ONE.items()}


@pytest.fixture(scope="module")
def seeds() -> list[RunRecord]:
    """PaCo on digits with eight other seeds."""
    return read_results(catalog.shared_folder("recipes") / "spread" / f"{PACO}.json")


def another(record: RunRecord, seed: int, accuracy: float, **changes: Any) -> RunRecord:
    """A record as if trained with another seed and outcome."""
    (first, *_) = record.evaluations
    entry = first.model_copy(update={"metrics": {**first.metrics, "accuracy": accuracy}})
    sha256 = f"{seed:02d}{round(1000 * accuracy):06d}".ljust(64, "0")
    update = {"seed": seed, "evaluations": [entry], "weights_sha256": sha256, **changes}
    return record.model_copy(update=update)


def test_plus_minus_is_the_deviation_over_seeds_and_differences_are_paired_by_them() -> None:
    assert mean_text([50.0, 52.0, 57.0], ".1f") == "53.0 ± 3.6"  # sqrt((9 + 1 + 16) / 2)
    assert mean_text([50.0], ".1f") == "50.0"
    runs = [("a", 0, 50.0), ("a", 1, 60.0), ("a", 2, 70.0), ("b", 2, 73.0), ("b", 0, 51.0), ("b", 1, 62.0)]
    numbers = pd.DataFrame(runs, columns=["point", "seed", "x"]).set_index(["point", "seed"])
    # 1, 2, 3: t(0.975, 2) / sqrt(3) = 2.484
    assert list(differences(numbers, "a")["x"]) == ["-", "2 [-0.484, 4.48]"]
    assert list(differences(numbers.drop(index=[("b", 0), ("b", 1)]), "a")["x"]) == ["-", "3"]


def test_the_shipped_records_give_the_recorded_table(tmp_path: Path) -> None:
    golden = (ROOT / "tests" / "golden" / "table.md").read_text()
    readme = tmp_path / "README.md"
    text = (ROOT / "model_cards" / "README.md").read_text()
    head, _, rest = text.partition(BEGIN)
    readme.write_text(f"{head}{BEGIN}\nold\n{END}{rest.partition(END)[2]}")
    made = zoo.table("model_cards", "recipes", readme=readme)
    assert made.markdown() == golden
    assert readme.read_text() == text, "run: zoo table model_cards recipes --readme model_cards/README.md"


def test_runs_share_a_row_if_the_seed_alone_differs() -> None:
    record = from_release(zoo.open(PACO))
    runs = [
        *(another(record, seed, 50.0 + seed) for seed in range(3)),
        another(record, 1, 99.0, date="2099-01-01T00:00:00+00:00"),  # a second training of a seed
        another(record, 0, 40.0, recipe={**record.recipe, "objective.tau": 0.2}),
        another(record, 0, 30.0, train_sha256="ab" * 32),
        another(record, 5, 53.0, recipe={**record.recipe, "training.threads": 7}),  # moves no figure
        another(record, 6, 51.0, recipe={**record.recipe, "objective.new": None}),  # of a later version
    ]
    made = tabulate(runs)
    assert list(made.frame["accuracy"]) == ["51.4 ± 1.1", "40.0", "30.0"]
    assert list(made.frame["seeds"]) == ["n = 5", "n = 1", "n = 1"]
    assert "later trainings with the same seeds, not counted: 1" in made.notes
    assert made.frame["notes"][0] != made.frame["notes"][1]
    assert made.frame["recipe"][1] == f"{PACO}, tau 0.2" and "ab" * 4 in made.frame["data"][2]


def test_a_row_of_a_recipe_of_ones_own_is_not_told_apart_by_its_description() -> None:
    record = from_release(zoo.open(PACO)).model_copy(update={"name": "own"})
    changes = [{}, {"description": "With another rate.", "training.log_every": 3, "optimizer.lr": 0.02}]
    runs = [another(record, 0, 50.0, recipe={**record.recipe, **change}) for change in changes]
    assert "own, lr 0.02" in list(tabulate(runs).frame["recipe"])


def test_records_come_back_as_they_were_written_and_others_are_refused(seeds, tmp_path) -> None:
    made = tabulate(seeds)
    made.write(tmp_path)
    file = tmp_path / "results.json"
    assert read_results(file) == seeds
    assert list(made.frame["seeds"]) == ["n = 8"] and zoo.table(file).markdown() == made.markdown()
    for text in ("{", '{"format": 3, "runs": []}', '{"format": 2, "runs": [{"name": "a"}]}'):
        file.write_text(text)
        with pytest.raises(ZooError, match=r"results\.json"):
            zoo.table(file)


def test_a_training_of_two_ranks_is_no_repetition_of_one(tmp_path: Path) -> None:
    folder = shutil.copytree(zoo.open(PACO).path, tmp_path / "two")
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["training"]["ranks"] = 2
    (folder / "metrics.json").write_text(json.dumps(metrics))
    two, one = from_release(zoo.open(folder)), from_release(zoo.open(PACO))
    assert len(tabulate([one, two]).frame) == 2 and two.changed == {"ranks": 2} and one.changed == {}


def test_a_release_and_its_copy_count_once_and_what_has_no_record_is_left_out(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        shutil.copytree(zoo.open(PACO).path, tmp_path / "runs" / name)
    (tmp_path / "runs" / "c" / "metrics.json").write_text('{"training": {}, "evaluations": []}')
    with pytest.warns(UserWarning, match=r"not counted: .*metrics\.json"):
        made = zoo.table(tmp_path)
    assert list(made.frame["seeds"]) == ["n = 1"]


@pytest.mark.parametrize("name", catalog.list_sweeps())
def test_every_shipped_sweep_is_read_and_laid_out(name: str) -> None:
    found = read_sweep(name)
    assert found is not None
    recipes = found.recipes[:2]
    runs = lay_out(recipes, found.set, [0])
    assert len(runs) == len(recipes) * math.prod(len(values) for values in found.set.values())


def test_published_figures_are_of_shipped_recipes() -> None:
    figures = published_figures()
    assert {*figures} <= {*catalog.list_recipes()}
    for each in figures.values():
        assert {*each} == {"value", "protocol", "source", "differs"} and 0 < each["value"] < 100
        assert each["protocol"] in ("classifier", "linear", "knn")


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda out: zoo.table(), "found no name"),
        (lambda out: zoo.sweep(PACO, vary={"training.seed": [1, 2]}, out=out), "give seeds"),
        (lambda out: zoo.sweep(PACO, vary={"objective.tau": 0.1}, out=out), "objective.tau"),
        (lambda out: zoo.sweep(PACO, vary={"objective.tua": [0.1]}, out=out), 'Did you mean "tau"'),
        (lambda out: zoo.sweep(PACO, vary={"description": ["a b", "a_b"]}, out=out), "two points called"),
        (lambda out: zoo.sweep(PACO, PACO, out=out), f"found 2, but only the names {PACO}"),
        (lambda out: zoo.sweep(PACO, seeds=3, out=out), "found 3, expected a list"),  # type: ignore[arg-type]
        (lambda out: zoo.compare(CE, init=PACO, out=out, methods=["crtt"]), 'Did you mean "crt"'),
        (lambda out: zoo.compare(CE, init=PACO, out=out, overrides={"training.seed": 3}), "seeds"),
        (lambda out: zoo.reproduce(PACO, out=out, tolerance=-1), "expected points from 0 to 100"),
        (lambda out: zoo.reproduce(CE, out=out), f'"{CE}"'),
        (lambda out: zoo.reproduce(PACO, out=out, spread=PACO), "with 5 or more other seeds"),
    ],
)
def test_what_cannot_be_is_one_line_before_any_training(use: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=words) as found:
        use(tmp_path / "out")
    assert "\n" not in str(found.value) and not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:the loss became")
def test_a_sweep_leaves_releases_and_goes_on_with_them(tmp_path: Path) -> None:
    out, vary = tmp_path / "out", {**TINY, "optimizer.lr": [0.01, 1e30]}
    found = zoo.sweep(CE, vary=vary, seeds=[0], out=out)
    assert found is not None and list(found.failed) == ["lr_1e+30/seed_0"], "it diverged, the other went on"
    (only,) = found.results.records
    assert only.figures["accuracy/classifier"] == only.evaluations[0].metrics["accuracy"]
    assert {"sweep.md", "sweep.png", "results.json"} < {path.name for path in out.iterdir()}
    before = (out / "lr_0.01" / "seed_0" / "metrics.json").stat().st_mtime_ns
    with pytest.raises(TrainingError, match="--resume"):
        zoo.sweep(CE, vary=vary, seeds=[0], out=out)
    more = zoo.sweep(CE, vary={**TINY, "optimizer.lr": [0.01, 0.02]}, seeds=[0], out=out, resume=True)
    assert more is not None and len(more.results.records) == 2 and not more.failed
    assert list(more.frame.index) == list(more.changes.index) == ["lr_0.01", "lr_0.02"]
    assert (out / "lr_0.01" / "seed_0" / "metrics.json").stat().st_mtime_ns == before
    other = {**TINY, "training.epochs": [3], "optimizer.lr": [0.01, 0.02]}
    with pytest.raises(ZooError, match=r"none of the 2 runs .* holds a finished release"):
        zoo.sweep(CE, vary=other, seeds=[0], out=out, resume=True)


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


def test_methods_are_compared_and_those_that_do_not_fit_are_named(tmp_path: Path) -> None:
    changes = {key: value for key, value in ONE.items() if key != "evaluation"}
    init, out = "cifar_resnet20.moco_v2_ft_digits_lt50", tmp_path / "out"
    methods = ["post_hoc_logit_adjustment", "from_centers", "ldam_drw", "tau_normalized"]
    smooth = {**changes, "objective.label_smoothing": 0.1}  # which LDAM has not
    found = zoo.compare(CE, init=init, methods=methods, out=out, seeds=[0], overrides=smooth)
    assert found is not None and "has no centers" in found.failed["from_centers/seed_0"]
    assert "label_smoothing" in found.failed["ldam_drw/seed_0"]
    assert list(found.frame.index) == ["post_hoc_logit_adjustment", "tau_normalized"]
    metrics = [record.evaluations[0].metrics for record in found.results.records]
    assert list(found.frame["balanced"]) == [f"{each['balanced_accuracy']:.3g}" for each in metrics]
    assert found.changes["balanced"].iloc[0] == "-" and found.changes["balanced"].iloc[1] != "-"
    assert read_results(out / "results.json") == found.results.records
    again = ["compare", CE, "--init", init, "--methods", ",".join(methods), "--seeds", "0", "--out", str(out)]
    settings = [word for key, value in smooth.items() for word in ("--set", f"{key}={value}")]
    line = [sys.executable, "-m", "zoo", *again, *settings, "--resume"]
    assert subprocess.run(line, check=False).returncode == 1  # two of the methods that were named failed
    # cross-entropy was trained once, and as it is trained for a method alone
    ended = {record.date for record in found.results.records}
    weights = {record.weights_sha256 for record in found.results.records}
    alone = zoo.finetune(
        CE, init=init, overrides={**smooth, "method": "tau_normalized", "evaluation": []}, out=tmp_path / "b"
    )
    assert len(ended) == 1 and alone.config["zoo"]["weights_sha256"] in weights


COUNTS = np.full(10, 54), np.geomspace(125, 2, 10).astype(int)


def verdicts(recorded: RunRecord, made: RunRecord, seeds: list[RunRecord], **how: Any) -> dict[str, str]:
    """Judge one training of PaCo by another."""
    found = judge(recorded, made, *COUNTS, seeds, **how)
    return dict(zip(found["evaluation"] + " " + found["metric"], found["verdict"], strict=True))


def test_other_seeds_agree_and_another_loss_or_accuracy_does_not(seeds: list[RunRecord]) -> None:
    for place, made in enumerate(seeds[1:], 1):
        found = verdicts(seeds[0], made, [each for each in seeds[1:] if each is not made])
        assert len(found) > 20 and {*found.values()} <= {"same", "within"}, place
    first, *rest = seeds[1].evaluations
    fallen = {**first.metrics, "accuracy": first.metrics["accuracy"] - 40}
    figures = {**seeds[1].figures, "recorded/loss": 1.1 * seeds[1].figures["recorded/loss"]}
    evaluations = [first.model_copy(update={"metrics": fallen}), *rest]
    wrong = seeds[1].model_copy(update={"evaluations": evaluations, "figures": figures})
    found = verdicts(seeds[0], wrong, seeds[2:])
    differing = {name for name, verdict in found.items() if verdict == "differs"}
    assert differing == {"training recorded/loss", f"1 {first.protocol} accuracy"}


def measured(record: RunRecord, **metrics: float) -> RunRecord:
    """A record with a single evaluation that has these metrics."""
    entry = record.evaluations[0].model_copy(update={"metrics": metrics})
    return record.model_copy(update={"evaluations": [entry], "figures": {}})


def test_a_tolerance_knows_images_seeds_and_how_many_figures_are_judged(seeds: list[RunRecord]) -> None:
    recorded = measured(seeds[0], accuracy=90.0, test_images=540, few=80.0)
    again = measured(seeds[0], accuracy=89.0, test_images=539)  # counts have to be equal
    assert [*verdicts(recorded, again, []).values()] == ["within", "differs", "missing"]
    assert [*verdicts(recorded, again, [], points=0).values()] == ["differs", "differs", "missing"]

    def allowed(figures: int, others: list[RunRecord]) -> float:
        recorded = measured(seeds[0], **{f"accuracy{number or ''}": 90.0 for number in range(figures)})
        return float(judge(recorded, recorded, *COUNTS, others)["tolerance"][0])

    error = 100 * np.sqrt(2 * 0.9 * 0.1 / 540)
    assert allowed(1, []) == pytest.approx(2.576 * error, rel=1e-3)  # the normal quantile at a risk of 1 %
    assert allowed(20, []) > allowed(1, [])
    others = [measured(seeds[0], accuracy=value) for value in (88.0, 89.0, 90.0, 91.0, 92.0)]
    wider = 4.604 * np.hypot(error, np.sqrt(2 * 2.5))  # Student's with 4 degrees of freedom
    assert allowed(1, others) == pytest.approx(wider, rel=1e-3)


def test_a_small_training_is_reproduced_and_a_changed_figure_is_caught(tmp_path: Path) -> None:
    small = zoo.pretrain(CE, out=tmp_path / "small", overrides=ONE)
    found = zoo.reproduce(small.path, out=tmp_path / "again", tolerance=0)
    assert found is not None and not len(found.wrong) and found.same_weights
    file = small.path / "metrics.json"
    data = json.loads(file.read_text())
    data["evaluations"][0]["metrics"]["accuracy"] += 25.0
    del data["evaluations"][0]["value"]
    file.write_text(json.dumps(data))
    caught = zoo.reproduce(small.path, out=tmp_path / "again", resume=True)
    assert caught is not None and list(caught.wrong["metric"]) == ["accuracy"]
