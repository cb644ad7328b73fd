"""Reports in Debian's Chromium, as a reader opens them: from the disk, on a desk and on a phone."""

from __future__ import annotations

import base64
import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

if os.environ.get("ZOO_BROWSER_TESTS") != "1":
    pytest.importorskip("selenium")

import zoo
from tests.browser import CHROMIUM, WANTED, Browser, browser, found
from tests.diagnosis_helpers import points_of
from tests.test_api import picture_folder
from zoo.evaluation.diagnosis.html import Contents, render
from zoo.evaluation.diagnosis.page import About, Page, Picture, Table
from zoo.release import Release

pytestmark = pytest.mark.skipif(not found(), reason=f"no {CHROMIUM}; {WANTED}=1 makes that an error")

PACO = "cifar_resnet20.paco_digits_lt50"
PHONE = 360  # CSS pixels
SAMPLE = 60


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def page(subjects: Any) -> zoo.Page:
    """A page as a sweep has it, with all that could be too wide for a phone."""
    wide = Table(
        "Every run", ["run", *(f"column_{i}" for i in range(12))], [["a" * 40, *["1.234 ± 0.567"] * 12]]
    )
    picture = next(zoo.open(PACO).path.glob("*.png"))
    command = f"zoo sweep {'x' * 200} --set objective.tau=0.05,0.1"
    return zoo.Page(
        "Of what use is tau?" * 3, ["w" * 300, "a <b>word"], [command], [wide], [Picture(picture, "it", "it")]
    )


@pytest.fixture(scope="module")
def reports(moco: Release, paco: Release, tmp_path_factory: pytest.TempPathFactory) -> dict[str, zoo.Report]:
    root = tmp_path_factory.mktemp("reports")
    save = Figure.savefig

    def measured(figure: Figure, *args: Any, **settings: Any) -> None:
        area = settings.get("bbox_inches")  # of a figure without title and caption, as reports show them
        if area is not None:
            DRAWN.append((area.width, *points_of(figure)))
        save(figure, *args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", measured)
        return _reports(root, moco, paco)


def _reports(root: Path, moco: Release, paco: Release) -> dict[str, zoo.Report]:
    pictures = picture_folder(root / "pictures")
    for file in (pictures / "val").rglob("*.png"):
        file.unlink()
    return {
        "one": zoo.diagnose(PACO, out=root / "one", sample=SAMPLE),
        "several": zoo.diagnose(paco.path, PACO, moco.path, out=root / "several", sample=SAMPLE, page=page),
        "lacking": zoo.diagnose(PACO, data=f"folder:{pictures}", out=root / "lacking", sample=SAMPLE),
    }


DRAWN: list[tuple[float, float, float]] = []
"""Of every figure that a report shows: its width in inches, and the points of its smallest letters and of the
smallest numbers in cells."""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["one", "several", "lacking"])
def test_on_a_phone_every_letter_of_a_figure_is_readable(
    name: str, dark: bool, reports: dict[str, zoo.Report], chromium: Browser
) -> None:
    chromium.open(reports[name].html, PHONE, dark=dark)
    images = chromium.run(
        "return [...document.querySelectorAll('article figure img')].map(i => {"
        " const s = getComputedStyle(i), padding = parseFloat(s.paddingLeft) + parseFloat(s.paddingRight);"
        " return [i.alt, i.clientWidth - padding, i.clientHeight, i.naturalWidth / i.naturalHeight,"
        "  i.getBoundingClientRect().left, i.getBoundingClientRect().right] })"
    )
    drawn = [each for each in reports[name].figures if each.missing is None]
    assert len(images) == len(drawn) >= 2
    assert len(DRAWN) >= 20
    widest = max(inches for inches, _, _ in DRAWN)
    letters, cells = (min(each[place] for each in DRAWN) for place in (1, 2))
    assert math.isfinite(cells)
    for alt, width, height, ratio, left, right in images:
        assert left >= 0 and right <= PHONE, alt
        assert width / height == pytest.approx(ratio, rel=0.02), alt  # not squeezed
        point = width / (72 * widest)  # CSS pixels
        assert letters * point >= 11 and cells * point >= 10, (alt, letters * point, cells * point)


