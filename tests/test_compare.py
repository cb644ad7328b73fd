"""`zoo.compare` and `zoo finetune --compare`: what is run, shared, continued, refused, and written."""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file

import zoo
from tests import warm
from tests.programs.plain_sweep import draw_nothing
from zoo.api import METHODS
from zoo.api.comparisons.plan import base_recipe, with_methods
from zoo.api.diagnoses.subjects import open_subject
from zoo.cli.training import app
from zoo.errors import RecipeError, TrainingError, ZooError
from zoo.evaluation.results.comparison import estimate, summarize
from zoo.training import Recipe, RunFolder
from zoo.training.changes import is_same

RECIPE = "cifar_resnet20.ce_digits_lt50"
PACO = "cifar_resnet20.paco_digits_lt50"
MOCO = "cifar_resnet20.moco_v2_ft_digits_lt50"
TINY = (
    "training.epochs=2",
    "schedule.warmup_epochs=0",
    "training.batch_size=10",
    "training.checkpoint_every=1",
    "training.device=cpu",
    "data.subset={per_class: 2}",  # 20 images
)
CRT: dict[str, Any] = {"name": "crt", "epochs": 1}
MIX = "objective.mix={mixup: 0.8, cutmix: 0.0, probability: 1.0, switch_probability: 0.5, mode: batch}"


def compare(out: Path, *changes: str, init: str = PACO, **settings: Any) -> zoo.api.Comparison:
    given = {"methods": ["cross_entropy"], "seeds": [0], **settings}
    return zoo.compare(RECIPE, init=init, out=out, overrides=[*TINY, *changes], **given)


def assert_same_weights(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "centers.safetensors"):
        a, b = load_file(one / name), load_file(other / name)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)


def in_shell(out: Path, *options: str) -> list[str]:
    sets = [word for change in TINY for word in ("--set", change)]
    plain = "tests/programs/plain_sweep.py"
    return [plain, "finetune", RECIPE, "--init", PACO, "--compare", "--out", str(out), *sets, *options]


