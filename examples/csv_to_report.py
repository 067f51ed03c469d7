"""From a csv of images to a trained model, its report, and scores of new images: the commands, one after another.

python examples/csv_to_report.py [--out example-run] [--epochs 5]
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from deepauc.cli.main import run


def deepauc(*words: str) -> None:
    """The command line, in this process."""
    print("\n$ deepauc", *words, flush=True)
    try:
        run(words)
    except SystemExit as leaving:
        if leaving.code:
            raise


def write_table(folder: Path) -> Path:
    """What a clinic would have: image files, a label, a patient. Here: digits, is it an 8; three images a patient."""
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    table = folder / "patients.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "target", "patient_id"])
        for number, (picture, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
            name = f"{number:04}.png"
            Image.fromarray(np.rint(picture * 255 / 16).astype(np.uint8)).save(folder / name)
            writer.writerow([name, int(digit == 8), f"p{number // 3}"])
    return table


def main(out: Path = Path("example-run"), epochs: int = 5) -> Path:
    table = str(write_table(out / "images"))
    columns = ["--image-column", "file", "--label-column", "target", "--group-column", "patient_id"]
    deepauc("data", "check", table, *columns)
    deepauc("train", "--table", table, *columns, "--out", str(out / "run"), "--epochs", str(epochs))
    deepauc("predict", str(out / "run"), "--table", table, "--image-column", "file", "--out", str(out / "scores.csv"))
    return out / "run" / "report.html"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("example-run"))
    parser.add_argument("--epochs", type=int, default=5)
    print(f"Open {main(**vars(parser.parse_args()))} in a browser.")
