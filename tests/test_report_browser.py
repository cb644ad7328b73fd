"""A report in Debian's Chromium, as a reader opens it: from the disk, on a desk and on a phone."""

import json
import os
from pathlib import Path

import pytest

import zoo
from tests.report_helpers import MOCO, PACO
from zoo.report.style import FIGURES

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
WANTED = os.environ.get("ZOO_BROWSER_TESTS") == "1"  # as in CI, where a missing Chromium is an error
if not WANTED:
    pytest.importorskip("selenium")
pytestmark = pytest.mark.skipif(not (WANTED or CHROMIUM.is_file()), reason=f"no {CHROMIUM}")


def test_a_report_opens_from_the_disk_alone_on_a_desk_and_on_a_phone(tmp_path: Path) -> None:
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    flags = "headless no-sandbox disable-gpu disable-background-networking hide-scrollbars"
    for flag in (*flags.split(), f"user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    address = zoo.diagnose(PACO, MOCO, out=tmp_path / "out", sample=60).html.absolute().as_uri()
    with Chrome(options=options, service=Service(str(DRIVER))) as chromium:
        chromium.get("about:blank")  # the page that it starts with may still be loading its own files
        chromium.get_log("performance")
        for width in (1280, 360):
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
            chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            chromium.get(address)
            script = "return [...document.images].map(i => [i.alt, i.naturalWidth, i.clientWidth])"
            images = chromium.execute_script(script)
            assert len(images) == len(FIGURES)
            assert all(alt and natural > 0 and 200 < shown <= width for alt, natural, shown in images)
            assert chromium.execute_script("return document.documentElement.scrollWidth") == width
        assert chromium.get_log("browser") == []
        rows = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    requests = [row["params"] for row in rows if row["method"] == "Network.requestWillBeSent"]
    of_report = [request for request in requests if not request["documentURL"].startswith("chrome:")]
    sent = {request["request"]["url"] for request in of_report}
    assert {url for url in sent if not url.startswith("data:")} == {address}
