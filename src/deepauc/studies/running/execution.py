"""Two ways to train a group of runs in this process: packed on one device, or one after the other."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from deepauc.data.task import Task
from deepauc.labels import Diverged
from deepauc.studies.running.first_stages import FirstStages
from deepauc.studies.running.missing import MissingRun, TaskShelf
from deepauc.studies.sources import Place, TaskSource
from deepauc.studies.study import Phase
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.loop import can_be_fast, train
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.interrupt import TrainingDiverged, Unheard


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run that is over, by its id. message: None, or why it failed; diverged: the same again would end the same.

    seconds: of wall time, for all `packed` runs together, without those of final scores (`scoring_seconds`), which are
    more the more copies there are. Where it was trained in another process, surroundings are the versions and hardware
    it failed with, and files its folder, if that is not shared.
    """

    id: str
    message: str | None
    seconds: float
    packed: int = 1
    diverged: bool = False
    surroundings: dict[str, Any] | None = None
    files: dict[str, bytes] = field(default_factory=dict)


OnEnd = Callable[[Ended], None]


class OutOfTime(Exception):
    """The deadline was reached; what was running has saved its state."""


def packed(
    runs: Sequence[MissingRun], place: Place, device: torch.device, *, deadline: float | None, ended: OnEnd
) -> bool:
    """All runs side by side, before them those that only the plain engine takes, alone. Whether the time ran out.

    One run that fails stops the pack. The others go on from their last checkpoint without the one under suspicion,
    which is tried again alone at the end, for its own message. A pack that does not fit into memory is halved.
    """
    fast = [run for run in runs if can_be_fast(run.recipe)]
    others = [run for run in runs if not can_be_fast(run.recipe)]
    if one_by_one(others, place, device, deadline=deadline, ended=ended):
        return True
    waiting, suspects = [fast] if fast else [], list[MissingRun]()
    while waiting:
        together = waiting.pop(0)
        error, seconds = _train_pack(together, place, device, deadline)
        _tell_done(together, place, ended, seconds)
        left = [run for run in together if not RunFolder(run.folder(place)).done]
        if isinstance(error, OutOfTime):
            return True
        if not left:
            continue
        if len(left) == 1:
            ended(Ended(id=left[0].id, message=_message(error), seconds=0, diverged=has_diverged(error)))
        elif isinstance(error, torch.OutOfMemoryError):
            half = len(left) // 2
            waiting[:0] = [left[:half], left[half:]]
        else:
            suspect = _suspect(error, left, place)
            suspects.append(suspect)
            waiting.insert(0, [run for run in left if run is not suspect])
    for run in suspects:
        (run.folder(place) / ".packed").unlink(missing_ok=True)
    return one_by_one(suspects, place, device, deadline=deadline, ended=ended) if suspects else False


def scoring_seconds(folder: Path) -> float:
    """What the final scores of a finished run took; runs of earlier versions do not say."""
    return RunFolder(folder).record().results.scoring_seconds or 0.0


def _train_pack(
    runs: Sequence[MissingRun], place: Place, device: torch.device, deadline: float | None
) -> tuple[Exception | None, float]:
    """What stopped the pack, if anything did, and its seconds without those of first stages that were missing.

    The exception is freed of its traceback, which would keep the networks alive.
    """
    for run in runs:
        (run.folder(place) / ".packed").write_text(str(len(runs)))
    jobs = [run.job(place) for run in runs]
    start = time.monotonic()
    try:
        with time_limit(deadline):
            jobs = _first_stages(place).onwards(jobs, device, side_by_side=True)
            start = time.monotonic()
            train_together(jobs, device=device)
    except Exception as error:
        stopped: Exception | None = error.with_traceback(None)
    else:
        stopped = None
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return stopped, time.monotonic() - start


def one_by_one(
    runs: Sequence[MissingRun], place: Place, device: torch.device, *, deadline: float | None, ended: OnEnd
) -> bool:
    """In this process. Whether the time ran out."""
    for run in runs:
        start = time.monotonic()
        if deadline is not None and start >= deadline:
            return True
        message, diverged = None, False
        try:
            with time_limit(deadline):
                _train_alone(run.job(place), place, device)
        except OutOfTime:
            return True
        except Exception as error:
            message, diverged = _message(error), has_diverged(error)
        seconds = time.monotonic() - start
        if message is None:
            seconds -= scoring_seconds(run.folder(place))
        ended(Ended(id=run.id, message=message, seconds=seconds, diverged=diverged))
    return False


def _train_alone(job: Job, place: Place, device: torch.device) -> None:
    """The first stage too, where it is not there yet; of processes that need the same one, one trains it."""
    (onwards,) = _first_stages(place).onwards([job], device, side_by_side=False)
    train(onwards.recipe, onwards.task, seed=onwards.seed, run_dir=onwards.run_dir, device=device)


@cache
def _first_stages(place: Place) -> FirstStages:
    return FirstStages(place.runs)


@cache
def _shelf(place: Place) -> TaskShelf:
    return TaskShelf(place)


def worker_task(source: TaskSource, seed: int, phase: Phase, place: Place) -> Task:
    """A task as a worker has it: made once for all its runs."""
    return _shelf(place).task(source, seed, phase)


@contextmanager
def time_limit(deadline: float | None) -> Iterator[None]:
    """OutOfTime once the deadline has passed and training has saved its state: it is told as Ctrl-C would tell it."""
    if deadline is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    fired = threading.Event()

    def stop() -> None:
        fired.set()
        if sys.platform == "win32":
            signal.raise_signal(signal.SIGINT)  # os.kill would end the process
        else:
            os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(max(deadline - time.monotonic(), 0.01), stop)
    timer.daemon = True
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as a script's background processes have it
    if ignored:
        signal.signal(signal.SIGINT, Unheard(fired))  # Ctrl-C stays so, the limit does not
    try:
        try:
            timer.start()  # in here: a short time may be over before this thread has its turn again
            yield
        finally:
            timer.cancel()
            if timer.is_alive():
                timer.join()  # it has rung by now, or never will: no interrupt comes when nobody expects it any more
    except KeyboardInterrupt:
        if fired.is_set():
            raise OutOfTime from None
        raise
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _tell_done(runs: Sequence[MissingRun], place: Place, ended: OnEnd, seconds: float) -> None:
    done = [run for run in runs if RunFolder(run.folder(place)).done]
    seconds -= sum(scoring_seconds(run.folder(place)) for run in done)
    for run in done:
        ended(Ended(id=run.id, message=None, seconds=seconds, packed=len(runs)))


def _suspect(error: Exception | None, runs: Sequence[MissingRun], place: Place) -> MissingRun:
    """The run an error belongs to: the one it names, else the first of those that got least far."""
    named = getattr(error, "run_dir", None)
    if named is not None:
        for run in runs:
            if Path(named) == run.folder(place):
                return run
    return min(runs, key=lambda run: _epochs_done(run.folder(place)))


def _epochs_done(folder: Path) -> int:
    path = folder / "history.csv"
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def has_diverged(error: Exception | None) -> bool:
    """Whether training went astray: the same again would end the same."""
    return isinstance(error, Diverged | TrainingDiverged)


def _message(error: Any) -> str:
    return " ".join(str(error).split()) or type(error).__name__
