"""Everything that can go wrong around a run, done to it on purpose; then it is started again and compared.

    python reliability/chaos.py [--kills 50] [--seed 0] [--only NAME ...] [--out FOLDER]

kill -9 at random moments of an epoch, of a checkpoint's write, of a packing and of a study; a full disk, a read-only
folder, damaged checkpoints and records, pictures truncated and changed between epochs, a clock that jumps, memory that
runs out. A trial survives if what was started again ends with the same bytes as the run that nothing happened to
(history, scores, weights, bundle; of a study its records, each run once), and if what was damaged was refused with a
message, or done again, instead of believed. Writes results/reliability.json; the exit code is 1 if a trial does
not survive.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from children import Child, Ending, Job, Mark, can_mount, limit_memory, mount, own_mounts, run
from jobs import (
    pack_job,
    run_hash,
    set_hash,
    train_job,
    train_on_files_job,
    warm_up,
    write_table,
)
from killed_studies import damaged_record, kills_in_studies
from PIL import Image
from record import Row, write_record

from deepauc.data.packed.sets import open_packed

ATTEMPTS = 5  # to find a moment before the end


class Chaos:
    """The folders and the uninterrupted results that everything is compared with."""

    def __init__(self, place: Path, *, seed: int) -> None:
        self.place, self.random = place, random.Random(seed)
        self.whole, self.seconds, marks = self._uninterrupted()
        self.checkpoints = marks.count("checkpoint begins")
        self._number = 0

    def _uninterrupted(self) -> tuple[str, float, list[str]]:
        child = Child(partial(train_job, self.place / "whole"))
        child.wait_for("ready")
        began = time.monotonic()
        ending = child.wait()
        if not ending.good:
            raise RuntimeError(f"the uninterrupted run fails: {ending.error}")
        return run_hash(self.place / "whole"), time.monotonic() - began, child.marks

    def fresh(self) -> Path:
        """A path that is not there yet."""
        self._number += 1
        return self.place / f"trial-{self._number}"

    def finishes_equal(self, folder: Path) -> bool:
        """Start the run again, and see whether it ends as the uninterrupted one did."""
        good = run(partial(train_job, folder)).good and run_hash(folder) == self.whole
        tidy = not list(folder.glob(".*.part"))
        shutil.rmtree(folder, ignore_errors=True)
        return good and tidy

    def killed_run(self, *, share: float | None = None) -> Path:
        """A folder whose run was killed before its end, after its first checkpoint."""
        for _ in range(ATTEMPTS):
            folder = self.fresh()
            child = Child(partial(train_job, folder))
            reached = child.wait_for("checkpoint ends", count=self.random.randint(1, self.checkpoints - 2))
            if reached:
                time.sleep((share or self.random.random()) * 0.02)
                child.kill()
            child.wait()
            if (folder / "checkpoint.safetensors").exists() and not (folder / "DONE").exists():
                return folder
            shutil.rmtree(folder, ignore_errors=True)
        raise RuntimeError("the run is too short to be killed in the middle")


def kills_in_epochs(chaos: Chaos, count: int) -> Row:
    """At moments spread evenly over the time of a whole run; some are killed again when they are started again."""
    survivors = done = kills = 0
    for number in range(count):
        folder = chaos.fresh()
        wanted, killed = 1 + number % 3, 0
        for attempt in range(wanted + ATTEMPTS):
            child = Child(partial(train_job, folder))
            child.wait_for("ready")
            time.sleep(chaos.random.random() * chaos.seconds * 0.8**attempt)
            child.kill()
            child.wait()
            if not (folder / "DONE").exists():
                killed += 1
            elif not killed:  # it was faster than the one that was timed: another moment
                shutil.rmtree(folder)
                continue
            if killed == wanted or (folder / "DONE").exists():
                break
        kills += killed
        done += 1
        survivors += chaos.finishes_equal(folder)
    return Row(what="kill -9 in an epoch", trials=done, survivors=survivors, note=f"{kills} kills before the end")


def kills_in_writes(chaos: Chaos, count: int) -> Row:
    """Right after a checkpoint's write has begun, by up to the time that one takes."""
    survivors = inside = 0
    for _ in range(count):
        folder = chaos.fresh()
        child = Child(partial(train_job, folder))
        child.wait_for("checkpoint begins", count=chaos.random.randint(1, chaos.checkpoints))
        time.sleep(chaos.random.random() * 0.004)
        child.kill()
        child.wait()
        inside += child.marks.count("checkpoint begins") > child.marks.count("checkpoint ends")
        survivors += chaos.finishes_equal(folder)
    return Row(
        what="kill -9 in a checkpoint's write",
        trials=count,
        survivors=survivors,
        note=f"{inside} of them between the first and the last byte or sync",
    )