def test_a_caption_stands_once_in_a_report(reports: dict[str, zoo.Report], chromium: Browser) -> None:
    report = reports["one"]
    chromium.open(report.html, PHONE)
    captions = chromium.run(
        "return [...document.querySelectorAll('article figcaption')].map(c => c.textContent)"
    )
    shown = {each.key: each for each in report.figures if each.missing is None}
    assert sorted(captions) == sorted(each.caption for each in shown.values())
    html = report.html.read_text()
    for each in shown.values():  # the picture in the page is the one without words
        assert each.bare is not None and each.png is not None
        assert base64.b64encode(each.bare.read_bytes()).decode() in html
        assert base64.b64encode(each.png.read_bytes()).decode() not in html


NAMES = ("one", "several", "lacking")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, PHONE])
@pytest.mark.parametrize("name", NAMES)
def test_a_report_opens_from_the_disk_alone(
    name: str, width: int, dark: bool, reports: dict[str, zoo.Report], chromium: Browser
) -> None:
    report = reports[name]
    chromium.open(report.html, width, dark=dark)
    images = chromium.run(
        "return [...document.images].map(i => [i.alt, i.complete, i.naturalWidth, i.clientWidth])"
    )
    drawn = [each for each in report.figures if each.missing is None]
    assert len(images) == len(drawn) + (name == "several")
    for alt, complete, natural, shown in images:
        assert alt and complete and natural > 0 and 0 < shown <= width
    assert chromium.run("return document.documentElement.scrollWidth") == width
    assert chromium.messages() == []
    assert {*chromium.requests()} == {report.html.absolute().as_uri(), "data:"}


@pytest.mark.parametrize("name", NAMES)
def test_a_report_has_the_marks_that_screen_readers_and_keyboards_go_by(
    name: str, reports: dict[str, zoo.Report], chromium: Browser
) -> None:
    chromium.open(reports[name].html, PHONE)
    assert chromium.run("return document.documentElement.lang") == "en"
    for mark in ("header", "nav", "main", "footer", "h1"):
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


def test_on_a_phone_the_column_that_stays_leaves_room_for_those_that_scroll(
    reports: dict[str, zoo.Report], chromium: Browser
) -> None:
    chromium.open(reports["several"].html, PHONE)
    shares = chromium.run(
        "return [...document.querySelectorAll('.scroll')].filter(e => e.querySelector('table')).map(e =>"
        " [...e.querySelectorAll('tr > :first-child')].reduce((w, c) => Math.max(w, c.offsetWidth), 0)"
        " / e.clientWidth)"
    )
    assert len(shares) > 4 and max(shares) < 0.55


def intervals(folder: Path) -> Path:
    """A report without figures on two trainings with long names, whose accuracies have intervals."""
    groups = {"many": "66.80 ± 1.05", "medium": "53.11 ± 0.48", "few": "31.09 ± 1.33", "ECE": "5.10 ± 0.22"}
    head = ["accuracy", "balanced", *groups, "test images"]
    cells = ["51.42 ± 0.31", "51.42 ± 0.31", *groups.values(), "10,000"]
    names = [f"cifar_resnet32.{objective}_cifar100_lt100_200_epochs" for objective in ("paco", "classify")]
    accuracies = [Table("Protocol linear.", ["", *head], [[name, *cells] for name in names])]
    numbers = [Table("Features.", ["", *names], [["log E exp(-2 |x - y|²)", "-2.131 ± 0.012", "-1.93"]])]
    subjects = [About(name, {"data": "cifar100"}) for name in names]
    contents = Contents(
        Page("Intervals"), subjects, None, accuracies, numbers, [], {"command": "zoo diagnose a b"}
    )
    folder.mkdir()
    (folder / "report.html").write_text(render(contents, folder))
    return folder / "report.html"


