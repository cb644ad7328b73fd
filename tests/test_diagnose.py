"""`zoo.diagnose`: what it opens, what it says of what is missing, and what it writes, whole or not at all."""

import base64
import json
import shutil
from pathlib import Path

import pytest
import typer

import zoo
from tests.report_helpers import MOCO, PACO
from tests.test_api import picture_folder
from zoo.cli.app import app
from zoo.errors import ZooError
from zoo.release import Release
from zoo.report import diagnose as diagnosis
from zoo.report.style import FIGURES
from zoo.report.subject import open_subjects

SAMPLE = 60


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw three figures alone: the others are most of a report's time, and tested elsewhere."""
    few = {key: FIGURES[key] for key in ("scores", "p_sup", "hardness")}
    monkeypatch.setattr(diagnosis, "FIGURES", few)


def test_a_report_is_one_page_with_every_figure_and_files_of_them(moco: Release, tmp_path: Path) -> None:
    report = zoo.diagnose(PACO, moco.path, out=tmp_path / "out", sample=SAMPLE)
    assert not report.missing
    assert {each.name for each in report.folder.iterdir()} == {"report.html", "numbers.json", "figures"}
    files = {f"{key}.{kind}" for key in FIGURES for kind in ("png", "svg")}
    assert {each.name for each in (report.folder / "figures").iterdir()} == files
    html = report.html.read_text()
    for key in FIGURES:
        png = (report.folder / "figures" / f"{key}.png").read_bytes()
        assert f'src="data:image/png;base64,{base64.b64encode(png).decode()}"' in html
    assert "default-src 'none'; img-src data:" in html and "<script" not in html and "<link" not in html
    first, second = json.loads((report.folder / "numbers.json").read_text())
    linear = next(e for e in zoo.open(PACO).metrics["evaluations"] if e["protocol"] == "linear")
    assert first["numbers"]["accuracy/linear"] == linear["metrics"]["accuracy"]
    assert first["name"] == PACO and second["numbers"] == report.subjects[1].numbers


def test_trainings_that_differ_in_the_seed_alone_are_one_group(tmp_path: Path) -> None:
    folder = shutil.copytree(zoo.open(PACO).path, tmp_path / "other_seed")
    before, found, after = (folder / "recipe.yaml").read_text().partition("\ntraining:")
    (folder / "recipe.yaml").write_text(before + found + after.replace("seed: 0", "seed: 5", 1))
    subjects = open_subjects([PACO, folder, MOCO])
    assert [subject.place for subject in subjects] == [0, 0, 1]
    assert subjects[0].group == subjects[1].group and subjects[1].seed == 5


def test_other_images_are_encoded(tmp_path: Path, quick: None) -> None:
    data = picture_folder(tmp_path / "pictures")
    sample = zoo.diagnose(PACO, data=data, out=tmp_path / "out", sample=SAMPLE).subjects[0].sample
    assert sample is not None and sample.class_names == ("dark", "light")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample": 3}, "sample: found 3, expected 4 or more"),
        ({"out": "mine"}, r"holds notes\.txt, expected a new folder"),
    ],
)
def test_mistakes_are_named_before_anything_is_made_or_lost(settings, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ZooError, match=message):
        zoo.diagnose(PACO, **{"out": "out"} | settings)
    assert [each.name for each in tmp_path.rglob("*")] == ["mine", "notes.txt"]


def test_an_earlier_report_is_replaced_whole(tmp_path, quick, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    out = zoo.diagnose(PACO, sample=SAMPLE).folder
    assert out == Path("runs/diagnosed") / PACO
    (out / "figures" / "mine.txt").write_text("kept")
    typer.main.get_command(app)(["diagnose", MOCO, "--out", str(out)], standalone_mode=False)
    assert (out / "figures" / "mine.txt").read_text() == "kept"
    assert json.loads((out / "numbers.json").read_text())[0]["name"] == MOCO
    assert not (out / "figures" / "p_sup.png").exists()  # of the earlier one
    assert [each.name for each in out.parent.iterdir()] == [out.name]
    assert (
        f"report: {out}/report.html\nnot drawn: {FIGURES['p_sup'].title}: no rec" in capsys.readouterr().out
    )
