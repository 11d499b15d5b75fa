"""Photograph the report of `results/pareto.json` in a browser: docs/pictures/report.png.

python benchmarks/screen.py    # needs a chromium of the system's, and pip install 'joulegrad[browser]'
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import shutil
import tempfile

from playwright.sync_api import sync_playwright

from joulegrad.lab.report.page import page
from tables import ROOT, results


def main() -> None:
    chromium = shutil.which("chromium") or sys.exit("there is no chromium on the path")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        file.write_text(page(results("pareto.json")))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1180, "height": 1330}, color_scheme="light")
        tab.goto(file.as_uri())
        tab.wait_for_selector("html[data-ready=yes]")
        tab.wait_for_timeout(500)
        tab.screenshot(path=ROOT / "docs/pictures/report.png")
        browser.close()


if __name__ == "__main__":
    main()
