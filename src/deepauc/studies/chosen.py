"""What studies have chosen so far, and what those after them take over: from records alone, never from a test score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deepauc.studies.grid import Config
from deepauc.studies.records.book import Record, RecordBook, as_text, is_measured, validation_curve
from deepauc.studies.selection import NothingToChoose, TriedSetting
from deepauc.studies.study import Inherits, Study


class ChosenSettings(ABC):
    """The selection of each study, once all its tuning runs have a record; who makes one says how a record is found."""

    def __init__(self, studies: Sequence[Study], book: RecordBook) -> None:
        self.book = book
        self.unavailable: dict[str, str] = {}
        self._by_name = {study.name: study for study in studies}
        self._selected: dict[str, tuple[Config, Mapping[str, Any] | None]] = {}  # once chosen, for good

    @abstractmethod
    def tuning_record(self, study: Study, config: Config, seed: int) -> Record | None:
        """The record of this setting, what it inherits included, on this training set."""

    def inherited(self, study: Study) -> Config | None:
        """Settings from the study it inherits from; None as long as nothing is selected there."""
        if study.inherits is None:
            return {}
        parent = self._by_name[self.inherits_from(study.inherits)]
        selected = self.selected(parent)
        if selected is not None:
            known = {**parent.fixed, **selected[0]}
        elif records := self.book.final(parent.name):
            # Tuned with another cut than this call's: what it was refitted with was selected.
            known = {**records[-1]["fixed"], **records[-1]["config"]}
        else:
            return None
        return {axis: known[axis] for axis in study.inherits.axes if axis in known}

    def inherits_from(self, inherits: Inherits) -> str:
        """The study whose selection counts."""
        if len(inherits.sources) == 1:
            return inherits.study
        chosen = (name for name in inherits.sources if self.selected(self._by_name[name]) is not None)
        return next(chosen, inherits.study)

    def selected(self, study: Study) -> tuple[Config, Mapping[str, Any] | None] | None:
        """The chosen settings and how they were chosen; None while tuning runs are missing or if all went astray."""
        if study.name not in self._selected:
            try:
                found = self._choose(study)
            except NothingToChoose as error:
                self.unavailable[study.name] = str(error)
                return None
            if found is None:
                return None
            self._selected[study.name] = found
        return self._selected[study.name]

    def _choose(self, study: Study) -> tuple[Config, Mapping[str, Any] | None] | None:
        inherited = self.inherited(study)
        if inherited is None:
            return None
        source = {} if study.inherits is None else {"inherited from": self.inherits_from(study.inherits)}
        if not study.tuned:
            return {**inherited, **study.configs[0]}, source or None
        tried = []
        for config in ({**inherited, **one} for one in study.configs):
            curves = []
            for seed in study.tuning_seeds:
                record = self.tuning_record(study, config, seed)
                if record is None or not is_measured(record, study.measures):
                    return None  # at the first: asked before every pack, and to name a run takes a while
                curves.append(validation_curve(record, study.chosen_by))
            tried.append(TriedSetting(config=config, validation=tuple(curves)))
        best = study.select.choose(tried)
        values = best.values()
        return best.config, {
            "rule": {"type": type(study.select).__name__, **vars(study.select)},
            "configurations": len(tried),
            "training_sets": list(study.tuning_seeds),
            f"validation_{study.chosen_by}": [round(value, 5) for value in values],
            **source,
        }


class RecordedSettings(ChosenSettings):
    """Records found by what they say of their setting, so that no image is needed to name a run."""

    def __init__(self, studies: Sequence[Study], book: RecordBook) -> None:
        super().__init__(studies, book)
        self._records: dict[str, dict[tuple[str, int], Record]] = {}

    def tuning_record(self, study: Study, config: Config, seed: int) -> Record | None:
        latest = self._latest(study)
        found = latest.get((as_text(config), seed))
        if found is None and latest:
            same = (latest.get((as_text(other), seed)) for other in _same_runs(study, config))
            found = next((record for record in same if record is not None), None)
        return found

    def asked_for(self, study: Study) -> list[Record]:
        """Tuning records of the settings and training sets that are declared, with what is inherited now.

        Of two with one setting, as after another cut, the later one. While what it inherits from is open, the start of
        the latest record stands for it.
        """
        if not study.tuned:
            return []
        inherited = self.inherited(study)
        if inherited is None:
            latest = self.book.tuning(study.name)[-1:]
            own = {axis for config in study.configs for axis in config}
            inherited = {axis: value for one in latest for axis, value in one["config"].items() if axis not in own}
        configs = [{**inherited, **config} for config in study.configs]
        found = [self.tuning_record(study, config, seed) for config in configs for seed in study.tuning_seeds]
        return list({record["run"]: record for record in found if record is not None}.values())

    def to_tune(self, study: Study) -> int:
        """How many tuning runs are declared: settings with one recipe are one run."""
        if not study.tuned:
            return 0
        inherited = self.inherited(study)
        if inherited is None:  # what it will be is open
            return len(study.configs) * len(study.tuning_seeds)
        recipes = {study.recipe({**inherited, **config}, "tuning") for config in study.configs}
        return len(recipes) * len(study.tuning_seeds)

    def _latest(self, study: Study) -> dict[tuple[str, int], Record]:
        if study.name not in self._records:
            records = self.book.tuning(study.name)
            self._records[study.name] = {(as_text(one["config"]), one["seed"]): one for one in records}
        return self._records[study.name]


def _same_runs(study: Study, config: Config) -> Iterator[Config]:
    """Other settings of the grid that make this one's recipe: one run is recorded under one of them."""
    recipe = study.recipe(config, "tuning")
    for other in ({**config, **one} for one in study.configs):
        if other != config and study.recipe(other, "tuning") == recipe:
            yield other
