"""`zoo.diagnose`: what it opens, what it says of what is missing, and what it writes, whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import zoo
from tests.conftest import BRIEF
from tests.programs.plain_sweep import draw_nothing
from tests.test_api import FOLDER, picture_folder
from zoo.cli.app import app
from zoo.errors import ZooError
from zoo.release import Release
from zoo.report import diagnose as diagnosis
from zoo.report import figures
from zoo.report.opened import open_subject

PACO, MOCO = "cifar_resnet20.paco_digits_lt50", "cifar_resnet20.moco_v2_ft_digits_lt50"
SAMPLE = 60


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the figures of training alone: the others are most of a report's time, and tested elsewhere."""

    def draw(subjects: Any, folder: Path) -> list[figures.Drawn]:
        names = [(folder / f"{key}.png", folder / f"{key}.svg") for key in ("scores", "extra")]
        return [figures.draw_one(png.stem, subjects, png, svg) for png, svg in names]

    monkeypatch.setattr(diagnosis, "draw", draw)


@pytest.fixture
def unfinished(paco: Release, tmp_path: Path) -> Path:
    """The folder of a run that ended before its release was written."""
    out = tmp_path / "stopped"
    shutil.copytree(paco.path / "run", out / "run")
    return out


@pytest.fixture(scope="module")
def report(moco: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[zoo.Report]:
    """Two releases side by side, every figure."""
    yield zoo.diagnose(PACO, moco.path, out=tmp_path_factory.mktemp("report") / "out", sample=SAMPLE)


def test_a_report_has_every_figure_as_png_and_svg_or_the_reason_why_not(report: zoo.Report) -> None:
    assert [each.key for each in report.figures] == [*figures.FIGURES]
    assert {each.name for each in report.folder.iterdir()} == {"report.html", "numbers.json", "figures"}
    html = report.html.read_text()
    drawn = {each.key for each in report.figures if each.missing is None}
    assert drawn >= {"hardness", "plane", "features", "accuracy", "neighbours", "extra"}
    assert {each.name for each in (report.folder / "figures").iterdir()} == {
        f"{key}.{kind}" for key in drawn for kind in ("png", "svg")
    }
    for each in report.figures:
        assert each.title in html
        if each.missing is None:
            for file in (each.png, each.svg):
                assert file is not None and file.is_file()
                assert f"figures/{file.name}" in html
        else:
            assert each.missing.replace("'", "&#39;") in html
    assert html.count("<img ") == html.count(" alt=") == len(drawn)


def test_numbers_json_holds_what_was_measured(report: zoo.Report, moco: Release) -> None:
    found = json.loads((report.folder / "numbers.json").read_text())
    assert found["sample"] == SAMPLE and found["seed"] == 0 and "torch" in found["versions"]
    first, second = found["subjects"]
    assert first["label"] == "paco_digits_lt50" and second["label"] == "moco_v2_ft_digits_lt50"
    assert second["folder"] == str(moco.path)
    linear = next(e for e in zoo.open(PACO).metrics["evaluations"] if e["protocol"] == "linear")
    assert first["numbers"]["accuracy/linear"] == linear["metrics"]["accuracy"]
    assert found["groups"]["paco_digits_lt50"]["accuracy/linear"]["mean"] == linear["metrics"]["accuracy"]
    rows = [row["negative_score"] for row in open_subject(moco.path).rows if "negative_score" in row]
    assert rows and min(rows) <= second["numbers"]["recorded/negative_score"] <= max(rows)
    losses = [(row["step"], row["loss"]) for row in open_subject(moco.path).rows]
    lengths = [b - a for (a, _), (b, _) in pairwise([(0, 0.0), *losses])]
    count = next(n for n in range(1, len(losses) + 1) if sum(lengths[-n:]) >= 0.2 * losses[-1][0])
    total = sum(n * loss for n, (_, loss) in list(zip(lengths, losses, strict=True))[-count:])
    assert second["numbers"]["recorded/loss"] == pytest.approx(total / sum(lengths[-count:]))


def test_the_same_release_gives_the_same_numbers_and_figures(tmp_path: Path, quick: None) -> None:
    one, two = (zoo.diagnose(PACO, out=tmp_path / name, sample=SAMPLE) for name in "ab")
    assert one.subjects[0].numbers == two.subjects[0].numbers
    for each in (one.folder / "figures").iterdir():
        assert each.read_bytes() == (two.folder / "figures" / each.name).read_bytes()
    other = zoo.diagnose(PACO, out=tmp_path / "c", sample=SAMPLE, seed=1)
    assert other.subjects[0].numbers["features/uniformity"] != one.subjects[0].numbers["features/uniformity"]


@pytest.mark.parametrize("inside", ["", "run"])
def test_an_unfinished_run_is_looked_at_by_its_newest_checkpoint(
    inside: str, unfinished: Path, paco: Release, tmp_path: Path, quick: None
) -> None:
    found = zoo.diagnose(unfinished / inside, paco.path, out=tmp_path / "out", sample=SAMPLE)
    run, release = found.subjects
    assert run.look is not None and release.look is not None
    # the last checkpoint is what the release was made of
    torch.testing.assert_close(run.look.features, release.look.features)
    assert run.centers is not None and release.centers is not None
    assert torch.equal(run.centers.weight, release.centers.weight)
    assert run.rows == release.rows and len(run.rows) > 5
    assert run.group == release.group and run.label != release.label
    numbers = json.loads((found.folder / "numbers.json").read_text())
    assert "after step 132; recorded up to epoch 12.0 of 12" in numbers["subjects"][0]["state"]


def test_the_run_of_a_finished_release_is_the_release(paco: Release) -> None:
    assert open_subject(paco.path / "run").release is not None
    with pytest.raises(ZooError, match="is given twice"):
        zoo.diagnose(paco.path, paco.path / "run")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (PACO, ["training.ema={decay: 0.9, warmup: true}"]),
        ("cifar_resnet20.ce_digits_lt50", ["method={name: crt, epochs: 1, lr: 0.1}"]),
    ],
    ids=["moving average", "stages"],
)
def test_what_a_run_would_release_is_looked_at(
    name: str, changes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.api.finishing.draw_pictures", draw_nothing)
    brief = [*BRIEF, "training.epochs=2", "schedule.warmup_epochs=0", "evaluation=[]"]
    released = zoo.pretrain(name, out=tmp_path / "made", overrides=[*brief, *changes])
    shutil.copytree(tmp_path / "made" / "run", tmp_path / "copy" / "run")
    opened = open_subject(tmp_path / "copy")
    encoder, centers = opened.load(None)
    for key, value in released.load().state_dict().items():
        assert torch.equal(value, encoder.state_dict()[key]), key
    assert centers is not None and released.centers is not None
    assert torch.equal(centers.weight, released.centers.weight)
    steps = [row["step"] for row in opened.rows]
    assert steps == sorted(steps) and steps[-1] == released.metrics["training"]["steps"]
    assert open_subject(tmp_path / "made").rows == opened.rows


def test_without_images_the_rest_is_made_and_the_reason_said(tmp_path: Path, quick: None) -> None:
    data = picture_folder(tmp_path / "pictures")
    changes = [*FOLDER, "evaluation=[]"]
    made = zoo.pretrain(PACO, out=tmp_path / "made", data=data, overrides=changes)
    shutil.rmtree(data)
    for where, classes in ((made.path, 2), (tmp_path / "stopped", 0)):
        if not where.exists():
            shutil.copytree(made.path / "run", where / "run")
        found = zoo.diagnose(where, out=tmp_path / "out", sample=SAMPLE)
        (subject,) = found.subjects
        assert subject.look is None and len(subject.class_names) == classes
        assert subject.without_look is not None and "no data folder given" in subject.without_look
        assert "no data folder given" in found.html.read_text()
        assert next(each for each in found.figures if each.key == "scores").missing is None


def test_the_record_of_a_release_without_its_run_is_its_history(
    copied: Path, paco: Release, tmp_path: Path, quick: None
) -> None:
    shutil.rmtree(copied / "run")
    found = open_subject(copied)
    assert [row["step"] for row in found.rows] == [row["step"] for row in open_subject(paco.path).rows]
    assert found.rows[-1]["loss"] == pytest.approx(open_subject(paco.path).rows[-1]["loss"], rel=1e-4)
    assert len(found.class_rows) == len(open_subject(paco.path).class_rows) > 0
    (copied / "history.json").write_text("{")
    report = zoo.diagnose(copied, out=tmp_path / "out", sample=SAMPLE)
    assert report.subjects[0].rows == [] and report.subjects[0].look is not None
    (found_numbers,) = json.loads((report.folder / "numbers.json").read_text())["subjects"]
    assert "history.json" in found_numbers["recorded"]


def test_a_damaged_checkpoint_leaves_the_record(unfinished: Path, tmp_path: Path, quick: None) -> None:
    for file in (unfinished / "run" / "checkpoints").glob("*.pt"):
        file.write_bytes(file.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="is damaged and passed over"):
        found = zoo.diagnose(unfinished, out=tmp_path / "out", sample=SAMPLE)
    assert found.subjects[0].look is None and "no checkpoint" in (found.subjects[0].without_look or "")
    assert next(each for each in found.figures if each.key == "scores").missing is None


def test_other_images_of_other_classes_are_looked_at_without_the_centers(tmp_path: Path, quick: None) -> None:
    data = picture_folder(tmp_path / "pictures")
    found = zoo.diagnose(PACO, data=f"folder:{data}", out=tmp_path / "out", sample=SAMPLE)
    (subject,) = found.subjects
    assert subject.look is not None and subject.look.class_names == ("dark", "light")
    assert len(subject.class_names) == 10 and subject.look.classifier.startswith("kNN")
    assert subject.look.data == "pictures" and subject.data == "digits, long tail 50"


def test_one_class_and_an_empty_split_are_said(tmp_path: Path) -> None:
    data = picture_folder(tmp_path / "one")
    for split in ("train", "val"):
        shutil.rmtree(data / split / "light")
    one = zoo.diagnose(MOCO, data=f"folder:{data}", out=tmp_path / "a", sample=SAMPLE)
    assert one.subjects[0].look is not None
    empty = picture_folder(tmp_path / "empty")
    for file in (empty / "val").rglob("*.png"):
        file.unlink()
    none = zoo.diagnose(MOCO, data=f"folder:{empty}", out=tmp_path / "b", sample=SAMPLE)
    assert none.subjects[0].look is None and none.subjects[0].without_look
    for found in (one, none):
        reasons = [each.missing for each in found.figures if each.missing is not None]
        assert reasons and all(reasons)
        assert found.html.is_file()


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        ((), {}, "found no release or run"),
        (("cifar_resnet20.paco_digits_lt5",), {}, 'Did you mean "cifar_resnet20.paco_digits_lt50"'),
        ((PACO, f"shipped:{PACO}"), {}, "is given twice"),
        ((PACO,), {"data": "digitz"}, 'Did you mean "digits"'),
        ((PACO,), {"sample": 3}, "sample: found 3, expected 4 or more"),
        ((PACO,), {"sample": 2.5}, r"sample: found 2\.5"),
        ((PACO,), {"seed": -1}, "seed: found -1"),
        ((PACO,), {"workers": -1}, "workers: found -1"),
        ((PACO,), {"device": "cdua"}, 'Did you mean "cuda"'),
    ],
)
def test_mistakes_are_named_before_anything_is_made(
    names: tuple[str, ...], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ZooError, match=message):
        zoo.diagnose(*names, out=tmp_path / "out", **settings)
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_is_neither_release_nor_run_is_refused_with_one_inside(copied: Path) -> None:
    with pytest.raises(ZooError, match=f'neither a release nor a run: found .*Did you mean "{copied}"'):
        zoo.diagnose(copied.parent)


