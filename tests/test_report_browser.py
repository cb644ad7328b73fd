"""Reports in Debian's Chromium, as a reader opens them: from the disk, on a desk and on a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

if os.environ.get("ZOO_BROWSER_TESTS") != "1":
    pytest.importorskip("selenium")

import zoo
from tests.browser import CHROMIUM, WANTED, Browser, browser, found
from tests.report_helpers import MOCO, PACO
from zoo.report.style import FIGURES

pytestmark = pytest.mark.skipif(not found(), reason=f"no {CHROMIUM}; {WANTED}=1 makes that an error")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> zoo.Report:
    return zoo.diagnose(PACO, MOCO, out=tmp_path_factory.mktemp("report") / "out", sample=60)


@pytest.mark.parametrize("width", [1280, 360])
def test_a_report_opens_from_the_disk_alone(width: int, report: zoo.Report, chromium: Browser) -> None:
    chromium.open(report.html, width)
    images = chromium.run("return [...document.images].map(i => [i.alt, i.naturalWidth, i.clientWidth])")
    assert len(images) == len(FIGURES)
    assert all(alt and natural > 0 and 200 < shown <= width for alt, natural, shown in images)
    assert chromium.run("return document.documentElement.scrollWidth") == width
    assert chromium.messages() == []
    assert {*chromium.requests()} == {report.html.absolute().as_uri(), "data:"}
