"""Runs what a set of studies is missing: packed on a GPU, in local processes, on a cluster, or one after the other.

Every run has a folder named by the hash of recipe, data and seed, so the same call again only does what is missing. A
finished run is distilled into its record at once. A run that fails is reported at the end and costs no other.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from deepauc.studies.records.book import RecordBook, distil, is_measured
from deepauc.studies.running.cluster import Cluster, Crew, by_crew, seen_from_everywhere
from deepauc.studies.running.execution import Ended, one_by_one, packed, scoring_seconds
from deepauc.studies.running.first_stages import begun_with, own_stages, shares_first_stage, told_of
from deepauc.studies.running.missing import MissingRun, MissingRuns, same_shape
from deepauc.studies.running.process_crew import ProcessCrew
from deepauc.studies.running.ray_crew import joined
from deepauc.studies.sources import Place
from deepauc.studies.study import Study
from deepauc.training.engine.loop import chosen_device
from deepauc.training.plain import recipe_hash, to_plain
from deepauc.training.run.folder import RunFolder, surroundings
from deepauc.training.run.own_files import SCORES
from deepauc.training.run.run import Run

DEFAULT_PACK = 24
SMALLEST_PACK = 4  # fewer runs than this would waste the device: they wait for the next call
LONG_TO_KEEP = 5.0  # seconds: what takes less is not left to another call, however late it is,
LATE_KEEPING = 10.0  # as long as all that was kept so late has taken less than this
NOT_KEPT_OF_TUNING = ("scores.csv", "model.safetensors", "bundle.json")


@dataclass(frozen=True, kw_only=True)
class Step:
    """For a progress display: what has just ended, and how much is left of what is known now."""

    text: str
    done: int
    left: int
    seconds: float
    seconds_left: float | None


@dataclass(kw_only=True)
class StudiesOutcome:
    """What a call has done. failed: (run, message). unavailable: message by study. out_of_time: something is left."""

    done: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    out_of_time: bool = False
    seconds: float = 0.0


def run_studies(
    set_name: str,
    studies: Sequence[Study],
    *,
    place: Place,
    parents: Sequence[Study] = (),
    device: str | torch.device | None = None,
    pack: int | Callable[[Study], int] | None = None,
    jobs: int = 1,
    max_minutes: float | None = None,
    cluster: Cluster | None = None,
    report: Callable[[Step], None] | None = None,
) -> StudiesOutcome:
    """Tune, select, refit: all runs of these studies that have no record yet.

    parents: further studies, not run here, whose selection is inherited. pack: runs side by side on the device, a
    number or, for a GPU, a function of the study; by default 24 on a GPU and 1 elsewhere. jobs: local processes, one
    torch thread each, where runs are not packed.
    max_minutes: no run begins that is not expected to end in time, and what is running then stops after its epoch;
    the next call goes on from there. What is kept of a final run (test-time augmentation, say) counts as part of it
    once it is known how long that takes; where no time is left for it, the next call does it. cluster: as tasks of this
    Ray cluster, packed or not, instead of in this process.
    """
    if jobs < 1 or (isinstance(pack, int) and pack < 1):
        raise ValueError(f"pack and jobs must be at least 1, not {pack} and {jobs}.")
    if cluster is not None and jobs > 1:
        raise ValueError("jobs are local processes: on a cluster Ray starts as many tasks as fit.")
    place = place if cluster is None else seen_from_everywhere(place)
    with ExitStack() as here:
        crew: Crew | None = None
        if cluster is not None:
            crew, target = here.enter_context(joined(cluster, device))
        else:
            target = chosen_device(device)
        sizes = {study.name: _pack_of(study, pack, target) for study in studies}
        if jobs > 1:
            if max(sizes.values(), default=1) > 1:
                raise ValueError(
                    f"jobs {jobs} starts processes, but these runs share one process: leave jobs out, or set pack to 1."
                )
            crew = here.enter_context(closing(ProcessCrew(jobs)))
        began = time.monotonic()
        deadline = None if max_minutes is None else began + 60 * max_minutes
        book = RecordBook.of(place.results, set_name)
        missing = MissingRuns(studies, book, place, parents=parents, trains_here=crew is None or crew.local)
        at_once = 1 if crew is None else crew.slots
        session = _Session(set_name, missing, book, place, target, deadline, report, began, at_once, crew)
        _do_all(session, missing, sizes)
    # With no time left, nothing is loaded only to say what it waits for.
    session.outcome.unavailable = {
        **({} if session.outcome.out_of_time else missing.waiting()),
        **missing.unavailable,
    }
    session.outcome.seconds = time.monotonic() - began
    return session.outcome


def _pack_of(study: Study, asked: int | Callable[[Study], int] | None, device: torch.device) -> int:
    if isinstance(asked, int):
        return asked
    if device.type != "cuda":
        return 1
    return DEFAULT_PACK if asked is None else asked(study)


def _do_all(session: _Session, missing: MissingRuns, sizes: Mapping[str, int]) -> None:
    """Until nothing is left that can begin, or there is no time for it. sizes: of packs, by study."""
    while ready := missing.ready(leave_out=session.left_out):
        if session.distil_finished(ready):
            continue
        pack = sizes[ready[0].study.name]
        alike = [run for run in ready if sizes[run.study.name] == pack]
        in_packs = pack > 1 and session.crew is None  # a pack at a time; a crew is given all that is ready
        group = same_shape(alike, pack=pack) if in_packs else alike
        fitting = session.fitting(group)
        if fitting < min(SMALLEST_PACK if in_packs else 1, len(group)):
            session.outcome.out_of_time = True
            break
        session.execute(group[:fitting] if in_packs else group, pack=pack)
        if session.deadline is not None and time.monotonic() >= session.deadline:
            session.outcome.out_of_time |= bool(missing.ready(leave_out=session.left_out))
            break


@dataclass(eq=False)
class _Session:
    """One call: what it has done, and how fast."""

    set_name: str
    missing: MissingRuns
    book: RecordBook
    place: Place
    device: torch.device
    deadline: float | None
    report: Callable[[Step], None] | None
    began: float
    at_once: int  # processes or tasks; the seconds of packed runs are shares already
    crew: Crew | None = None
    outcome: StudiesOutcome = field(default_factory=StudiesOutcome)
    left_out: set[str] = field(default_factory=set)
    _rates: dict[object, float] = field(default_factory=dict)  # wall seconds a step of one run, by network and images
    # wall seconds of a run's final scores, by number of copies
    _scoring: dict[object, dict[int, float]] = field(default_factory=dict)
    # wall seconds of what is kept of a final run, by task and network
    _keeping: dict[object, float] = field(default_factory=dict)
    _kept_late: float = 0.0  # seconds after the deadline

    def distil_finished(self, ready: Sequence[MissingRun]) -> bool:
        """Records of runs that an earlier call, or another study, has finished.

        A tuning run that another study has recorded needs no folder: a search begins where the one before ended. Nor
        does a final run whose setting was chosen again, in another way: its record is told how.
        """
        there, names = 0, self.book.studies()
        for run in ready:
            own = [run.study.name] if run.phase == "final" else names
            found = (self.book.find(name, run.phase, run.id) for name in own)
            known = (one for one in found if one is not None and is_measured(one, run.study.measures))
            record = next(known, None)
            if record is not None and not (run.phase == "final" and run.told_by(record)):  # whose folder is lost
                self.book.add({**record, **run.about(self.set_name)})
                self.outcome.done += "failed" not in record
                self._tell(run, "recorded by another study" if run.phase == "tuning" else "trained before, chosen anew")
            elif not RunFolder(run.folder(self.place)).done:
                continue
            elif run.study.measures and not (run.folder(self.place) / SCORES).exists():
                shutil.rmtree(run.folder(self.place))  # recorded for a study that measures less
                continue
            else:
                self._keep(run)
            there += 1
        return bool(there)

    def fitting(self, runs: Sequence[MissingRun]) -> int:
        """How many of these runs, one after the other, are to end before the deadline; all, where nothing is known."""
        if self.deadline is None:
            return len(runs)
        left = self.deadline - time.monotonic()
        if left <= 0:
            return 0
        ends = accumulate((self._rate(run) or 0.0) * run.steps + self._after_training(run) for run in runs)
        return sum(end <= left for end in ends)

    def execute(self, group: Sequence[MissingRun], *, pack: int) -> None:
        """Train a group; each run that ends is written down, each that fails is remembered."""
        for run in group:
            folder = run.folder(self.place)
            if RunFolder(folder).record_path.exists() and not _goes_on(folder, run, self.place):
                shutil.rmtree(folder)
            folder.mkdir(parents=True, exist_ok=True)

        by_id = {run.id: run for run in group}

        def ended(end: Ended) -> None:
            run = by_id[end.id]
            if end.message is None:
                self._rates[_speed_key(run)] = max(end.seconds, 1e-9) / (run.steps * end.packed)
                scored = self._scoring.setdefault(_score_key(run), {})
                scored[run.recipe.tta] = scoring_seconds(run.folder(self.place))
                self._keep(run)
            else:
                self._fail(run, end.message, end.surroundings, diverged=end.diverged)

        deadline = self._end_of_training(group, pack=pack)
        if self.crew is not None:
            out_of_time = by_crew(
                group, self.place, self.device, crew=self.crew, pack=pack, deadline=deadline, ended=ended
            )
        else:
            way = packed if pack > 1 else one_by_one
            out_of_time = way(group, self.place, self.device, deadline=deadline, ended=ended)
        if out_of_time:
            self.outcome.out_of_time = True
            self.left_out |= {run.id for run in group}

    def _end_of_training(self, group: Sequence[MissingRun], *, pack: int) -> float | None:
        """The deadline, less what is to be kept of the runs that may end together."""
        if self.deadline is None:
            return None
        keeping = sorted(map(self._keep_seconds, group), reverse=True)
        return self.deadline - sum(keeping[: pack * self.at_once])

    def _keep(self, due: MissingRun) -> None:
        """The record of a finished run, now or, where what it keeps would take too long, in the next call."""
        seconds = self._keep_seconds(due)
        too_long = seconds > LONG_TO_KEEP or self._kept_late + seconds > LATE_KEEPING
        if self.deadline is not None and too_long and time.monotonic() + seconds > self.deadline:
            self.left_out.add(due.id)  # its folder is finished: `distil_finished` finds it
            self.outcome.out_of_time = True
            self._tell(due, "trained; the next call writes its record")
            return
        folder = due.folder(self.place)
        run = Run(folder)
        record = distil(
            run,
            about=due.about(self.set_name),
            phase=due.phase,
            packed=_packed_with(folder),
            measures=due.study.measures,
        )
        if shares_first_stage(due.recipe):
            record["first_stage"] = told_of(run)
        if shares_first_stage(due.recipe) or due.parent:  # as declared: where a network lies is no matter of the record
            record["recipe"] = to_plain(due.recipe)
            record["identity"] = {**record["identity"], "recipe": recipe_hash(due.recipe)}
        if due.phase == "tuning":
            record["recipe"] = due.brief_recipe()
        else:
            began = time.monotonic()
            # The devices of a cluster's crew are on other machines.
            here = self.device if self.crew is None or self.crew.local else None
            record |= due.study.task.keep(run, due.task, device=here)
            ended = time.monotonic()
            self._keeping[_keep_key(due)] = ended - began
            if self.deadline is not None:
                self._kept_late += max(0.0, ended - max(began, self.deadline))
        if due.phase == "final":
            self.book.set_aside_other_settings(record)
        self.book.add(record)
        if due.phase == "tuning":
            for name in NOT_KEPT_OF_TUNING:
                (folder / name).unlink(missing_ok=True)
        self.outcome.done += 1
        ((part, found),) = record["auc"].items()
        auc = fmean(values[0] for values in found.values()) if isinstance(found, dict) else found[0]
        self._tell(due, f"{'mean ' * isinstance(found, dict)}{part} AUC {auc:.3f}")

    def _fail(self, due: MissingRun, message: str, around: dict[str, Any] | None, *, diverged: bool) -> None:
        self.left_out.add(due.id)
        self.outcome.failed.append((due.text(), message))
        if diverged:
            identity = {"data": due.task.data_hash(), "seed": due.seed}
            self.book.add(
                {
                    **due.about(self.set_name),
                    "phase": due.phase,
                    "failed": message.replace(f"{due.folder(self.place)}{os.sep}", ""),  # a path of this machine
                    "identity": identity,
                    "recipe": due.brief_recipe(),
                    **(around or surroundings(self.device)),
                }
            )
        self._tell(due, f"failed: {message}")

    def _tell(self, due: MissingRun, result: str) -> None:
        if self.report is None:
            return
        left = self.missing.expected(due.study.group or due.study.name)
        rates = [self._rate(run) for run in left]
        known = [rate for rate in rates if rate is not None]
        seconds_left = sum(
            run.steps * (rate if rate is not None else max(known)) + self._after_training(run)
            for run, rate in zip(left, rates, strict=True)
        ) if known or not left else None  # fmt: skip
        self.report(
            Step(
                text=f"{due.text()}: {result}",
                done=self.outcome.done,
                left=len(left),
                seconds=time.monotonic() - self.began,
                seconds_left=None if seconds_left is None else seconds_left / self.at_once,
            )
        )

    def _rate(self, run: MissingRun) -> float | None:
        return self._rates.get(_speed_key(run))

    def _after_training(self, run: MissingRun) -> float:
        return self._score_seconds(run) + self._keep_seconds(run)

    def _score_seconds(self, run: MissingRun) -> float:
        """What the last final scores of this kind took, else in proportion to the copies; 0 where nothing is known."""
        known, copies = self._scoring.get(_score_key(run), {}), run.recipe.tta
        nearest = copies if copies in known else max(known, default=0)
        return known.get(nearest, 0.0) * max(1, copies) / max(1, nearest)

    def _keep_seconds(self, run: MissingRun) -> float:
        """What the last keep of this kind took; 0 for tuning runs, and where nothing is known."""
        return self._keeping.get(_keep_key(run), 0.0) if run.phase == "final" else 0.0


def _speed_key(run: MissingRun) -> object:
    first = own_stages(run.recipe)[0]
    return (run.recipe.model, run.task.source.shape, first.batch_size, first.precision)


def _score_key(run: MissingRun) -> object:
    return (run.study.task, run.recipe.model, run.phase)


def _keep_key(run: MissingRun) -> object:
    return (run.study.task, run.recipe.model)


def _goes_on(folder: Path, run: MissingRun, place: Place) -> bool:
    """Whether an unfinished run can be resumed: not if code with other options, or in another place, has begun it."""
    record = RunFolder(folder).record()
    begun = begun_with(run.started(place), record, place.runs)
    return begun is not None and record.identity.recipe == recipe_hash(begun)


def _packed_with(folder: Path) -> int:
    note = folder / ".packed"
    return int(note.read_text()) if note.exists() else 1
