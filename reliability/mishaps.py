"""What people do by accident: outputs that are no plain files, extreme numbers, files of one run in another's folder.

    python reliability/mishaps.py [--trials 600] [--seed 0] [--out FOLDER]

Every trial is a call of a command in this process. Writes results/reliability.json; the exit code is 1 if any
trial ended otherwise than it must. Needs Linux or macOS.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import random
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from record import Row, write_record

from deepauc.cli.main import run as run_command
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.build import MLPSpec
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage

NUMBERS = (0.0, -0.0, 5e-324, 1e-300, 1.1e-38, 1.2e-38, 1e-30, 1.0, -1.0, 1e19, 1e30, 1e37, 3e38, -3e38, 3.4e38)
NUMBERS += (-3.4e38, 1e39, 1e300, -1e308, math.inf, -math.inf, math.nan)
FILES = ("model.safetensors", "bundle.json", "scores.csv")
SECONDS = 30  # that a reader of a pipe waits


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command's exit code, and what it wrote to stdout and stderr."""

    code: int
    out: bytes
    err: str

    @property
    def refused(self) -> bool:
        """With one line, and exit code 2."""
        return self.code == 2 and len(self.err.splitlines()) == 1 and not self.err.startswith("Traceback")


class Mishaps:
    """Two runs on the same rows of numbers, a table of new ones, and a place for what is written."""

    def __init__(self, place: Path, *, seed: int) -> None:
        self.place, self.random, self.number = place, random.Random(seed), 0
        generator = np.random.default_rng(seed)
        features = generator.normal(size=(80, 3)).astype(np.float32)
        task = Task(
            name="numbers",
            kind="binary",
            source=ArrayInputs(features),
            labels=(features[:, 0] + generator.normal(size=80) > 0).astype(np.float32),
            label_names=("y",),
            parts={"train": np.arange(40), "validation": np.arange(40, 60), "test": np.arange(60, 80)},
            ids=np.array([f"r{row}" for row in range(80)]),
        )
        stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=2, batch_size=16)
        recipe = Recipe(model=MLPSpec(hidden=(8, 4)), stages=(stage,))
        notes = {"data": {"feature_columns": ["a", "b", "c"], "id_column": "id"}}
        for number, name in enumerate(("one", "two")):
            train(recipe, task, seed=number, run_dir=place / name, device="cpu", notes=notes)
        self.cells = [[f"{value:.4g}" for value in row] for row in features[:12]]
        self.table = self.write_table(place / "new.csv", self.cells)

    def write_table(self, path: Path, cells: list[list[str]]) -> Path:
        rows = [["id", "a", "b", "c"], *([f"n{row}", *numbers] for row, numbers in enumerate(cells))]
        path.write_text("".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def folder(self) -> Path:
        """A new, empty one."""
        self.number += 1
        path = self.place / f"trial-{self.number}"
        path.mkdir()
        return path

    def call(self, *words: object) -> Ended:
        out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
        code = 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                run_command([str(word) for word in words])
            except SystemExit as end:
                code = int(end.code or 0)
            out.flush()
        return Ended(code=code, out=out.buffer.getvalue(), err=err.getvalue())  # type: ignore[attr-defined]

    def predict(self, run: Path, out: object, *words: object, table: Path | None = None) -> Ended:
        chosen = ("--table", table or self.table, "--id-column", "id", "--device", "cpu")
        return self.call("predict", run, *chosen, "--out", out, *words)


def non_regular_outputs(mishaps: Mishaps, trials: int) -> Row:
    """Each gets the bytes that a plain file gets, or is refused; and is afterwards what it was before."""
    run = mishaps.place / "one"
    commands: dict[str, Callable[[object], Ended]] = {
        "predict": lambda out: mishaps.predict(run, out),
        "card": lambda out: mishaps.call("export", run, "--card", out),
    }
    plain = {}
    for name, command in commands.items():
        command(mishaps.place / name)
        plain[name] = (mishaps.place / name).read_bytes()
    survivors, seen = 0, Counter[str]()
    for number in range(trials):
        kind = list(OUTPUTS)[number % len(OUTPUTS)]
        name = mishaps.random.choice(list(commands))
        folder = mishaps.folder()
        survivors += OUTPUTS[kind](folder, commands[name], plain[name], mishaps.random)
        seen[kind] += 1
        shutil.rmtree(folder)
    return Row(what="non-regular outputs", trials=trials, survivors=survivors, note=_counted(seen))


Trial = Callable[[Path, Callable[[object], Ended], bytes, random.Random], bool]


def _pipe(folder: Path, command: Callable[[object], Ended], expected: bytes, _: random.Random) -> bool:
    pipe, found = folder / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    ended = command(pipe)
    reader.join(SECONDS)
    return ended.code == 0 and found == [expected] and stat.S_ISFIFO(pipe.lstat().st_mode) and _alone(folder, "pipe")


def _link(folder: Path, command: Callable[[object], Ended], expected: bytes, draw: random.Random) -> bool:
    """A chain of links to a file that may be there already."""
    (folder / "inside").mkdir()
    target = folder / "inside" / "target"
    if draw.random() < 0.5:
        target.write_bytes(b"old")
    names = ["target", *(f"link-{step}" for step in range(draw.randint(1, 5)))]
    for before, name in pairwise(names):
        (folder / "inside" / name).symlink_to(before)
    (folder / "out").symlink_to(Path("inside") / names[-1])
    ended = command(folder / "out")
    links = all((folder / "inside" / name).is_symlink() for name in names[1:])
    return ended.code == 0 and target.read_bytes() == expected and links and (folder / "out").is_symlink()


def _file(folder: Path, command: Callable[[object], Ended], expected: bytes, draw: random.Random) -> bool:
    out, mode = folder / "out", draw.choice((0o600, 0o640, 0o644, 0o664, 0o755))
    out.write_bytes(b"old")
    out.chmod(mode)
    ended = command(out)
    kept = stat.S_IMODE(out.stat().st_mode) == mode
    return ended.code == 0 and kept and out.read_bytes() == expected and _alone(folder, "out")


def _folder(folder: Path, command: Callable[[object], Ended], _: bytes, draw: random.Random) -> bool:
    place = folder / "place"
    place.mkdir()
    out = place
    if draw.random() < 0.5:
        out = folder / "link"
        out.symlink_to(place)
    return command(out).refused and place.is_dir() and not list(place.iterdir())


def _device(folder: Path, command: Callable[[object], Ended], _: bytes, draw: random.Random) -> bool:
    name = draw.choice([name for name in ("/dev/null", "/dev/full") if os.path.exists(name)])
    out = Path(name)
    if draw.random() < 0.5:
        out = folder / "link"
        out.symlink_to(name)
    ended = command(out)
    right = ended.code == 0 if name == "/dev/null" else ended.refused
    return right and stat.S_ISCHR(os.stat(name).st_mode)


def _stdout(folder: Path, command: Callable[[object], Ended], expected: bytes, draw: random.Random) -> bool:
    ended = command(draw.choice(("-", "/dev/stdout")))
    return ended.code == 0 and ended.out == expected and not list(folder.iterdir())


OUTPUTS: dict[str, Trial] = {
    "pipe": _pipe,
    "chain of links": _link,
    "file with permissions": _file,
    "folder": _folder,
    "device": _device,
    "stdout": _stdout,
}


def _alone(folder: Path, name: str) -> bool:
    return [path.name for path in folder.iterdir()] == [name]


def extreme_numbers(mishaps: Mishaps, trials: int) -> Row:
    """In a table or in bundle.json: finite scores, or a refusal in one line that leaves nothing behind."""
    survivors, seen = 0, Counter[str]()
    for number in range(trials):
        folder = mishaps.folder()
        run, table, out = mishaps.place / "one", mishaps.table, folder / "scores.csv"
        in_table = number % 2 == 0
        if in_table:
            cells = [list(row) for row in mishaps.cells]
            for _ in range(mishaps.random.randint(1, 4)):
                mishaps.random.choice(cells)[mishaps.random.randrange(3)] = repr(mishaps.random.choice(NUMBERS))
            table = mishaps.write_table(folder / "new.csv", cells)
        else:
            run = shutil.copytree(run, folder / "run")
            _without_hashes(run)
            _change_a_number(run / "bundle.json", mishaps.random)
        words = ("--probability",) if mishaps.random.random() < 0.5 else ()
        ended = mishaps.predict(run, out, *words, table=table)
        # A table's problems are a list on stdout, and one line of what to do.
        refused = ended.refused and not out.exists()
        finite = ended.code == 0 and _finite(out)
        survivors += refused or finite
        seen[f"{'table' if in_table else 'bundle'}: {'scores' if finite else 'refused' if refused else 'FAULT'}"] += 1
        shutil.rmtree(folder)
    return Row(what="extreme but finite numbers", trials=trials, survivors=survivors, note=_counted(seen))


def _without_hashes(run: Path) -> None:
    """As an older release wrote it: else the change itself would be the reason."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    del record["sha256"]
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")


def _change_a_number(path: Path, draw: random.Random) -> None:
    plain = json.loads(path.read_text(encoding="utf-8"))
    number = draw.choice(NUMBERS)
    match draw.choice(("mean", "std", "threshold", "slope", "intercept")):
        case "mean" | "std" as name:
            plain["preprocessing"][name][draw.randrange(3)] = number
        case "threshold":
            plain["thresholds"]["y"][draw.choice(list(plain["thresholds"]["y"]))] = number
        case name:
            plain["calibration"]["y"][name] = number
    path.write_text(json.dumps(plain), encoding="utf-8")


def _finite(path: Path) -> bool:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return bool(rows) and all(
        math.isfinite(float(cell)) for row in rows for name, cell in row.items() if name in ("score", "probability")
    )


def mixed_up_folders(mishaps: Mishaps, trials: int) -> Row:
    """A file of another run, or changed: refused by every command that uses it; with --force, told."""
    survivors, seen = 0, Counter[str]()
    for number in range(trials):
        folder = mishaps.folder()
        run = shutil.copytree(mishaps.place / "one", folder / "run")
        name = mishaps.random.choice(FILES)
        how = mishaps.random.choice(("of another run", "cut short", "one byte changed", "longer"))
        content = (run / name).read_bytes()
        (run / name).write_bytes(_mixed_up(content, mishaps.place / "two" / name, how, mishaps.random))
        before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
        force = number % 4 == 3
        ended = _use(mishaps, run, name, folder / "out", *(("--force",) if force else ()))
        told = "is not the file that this run wrote" in ended.out.decode() + ended.err
        refused = ended.refused and not (folder / "out").exists()
        if how == "of another run" or name != "bundle.json":  # a bundle that cannot be read is refused for that
            refused = refused and (told or force)
        survived = refused or (force and ended.code == 0 and told)
        survivors += survived and all(path.read_bytes() == content for path, content in before.items())
        seen[f"{name} {'of another run' if how == 'of another run' else 'changed'}{' with --force' * force}"] += 1
        shutil.rmtree(folder)
    return Row(what="mixed-up folders", trials=trials, survivors=survivors, note=_counted(seen))


def _mixed_up(content: bytes, other: Path, how: str, draw: random.Random) -> bytes:
    if how == "of another run":
        return other.read_bytes()
    if how == "cut short":
        return content[: draw.randrange(1, len(content))]
    if how == "longer":
        return content + b"x,test,,1,0.5\n"
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]


def _use(mishaps: Mishaps, run: Path, name: str, out: Path, *words: str) -> Ended:
    """A command that uses this file; it writes to `out` if it writes."""
    scores, other = run / "scores.csv", mishaps.place / "two"
    uses: dict[str, Callable[[], Ended]] = {
        "card": lambda: mishaps.call("export", run, "--card", out, *words),
        "predict": lambda: mishaps.predict(run, out, *words),
        "bundle": lambda: mishaps.call("export", run, "--bundle", out, *words),
        "evaluate": lambda: mishaps.call("evaluate", scores, *words),
        "compare": lambda: mishaps.call("compare", other / "scores.csv", scores, "--common", *words),
        "report": lambda: mishaps.call("report", run, "--out", out),
        "baseline": lambda: mishaps.call("report", other, "--baseline", run, "--out", out),
    }
    own = ["card", "predict", "bundle"]
    if name == "scores.csv":
        own = ["card", "evaluate", "compare", *(() if words else ("report", "baseline"))]  # drawing takes seconds
    return uses[mishaps.random.choice(own)]()


def _counted(seen: Counter[str]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(seen.items()))


PHASES = (non_regular_outputs, extreme_numbers, mixed_up_folders)


def main() -> int:
    """Run all of it; 0 if everything survived."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--trials", type=int, default=600, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the record instead of results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mishaps-") as place:
        mishaps = Mishaps(Path(place), seed=options.seed)
        rows = [phase(mishaps, options.trials) for phase in PHASES]
    holds = write_record(
        "mishaps",
        command="make mishaps",
        about="What people do by accident: outputs that are pipes, links, devices, folders or stdout; extreme numbers "
        "in a table or a bundle; files of one run, or edited ones, in another run's folder. A trial survives if the "
        "right bytes arrive and nothing is replaced that should stay, or if the command refuses in one line.",
        rows=rows,
        seconds=time.monotonic() - began,
        out=options.out,
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
