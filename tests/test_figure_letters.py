"""Class names are others' words: in letters that matplotlib's own font lacks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fontTools.ttLib import TTFont
from matplotlib.font_manager import FontProperties, fontManager
from PIL import Image

from zoo.evaluation.figures import style

CAT, DOG, THAI = "猫", "狗", "แ"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where no other font is installed and nothing was told yet; fonts added by a test go with it."""
    fonts = [each for each in fontManager.ttflist if each.name not in style._FALLBACKS]
    monkeypatch.setattr(fontManager, "ttflist", fonts)
    monkeypatch.setattr(style, "_told", set())
    style._letters.cache_clear()
    yield
    style._letters.cache_clear()


def add_font(folder: Path) -> None:
    """Install a font by the name of a fallback, whose two Chinese letters look like an I and a W."""
    with TTFont(fontManager.findfont(FontProperties(family="DejaVu Sans"))) as font:
        for table in font["cmap"].tables:
            if table.isUnicode():
                table.cmap = {ord(CAT): "I", ord(DOG): "W"}
        for record in font["name"].names:
            if record.nameID in (1, 4, 6, 16):
                record.string = "Noto Sans CJK SC"
        font.save(folder / "cjk.ttf")
    fontManager.addfont(folder / "cjk.ttf")


def write(file: Path, name: str) -> np.ndarray:
    with style.figure_to(file, (2.0, 1.0), "Caption.", None) as figure:
        figure.text(0.3, 0.5, name)
    return np.asarray(Image.open(file.with_suffix(".png"))) if file.suffix == ".png" else np.empty(0)


def test_letters_come_from_a_font_that_has_them(tmp_path: Path) -> None:
    add_font(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pictures = {name: write(tmp_path / "a.png", name) for name in (CAT, DOG, "I", "W")}
        for ending in ("svg", "pdf"):
            write(tmp_path / f"a.{ending}", CAT)
        assert style._inches(DOG, 10) == pytest.approx(style._inches("W", 10))
    assert np.array_equal(pictures[CAT], pictures["I"]) and np.array_equal(pictures[DOG], pictures["W"])
    assert not np.array_equal(pictures[CAT], pictures[DOG])


def test_letters_that_no_font_has_are_told_once_for_each_script(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert style.fitted(CAT * 40, 1.0).endswith("…")
        for ending in ("png", "svg", "pdf"):
            write(tmp_path / f"a.{ending}", f"{CAT}{DOG} ImageNet ± ²")
        write(tmp_path / "b.png", f"{DOG}{THAI}")
    first, second = (str(each.message) for each in found)
    assert f'CJK ("{"".join(sorted(CAT + DOG))}")' in first and "Noto Sans CJK" in first
    assert f'THAI ("{THAI}")' in second and CAT not in second and DOG not in second
    assert Path(found[0].filename) == Path(__file__)
