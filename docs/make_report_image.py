"""Writes docs/images/dryrun_report.png or simulation_report.png: a report page as a browser shows it.

In: a page, and for a dry run the parameter whose slices it shows. Out: the image. Needs Chromium.

    msparallel dryrun llama2_7b_dp2_tp2_pp2 --report report.html
    python docs/make_report_image.py report.html model.layers.0-31.mlp.down_proj.weight
    msparallel simulate llama2_7b_dp2_tp2_pp2 --report report.html
    python docs/make_report_image.py report.html
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from msparallel.report.page import DRY_RUN, SIMULATION

IMAGES = Path(__file__).with_name("images")
WIDTH = 1480
PICTURES = {DRY_RUN: ("dryrun_report.png", 1218), SIMULATION: ("simulation_report.png", 1690)}
"""File and height of the picture of each kind of page."""


def main(page: str, parameter: str = "") -> None:
    text = Path(page).read_text(encoding="utf-8")
    name, height = next(picture for kind, picture in PICTURES.items() if text.startswith(kind.mark))
    with tempfile.TemporaryDirectory() as profile:
        browser = [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
            "--blink-settings=preferredColorScheme=1", f"--user-data-dir={profile}",
            f"--window-size={WIDTH},{height}", "--virtual-time-budget=2000", f"--screenshot={IMAGES / name}",
            f"{Path(page).resolve().as_uri()}#{quote(parameter)}",
        ]  # fmt: skip
        subprocess.run(browser, check=True, timeout=120, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main(*sys.argv[1:])
