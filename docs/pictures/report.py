"""The picture of a report: `python docs/pictures/report.py` trains on noisy digits and writes report.png beside it.

It needs a chromium and the package playwright. The AUC in the picture is of a made-up task and says nothing else.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
WIDTH, HEIGHT = 1180, 960
NOISE = 60
"""Standard deviation in grey values: without it the digits are too easy for a report to look at."""


def write_table(folder: Path) -> None:
    """Is it an 8? Three images per patient."""
    from sklearn.datasets import load_digits

    digits, draw = load_digits(), np.random.default_rng(0)
    with (folder / "patients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "target", "patient_id"])
        for number, (picture, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
            noisy = np.clip(picture * 255 / 16 + draw.normal(0, NOISE, picture.shape), 0, 255)
            Image.fromarray(noisy.astype(np.uint8)).save(folder / f"{number}.png")
            writer.writerow([f"{number}.png", int(digit == 8), f"p{number // 3}"])


def screenshot(page: Path, picture: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        tab.goto(page.as_uri())
        tab.screenshot(path=picture)
        browser.close()


def main() -> None:
    columns = ["--image-column", "file", "--label-column", "target", "--group-column", "patient_id"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder)
        command = [sys.executable, "-m", "deepauc_command", "train", "--table", str(folder / "patients.csv"), *columns]
        subprocess.run([*command, "--folds", "0", "--out", str(folder / "first")], check=True)
        screenshot(folder / "first" / "report.html", folder / "report.png")
        few_colours = Image.open(folder / "report.png").convert("RGB").quantize(64, dither=Image.Dither.NONE)
        few_colours.save(HERE / "report.png", optimize=True)


if __name__ == "__main__":
    main()