@pytest.fixture(scope="module", autouse=True)
def _plain_pictures() -> Iterator[None]:
    """Let runs draw nothing: that is most of their time, and tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zoo.api.finishing.draw_pictures", draw_nothing)
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> zoo.api.Comparison:
    out = tmp_path_factory.mktemp("compare") / "out"
    return compare(out, methods=["post_hoc_logit_adjustment", CRT, "nearest_center"], seeds=[0, 3])


def test_a_comparison_leaves_releases_record_table_and_picture(done: zoo.api.Comparison) -> None:
    names = {"post_hoc_logit_adjustment", "crt-epochs_1", "nearest_center"}
    assert {*done.summaries} == names and done.left_out == {}
    record = json.loads((done.folder / "comparison.json").read_text())
    assert record == json.loads(json.dumps(done.record))
    assert record["seeds"] == [0, 3] and record["released"] == "last epoch"
    for name in names:
        for seed in (0, 3):
            release = zoo.open(done.folder / name / f"seed_{seed}")
            assert release.recipe["training"]["seed"] == seed
            assert release.recipe["method"] == record["methods"][name]["method"]
            (entry,) = release.metrics["evaluations"]
            assert entry["metrics"] == record["methods"][name]["runs"][str(seed)]
            again = zoo.evaluate(release, "classifier", save=False)["metrics"]
            assert again["balanced_accuracy"] == entry["metrics"]["balanced_accuracy"]
    table = (done.folder / "comparison.md").read_text()
    assert all(f"| {name} |" in table for name in names) and "last epoch, test split" in table
    assert (done.folder / "comparison.png").stat().st_size > 5_000


def test_shared_stages_are_those_of_runs_alone(done: zoo.api.Comparison, tmp_path: Path) -> None:
    stages = sorted(path.name.partition("-")[0] for path in (done.folder / "stages").iterdir())
    assert stages == ["cross_entropy", "cross_entropy", "crt", "crt"]  # each once for each seed
    for name in ("crt-epochs_1", "post_hoc_logit_adjustment"):
        theirs = done.folder / name / "seed_3"
        alone = zoo.pretrain(theirs / "recipe.yaml", out=tmp_path / name)
        assert_same_weights(alone.path, theirs)


def test_a_method_that_is_not_finished_tells_how_far_its_stages_are(
    done: zoo.api.Comparison, tmp_path: Path
) -> None:
    """They lie beside the run, the first one shared; one of before the data were changed is none of its."""
    out = Path(shutil.copytree(done.folder, tmp_path / "out"))
    run = out / "crt-epochs_1" / "seed_0"
    whole = open_subject(run).rows
    (run / "config.json").unlink()
    for stage in RunFolder(run / "run").stages():
        shutil.copytree(stage.path, run / "run" / f"{stage.path.name.partition('-')[0]}-zzz")
        (run / "run" / f"{stage.path.name.partition('-')[0]}-zzz" / "metrics.jsonl").unlink()
    state = "its newest checkpoint, after step 2 of crt; recorded up to epoch 3.0 of 3"
    opened = open_subject(run)
    assert opened.state == f"unfinished run: {state}"
    assert opened.rows == whole and [row["step"] for row in whole][-1] == 6
    assert [each.state for each in zoo.table(out).unfinished] == [state]
    (run / "run" / "stages.json").write_text("[1")
    assert open_subject(run).state == "unfinished run: no checkpoint yet"


def test_finished_runs_are_taken_as_they_are(done: zoo.api.Comparison) -> None:
    folder = done.folder / "crt-epochs_1"
    before = (folder / "seed_3" / "metrics.json").stat().st_mtime_ns
    more = compare(done.folder, methods=[CRT, "cross_entropy"], seeds=[3], resume=True)
    assert (folder / "seed_3" / "metrics.json").stat().st_mtime_ns == before
    assert {*more.summaries} == {"crt-epochs_1", "cross_entropy"}
    assert len([*(done.folder / "stages").iterdir()]) == 4  # cross_entropy's was there


def test_a_full_disk_after_the_last_training_is_one_clear_error(
    done: zoo.api.Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    monkeypatch.setattr("zoo.api.comparisons.compare.write_text", refuse)
    with pytest.raises(TrainingError, match=r"^comparison \".*cannot be written: No space left.*--resume$"):
        compare(done.folder, methods=[CRT], seeds=[3], resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.epochs=3", "training.epochs was 2, is 3"),
        ("data.subset={per_class: 1}", "data.subset.per_class was 2, is 1"),
        ("training.accumulate=2", "training.accumulate was 1, is 2"),
    ],
)
def test_finished_runs_of_other_settings_are_refused(
    done: zoo.api.Comparison, change: str, message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        compare(done.folder, change, methods=["tau_normalized", CRT], seeds=[0], resume=True)
    assert not (done.folder / "tau_normalized").exists()  # before anything was trained


@pytest.mark.parametrize("which", ["train", "val"])
def test_finished_runs_on_other_images_are_refused(which: str, tmp_path: Path) -> None:
    from PIL import Image

    for split in ("train", "val"):
        for label in ("a", "b"):
            (tmp_path / "data" / split / label).mkdir(parents=True)
            for i in range(4):
                color = (60 * i, 200 * (label == "a"), 90)
                Image.new("RGB", (8, 8), color).save(tmp_path / "data" / split / label / f"{i}.png")
    settings: dict[str, Any] = {
        "init": PACO,
        "out": tmp_path / "out",
        "data": f"folder:{tmp_path / 'data'}",
        "seeds": [0],
        "resume": True,
        "overrides": ["training.batch_size=4", "views.workers=0"],
    }
    zoo.compare(None, methods=["nearest_mean"], **settings)
    (tmp_path / "data" / which / "b" / "3.png").unlink()
    what = {"train": "training", "val": "test"}[which]
    with pytest.raises(TrainingError, match=f"is finished, with other {what} images"):
        zoo.compare(None, methods=["nearest_mean"], **settings)


def test_a_folder_in_use_is_refused_without_resume(done: zoo.api.Comparison) -> None:
    with pytest.raises(TrainingError, match="is not an empty folder; go on with a comparison by --resume"):
        compare(done.folder)


def test_a_comparison_killed_in_a_second_stage_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    methods = ("--methods", "{name: crt, epochs: 150}", "--seeds", "0")
    process = warm.start(*in_shell(tmp_path / "killed", *methods))
    stages, deadline = tmp_path / "killed" / "stages", time.monotonic() + 600
    while not [*stages.glob("crt-*/checkpoints/*")] and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    name = "crt-epochs_150/seed_0"
    assert not (tmp_path / "killed" / name / "config.json").exists()
    crt = {"name": "crt", "epochs": 150}
    compare(tmp_path / "killed", methods=[crt], resume=True)
    compare(tmp_path / "whole", methods=[crt])
    assert_same_weights(tmp_path / "killed" / name, tmp_path / "whole" / name)


def test_two_ranks_compare_what_one_does(tmp_path: Path) -> None:
    methods = ("--methods", "nearest_mean,{name: crt, epochs: 1}", "--seeds", "0")
    found = warm.run_ranks(*in_shell(tmp_path / "two", *methods), ranks=2)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("balanced, to the best") == 1  # one of them speaks
    one = compare(tmp_path / "one", methods=["nearest_mean"])
    two = json.loads((tmp_path / "two" / "comparison.json").read_text())
    assert {*two["methods"]} == {"nearest_mean", "crt-epochs_1"}
    assert two["methods"]["nearest_mean"]["mean"] == one.record["methods"]["nearest_mean"]["mean"]


@pytest.mark.parametrize("methods", [[5], [None], [["crt"]], ["crtt"], ["crt", "crt"], [], "crt", 3])
def test_methods_that_are_none_are_refused(methods: Any, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"^methods: "):
        compare(tmp_path / "out", methods=methods)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seeds", [[], [0, 0], [-1], ["0"], [True], [0.5], [2**63], 3, "0"])
def test_seeds_that_are_none_are_refused(seeds: Any, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"^seeds: found .*, expected different whole numbers"):
        compare(tmp_path / "out", seeds=seeds)


def test_no_seeds_in_the_shell_are_not_the_default_ones(tmp_path: Path) -> None:
    command = in_shell(tmp_path / "out", "--seeds", "")[1:]
    with pytest.raises(ZooError, match=r"^seeds: found \[\]"):
        typer.main.get_command(app)(command, standalone_mode=False)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([{"lr": 0.2}], 'missing key "method.name"'),
        ([{"name": "lws", "lr": -1}], '"method.lr": found -1'),
        ([{"name": "nearest_center", "centers": "means", "similarity": "logit"}], "is of learned centers"),
    ],
)
def test_values_of_the_key_method_are_checked_before_training(
    methods: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ZooError, match=message):
        compare(tmp_path / "out", methods=["cross_entropy", *methods])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method={name: crt}", "give --methods"),
        ("method.name=crt", "give --methods"),
        ("training.seed=7", "give --seeds"),
        ("evaluation=[{protocol: knn}]", "measures the protocol classifier"),
        ("init.head=centers", "methods choose the head"),
        ("objective.loss=balanced_softmax", "decides it"),
    ],
)
def test_settings_that_a_comparison_would_overrule_are_refused(
    change: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ZooError, match=message):
        compare(tmp_path / "out", change)


def test_a_comparison_has_a_recipe_and_a_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "runs" / f"{PACO}_compared" / "kept"
    kept.parent.mkdir(parents=True)
    kept.touch()
    for init in (PACO, zoo.open(PACO), f"shipped/{PACO}"):
        with pytest.raises(TrainingError, match=f'"runs/{PACO}_compared" is not an empty folder'):
            zoo.compare(init=init)
    with pytest.raises(ZooError, match=r'^overrides: "training.seed=3": a comparison has several'):
        zoo.compare(init=PACO, out=tmp_path / "out", overrides={"training.seed": 3})


def test_only_classifiers_are_compared(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match='needs a recipe of objective "classify", found "paco"'):
        zoo.compare(PACO, init=PACO, out=tmp_path / "out")


def test_what_a_recipe_says_of_loss_head_and_method_is_the_methods_matter() -> None:
    ldam = "objective.loss={name: ldam, max_margin: 0.5, scale: 30.0, reweight_from: 0.8, beta: 0.9999}"
    mine = Recipe.load(
        RECIPE, [*TINY, ldam, "objective.head=cosine", f"init={{release: {PACO}, head: fresh}}"]
    )
    centers = Recipe.load(RECIPE, [*TINY, f"init={{release: {PACO}, head: centers}}", "method={name: crt}"])
    plain = base_recipe(Recipe.load(RECIPE, TINY), PACO, None, ())[0]
    for recipe in (mine, centers):
        assert is_same(plain.model_dump(mode="json"), base_recipe(recipe, PACO, None, ())[0])


def test_methods_that_recipe_or_start_do_not_allow_are_left_out_and_refused_by_name(tmp_path: Path) -> None:
    base, _ = base_recipe(RECIPE, PACO, None, [*TINY, MIX])
    made, refused = with_methods(base, METHODS)
    assert [*refused] == ["ldam_drw"] and {*made, *refused} == {*METHODS}
    assert refused["ldam_drw"].startswith('objective.mix: method "ldam_drw" has margins')
    with pytest.raises(ZooError, match=r'method "ldam_drw": objective.mix: '):
        compare(tmp_path / "out", MIX, methods=["ldam_drw"])
    with pytest.raises(ZooError, match=r'method "from_centers": .* has no centers'):
        compare(tmp_path / "out", init=MOCO, methods=["from_centers"])


def test_early_stopping_cannot_look_at_a_loss_that_ldam_does_not_train() -> None:
    stopping = "training.early_stopping={{validation_fraction: 0.5, metric: {}, every: 1, patience: 1}}"
    Recipe.load(RECIPE, ["method={name: ldam_drw}", stopping.format("accuracy")])
    with pytest.raises(RecipeError, match=r'early_stopping.metric: "loss" of a linear classifier'):
        Recipe.load(RECIPE, ["method={name: ldam_drw}", stopping.format("loss")])


@pytest.mark.parametrize(
    "override",
    [
        "objective.loss=balanced_softmax",
        "training.sampling=class_balanced",
        "method={name: logit_adjustment, tau: 1.0}",
        "method={name: from_centers, prior: true}",
    ],
)
def test_early_stopping_cannot_look_at_the_loss_of_images_as_they_come(override: str) -> None:
    stopping = "training.early_stopping={{validation_fraction: 0.5, metric: {}, every: 1, patience: 1}}"
    Recipe.load(RECIPE, [override, stopping.format("balanced_accuracy")])
    with pytest.raises(
        RecipeError, match=r'"loss" counts images as they come, and this recipe trains a class'
    ):
        Recipe.load(RECIPE, [override, stopping.format("loss")])


def test_early_stopping_looks_at_no_true_class_of_partial_labels() -> None:
    stopping = "training.early_stopping={validation_fraction: 0.5, metric: accuracy, every: 1, patience: 1}"
    with pytest.raises(RecipeError, match=r'by the true classes, which objective "pico" does not know'):
        Recipe.load("cifar_resnet20.pico_digits_q05", [stopping])


def test_which_state_counts_is_said(tmp_path: Path) -> None:
    stopping = "training.early_stopping={validation_fraction: 0.5, metric: accuracy, every: 1, patience: 1}"
    found = compare(tmp_path / "out", stopping, "training.ema={decay: 0.9, warmup: true}")
    assert found.record["released"] == "epoch chosen on the validation part, moving average of the weights"
    assert "last epoch" not in (tmp_path / "out" / "comparison.md").read_text()


def test_a_seed_has_to_fit_into_a_release() -> None:
    with pytest.raises(RecipeError, match=r"training.seed"):
        Recipe.load(RECIPE, [f"training.seed={2**63}"])


def test_a_method_without_chance_has_no_interval_and_is_not_told_apart() -> None:
    assert estimate([92.5, 92.5, 92.5]).half_width is None

    def runs(value: float) -> dict[int, dict[str, float]]:
        return {seed: {"balanced_accuracy": value} for seed in range(3)}

    found = summarize({"mean": runs(92.5), "center": runs(92.0), "same": runs(92.5)})
    assert found["center"].tied is None and found["center"].verdict == "-0.5 (no spread)"
    assert found["same"].tied is True and found["same"].verdict == "0.0 (tie)"


def test_a_difference_that_only_rounding_spreads_has_no_spread_and_a_small_one_has() -> None:
    def runs(*values: float) -> dict[int, dict[str, float]]:
        return {seed: {"balanced_accuracy": value} for seed, value in enumerate(values)}

    best = (0.3, 70.1, 90.7)
    found = summarize(
        {
            "best": runs(*best),
            "same": runs(*(value - 1e-13 for value in best)),
            "less": runs(*(value - 0.1 for value in best)),
            "nearly": runs(*(value - 0.01 - 0.001 * seed for seed, value in enumerate(best))),
            "hardly": runs(*(value - 0.2 - 0.01 * seed for seed, value in enumerate(best))),
            "other": runs(*(value - 0.3 - 0.1 * seed for seed, value in enumerate(best))),
        }
    )
    assert len({value - 0.1 - value for value in best}) > 1, "rounded differently"
    assert [each.verdict for each in found.values()] == [
        "best",
        "0.0 (tie)",
        "0.0 ± 0.0",
        "-0.1 (no spread)",
        "-0.2 ± 0.0",
        "-0.4 ± 0.2",
    ]
