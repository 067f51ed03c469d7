"""What a set of studies still has to do: which runs are missing, which can begin, which go together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepauc.data.task import Task
from deepauc.models.build import require_files
from deepauc.studies.chosen import ChosenSettings
from deepauc.studies.grid import Config
from deepauc.studies.records.book import Record, RecordBook, as_text, is_measured
from deepauc.studies.running.first_stages import own_stages
from deepauc.studies.sources import Place, TaskSource, comparable, is_for_choosing, without_test
from deepauc.studies.study import Phase, Study
from deepauc.training.engine.fast.packing import Job
from deepauc.training.engine.stream import Stream
from deepauc.training.plain import run_id, to_plain
from deepauc.training.recipe import Recipe
from deepauc.training.run.folder import RunFolder


@dataclass(frozen=True, kw_only=True, eq=False)
class MissingRun:
    """One training of a study, with the task it runs on."""

    study: Study
    phase: Phase
    config: Config
    seed: int
    recipe: Recipe
    task: Task
    id: str
    steps: int  # of the stages it trains itself; a first stage is shared
    shape: tuple[Any, ...]  # runs of one shape can be trained side by side
    selection: Mapping[str, Any] | None = None
    parent: str | None = None  # the id of the run it starts from; "" where others start from this one

    def folder(self, place: Place) -> Path:
        return place.runs / self.id

    def job(self, place: Place) -> Job:
        tuning = self.phase == "tuning"
        folder = self.folder(place)
        return Job(recipe=self.started(place), task=self.task, seed=self.seed, run_dir=folder, results_only=tuning)

    def started(self, place: Place) -> Recipe:
        """The recipe with the folder of the run that it starts from."""
        if not self.parent:
            return self.recipe
        first = replace(self.recipe.stages[0], start_from=str(place.runs / self.parent))
        return replace(self.recipe, stages=(first, *self.recipe.stages[1:]))

    def about(self, set_name: str) -> Record:
        """What the record says of the study; the rest comes from the run folder."""
        study = self.study
        record: Record = {
            "set": set_name,
            "study": study.name,
            "run": self.id,
            "config": dict(self.config),
            "seed": self.seed,
            "method": study.method.__name__,
            "fixed": dict(study.fixed),
            "source": {"type": type(study.task).__name__, "name": study.task.name, **to_source(study.task)},
            "cut": dict(study.cut),
            **study.about,
            **({} if self.parent is None else {"parent": self.parent or None}),
        }
        if self.phase == "final":
            return record | {"selection": self.selection}
        return record | {"tuning": dict(study.tuning)}

    def told_by(self, record: Record) -> bool:
        """Whether a record of this run also says how its setting was chosen now: the same one may come about anew.

        And whether it has all that the study measures.
        """
        if self.phase == "tuning" or not is_measured(record, self.study.measures):
            return is_measured(record, self.study.measures)
        mine = {"selection": self.selection, "cut": dict(self.study.cut)}
        return as_text(mine) == as_text({name: record.get(name) for name in mine})

    def brief_recipe(self) -> Any:
        return to_plain(self.recipe, defaults=False)

    def text(self) -> str:
        """For people: `C10-R-1-paper-auc_m tuning, set 0, margin=0.3, gamma=0.002`."""
        settings = ", ".join(f"{name}={_short(value)}" for name, value in self.config.items())
        return f"{self.study.name} {self.phase}, set {self.seed}" + (f", {settings}" if settings else "")


class TaskShelf:
    """Tasks made once: runs on one training set share it, and all sets of a benchmark share their images."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._tasks: dict[tuple[TaskSource, int, bool], Task] = {}
        self._steps: dict[tuple[object, ...], tuple[int, int]] = {}

    def task(self, source: TaskSource, seed: int, phase: Phase) -> Task:
        tuning = phase == "tuning"
        if (source, seed, tuning) not in self._tasks:
            task = source.load(seed, tuning=tuning, place=self.place)
            self._tasks[source, seed, tuning] = without_test(task) if tuning else task
        return self._tasks[source, seed, tuning]

    def steps(self, task: Task, recipe: Recipe, seed: int) -> tuple[tuple[int, int, int], ...]:
        """By stage: steps in all, steps of an epoch, batch size; without first stages, which are shared."""
        found = []
        for number, stage in enumerate(own_stages(recipe)):
            # All that decides which rows a stage sees: uncertain labels may leave some out, views take unlabelled ones.
            key = (id(task), stage.batch_size, stage.positives_per_batch, stage.on_views, repr(stage.uncertain))
            if key not in self._steps:
                stream = Stream(task, stage, seed=seed, number=number)
                self._steps[key] = (stream.per_epoch, stream.batch_size)
            per_epoch, batch = self._steps[key]
            found.append((stage.iterations or (stage.epochs or 0) * per_epoch, per_epoch, batch))
        return tuple(found)


