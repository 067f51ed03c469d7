"""Names of patients and rows in Unicode's many forms: those that look the same are one, those that may be are told.

    python reliability/ids.py [--tables 4000] [--out FOLDER]

Each trial is a table of patients with two rows each, whose names a seeded draw has written in two ways. Looks the same:
composed and decomposed letters, characters without width, other blanks and more of them, full-width digits. May be
meant alike: capitals, Cyrillic letters that look Latin, a decimal point or comma or zeros around a number, a number
inside a name with another separator. Writes results/reliability.json; the exit code is 1 if a patient was torn
apart, or not told of.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from record import Row, write_record

from deepauc.data.splits import split_by_fractions
from deepauc.data.table.read import check_table, read_table
from deepauc.reporting.evaluation.pairing import pair_rows
from deepauc.training.predict.known_rows import known_parts
from deepauc.training.run.scores import read_scores

PATIENTS = 20
LETTERS = "abcxyzABCXYZéñüßøçåŽжщЯλΩ中村한국ابגד1234567890-_./#"
UNSEEN = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u202a\u2066\U000e0061"
BLANKS = " \u00a0\u2003\u3000\t"
CYRILLIC = str.maketrans("acepxyABCEHKMOPTXY", "асерхуАВСЕНКМОРТХУ")
Pair = tuple[str, str]


def name_of(number: int, draw: random.Random) -> str:
    """A name that no other number has, in any form."""
    words = ["".join(draw.choices(LETTERS, k=draw.randint(1, 5))) for _ in range(draw.randint(1, 2))]
    return " ".join([*words, f"n{number}"])


def looks_the_same(name: str, draw: random.Random) -> str:
    """Some changes that nobody sees."""
    name = unicodedata.normalize(draw.choice(("NFC", "NFD", "NFKC", "NFKD")), name)
    letters = []
    for letter in name:
        if letter == " ":
            letters.append("".join(draw.choices(BLANKS, k=draw.randint(1, 3))))
        else:
            letters.append(chr(ord(letter) + 0xFEE0) if letter in "0123456789" and draw.random() < 0.3 else letter)
        if draw.random() < 0.3:
            letters.append(draw.choice(UNSEEN))
    ends = ["".join(draw.choices(BLANKS + UNSEEN, k=draw.randint(0, 2))) for _ in range(2)]
    return ends[0] + "".join(letters) + ends[1]


def same_pair(number: int, draw: random.Random) -> Pair:
    """Two forms of one name."""
    name = name_of(number, draw)
    return looks_the_same(name, draw), looks_the_same(name, draw)


def alike_pair(number: int, draw: random.Random) -> Pair:
    """Two names that may be meant alike."""
    kind = draw.choice(("capitals", "Cyrillic", "number", "number inside"))
    if kind == "number":
        ways = (f"{number}.0", f"00{number}", f"0{number}.", f"{number}.00", f"{number},0", f"'{number}")
        return str(number), draw.choice(ways)
    if kind == "number inside":
        ways = (f"P-{number}", f"P_{number}", f"P {number}", f"P0{number}", f"p-00{number}")
        return f"P{number}", draw.choice(ways)
    name = f"P{name_of(number, draw)}"
    return name, name.swapcase() if kind == "capitals" else name.translate(CYRILLIC)


def write(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    """A csv of these rows."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def one_part_each(folder: Path, pairs: Sequence[Pair], draw: random.Random) -> bool:
    """Both forms are one patient in the table and in its split."""
    names = [name for pair in pairs for name in pair]
    table = write(folder / "t.csv", [{"x": i, "y": i // 2 % 2, "p": name} for i, name in enumerate(names)])
    task, report = read_table(table, feature_columns=["x"], label_columns=["y"], kind="binary", group_column="p")
    task = split_by_fractions(task, fractions={"train": 0.6, "validation": 0.2, "test": 0.2}, seed=draw.randrange(99))
    where = np.full(len(task), "", dtype="U10")
    for part, rows in task.parts.items():
        where[rows] = part
    return report.groups == len(pairs) and not report.alike and bool((where[::2] == where[1::2]).all())


def one_row_each(folder: Path, pairs: Sequence[Pair], draw: random.Random) -> bool:
    """Two files of scores are joined, and the rows of a run are known, whatever form their ids have."""
    rows = [{"part": "train", "group": "", "label": i % 2, "score": draw.random()} for i in range(len(pairs))]
    order = draw.sample(range(len(pairs)), len(pairs))
    a = write(folder / "scores.csv", [{"id": pair[0], **row} for pair, row in zip(pairs, rows, strict=True)])
    b = write(folder / "b.csv", [{"id": pairs[i][1], **rows[i]} for i in order])
    pairing, known = pair_rows(read_scores(a), read_scores(b)), known_parts(folder)
    table = read_scores(b)
    return bool((pairing.a.scores == pairing.b.scores).all()) and known.keys() == set(table.ids.tolist())  # type: ignore[union-attr]


def told(folder: Path, pairs: Sequence[Pair], draw: random.Random) -> bool:
    """The check of a table and a file of scores count every patient who may be two."""
    names = draw.sample([name for pair in pairs for name in pair], 2 * len(pairs))
    rows = [{"x": i, "label": i % 2, "score": i, "group": name} for i, name in enumerate(names)]
    path = write(folder / "t.csv", rows)
    report = check_table(path, feature_columns=["x"], label_columns=["label"], kind="binary", group_column="group")
    return [one.count for one in report.alike] == [len(pairs)] and len(read_scores(path).notes) == 1


TRIALS: dict[str, tuple[Callable[[int, random.Random], Pair], Callable[[Path, Sequence[Pair], random.Random], bool]]]
TRIALS = {
    "patients whose names look the same, in a table and its split": (same_pair, one_part_each),
    "rows whose ids look the same, in files of scores and an older run": (same_pair, one_row_each),
    "patients whose names may be meant alike are told of": (alike_pair, told),
}


def main() -> int:
    """So many tables of each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=4000, help="of each kind")
    parser.add_argument("--out", type=Path, help="folder of the record instead of results")
    options = parser.parse_args()
    began, rows = time.monotonic(), []
    for what, (pair_of, holds) in TRIALS.items():
        survivors, first = 0, ""
        with tempfile.TemporaryDirectory() as place:
            for seed in range(options.tables):
                draw = random.Random(seed)
                pairs = [pair_of(number, draw) for number in range(10, 10 + PATIENTS)]
                good = holds(Path(place), pairs, draw)
                survivors += good
                first = first or ("" if good else f"; the first that does not hold: seed {seed}")
        rows.append(Row(what=what, trials=options.tables, survivors=survivors, note=f"{PATIENTS} names each{first}"))
    return not write_record(
        "ids",
        command="python reliability/ids.py",
        about="Names of patients and rows in Unicode's many forms: those that look the same are one patient or row, "
        "those that may be meant alike are told of. A trial is a table.",
        rows=rows,
        seconds=time.monotonic() - began,
        out=options.out,
    )


if __name__ == "__main__":
    sys.exit(main())
