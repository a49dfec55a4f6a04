"""Chromium without a window, for the pages."""

import shutil
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


class Browser:
    """One window; every page is opened with a size and a theme."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        # As root, and in small containers.
        for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage"):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))

    def open(self, page: Path, *, width: int = 1280, theme: str = "light") -> None:
        """Open a page and wait until it has run its script."""
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.set_theme(theme)
        self.driver.get(page.as_uri())
        self.wait_until("document.readyState === 'complete'")

    def set_theme(self, theme: str) -> None:
        """What the system prefers."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def wait_until(self, condition: str) -> None:
        """Until an expression of the page is true."""
        deadline = time.monotonic() + 60
        while not self.run(f"return {condition}"):
            assert time.monotonic() < deadline, (condition, self.problems())
            time.sleep(0.05)

    def run(self, script: str, *arguments: object) -> object:
        return self.driver.execute_script(script, *arguments)

    def problems(self) -> list[str]:
        """What the console said since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        entries = [entry["message"] for entry in self.driver.get_log("performance")]
        return [entry for entry in entries if "Network.requestWillBeSent" in entry]
