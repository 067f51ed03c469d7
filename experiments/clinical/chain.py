"""Runs that start from other runs: five diseases, each from the network that cross-entropy trained on all of them.

A `Study` is one recipe on one task, so it cannot say this. Folders and records follow the same rules: a folder is named
by the hash of recipe, data, seed and parent, the same call again does only what has no record.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from deepauc.data.task import Task
from deepauc.models.build import require_files
from deepauc.studies.records.book import Record, RecordBook
from deepauc.studies.running.execution import Ended, OnEnd, OutOfTime, one_by_one, packed, time_limit
from deepauc.studies.sources import Place
from deepauc.training.engine.fast.packing import Job
from deepauc.training.engine.loop import can_be_fast, chosen_device
from deepauc.training.engine.stream import Stream
from deepauc.training.plain import recipe_hash, run_id, to_plain
from deepauc.training.recipe import Recipe
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.run import Run
from experiments.clinical.packs import side_by_side
from experiments.clinical.scores import kept_scores

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Link:
    """One training. parent: the run whose weights it starts from. about: further entries of its record."""

    study: str
    seed: int
    recipe: Recipe
    task: Task
    parent: Link | None = None
    tta: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        origin = "" if self.parent is None else self.parent.id
        return run_id(self.recipe, self.task.data_hash(), self.seed, origin=origin)

    @property
    def ranked(self) -> tuple[str, ...]:
        """Which test scores are in no ensemble: those are of runs with a loss, with TTA where there is any."""
        return ("plain", "tta") if "loss" not in self.about else ("plain",) if self.tta else ()

    def folder(self, place: Place) -> Path:
        return place.runs / self.id

    def job(self, place: Place) -> Job:
        return Job(recipe=self.started(place), task=self.task, seed=self.seed, run_dir=self.folder(place))

    def started(self, place: Place) -> Recipe:
        """The recipe that starts from the parent's folder."""
        if self.parent is None:
            return self.recipe
        first = replace(self.recipe.stages[0], start_from=str(self.parent.folder(place)))
        return replace(self.recipe, stages=(first, *self.recipe.stages[1:]))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Call:
    """What all parts of a call to `run_links` need to know."""

    book: RecordBook
    set_name: str
    place: Place
    device: torch.device
    pack: int | None
    report: Report
    deadline: float | None

    def done(self, link: Link) -> bool:
        return RunFolder(link.folder(self.place)).done


def run_links(
    set_name: str,
    links: Sequence[Link],
    place: Place,
    *,
    device: str | None = None,
    pack: int | None = None,
    max_minutes: float | None = None,
    report: Report | None = None,
) -> list[Record]:
    """Train what has no record, parents first; all records, in the order of the links.

    pack: how many side by side, by default as many as `side_by_side` says on a GPU and 1 elsewhere; a pack that does
    not fit into memory is halved, and each is written down as soon as it has ended. A run that fails stops the call.
    max_minutes: what is running then stops after its epoch, and the next call goes on from there; there are fewer
    records than links as long as any is left.
    """
    book, target = RecordBook.of(place.results, set_name), chosen_device(device)
    call = _Call(
        book=book,
        set_name=set_name,
        place=place,
        device=target,
        pack=1 if pack is None and target.type != "cuda" else pack,
        report=report or (lambda _: None),
        deadline=None if max_minutes is None else time.monotonic() + 60 * max_minutes,
    )
    with suppress(OutOfTime), time_limit(call.deadline):
        _run_missing(call, links)
    found = [book.find(link.study, "final", link.id) for link in links]
    return [record for record in found if record is not None]


def _run_missing(call: _Call, links: Sequence[Link]) -> None:
    missing = [link for link in links if call.book.find(link.study, "final", link.id) is None]
    for link in missing:
        if call.done(link):  # an earlier call was stopped before it could write this down
            _note(call, link)
    wanted: dict[str, Link] = {}
    for link in missing:
        _require(call, link, wanted)
    for model in {link.recipe.model for link in wanted.values() if not call.done(link)}:
        require_files(model)  # of all networks, before days of training with the first

    def ended(end: Ended) -> None:
        link = wanted[end.id]
        if end.message is not None:
            raise ValueError(f"{link.study}, seed {link.seed}: {end.message}")
        _note(call, link, waiting=sum(not call.done(other) for other in wanted.values()))
        if call.deadline is not None and time.monotonic() >= call.deadline:
            raise OutOfTime  # runs that were at their very end when the time was up have not stopped for it

    while waiting := [link for link in wanted.values() if not call.done(link)]:
        ready = [link for link in waiting if link.parent is None or call.done(link.parent)]
        alone = call.pack == 1 or not all(can_be_fast(link.recipe) for link in ready)
        for together in [[link] for link in ready] if alone else _packs(ready, call.pack):
            _train(call, together, ended)