def kills_in_packing(chaos: Chaos, count: int) -> Row:
    """Of a new set, or of one that replaces another: what stands in its place is whole, the old set or the new."""
    hashes = {}
    began = time.monotonic()
    for seed in (0, 1):
        if not run(partial(pack_job, chaos.place / f"set-{seed}", seed=seed)).good:
            raise RuntimeError("the uninterrupted packing fails")
        hashes[seed] = set_hash(chaos.place / f"set-{seed}")
    seconds = (time.monotonic() - began) / 2
    survivors = early = 0
    for number in range(count):
        folder = chaos.fresh()
        replaces = bool(number % 2)
        if replaces:
            run(partial(pack_job, folder, seed=1))
        child = Child(partial(pack_job, folder, seed=0))
        child.wait_for("ready")
        time.sleep(chaos.random.random() * seconds)
        child.kill()
        child.wait()
        found = _set_in(folder)
        early += found != hashes[0]
        allowed = {hashes[0], hashes[1] if replaces else "none"}
        good = found in allowed and run(partial(pack_job, folder, seed=0)).good and set_hash(folder) == hashes[0]
        survivors += good
        shutil.rmtree(folder, ignore_errors=True)
    return Row(
        what="kill -9 in a packing",
        trials=count,
        survivors=survivors,
        note=f"{early} before the new set stood in its place; every second one replaces an older set",
    )


def _set_in(folder: Path) -> str:
    try:
        open_packed(folder, verify="full")
    except ValueError:
        return "none" if not folder.exists() else "damaged"
    return set_hash(folder)


PHASES: dict[str, tuple[float, Callable[[Chaos, int], Row]]] = {  # share of the kills
    "epoch": (0.4, kills_in_epochs),
    "checkpoint": (0.3, kills_in_writes),
    "packing": (0.3, kills_in_packing),
    "study": (0.32, kills_in_studies),
}


def fault(chaos: Chaos, what: str, job: Job, folder: Path, *, says: str, repair: Callable[[], None], note: str) -> Row:
    """The run under a fault ends with a message that holds `says`; without it, it ends as if nothing had been."""
    ending = run(job)
    refused = ending.status == 1 and says in ending.error
    repair()
    survives = refused and chaos.finishes_equal(folder)
    shown = note if refused else f"{note}; it ended with status {ending.status}: {ending.error[:300]}"
    return Row(what=what, trials=1, survivors=int(survives), note=shown)


def nothing() -> None:
    """The fault was in the process that has ended."""


def full_disk(chaos: Chaos) -> list[Row]:
    """A file system with room for the beginning of a run only, and a limit on the size of a file."""
    folder = chaos.killed_run()

    def small_files(mark: Mark) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        train_job(folder, mark)

    says = "what was saved before is untouched"
    note = "files limited to 2,000 bytes"
    first = fault(chaos, "file too large", small_files, folder, says=says, repair=nothing, note=note)
    if not can_mount():
        return [first]
    disk = chaos.fresh()
    disk.mkdir()
    sizes, endings = (8, 16, 24, 40), []
    for kilobytes in sizes:

        def on_a_small_disk(mark: Mark, size: int = kilobytes) -> None:
            own_mounts()
            mount("-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk))
            full = run(partial(train_job, disk / "run"))
            if full.good or says not in full.error:
                raise RuntimeError(f"on a full disk it ended with {full}")
            mount("-o", "remount,size=64m", str(disk))
            if not run(partial(train_job, disk / "run")).good or run_hash(disk / "run") != chaos.whole:
                raise RuntimeError("it did not recover")

        endings.append(run(on_a_small_disk))
    note = f"file systems of {', '.join(map(str, sizes))} kB, made larger later{''.join(map(_why, endings))}"
    good = sum(ending.good for ending in endings)
    return [first, Row(what="disk full", trials=len(sizes), survivors=good, note=note)]


def read_only(chaos: Chaos) -> list[Row]:
    """The folder of a killed run can no longer be written to."""
    folder = chaos.killed_run()
    if not can_mount():
        return []

    def job(mark: Mark) -> None:
        own_mounts()
        mount("--bind", str(folder), str(folder))
        mount("-o", "remount,bind,ro", str(folder))
        train_job(folder, mark)

    note = "a read-only mount"
    return [fault(chaos, "read-only folder", job, folder, says="Read-only file system", repair=nothing, note=note)]


def damaged_checkpoint(chaos: Chaos) -> list[Row]:
    """Cut off, or a byte changed, anywhere: refused until it is deleted, as the message says."""
    rows = []
    for what in ("truncated checkpoint", "changed byte in a checkpoint"):
        folder = chaos.killed_run()
        path = folder / "checkpoint.safetensors"
        content = path.read_bytes()
        place = chaos.random.randrange(8, len(content))
        path.write_bytes(content[:place])
        if what != "truncated checkpoint":
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :])
        job = partial(train_job, folder)
        note = f"at byte {place} of {len(content)}"
        rows.append(fault(chaos, what, job, folder, says="Delete it to start again", repair=path.unlink, note=note))
    return rows


