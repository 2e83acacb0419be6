"""Writes docs/images/dryrun_report.png: the report page of a dry run, as a browser shows it.

In: a page, the parameter whose slices it shows. Out: the image. Needs Chromium.

    msparallel dryrun llama2_7b_dp2_tp2_pp2 --report report.html
    python docs/make_report_image.py report.html model.layers.0-31.mlp.down_proj.weight
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

TARGET = Path(__file__).with_name("images") / "dryrun_report.png"
WIDTH, HEIGHT = 1480, 1218


def main(page: str, parameter: str) -> None:
    with tempfile.TemporaryDirectory() as profile:
        browser = [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
            "--blink-settings=preferredColorScheme=1", f"--user-data-dir={profile}",
            f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=2000", f"--screenshot={TARGET}",
            f"{Path(page).resolve().as_uri()}#{quote(parameter)}",
        ]  # fmt: skip
        subprocess.run(browser, check=True, timeout=120, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main(*sys.argv[1:])