@pytest.mark.parametrize("name", ["one", "several", "intervals"])
def test_on_a_phone_accuracies_are_in_view_up_to_few(
    name: str, reports: dict[str, zoo.Report], chromium: Browser, tmp_path: Path
) -> None:
    html = intervals(tmp_path / "report") if name == "intervals" else reports[name].html
    chromium.open(html, PHONE)
    tables = chromium.run(
        "const right = e => e.getBoundingClientRect().right;"
        "return [...document.querySelectorAll('[aria-labelledby=accuracies] .scroll')].map(e =>"
        " [right(e), [...e.querySelectorAll('thead th')].map(h => [h.textContent, right(h), h.scrollWidth"
        "  - h.clientWidth]), [...e.querySelectorAll('td')].map(c => c.scrollWidth - c.clientWidth)])"
    )
    assert tables
    for edge, heads, over in tables:
        ends = {head: end for head, end, _ in heads}
        for head in ("accuracy", "balanced", "many", "medium", "few"):
            assert ends[head] <= edge <= PHONE, (head, ends)
        assert max(over) <= 0 and max(each for _, _, each in heads) <= 0  # nothing runs into its neighbour
    if name == "intervals":  # the second of two trainings is in view too
        (numbers,) = chromium.run(
            "return [...document.querySelectorAll('[aria-labelledby=numbers] .scroll')].map(e =>"
            " e.scrollWidth - e.clientWidth)"
        )
        assert numbers <= 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_a_phone_a_shadow_says_that_a_table_goes_on(dark: bool, chromium: Browser, tmp_path: Path) -> None:
    chromium.open(intervals(tmp_path / "report"), PHONE, dark=dark)
    seen = []
    for end in (False, True):
        x, y, hidden = chromium.run(
            "const e = document.querySelector('[aria-labelledby=accuracies] .scroll');"
            f"e.scrollLeft = {int(end)} * e.scrollWidth;"
            "const r = e.getBoundingClientRect();"  # below the letters of the last row
            "return [r.right + scrollX - 3, r.bottom + scrollY - 4, e.scrollWidth - e.clientWidth]"
        )
        assert hidden > 0
        chromium.picture(tmp_path / "page.png")
        with Image.open(tmp_path / "page.png") as picture:
            pixels = [picture.convert("L").getpixel((round(x) - left, round(y))) for left in (0, 100)]
        seen.append(pixels)
    (shadow, _), (bare, paper) = seen
    assert abs(bare - paper) <= 3 and abs(shadow - paper) >= 30, seen


def test_links_beside_the_figures_lead_to_their_files(
    reports: dict[str, zoo.Report], chromium: Browser
) -> None:
    report = reports["one"]
    chromium.open(report.html)
    links = chromium.run("return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    files = {each for each in links if not each.startswith("#")}
    assert len(files) == 3 * sum(each.missing is None for each in report.figures) + 1
    assert all((report.folder / each).is_file() for each in files)


def test_the_policy_keeps_a_report_from_loading_or_running_anything(
    reports: dict[str, zoo.Report], chromium: Browser, tmp_path: Path
) -> None:
    changed = tmp_path / "changed.html"
    pixel = tmp_path / "pixel.png"
    pixel.write_bytes(next(zoo.open(PACO).path.glob("*.png")).read_bytes())
    text = reports["one"].html.read_text()
    foreign = f'<script>document.title = "ran"</script><img id="foreign" src="{pixel.as_uri()}" alt="x">'
    changed.write_text(text.replace("</main>", f"{foreign}</main>"))
    chromium.open(changed)
    assert chromium.run("return document.title") == PACO
    assert chromium.run("return document.getElementById('foreign').naturalWidth") == 0
    assert any("Content Security Policy" in message for message in chromium.messages())


def test_text_and_ground_are_far_enough_apart_in_light_and_dark(
    reports: dict[str, zoo.Report], chromium: Browser
) -> None:
    for dark in (False, True):
        chromium.open(reports["several"].html, dark=dark)
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


def test_on_paper_nothing_is_cut_off(reports: dict[str, zoo.Report], chromium: Browser) -> None:
    chromium.open(reports["one"].html, 700)
    chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert chromium.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
        cut = chromium.run(
            "return [...document.querySelectorAll('main .scroll')].filter(e => "
            "getComputedStyle(e).overflowX !== 'visible').length"
        )
        assert cut == 0
    finally:
        chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