def changed_pictures(chaos: Chaos) -> list[Row]:
    """A picture is truncated, replaced or removed while the run goes on; the run stops and names it."""
    table = write_table(chaos.place / "pictures")
    victim = table.parent / "7.png"
    original = victim.read_bytes()
    whole = chaos.fresh()
    run(partial(train_on_files_job, whole, table))
    expected = run_hash(whole)
    rows = []
    for what in ("truncated image", "image changed between epochs", "image removed between epochs"):
        folder = chaos.fresh()
        ending = run(_with_a_change(partial(train_on_files_job, folder, table), partial(_change, victim, what)))
        named = ending.status == 1 and "7.png" in ending.error
        victim.write_bytes(original)
        again = run(partial(train_on_files_job, folder, table))
        good = named and again.good and run_hash(folder) == expected != "not finished"
        note = "the run stops and names the file; put back, it goes on"
        rows.append(Row(what=what, trials=1, survivors=int(good), note=note if good else f"{ending} {again}"))
    return rows


def _with_a_change(job: Job, change: Callable[[], None]) -> Job:
    """The job; after its second checkpoint, before the epoch that comes then, the change. Whoever made it from outside
    might come too late: beside a busy machine's other processes the run may end first.
    """

    def changed(mark: Mark) -> None:
        ended = 0

        def mark_and_change(text: str) -> None:
            nonlocal ended
            mark(text)
            ended += text == "checkpoint ends"
            if text == "checkpoint ends" and ended == 2:
                change()

        job(mark_and_change)

    return changed


def _change(victim: Path, what: str) -> None:
    replacement = victim.with_name("new.tmp")
    if what == "truncated image":
        content = victim.read_bytes()
        replacement.write_bytes(content[: len(content) // 2])
    elif what == "image changed between epochs":
        Image.new("L", (12, 12), 77).save(replacement, "png")
    else:
        victim.unlink()
        return
    replacement.replace(victim)


def clock_jump(chaos: Chaos) -> list[Row]:
    """The clock jumps by up to a month, forwards and backwards, at every look at it."""
    folder = chaos.fresh()
    jumps = random.Random(chaos.random.random())

    def job(mark: Mark) -> None:
        real = time.time, time.monotonic
        time.time = lambda: real[0]() + jumps.uniform(-1, 1) * 30 * 86400  # type: ignore[assignment]
        time.monotonic = lambda: real[1]() + jumps.uniform(-1, 1) * 30 * 86400  # type: ignore[assignment]
        train_job(folder, mark)

    ending = run(job)
    good = ending.good and run_hash(folder) == chaos.whole
    shutil.rmtree(folder, ignore_errors=True)
    note = f"by up to 30 days either way, at every look{_why(ending)}"
    return [Row(what="clock jump", trials=1, survivors=int(good), note=note)]


def out_of_memory(chaos: Chaos) -> list[Row]:
    """Less and less memory more than at the start; whatever happens, the run goes on afterwards."""
    survivors, ends = 0, []
    sizes = (200_000, 1_000_000, 4_000_000, 16_000_000)
    for size in sizes:
        folder = chaos.killed_run()

        def job(mark: Mark, folder: Path = folder, size: int = size) -> None:
            limit_memory(size)
            train_job(folder, mark)

        ending = run(job)
        said = ending.error.split(":")[0] or "no error"
        ends.append(f"{size // 1000} kB: {said if ending.status >= 0 else f'signal {-ending.status}'}")
        survivors += chaos.finishes_equal(folder)
    note = f"address space limited to so much more than at the start ({', '.join(ends)})"
    return [Row(what="out of memory", trials=len(sizes), survivors=survivors, note=note)]


def _why(ending: Ending) -> str:
    return "" if ending.good else f"; {ending.error[:300]}"


FAULTS: tuple[Callable[[Chaos], list[Row]], ...] = (
    full_disk,
    read_only,
    damaged_checkpoint,
    damaged_record,
    changed_pictures,
    clock_jump,
    out_of_memory,
)


def main() -> int:
    """All phases, all faults, one record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="moments at which a process is killed")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    names = (*PHASES, *(fault_of.__name__ for fault_of in FAULTS))
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, help="folder of the record instead of results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    began = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as place:
        chaos = Chaos(Path(place), seed=options.seed)
        for name, (share, phase) in PHASES.items():
            if name in options.only:
                rows.append(phase(chaos, max(1, round(share * options.kills))))
        for fault_of in FAULTS:
            if fault_of.__name__ in options.only:
                rows += fault_of(chaos)
    holds = write_record(
        "chaos",
        command="make chaos",
        about="A run, a packing or a study is killed, starved or fed damage, started again, and compared with the "
        "bytes of the one that nothing happened to.",
        rows=rows,
        seconds=time.monotonic() - began,
        out=options.out,
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