class MissingRuns(ChosenSettings):
    """Reads records, never test scores: what is tuned, what is selected, what is missing."""

    def __init__(
        self,
        studies: Sequence[Study],
        book: RecordBook,
        place: Place,
        *,
        parents: Sequence[Study] = (),
        trains_here: bool = True,
    ) -> None:
        """trains_here: pretrained weights have to be on this machine, not on those of a cluster."""
        super().__init__((*parents, *studies), book)
        self.studies, self.shelf, self.trains_here = list(studies), TaskShelf(place), trains_here
        self._runs: dict[tuple[str, str, str, int], MissingRun] = {}

    def run(self, study: Study, phase: Phase, config: Config, seed: int) -> MissingRun:
        key = (study.name, phase, repr(sorted(config.items())), seed)
        if key not in self._runs:
            recipe = study.recipe(config, phase)
            task = self.shelf.task(study.task, seed, phase)
            comparable(task, several_labels=study.starts_from is not None)
            stages = self.shelf.steps(task, recipe, seed)
            precisions = tuple(stage.precision for stage in own_stages(recipe))
            inputs = (recipe.model, tuple(task.source.shape), len(task.source), task.num_labels)
            parent = self._parent(study, seed)
            origin = study.starts_from if parent is None else parent.id
            self._runs[key] = MissingRun(
                study=study,
                phase=phase,
                config=config,
                seed=seed,
                recipe=recipe,
                task=task,
                id=run_id(recipe, task.data_hash(), seed, origin=origin),
                steps=sum(total for total, _, _ in stages),
                shape=(*inputs, stages, precisions, recipe.test_curve),
                parent=origin,
            )
        return self._runs[key]

    def _parent(self, study: Study, seed: int) -> MissingRun | None:
        if not study.starts_from:
            return None
        source = self._by_name[study.starts_from]
        return self.run(source, "final", source.configs[0], seed)

    def _parent_first(self, run: MissingRun) -> MissingRun:
        """In its place the run that it starts from, where that one's folder is lost."""
        parent = self._parent(run.study, run.seed)
        lost = parent is not None and not RunFolder(parent.folder(self.shelf.place)).done
        return parent if lost and parent is not None else run

    def tuning_record(self, study: Study, config: Config, seed: int) -> Record | None:
        return self.book.find(study.name, "tuning", self.run(study, "tuning", config, seed).id)

    def tuning_runs(self, study: Study) -> list[MissingRun] | None:
        """Grid x training sets, missing or not; None where it cannot begin."""
        inherited = self.inherited(study)
        if inherited is None:
            return None
        configs = [{**inherited, **config} for config in study.configs]
        return [self.run(study, "tuning", config, seed) for config in configs for seed in study.tuning_seeds]

    def final_runs(self, study: Study) -> list[MissingRun] | None:
        """The selected setting on every seed; None before it is selected, or what it needs is there.

        Where a source is for choosing only, the selection is the end of the study.
        """
        if is_for_choosing(study.task):
            return []
        chosen = self.selected(study)
        if chosen is None or not self._needs_are_there(study):
            return None
        config, selection = chosen
        return [replace(self.run(study, "final", config, seed), selection=selection) for seed in study.seeds]

    def _needs_are_there(self, study: Study) -> bool:
        for name in study.needs:
            there = {record["seed"] for record in self.book.final(name)}
            if not set(study.seeds) <= there:
                return False
        return True

    def missing(self, study: Study) -> Iterator[MissingRun]:
        """Runs of the phase the study is in that have no record, or one that tells of another selection.

        Final runs that have diverged are over, too.
        """
        runs: list[MissingRun] = []
        if study.tuned and self.selected(study) is None:
            runs = self.tuning_runs(study) or [] if self._needs_are_there(study) else []
        else:
            runs = self.final_runs(study) or []
        diverged = {record["run"] for record in self.book.diverged(study.name)}
        for run in runs:
            record = self.book.find(study.name, run.phase, run.id)
            if run.id not in diverged and (record is None or not run.told_by(record)):
                yield run

    def waiting(self) -> dict[str, str]:
        """Studies that cannot go on, by name, and what for."""
        reasons = {}
        for study in self.studies:
            if study.name in self.unavailable:
                continue
            if study.inherits is not None and self.inherited(study) is None:
                reasons[study.name] = f"nothing is selected yet in {study.inherits.study}, whose settings it inherits"
            elif not self._needs_are_there(study):
                lost = [name for name in study.needs if self.book.diverged(name)]
                reasons[study.name] = f"the final runs of {', '.join(study.needs)} must be finished first"
                if lost:
                    reasons[study.name] += (
                        f", and some of {', '.join(lost)} have diverged: it cannot start without them"
                    )
        return reasons

    def expected(self, group: str) -> list[MissingRun]:
        """All runs of a group that are still to come, the final ones of unfinished tuning with its first setting."""
        runs: dict[str, MissingRun] = {}
        for study in self.studies:
            if (study.group or study.name) != group or study.name in self.unavailable:
                continue
            runs |= {run.id: run for run in self.missing(study)}
            inherited = self.inherited(study)
            refitted = study.tuned and not is_for_choosing(study.task)
            if refitted and self.selected(study) is None and inherited is not None and self._needs_are_there(study):
                first = {**inherited, **study.configs[0]}
                runs |= {f"{study.name} {seed}": self.run(study, "final", first, seed) for seed in study.seeds}
        return list(runs.values())

    def ready(self, *, leave_out: Collection[str] = ()) -> list[MissingRun]:
        """What can begin now in the first group that has anything: tuning first, then final runs; no run twice.

        leave_out: ids of runs that failed, or for which there is no time. A task that does not load takes its study
        out, and so do weights that are not here; `unavailable` has the message.
        """
        for group in dict.fromkeys(study.group or study.name for study in self.studies):
            runs: dict[str, MissingRun] = {}
            for study in self.studies:
                if (study.group or study.name) != group or study.name in self.unavailable:
                    continue
                try:
                    begun = map(self._parent_first, self.missing(study))
                    found = [run for run in begun if run.id not in {*leave_out, *runs}]
                    for model in {run.recipe.model for run in found} if self.trains_here else ():
                        require_files(model)
                    runs |= {run.id: run for run in found}
                except (ValueError, OSError) as error:
                    self.unavailable[study.name] = str(error)
            if runs:
                return sorted(runs.values(), key=lambda run: run.phase == "final")
        return []


def weights_not_here(studies: Sequence[Study], book: RecordBook) -> list[str]:
    """Why networks of studies that are not complete cannot start from their weights, each once; reads no image."""
    found: dict[str, None] = {}
    left = [one for one in studies if len(book.final(one.name)) < len(one.seeds)]
    for model in (one.recipe(one.configs[0], "final").model for one in left):
        try:
            require_files(model)
        except ValueError as error:
            found[str(error)] = None
    return list(found)


def same_shape(ready: Sequence[MissingRun], *, pack: int) -> list[MissingRun]:
    """The next runs to be trained side by side: those of the first one's shape, in packs of equal size."""
    alike = [run for run in ready if run.shape == ready[0].shape]
    packs = -(-len(alike) // pack)
    return alike[: -(-len(alike) // packs)]


def to_source(source: TaskSource) -> dict[str, Any]:
    return {name: value for name, value in vars(source).items() if isinstance(value, str | int | float | bool)}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
