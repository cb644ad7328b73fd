"""`zoo.sweep`: what is laid out, trained, continued, refused, and written."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import zoo
from tests.data_fixtures import photo
from tests.programs.plain_sweep import draw_nothing
from zoo import catalog
from zoo.api.sweep_file import Watched, is_sweep, read_sweep
from zoo.api.sweeps import work_queue
from zoo.api.sweeps.findings import findings, sentences, usual_numbers, watched_by_name
from zoo.api.sweeps.grid import Plan, _label, plan_sweep
from zoo.api.sweeps.result import Result
from zoo.api.sweeps.sweep import _images, _named, _plan, _published
from zoo.cli import app
from zoo.errors import Interrupted, InUse, RecipeError, TrainingError, ZooError
from zoo.launch import (
    alone,
    crowd,
    handed_on,
    job,
    launched,
    local_rank,
    neighbours,
    others_waiting,
    rank,
)
from zoo.training import Recipe, RunFolder

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


def sweep(out: Path, *recipes: str, **settings: Any) -> zoo.Sweep:
    vary = {**TINY, "optimizer.lr": [0.01, 0.1], **settings.pop("vary", {})}
    found = zoo.sweep(*(recipes or (CE,)), out=out, vary=vary, **{"seeds": [0], **settings})
    assert found is not None
    return found


def plan(vary: dict[str, Any], *recipes: str, seeds: tuple[int, ...] = (0, 1)) -> Plan:
    return plan_sweep(recipes or (CE,), vary, seeds, None, Path("out"))


def in_shell(*arguments: str) -> None:
    typer.main.get_command(app)(list(arguments), standalone_mode=False)


@pytest.fixture(scope="module", autouse=True)
def _plain_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zoo.api.finishing.draw_pictures", draw_nothing)
        patch.setattr("zoo.api.diagnoses.diagnose.draw", lambda *_: [])
        patch.setattr("zoo.api.tables.table.plot_results", lambda *_: False)
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> zoo.Sweep:
    return sweep(
        tmp_path_factory.mktemp("sweep") / "out",
        CE,
        PACO,
        seeds=[0, 3],
        watch=["recorded/loss", "accuracy/classifier"],
    )


def test_a_sweep_leaves_a_release_for_every_run_and_says_what_moves(done: zoo.Sweep) -> None:
    record = json.loads((done.folder / "sweep.json").read_text())
    assert record == json.loads(json.dumps(done.record)) and done.failed == {}
    assert record["axes"] == {
        "optimizer.lr": {"0.01": 0.01, "0.1": 0.1},
        "recipe": {"ce": "ce", "paco": "paco"},
    }
    assert len(record["runs"]) == 8
    for run in record["runs"]:
        release = zoo.open(done.folder / run["folder"])
        lr, recipe = run["values"]["optimizer.lr"], run["values"]["recipe"]
        assert release.recipe["training"]["seed"] == run["seed"] in (0, 3)
        assert release.recipe["optimizer"]["lr"] == float(lr) and f".{recipe}_digits" in release.name
        assert run["folder"] == f"lr_{lr}-{recipe}/seed_{run['seed']}"
        (entry,) = release.metrics["evaluations"]
        assert run["numbers"]["accuracy/classifier"] == entry["metrics"]["accuracy"]
        rows = RunFolder(release.path / "run").rows()
        assert run["numbers"]["recorded/loss"] == pytest.approx(rows[-1]["loss"])  # a fifth of 4 rows is one
        # the recorded changes make the same training
        again = Recipe.load(run["recipe"], [*run["changes"], f"training.seed={run['seed']}"])
        assert again.sha256 == release.config["zoo"]["recipe_sha256"]
    loss, accuracy = done.found
    assert {*loss.trends} == {*accuracy.trends} == {"ce", "paco"}
    first = [run["numbers"]["recorded/loss"] for run in record["runs"] if run["point"] == "lr_0.01-ce"]
    assert loss.trends["ce"].points["0.01"].values == pytest.approx(first)
    assert record["found"][0]["trends"]["paco"]["changes"][0]["value"] == "0.1"


def test_words_table_and_picture_are_in_text_and_report(done: zoo.Sweep) -> None:
    assert done.report is not None
    text, html = (done.folder / "sweep.md").read_text(), done.report.html.read_text()
    assert done.report.html == done.folder / "report" / "report.html"
    for both in (text, html):
        assert "ce: From lr 0.01 to lr 0.1, loss" in both and "paco: From lr 0.01 to lr 0.1" in both
        assert "nothing corrects for their number" in both and "zoo sweep" in both
        # all runs of the grid are there: it is compared along its other axis too
        assert "lr 0.01: From ce to paco, loss" in both and "lr 0.1: From ce to paco, knn" not in both
        assert "lr 0.1: From ce to paco, classifier accuracy" in both
    across = done.record["found"][0]["across"]["recipe"]
    assert {*across} == {"lr 0.01", "lr 0.1"} and across["lr 0.1"]["changes"][0]["value"] == "paco"
    assert len(re.findall(r"\n\| lr 0", text)) == 4 and "| lr 0.1, paco |" in text
    assert all((done.folder / f"sweep.{kind}").stat().st_size > 5_000 for kind in ("png", "svg"))
    assert 'role="img"' in html or "data:image/" in html
    assert len(done.report.subjects) == 8


def test_a_sweep_ends_with_the_table_of_its_results(
    done: zoo.Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((done.folder / "results.json").read_text())
    assert len(record["runs"]) == 8 and len(record["rows"]) == 4 and record["unfinished"] == []
    for run in record["runs"]:
        (entry,) = zoo.open(done.folder / run["place"]).metrics["evaluations"]
        assert run["evaluations"][0]["metrics"]["accuracy"] == entry["metrics"]["accuracy"]
    for row in record["rows"]:
        runs = [run for run in record["runs"] if run["weights_sha256"] in row["weights_sha256"]]
        assert {run["seed"] for run in runs} == {0, 3} and len({run["name"] for run in runs}) == 1
        values = [run["evaluations"][0]["metrics"]["accuracy"] for run in runs]
        assert row["figures"]["accuracy"]["mean"] == pytest.approx(sum(values) / 2)
        assert row["figures"]["accuracy"]["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert "](results.md)" in (done.folder / "sweep.md").read_text()
    assert f"`{PACO}`, lr 0.01 |" in (done.folder / "results.md").read_text()
    again = zoo.table(done.folder)  # the same from the folder, as half of a table somewhere
    assert again.markdown() == done.results.markdown()
    in_shell("table", str(done.folder), "--out", str(done.folder.parent / "table"))
    assert f"{PACO}, lr 0.1" in capsys.readouterr().out


def test_neither_an_unrelated_sweep_nor_a_table_that_fails_costs_a_finished_sweep_its_record(
    done: zoo.Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(done.folder, tmp_path / "out")

    def disagree(_: object) -> None:
        raise RecipeError("published: two sweeps disagree")

    monkeypatch.setattr("zoo.api.sweeps.sweep.published_figures", disagree)
    again = sweep(tmp_path / "out", CE, PACO, seeds=[0, 3], resume=True)
    assert len(again.results.lines) == 4 and again.record["id"] != done.record["id"]
    assert "without published figures: published: two sweeps disagree" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "out" / "lr_0.1-ce" / "seed_3")  # what is planned is known by what it will be
    (open_,) = zoo.table(tmp_path / "out").unfinished
    assert (open_.name, open_.seed, open_.state) == (CE, 3, "not begun, lr_0.1-ce")
    assert zoo.table(tmp_path / "out", done.folder / "results.json").unfinished == []
    shutil.copytree(done.folder / "lr_0.1-ce" / "seed_3", tmp_path / "out" / "lr_0.1-ce" / "seed_3")
    (tmp_path / "out" / "results.json").write_text("{}")  # somebody else's
    with pytest.raises(ZooError, match=r"found no results.*it is left as it is"):
        sweep(tmp_path / "out", CE, PACO, seeds=[0, 3], resume=True)
    record = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert record["id"] != again.record["id"] and len(record["runs"]) == 8


def test_the_command_in_the_record_makes_the_same_plan(
    done: zoo.Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shlex

    asked: dict[str, Any] = {}

    def note(*recipes: str, **settings: Any) -> None:
        asked.update(settings, recipes=recipes)

    monkeypatch.setattr("zoo.api.sweep", note)
    in_shell(*shlex.split(done.record["command"])[1:])
    again = plan_sweep(asked["recipes"], asked["vary"], asked["seeds"], None, asked["out"])
    assert [run.folder for run in again.runs] == [done.folder / run["folder"] for run in done.record["runs"]]
    assert all(work_queue.is_finished(run) for run in again.runs)
    for run in again.runs:
        assert run.recipe.sha256 == zoo.open(run.folder).config["zoo"]["recipe_sha256"]


def test_finished_runs_are_taken_as_they_are_and_values_can_be_added(done: zoo.Sweep, tmp_path: Path) -> None:
    shutil.copytree(done.folder, tmp_path / "out")
    files = [*(tmp_path / "out").glob("*/*/metrics.json")]
    before = {file: file.stat().st_mtime_ns for file in files}
    more = sweep(
        tmp_path / "out", CE, PACO, vary={"optimizer.lr": [0.01, 0.1, 0.2]}, seeds=[3, 0], resume=True
    )
    assert {run["folder"] for run in more.record["runs"]} == {
        f"lr_{lr}-{recipe}/seed_{seed}"
        for lr in (0.01, 0.1, 0.2)
        for recipe in ("ce", "paco")
        for seed in (0, 3)
    }
    assert all(file.stat().st_mtime_ns == time for file, time in before.items()) and len(before) == 8


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"seeds": [3]},
            r"holds 4 runs .* leaves out: lr_0\.01-ce/seed_0, lr_0\.01-paco/seed_0, lr_0\.1-ce/seed_0, ",
        ),
        (
            {"vary": {"optimizer.lr": [0.1, 0.2]}},
            r"leaves out: lr_0\.01-ce/seed_0, .*begun by: zoo sweep .*--seeds 0,3",
        ),
        ({"vary": {"objective.label_smoothing": [0.0, 0.1]}}, "holds 8 runs"),
    ],
)
def test_a_sweep_that_leaves_out_runs_which_are_there_is_refused(
    done: zoo.Sweep, changed: dict[str, Any], message: str
) -> None:
    before = {name: (done.folder / name).read_bytes() for name in ("plan.json", "sweep.json", "sweep.md")}
    recipes = (CE, PACO)
    with pytest.raises(TrainingError, match=message):
        sweep(done.folder, *recipes, **{"seeds": [0, 3], **changed}, resume=True)
    assert {name: (done.folder / name).read_bytes() for name in before} == before
    assert {path.name for path in done.folder.glob("lr_*")} == {
        f"lr_{lr}-{r}" for lr in (0.01, 0.1) for r in ("ce", "paco")
    }


def test_runs_that_were_planned_and_never_begun_may_be_left_out(tmp_path: Path) -> None:
    """A value that was a mistake can be taken back; so can runs whose folders were removed."""
    out = tmp_path / "out"
    work_queue.begin(out, {"runs": ["tau_0.1/seed_0", "tau_11/seed_0"]}, resume=False)
    (out / "tau_0.1" / "seed_0").mkdir(parents=True)
    work_queue.begin(out, {"runs": ["tau_0.1/seed_0", "tau_1.1/seed_0"]}, resume=True)
    assert json.loads((out / "plan.json").read_text())["runs"][1] == "tau_1.1/seed_0"
    with pytest.raises(TrainingError, match=r"holds 1 run of the sweep .*: tau_0\.1/seed_0; expected"):
        work_queue.begin(out, {"runs": ["tau_1.1/seed_0"]}, resume=True)


def test_other_words_and_other_numbers_are_no_other_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        f"recipes: [{CE}]",
        f"set: {json.dumps({**TINY, 'training.epochs': [1], 'optimizer.lr': [0.01, 0.1]})}",
        "seeds: [0]",
        "found: null",
    ]
    file = tmp_path / "mine.yaml"
    asked = "watch: [{number: recorded/loss, title: loss, expects: falls}]"
    file.write_text("\n".join([*lines, "question: Does it?", "source: nobody", asked]))
    zoo.sweep(file, out=tmp_path / "out")
    asked = "watch: [{number: beginning/loss, minus: recorded/loss, title: progress, expects: near 0}]"
    file.write_text("\n".join([*lines, "question: How far?", "source: none", asked]))
    monkeypatch.setattr(work_queue, "pretrain", None)  # all is there
    found = zoo.sweep(file, out=tmp_path / "out", resume=True)
    assert found is not None and found.record["found"][0]["title"] == "progress"
    text = (tmp_path / "out" / "sweep.md").read_text()
    assert text.startswith("# How far?") and "The source expects 0: at lr 0.01 (" in text


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"training.epochs": [3]}, "training.epochs was 2, is 3"),
        ({"data.subset": [{"per_class": 1}]}, "data.subset.per_class was 2, is 1"),
    ],
)
def test_finished_runs_of_other_settings_are_refused_before_any_training(
    done: zoo.Sweep, vary: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        sweep(done.folder, CE, PACO, vary={**vary, "optimizer.lr": [0.7, 0.1]}, resume=True)
    assert not (done.folder / "lr_0.7-ce").exists()


def test_a_run_begun_with_other_settings_is_refused_before_any_training(tmp_path: Path) -> None:
    begun = tmp_path / "out" / "lr_0.1" / "seed_0" / "run"
    vary = {**TINY, "optimizer.lr": [0.01, 0.1]}
    recipe = next(run.recipe for run in plan(vary).runs if run.point == "lr_0.1" and run.seed == 0)
    RunFolder(begun).claim(recipe, resume=False)
    with pytest.raises(TrainingError, match=r"training\.epochs was 2, is 5"):
        sweep(tmp_path / "out", vary={"training.epochs": [5]}, resume=True)
    assert not (tmp_path / "out" / "lr_0.01").exists()


def test_a_folder_in_use_is_refused_without_resume(done: zoo.Sweep, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="is not an empty folder; go on with a sweep by --resume"):
        sweep(done.folder)
    with pytest.raises(TrainingError, match="It has the sweep begun by: zoo sweep"):
        sweep(done.folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="is no folder"):
        sweep(tmp_path / "file")


@pytest.mark.filterwarnings("ignore:the loss became")
def test_a_run_that_diverges_is_said_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for key, (value,) in TINY.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    command = [
        "sweep",
        CE,
        *sets,
        "--set",
        "optimizer.lr=1e30,0.01,0.1",
        "--seeds",
        "0",
        "--out",
        str(tmp_path / "out"),
    ]
    with pytest.raises(ZooError, match=r"1 of 3 runs failed, e\.g\. lr_1e\+30/seed_0: .* became"):
        in_shell(*command)
    said = capsys.readouterr()
    assert "3 of 3: lr 0.1, seed 0" in said.err and "lr 1e+30, seed 0 failed: " in said.err
    assert "report:" in said.out
    text = (tmp_path / "out" / "sweep.md").read_text()
    assert "1 of 3 runs failed and are left out. lr_1e+30/seed_0: " in text and "| 1e+30 | - |" in text
    results = (tmp_path / "out" / "results.md").read_text()
    assert f"1 run is not finished and not counted: `{CE}` seed 0 (failed: " in results
    assert results.count("n = 1") == 2
    record = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [("failed" in run, bool(run["numbers"])) for run in record["runs"]] == [
        (True, False),
        *[(False, True)] * 2,
    ]


@pytest.mark.filterwarnings("ignore:the loss became")
def test_when_all_runs_fail_that_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"none of the 2 runs could be trained: .* became"):
        sweep(tmp_path / "out", vary={"optimizer.lr": [1e30, 2e30]})


def test_what_failed_before_is_tried_again_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fail(recipe: Recipe, *, out: Path, **_: Any) -> None:
        tried.append(out.parent.name)
        raise TrainingError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(work_queue, "pretrain", fail)
        with pytest.raises(ZooError, match="none of the 2 runs could be trained: the disk is full"):
            sweep(tmp_path / "out")
    assert tried == ["lr_0.01", "lr_0.1"]
    assert sweep(tmp_path / "out", resume=True).failed == {}
    assert not [*(tmp_path / "out").rglob("failed.json")]


def test_a_signal_between_two_runs_stops_all_and_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(recipe: Recipe, *, out: Path, **_: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(work_queue, "pretrain", stop)
    with pytest.raises(Interrupted, match=r"stopped by SIGUSR1; 0 of 2 runs are finished.*--resume"):
        sweep(tmp_path / "out")


def test_runs_that_others_hold_are_left_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def held(recipe: Recipe, *, out: Path, **_: Any) -> None:
        tried.append(out.parent.name)
        raise InUse("by process 7")

    monkeypatch.setattr(work_queue, "pretrain", held)
    vary = {**TINY, "optimizer.lr": [0.01, 0.1]}
    assert zoo.sweep(CE, out=tmp_path / "out", vary=vary, seeds=[0]) is None
    assert tried == ["lr_0.01"] * 3 + ["lr_0.1"] * 3
    tried.clear()
    monkeypatch.setattr(work_queue, "is_held", lambda folder: True)
    assert zoo.sweep(CE, out=tmp_path / "out", vary=vary, seeds=[0], resume=True) is None
    assert tried == []


def test_processes_of_one_job_may_all_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    work_queue.begin(tmp_path / "out", {}, resume=False)
    work_queue.begin(tmp_path / "out", {}, resume=False)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "18")
    with pytest.raises(TrainingError, match="not an empty folder"):
        work_queue.begin(tmp_path / "out", {}, resume=False)
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID")
    with pytest.raises(TrainingError, match="not an empty folder"):
        work_queue.begin(tmp_path / "out", {}, resume=False)
    work_queue.begin(tmp_path / "out", {}, resume=True)


def test_alone_hides_the_launcher_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("MASTER_PORT", "29400")
    assert (launched(), rank(), local_rank(), crowd(), neighbours()) == (4, 2, 1, 4, 2)
    with others_waiting():
        assert neighbours() == 1
    with alone(), alone(), others_waiting():  # whoever trains alone beside others has no ranks that wait
        assert (launched(), rank(), local_rank(), crowd(), neighbours()) == (1, 0, 0, 4, 2)
        assert handed_on() and job() == "torchrun a  29400"
    assert (launched(), rank(), local_rank(), crowd(), neighbours()) == (4, 2, 1, 4, 2)
    monkeypatch.undo()
    assert crowd() == neighbours() == 1 and not handed_on() and job() is None


# What is laid out.


def test_one_value_is_an_override_and_several_are_an_axis() -> None:
    found = plan(
        {"objective.label_smoothing": [0.1], "optimizer.lr": [0.1, 0.2], "training.batch_size": [8, 16]}
    )
    assert [axis.key for axis in found.axes] == ["optimizer.lr", "training.batch_size"]
    assert [*found.points] == [f"lr_{lr}-batch_size_{size}" for lr in (0.1, 0.2) for size in (8, 16)]
    assert [run.seed for run in found.runs] == [0] * 4 + [1] * 4  # whole sets of points first
    assert all(run.recipe.objective.label_smoothing == 0.1 for run in found.runs)  # type: ignore[union-attr]
    last = found.runs[-1]
    assert (last.recipe.optimizer.lr, last.recipe.training.batch_size, last.recipe.training.seed) == (
        0.2,
        16,
        1,
    )
    assert last.folder == Path("out/lr_0.2-batch_size_16/seed_1")


def test_values_are_lists_sections_words_and_null_with_readable_names() -> None:
    mix = {"mixup": 0.8, "cutmix": 0.0, "probability": 1.0, "switch_probability": 0.5, "mode": "batch"}
    found = plan({"objective.mix": [None, mix, {**mix, "mixup": 0.2}]})
    assert [*found.points] == ["mix_null", "mix_mixup_0.8", "mix_mixup_0.2"]
    found = plan({"schedule.milestones": [[1, 2], [3]], "schedule.name": ["multistep"]})
    assert [*found.points] == ["milestones_1_2", "milestones_3"]
    found = plan({"objective.mix": {"no mixing": None, "mixed/../": mix}})
    assert [*found.points] == ["mix_no_mixing", "mix_mixed"]
    assert all(run.folder.parts[:2] == ("out", run.point) for run in found.runs)


def test_folders_are_safe_and_differ_whatever_the_values() -> None:
    words = ["a", "A", "a ", "ä", "ö", "../../x", "report", "x" * 300, "x" * 301, "-", ""]
    found = plan({"description": words})
    names = [*found.points]
    assert len({name.lower() for name in names}) == len(words)
    assert all(name.replace("_", "").replace(".", "").replace("-", "").isalnum() for name in names)
    assert all(len(name) < 110 and not name.startswith((".", "-")) for name in names)


def test_recipes_are_named_by_what_tells_them_apart() -> None:
    found = plan({}, "cifar_resnet20.sup_con_digits_lt50", CE, PACO)
    assert [*found.points] == ["sup_con", "ce", "paco"] and found.axes[0].numbers is None
    found = plan({}, "resnet50.moco_v1_in1k", "resnet50.moco_v2_in1k")
    assert [*found.points] == ["moco_v1", "moco_v2"]
    assert [*plan({}).points] == ["ce_digits_lt50"]  # over seeds alone


def test_another_backbone_has_its_name() -> None:
    assert {run.recipe.name for run in plan({"backbone.arch": ["resnet18_cifar"]}).runs} == {
        "resnet18_cifar.ce_digits_lt50"
    }
    found = plan({"backbone.arch": ["cifar_resnet20", "cifar_resnet32"]}, seeds=(0,)).runs
    assert [run.recipe.name for run in found] == [
        "cifar_resnet20.ce_digits_lt50",
        "cifar_resnet32.ce_digits_lt50",
    ]
    untagged = Recipe.load(CE, ["name=cifar_resnet20"])
    found = plan({"backbone.arch": ["resnet18_cifar"]}, untagged).runs
    assert {run.recipe.name for run in found} == {"resnet18_cifar"}
    with pytest.raises(ZooError) as error:
        plan({"backbone.arch": ["resnet18.a1_in1k"]})
    assert "backbone.arch" in str(error.value) and '"name"' not in str(error.value)


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"optimizer.lr": []}, r'^vary \(--set\): "optimizer.lr": found no value'),
        ({"optimizer.lr": 0.1}, r"found 0\.1, expected a list of values"),
        ({"optimizer.lr": "0.1,0.2"}, r'^vary \(--set\): "optimizer.lr": found .* expected a list of values'),
        ({"optimizer.lr": [0.1, 0.1]}, r"the value 0\.1 is given twice"),
        ({"optimizer.lr": {"a": 0.1, "b": 0.1}}, "the same value under two labels"),
        ({"optimizer.lr": [0.1, float("nan")]}, "found nan, expected a plain value"),
        ({"optimizer.lr": [0.1, {1, 2}]}, "expected a plain value"),
        ({"optimizer.lr": [0.1, -1]}, r'"optimizer.lr": found -1'),
        ({"optimizer.lrr": [0.1, 0.2]}, r'unknown key "optimizer.lrr".*Did you mean "lr"'),
        ({"optimzer.lr": [0.1, 0.2]}, r'unknown key "optimzer".*Did you mean "optimizer"'),
        ({"training.seed": [1, 2]}, "give --seeds"),
        ({"training": [1, 2]}, "found a whole section, expected a key of it, e.g. training.epochs"),
        ({"name": ["a", "b"]}, "points are named by their values"),
    ],
)
def test_values_that_cannot_be_are_refused(vary: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=message):
        zoo.sweep(CE, out=tmp_path / "out", vary=vary)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("recipes", "settings", "message"),
    [
        ((), {}, "found no recipe"),
        ((CE, CE), {}, "is given twice"),
        ((CE,), {"seeds": [0]}, "nothing varies.*for a single run: zoo pretrain"),
        (("cifar_resnet20.ce_digits_lt5",), {}, 'no recipe .*Did you mean "cifar_resnet20.ce_digits_lt50"'),
        (("temperatur",), {}, 'Did you mean "temperature"'),
        (("temperature", "momentum"), {}, "expected one sweep, before those of its recipes"),
        ((CE, "temperature"), {}, "expected one sweep, before those of its recipes"),
        (("temperature", CE), {}, f'"{CE}" is no recipe of this sweep.* It has cifar_resnet20.moco'),
        (
            ("feature_transform_cifar100",),
            {"vary": {"objective.feature_transform": ["wih FT"]}},
            'objective.feature_transform: found "wih FT", expected one of .* Did you mean "with FT"',
        ),
        (
            ("feature_transform_cifar100",),
            {"vary": {"objective.feature_transform": ["with FT", None]}},
            "objective.feature_transform: found labels and values, expected either",
        ),
        ((CE,), {"seeds": [0, 0]}, "^seeds: "),
        ((CE,), {"watch": ["feature/uniformity"]}, 'found "feature/uniformity".*Did you mean "features"'),
        ((CE,), {"watch": ["features/"]}, 'watch: found "features/"'),
        ((CE,), {"watch": []}, r"watch: found \[\]"),
        ((CE,), {"watch": "features/uniformity"}, "watch: found 'features/uniformity', expected a list"),
        ((CE,), {"watch": ["accuracy/knn", "accuracy/knn"]}, "expected different numbers"),
    ],
)
def test_what_no_sweep_is_is_refused(
    recipes: tuple[str, ...], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ZooError, match=message):
        zoo.sweep(*recipes, out=tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_a_point_of_a_shipped_sweep_is_named_by_its_labels_and_recipe(tmp_path: Path) -> None:
    """As the header of the sweep says."""
    gpaco = "cifar_resnet32.gpaco_cifar100_lt100"
    sweep = "cifar100_lt100_best"
    header = catalog.sweep_path(sweep).read_text().replace("\\\n#", " ")
    (line,) = [line for line in header.splitlines() if gpaco in line and line.startswith("#   zoo sweep")]
    words = shlex.split(line.removeprefix("#"))
    asked: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zoo.api.sweep", lambda *names, **settings: asked.update(settings, names=names))
        in_shell(*words[1:])
    assert asked["names"] == (sweep, gpaco)
    plan = _plan(asked["names"], read_sweep(sweep), asked["vary"], asked["seeds"], None, tmp_path)
    assert {run.recipe.name for run in plan.runs} == {gpaco}
    assert [run.recipe.training.seed for run in plan.runs] == [3, 4, 5]
    for run in plan.runs:
        assert run.recipe.schedule.name == "cosine" and run.recipe.schedule.milestones == []
        assert run.recipe.objective.feature_transform is not None and run.recipe.objective.tau == 0.1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["a.b=1"], {"a.b": [1]}),
        (["a.b=0.05,0.1, 1e-3"], {"a.b": [0.05, 0.1, 0.001]}),
        (
            ["a=[160,180],[]", "b=null,{x: {y: 1}, z: w}"],
            {"a": [[160, 180], []], "b": [None, {"x": {"y": 1}, "z": "w"}]},
        ),
        (["a=true,off,'1,2'"], {"a": [True, "off", "1,2"]}),
    ],
)
def test_the_shell_reads_values(
    options: list[str], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("zoo.api.sweep", lambda *_, **settings: asked.update(settings))
    in_shell("sweep", CE, "--seeds", "4,5", *(word for option in options for word in ("--set", option)))
    assert asked["vary"] == expected and asked["seeds"] == [4, 5] and asked["watch"] is None
    assert asked["out"] is None


def test_a_sweep_has_a_folder_by_default_and_takes_one_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[Path] = []

    def stop(_: Any, __: Any, ___: Any, ____: Any, _____: Any, out: Path) -> None:
        places.append(out)
        raise ZooError("stopped")

    monkeypatch.setattr("zoo.api.sweeps.sweep._plan", stop)
    for given in ((CE,), ([CE],), ([Recipe.load(CE), PACO],), ("temperature",), (tmp_path / "mine.yml",)):
        with pytest.raises(ZooError):
            zoo.sweep(*given)
    sweeps = Path("runs/sweeps")
    assert places[:4] == [sweeps / CE, sweeps / CE, sweeps / f"{CE}-and-{PACO}", sweeps / "temperature"]
    assert places[4:] in ([], [sweeps / "mine"])
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZooError, match="found no recipe"):
        zoo.sweep([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "tau"], r'--set "tau": expected KEY\.KEY=VALUE,VALUE'),
        (["--set", "=1,2"], "expected KEY"),
        (["--set", "a=1]"], 'a=1]": not valid YAML'),
        (["--set", "a=1", "--set", "a=2"], '"a" is given twice; give all its values at once'),
        (["--set", "optimizer.lr="], r'--set\): "optimizer.lr": found no value'),
        (["--seeds", "x"], "seeds: found .'x'., expected different whole numbers"),
        (["--seeds", ""], r"seeds: found \[\]"),
    ],
)
def test_the_shell_refuses_what_it_cannot_read(options: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=message):
        in_shell("sweep", CE, "--out", str(tmp_path / "out"), *options)
    assert not (tmp_path / "out").exists()


# What is watched where nobody says what.


def test_lines_of_one_value_and_equal_failures_are_said_once() -> None:
    made = plan({"optimizer.lr": [0.1, 0.2], "training.batch_size": [8, 16, 32]})
    numbers = {run: {"recorded/loss": run.seed + 1.0} for run in made.runs if run.labels[0] == "0.1"}
    found = findings(made, numbers, [watched_by_name("recorded/loss")])
    texts = sentences(made, found, numbers)
    assert sum("nothing to compare it with" in text for text in texts) == 1
    assert "At one lr alone there are also runs of: batch size 16; batch size 32." in texts
    failed = {run.id: f"it became NaN; see {run.id}/run" for run in made.runs if run.labels[0] == "0.2"}
    (text,) = Result(made, None, "", failed, Path("out")).failures()
    assert text.startswith("6 of 12 runs failed") and text.count("became NaN") == 1
    assert all(name in text for name in failed) and "see POINT/seed_N/run" in text
    one = dict([*failed.items()][:1])
    assert "see lr_0.2-batch_size_8/seed_0/run" in Result(made, None, "", one, Path("out")).failures()[0]


def test_usual_numbers_say_in_their_words_which_space_they_are_of() -> None:
    spaces = {"recorded": "in the space that the loss acts on", "features": "before the projection"}
    names = [f"{kind}/{name}" for kind in spaces for name in ("uniformity", "tolerance")]
    there = dict.fromkeys([*names, "accuracy/knn", "accuracy/knn/few", "recorded/lr"], 1.0)
    found = usual_numbers([there])
    assert [each.number for each in found] == ["accuracy/knn", *names]
    assert found[0].title == "knn accuracy (%)"
    for each in found[1:]:
        assert spaces[each.number.partition("/")[0]] in each.meaning
        assert each.title.endswith(("(log)", "(cosine)")) and each.title != each.number.partition("/")[2]
    assert len({each.title for each in found}) == len(found)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("recorded/loss", "loss"),
        ("beginning/p_sup", "P_sup, first record"),
        ("accuracy/retrieval/map", "retrieval, map (%)"),
        ("accuracy/retrieval/queries", "retrieval, queries"),
        ("unsteadiness/loss", "loss, unsteadiness (relative)"),
        ("features/positive_deviation", "positive deviation of the encoder's features"),
        ("features/uniformity", "uniformity of the encoder's features (log)"),
    ],
)
def test_numbers_asked_for_by_name_have_titles_that_say_what_they_are(name: str, title: str) -> None:
    assert watched_by_name(name).title == title


def test_a_name_in_a_sweep_means_the_number_itself_not_its_distance_from_another() -> None:
    written = read_sweep("p_sup")
    (found,) = _named(["recorded/p_sup"], written)
    assert found.minus is None and found.title == "P_sup" and found.expects == "falls"


def test_sweeps_ask_numbers_that_answer_their_questions() -> None:
    watch = {name: read_sweep(name).watch for name in catalog.list_sweeps()}
    gaps = [each.number for each in watch["p_sup"] if each.minus and each.expects == "near 0"]
    assert gaps == ["recorded/p_sup", *(f"recorded/p_sup_{group}" for group in ("many", "medium", "few"))]
    assert any(each.minus == "beginning/p_sup_optimum" for each in watch["p_sup"])
    assert watch["momentum"][0].number == "unsteadiness/negative_variance"
    loss_sees = watch["feature_transform"][0]
    assert "by definition" in loss_sees.meaning


# Written down.


def test_labels_are_those_of_a_report_and_short() -> None:
    transform = {"positives": {"alpha": 2.0}, "start_epoch": 3}
    assert [_label(value, [None, transform]) for value in (None, transform)] == ["off", "on"]
    other = {**transform, "start_epoch": 4}
    given = [None, transform, other]
    assert [_label(value, given) for value in given] == ["null", "start_epoch 3", "start_epoch 4"]
    assert [_label(value, ()) for value in (1e9, 0.1, 1.0, 1234567.5)] == ["1e+09", "0.1", "1.0", "1234567.5"]


def test_data_without_a_test_split_is_swept_where_nothing_is_measured_on_it(tmp_path: Path) -> None:
    for c in ("ant", "bee"):
        for i in range(4):
            (tmp_path / "train" / c).mkdir(parents=True, exist_ok=True)
            photo(8, 8, i).save(tmp_path / "train" / c / f"{i}.png")
    tail = ["data.source={kind: folder}", "data.long_tail=null"]
    bare = Recipe.load(CE, [*tail, "evaluation=[]"])
    run = SimpleNamespace(recipe=bare)
    (images,) = _images([run], tmp_path).values()
    assert images.test is None and len(images.train) == 64
    measured = SimpleNamespace(recipe=Recipe.load(CE, tail))
    with pytest.raises(ZooError, match=r"no test folder .*--set evaluation=\[\]"):
        _images([measured], tmp_path)


NOTES = ("class_gradients", "feature_transform", "momentum", "p_sup", "temperature")
TABLES = (
    "cifar100_lt",
    "cifar100_lt100_best",
    "cifar100_lt200",
    "cifar100_lt_e100",
    "cifar100_moco",
    "cifar100_temperature",
    "pico_q005",
)


@pytest.mark.parametrize("name", catalog.list_sweeps())
def test_a_shipped_sweep_is_whole(name: str) -> None:
    written = read_sweep(name)
    found = plan_sweep(written.recipes, written.set, written.seeds, written.watch, Path("out"))
    assert is_sweep(name) and len(found.seeds) >= 3
    text = catalog.sweep_path(name).read_text()
    header = catalog.recipe_header(text)
    assert f"#   zoo sweep {name}\n" in text or f"#   zoo sweep {name} --data DIR\n" in text
    assert header["Takes"]
    assert (header["Here"] == "not run") == (written.found is None)
    assert written.question.endswith("?")
    if name in NOTES:
        assert len(found.axes) == 1 and any(each.expects for each in written.watch)
        assert all(run.recipe.data.source.kind == "digits" for run in found.runs)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_fills_by_whole_columns_and_says_what_was_published(name: str) -> None:
    written = read_sweep(name)
    assert (written.order, written.report, written.seeds) == ("seeds", False, [0, 1, 2])
    found = plan_sweep(written.recipes, written.set, written.seeds, written.watch, Path("out"))
    assert f"{len(found.runs)} runs" in catalog.recipe_header(catalog.sweep_path(name).read_text())["Takes"]
    assert {run.recipe.training.device for run in found.runs} == {"cpu" if "e100" in name else "cuda"}
    for recipe, published in written.published.items():
        target = catalog.recipe_header(catalog.recipe_path(recipe).read_text())["Target"]
        assert float(target.split()[0]) == published.value  # a figure is written down in two places


def test_a_sweep_for_a_gpu_says_at_once_that_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RecipeError, match=r'found "cuda".*no GPU here.*--set training\.device=cpu'):
        zoo.sweep("cifar100_lt", out=tmp_path / "out", data=tmp_path)
    assert not (tmp_path / "out").exists()


def test_sweeps_of_the_notes_and_of_the_tables_are_listed_and_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert {*NOTES, *TABLES} <= set(catalog.list_sweeps())
    assert catalog.list_sweeps() == zoo.list_sweeps()
    in_shell("list", "temper")
    assert "sweep of moco" in capsys.readouterr().out
    in_shell("show", "temperature")
    assert "question: Does a small temperature" in capsys.readouterr().out


def test_a_sweep_of_ones_own_runs_and_what_is_given_beside_it_counts(tmp_path: Path) -> None:
    lines = [
        "question: Does a larger rate lower the loss?",
        "source: nobody",
        f"recipes: [{CE}]",
        f"set: {json.dumps({**TINY, 'optimizer.lr': {'small': 0.01, 'large': 0.1}})}",
        "seeds: [0, 1, 2]",
        "watch: [{number: recorded/loss, title: loss (nats), expects: falls, meaning: Lower is better.}, "
        "{number: recorded/los, instead: recorded/loss, minus: recorded/loss, title: nothing}]",
        "found: null",
    ]
    file = tmp_path / "mine.yaml"
    file.write_text("\n".join(lines))
    found = zoo.sweep(file, out=tmp_path / "out", seeds=[1], vary={"training.epochs": [1]})
    assert found is not None and [run["folder"] for run in found.record["runs"]] == [
        "lr_small/seed_1",
        "lr_large/seed_1",
    ]
    assert zoo.open(tmp_path / "out" / "lr_small" / "seed_1").recipe["training"]["epochs"] == 1
    text = (tmp_path / "out" / "sweep.md").read_text()
    assert text.startswith("# Does a larger rate lower the loss?\n\nSource: nobody\n")
    assert (
        "with the one seed, which tells nothing of chance. The source expects that it falls: these runs do"
        in text
    )
    assert "Lower is better." in text and found.found[1].trends[""].points["small"].mean == 0.0


def test_a_sweep_may_do_without_the_report_and_then_looks_at_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zoo.api.sweeps.sweep.diagnose", None)
    monkeypatch.setattr("zoo.api.sweeps.sweep.published_figures", None)  # it has its own
    lines = [
        "question: Which rate?",
        "source: nobody",
        f"recipes: [{PACO}]",
        f"set: {json.dumps({**TINY, 'training.epochs': [1], 'optimizer.lr': [0.01, 0.1]})}",
        "seeds: [0, 1]",
        "watch: [{number: accuracy/classifier, title: accuracy (%)}, {number: recorded/loss, title: loss}]",
        "found: null",
        "order: points",
        "report: false",
        f"published: {{{PACO}: {{value: 52.0, metric: accuracy, source: a paper, differs: Its data.}}}}",
    ]
    file = tmp_path / "mine.yaml"
    file.write_text("\n".join(lines))
    in_shell("sweep", str(file), "--out", str(tmp_path / "out"))
    said = capsys.readouterr()
    order = re.findall(r"(\d) of 4: lr ([\d.]+), seed (\d)", said.err)
    assert order == [("1", "0.01", "0"), ("2", "0.01", "1"), ("3", "0.1", "0"), ("4", "0.1", "1")]
    assert "report:" not in said.out and "found:" in said.out and "results: " in said.out
    assert f"{PACO}, lr 0.01" in said.out and " 52.0" not in said.out  # of other trainings
    assert _published(read_sweep(file))[PACO].value == 52.0
    out = tmp_path / "out"
    assert not (out / "report").exists() and (out / "sweep.png").stat().st_size > 5_000
    assert "report.html" not in (out / "sweep.md").read_text()
    record = json.loads((out / "sweep.json").read_text())
    assert [run["folder"] for run in record["runs"]] == [
        f"lr_{lr}/seed_{seed}" for lr in (0.01, 0.1) for seed in (0, 1)
    ]
    for run in record["runs"]:
        (entry,) = zoo.open(out / run["folder"]).metrics["evaluations"]
        assert run["numbers"]["accuracy/classifier"] == entry["metrics"]["accuracy"]
        assert not [name for name in run["numbers"] if name.startswith("features/")]


def test_a_number_that_no_run_has_is_named_with_the_nearest(done: zoo.Sweep, tmp_path: Path) -> None:
    shutil.copytree(done.folder, tmp_path / "out")
    watch = ["recorded/los"]
    found = sweep(tmp_path / "out", CE, PACO, seeds=[0, 3], watch=watch, resume=True)
    text = (tmp_path / "out" / "sweep.md").read_text()
    assert 'No finished run has the number "recorded/los". Did you mean "recorded/loss"?' in text
    assert found.found == [(Watched(number="recorded/los", title="los"), {}, {"recipe": {}})]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("set: {}", "nothing varies"),
        ("seed: [1]", 'unknown key "seed".*Did you mean "seeds"'),
        ("watch: [{number: recorded/loss, title: loss, expects: grows}]", "expects"),
        ("order: seed", 'found .seed. .*Did you mean "seeds"'),
        ("report: nope", '"report": found .nope. .*expected a valid boolean'),
        (
            "published: {cifar_resnet20.moco_digits: "
            "{value: 52.0, metric: accuracy, source: a paper, differs: all.}}",
            r'"published\.cifar_resnet20\.moco_digits": found no such recipe in the sweep, expected one of',
        ),
        (
            "published: {cifar_resnet20.moco_v2_ft_digits_lt50: {value: 520, metric: acc, source: s}}",
            r"value.*found 520.*metric.*found 'acc'.*missing key .*differs",
        ),
    ],
)
def test_a_sweep_file_with_a_mistake_is_refused(change: str, message: str, tmp_path: Path) -> None:
    text = catalog.sweep_path("temperature").read_text()
    key = change.partition(":")[0]
    kept, skipping = [], False
    for line in text.splitlines():
        skipping = line.startswith(f"{key}:") or (skipping and line.startswith((" ", "-")))
        if not skipping:
            kept.append(line)
    file = tmp_path / "mine.yaml"
    file.write_text("\n".join([*kept, change]))
    with pytest.raises(RecipeError if key != "set" else ZooError, match=message):
        zoo.sweep(file, out=tmp_path / "out", seeds=[0])
