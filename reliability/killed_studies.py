"""A study of many runs, killed while it tunes, selects, refits and writes: each run ends up recorded once and right."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from children import Child, run
from jobs import STUDY_RUNS, study_hash, study_job
from record import Row

if TYPE_CHECKING:
    from chaos import Chaos

ATTEMPTS = 20  # to find a moment before the end


class Studies:
    """The study that nothing happens to, and what became of killed ones."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos, whole = chaos, chaos.fresh()
        child = Child(partial(study_job, whole))
        child.wait_for("ready")
        began = time.monotonic()
        ending = child.wait(seconds=600)
        self.expected, self.seconds = study_hash(whole), time.monotonic() - began
        if not ending.good or self.expected == "not finished":
            raise RuntimeError(f"the uninterrupted study fails: {ending.error}")

    def killed(self, number: int) -> tuple[Path, list[str]]:
        """By turns at any moment of a study, and around the write of a tuning or a final record; with its marks."""
        folder, random = self.chaos.fresh(), self.chaos.random
        for _ in range(ATTEMPTS):
            child = Child(partial(study_job, folder))
            if number % 2:
                mark = ("tuning record begins", "final record begins")[number // 2 % 2]
                child.wait_for(mark, count=random.randint(1, STUDY_RUNS // 2), seconds=600)
                time.sleep(random.random() * 0.004)
            else:
                child.wait_for("ready")
                time.sleep(random.random() * self.seconds)
            child.kill()
            child.wait()
            if number % 3 == 2:  # and once more soon after it was started again
                child_again = Child(partial(study_job, folder))
                child_again.wait_for("ready")
                time.sleep(random.random() * self.seconds / 4)
                child_again.kill()
                child_again.wait()
            if self.now(folder) != self.expected:
                return folder, child.marks
            shutil.rmtree(folder)  # it was done: another moment
        raise RuntimeError("the study is too short to be killed in the middle")

    def now(self, folder: Path) -> str:
        try:
            return study_hash(folder)
        except ValueError as error:
            return str(error)

    def finishes_equal(self, folder: Path) -> bool:
        good = run(partial(study_job, folder), seconds=600).good and self.now(folder) == self.expected
        tidy = not list(folder.rglob(".*.part"))
        shutil.rmtree(folder)
        return good and tidy


def kills_in_studies(chaos: Chaos, count: int) -> Row:
    """`deepauc study run` while it tunes, selects, refits and writes; some again when they are started again."""
    studies = Studies(chaos)
    survivors = tuning = inside = 0
    for number in range(count):
        folder, marks = studies.killed(number)
        tuning += "final record begins" not in marks
        inside += sum("begins" in mark for mark in marks) > marks.count("record ends")
        survivors += studies.finishes_equal(folder)
    return Row(
        what="kill -9 in a study",
        trials=count,
        survivors=survivors,
        note=f"{tuning} before its first final record, {inside} in a record's write; "
        f"{STUDY_RUNS} runs, the same records, each run once",
    )


def damaged_record(chaos: Chaos) -> list[Row]:
    """The last record of a study is cut off anywhere, as by a full disk: it is made again from the run."""
    studies, trials, survivors = Studies(chaos), 4, 0
    for _ in range(trials):
        folder = chaos.fresh()
        child = Child(partial(study_job, folder))
        child.wait_for("record ends", count=chaos.random.randint(1, STUDY_RUNS - 1), seconds=600)
        child.kill()
        child.wait()
        path = folder / "results" / "smoke.jsonl"
        content = path.read_bytes()
        last = content[:-1].rfind(b"\n") + 1
        path.write_bytes(content[: chaos.random.randrange(last + 1, len(content))])
        survivors += studies.finishes_equal(folder)
    return [Row(what="truncated record of a study", trials=trials, survivors=survivors, note="made again from its run")]