def _require(call: _Call, link: Link, wanted: dict[str, Link]) -> None:
    """The link, and its ancestors where their weights are not there any more."""
    if link.parent is not None and not call.done(link.parent):
        _require(call, link.parent, wanted)
    wanted.setdefault(link.id, link)


def _train(call: _Call, together: Sequence[Link], ended: OnEnd) -> None:
    for link in together:
        folder = RunFolder(link.folder(call.place))
        if folder.record_path.exists() and folder.record().identity.recipe != recipe_hash(link.started(call.place)):
            shutil.rmtree(folder.path)
        folder.path.mkdir(parents=True, exist_ok=True)
        (folder.path / ".packed").unlink(missing_ok=True)
    first, last = together[0], together[-1]
    runs = f"{len(together)} runs side by side: {first.study} to {last.study}"
    call.report(runs if len(together) > 1 else f"{first.study}, seed {first.seed}")
    way = packed if len(together) > 1 else one_by_one
    way(together, call.place, call.device, deadline=None, ended=ended)  # the call has its own


def _packs(ready: Sequence[Link], pack: int | None) -> list[list[Link]]:
    """Links of one shape together: same network, images, labels, rows and steps; pack: at most, None: what fits."""
    shapes: dict[tuple[Any, ...], list[Link]] = {}
    for link in ready:
        stages = tuple((stage.epochs, stage.iterations, stage.batch_size) for stage in link.recipe.stages)
        rows = len(link.task.labelled("train"))
        steps = tuple(  # of an epoch: where uncertain labels are ignored, a stage may see fewer rows than the task has
            Stream(link.task, stage, seed=link.seed, number=number).per_epoch
            for number, stage in enumerate(link.recipe.stages)
        )
        key = (link.recipe.model, link.task.source.shape, link.task.num_labels, rows, steps, stages)
        shapes.setdefault(key, []).append(link)
    packs = []
    for alike in shapes.values():
        most = pack or side_by_side(alike[0].recipe, alike[0].task.source.shape)
        size = -(-len(alike) // -(-len(alike) // most))  # of equal size: what is left over would not fill the device
        packs += [alike[start : start + size] for start in range(0, len(alike), size)]
    return packs


def _note(call: _Call, link: Link, *, waiting: int = 0) -> None:
    """The record of a run that has ended; waiting: how many have not."""
    run = Run(link.folder(call.place))
    found, note = run.record, run.path / ".packed"
    shares = [float(row["alpha_zero_share"]) for row in run.history if row.get("alpha_zero_share")]
    packed = int(note.read_text()) if note.exists() else 1
    test = {name: (auc.value, auc.low, auc.high) for name, auc in run.auc("test").items()}
    record: Record = {
        "set": call.set_name,
        "study": link.study,
        "run": link.id,
        "phase": "final",
        "seed": link.seed,
        "parent": None if link.parent is None else link.parent.id,
        **link.about,
        # As declared: the folder of the parent, a path of this machine, is no part of it; `parent` names the run.
        "identity": {**asdict(found.identity), "recipe": recipe_hash(link.recipe)},
        "task": found.plain["task"],
        "recipe": to_plain(link.recipe),
        "auc": {"test": {name: [round(v, 6) for v in values] for name, values in test.items()}},
        "alpha_zero_share": round(sum(shares) / len(shares), 6) if shares else None,
        "seconds": round((found.results.seconds or 0.0) / packed, 3),
        "packed": packed,
        **found.made_by,
        **kept_scores(run, link.task, tta=link.tta, device=call.device, ranked=link.ranked),
    }
    call.book.add(record)
    mean = sum(value for value, *_ in test.values()) / len(test)
    left = "" if not waiting else f", {waiting} run{'s' * (waiting > 1)} left"
    call.report(f"{link.study}, seed {link.seed}: mean test AUC {mean:.3f}{left}")
