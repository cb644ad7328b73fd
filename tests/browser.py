"""Debian's Chromium without a screen, to open reports as a reader does."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
WANTED = "ZOO_BROWSER_TESTS"
"""Set to 1 where a missing Chromium is an error, as in CI."""

# The browser is kept from asking the network for anything of its own.
_FLAGS = (
    "--headless",
    "--no-sandbox",  # it does not start as root otherwise
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def found() -> bool:
    """Whether the tests can run, or have to."""
    return (CHROMIUM.is_file() and DRIVER.is_file()) or os.environ.get(WANTED) == "1"


class Browser:
    """One browser; every page is opened anew."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, file: Path, width: int = 1280, *, dark: bool = False) -> None:
        """Open a file from the disk, seen `width` CSS pixels wide; forgets what was logged before."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        self.driver.get(file.absolute().as_uri())
        # on a busy machine the driver may answer before the page is whole
        WebDriverWait(self.driver, 60).until(
            lambda _: self.run("return document.readyState === 'complete' && location.protocol === 'file:'")
        )

    def run(self, script: str) -> Any:
        """Return what a script finds in the page."""
        return self.driver.execute_script(script)

    def messages(self) -> list[str]:
        """Return what the page left on the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for; of data in the page itself, the kind alone."""
        rows = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [
            row["params"]["request"]["url"] for row in rows if row["method"] == "Network.requestWillBeSent"
        ]
        return ["data:" if url.startswith("data:") else url for url in sent]

    def picture(self, file: Path) -> None:
        """Write the whole page as PNG."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
        file.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile; it ends with the block."""
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