def test_files_that_no_report_made_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ZooError, match=r"holds notes\.txt, expected a new or empty folder"):
        zoo.diagnose(PACO, out=tmp_path)
    with pytest.raises(ZooError, match="is a file, expected a new"):
        zoo.diagnose(PACO, out=tmp_path / "notes.txt")
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_an_earlier_report_is_replaced_whole_or_left(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    zoo.diagnose(PACO, out=out, sample=SAMPLE)
    before = {each.name: each.read_bytes() for each in out.rglob("*") if each.is_file()}

    def fail(*_: Any) -> str:
        raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patch:
        patch.setattr(diagnosis, "render", fail)
        with pytest.raises(RuntimeError, match="a mistake of ours"):
            zoo.diagnose(MOCO, out=out, sample=SAMPLE)
    assert {each.name: each.read_bytes() for each in out.rglob("*") if each.is_file()} == before
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    zoo.diagnose(MOCO, out=out, sample=SAMPLE)
    assert json.loads((out / "numbers.json").read_text())["subjects"][0]["name"] == MOCO
    assert not (out / "figures" / "extra.png").exists()  # of the earlier one
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_reports_of_different_runs_of_one_name_have_folders_of_their_own(
    unfinished: Path, paco: Release, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [zoo.diagnose(*names, sample=SAMPLE).folder for names in ([PACO], [unfinished], [paco.path])]
    assert folders[0] == Path("runs/diagnosed") / PACO
    assert len({*folders}) == 3 and all(each.parent == Path("runs/diagnosed") for each in folders)
    assert zoo.diagnose(unfinished, sample=SAMPLE).folder == folders[1]


def test_the_command_says_what_it_made_and_what_not(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["diagnose", MOCO, "--out", str(tmp_path / "out"), "--sample", str(SAMPLE)]
    typer.main.get_command(app)(words, standalone_mode=False)
    said = capsys.readouterr().out
    assert "not drawn: The extra loss that centers add: objective moco has no centers" in said
    assert said.endswith(f"report: {tmp_path / 'out' / 'report.html'}\n")
    record = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert record["command"] == f"zoo {' '.join(words)} --seed 0"
