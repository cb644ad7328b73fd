"""Reports in Debian's Chromium, as a reader opens them: from the disk, on a desk and on a phone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

if os.environ.get("ZOO_BROWSER_TESTS") != "1":
    pytest.importorskip("selenium")

import zoo
from tests.browser import CHROMIUM, WANTED, Browser, browser, found
from tests.report_helpers import MOCO, PACO
from zoo.report.style import COLUMN, LETTERS

pytestmark = pytest.mark.skipif(not found(), reason=f"no {CHROMIUM}; {WANTED}=1 makes that an error")

PHONE = 360  # CSS pixels


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> zoo.Report:
    return zoo.diagnose(PACO, MOCO, out=tmp_path_factory.mktemp("report") / "out", sample=60)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, PHONE])
def test_a_report_opens_from_the_disk_alone(
    width: int, dark: bool, report: zoo.Report, chromium: Browser
) -> None:
    chromium.open(report.html, width, dark=dark)
    images = chromium.run(
        "return [...document.images].map(i => [i.alt, i.complete, i.naturalWidth, i.clientWidth,"
        " i.clientHeight * i.naturalWidth / i.naturalHeight])"
    )
    assert len(images) == sum(each.missing is None for each in report.figures)
    for alt, complete, natural, shown, unsqueezed in images:
        assert alt and complete and natural > 0 and 0.8 * min(width, 360) < shown <= width
        assert shown == pytest.approx(unsqueezed, rel=0.02), alt
    assert chromium.run("return document.documentElement.scrollWidth") == width
    assert chromium.messages() == []
    assert {*chromium.requests()} == {report.html.absolute().as_uri(), "data:"}


def test_letters_of_figures_are_readable_on_a_phone(report: zoo.Report, chromium: Browser) -> None:
    chromium.open(report.html, PHONE)
    widths = chromium.run("return [...document.images].map(i => i.clientWidth)")
    assert min(widths) / (72 * COLUMN) * LETTERS >= 11  # CSS pixels


def test_a_report_has_the_marks_that_screen_readers_and_keyboards_go_by(
    report: zoo.Report, chromium: Browser
) -> None:
    chromium.open(report.html, PHONE)
    assert chromium.run("return document.documentElement.lang") == "en"
    for mark in ("header", "nav", "main", "h1"):
        assert chromium.run(f"return document.querySelectorAll('body {mark}').length") == 1, mark
    levels = chromium.run("return [...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and all(after <= before + 1 for before, after in itertools.pairwise(levels))
    lost = chromium.run(
        "const seen = new Set([...document.querySelectorAll('[id]')].map(e => e.id));"
        "const refs = [...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.hash.slice(1));"
        "for (const name of ['aria-labelledby', 'aria-describedby'])"
        "  document.querySelectorAll('[' + name + ']').forEach(e => refs.push(e.getAttribute(name)));"
        "return [refs.filter(r => !seen.has(r)), document.querySelectorAll('[id]').length - seen.size]"
    )
    assert lost == [[], 0]  # every reference has its one target
    # what scrolls sideways can be reached by the keyboard, and says what it is
    hidden = chromium.run(
        "return [...document.querySelectorAll('main *')].filter(e => e.scrollWidth > e.clientWidth + 1 &&"
        " ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) &&"
        " !(e.tabIndex === 0 && (e.ariaLabel || e.getAttribute('aria-labelledby')))).length"
    )
    assert hidden == 0
    small = chromium.run(
        "return [...document.querySelectorAll('main *')].filter(e => e.childElementCount === 0 &&"
        " e.textContent.trim() && parseFloat(getComputedStyle(e).fontSize) < 12).map(e => e.textContent)"
    )
    assert small == []


def test_links_lead_to_their_files(report: zoo.Report, chromium: Browser) -> None:
    chromium.open(report.html)
    links = chromium.run("return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    files = {each for each in links if not each.startswith("#")}
    assert len(files) == 2 * sum(each.missing is None for each in report.figures) + 1
    assert all((report.folder / each).is_file() for each in files)


def test_the_policy_keeps_a_report_from_loading_or_running_anything(
    report: zoo.Report, chromium: Browser, tmp_path: Path
) -> None:
    changed = tmp_path / "changed.html"
    pixel = tmp_path / "pixel.png"
    pixel.write_bytes(next(zoo.open(PACO).path.glob("*.png")).read_bytes())
    text = report.html.read_text()
    foreign = f'<script>document.title = "ran"</script><img id="foreign" src="{pixel.as_uri()}" alt="x">'
    changed.write_text(text.replace("</main>", f"{foreign}</main>"))
    chromium.open(changed)
    assert chromium.run("return document.title") == "2 trainings side by side"
    assert chromium.run("return document.getElementById('foreign').naturalWidth") == 0
    assert any("Content Security Policy" in message for message in chromium.messages())


def test_text_and_ground_are_far_enough_apart_in_light_and_dark(
    report: zoo.Report, chromium: Browser
) -> None:
    for dark in (False, True):
        chromium.open(report.html, dark=dark)
        pairs = chromium.run(
            "const ground = e => { for (; e; e = e.parentElement) {"
            " const c = getComputedStyle(e).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c; }"
            " return 'rgb(255, 255, 255)' };"
            "return [...document.querySelectorAll('h1,h2,p,td,th,dt,dd,a,figcaption,code')].map(e =>"
            " [getComputedStyle(e).color, ground(e)])"
        )
        for ink, ground in {tuple(pair) for pair in pairs}:
            assert _contrast(ink, ground) >= 4.5, (dark, ink, ground)  # WCAG 2.2, AA


def _contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two `rgb(r, g, b)` by WCAG 2.2."""

    def luminance(color: str) -> float:
        parts = [int(each) / 255 for each in color.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
