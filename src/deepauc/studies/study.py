"""The declaration of a study: a task, a method, the settings to try, the rule that chooses, the seeds that count."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy.typing as npt

from deepauc.studies.grid import Config, Grid, product
from deepauc.studies.selection import BestMeanValidation, SelectionRule
from deepauc.studies.sources import TaskSource
from deepauc.training.plain import valid_name
from deepauc.training.recipe import Recipe

Phase = Literal["tuning", "final"]
Metric = Callable[[npt.NDArray[Any], npt.NDArray[Any]], Any]
AUC = "auc"  # what settings are chosen by unless a study says otherwise


TUNING_EVERY = 10  # epochs between two validations of a tuning run: selection looks at the last


@dataclass(frozen=True, kw_only=True)
class Inherits:
    """Settings taken from what another study of the set has selected.

    As long as nothing is selected there, they are those of the first of `otherwise` that has a selection; arguments
    that this one does not have keep the method's defaults.
    """

    study: str
    axes: tuple[str, ...]
    otherwise: tuple[str, ...] = ()

    @classmethod
    def after(cls, names: Sequence[str], *, axes: tuple[str, ...]) -> Inherits:
        """From the last of these that has a selection."""
        last, *earlier = reversed(names)
        return cls(study=last, otherwise=tuple(earlier), axes=axes)

    @property
    def sources(self) -> tuple[str, ...]:
        """The studies it may be taken from, the first that has a selection counting."""
        return (self.study, *self.otherwise)


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """One row of a table: `method` on `task`, tuned on validation AUC, then refitted on all training data.

    Args:
        name: What the table calls it.
        task: Where the data come from, such as a `TableSource`.
        method: A plain function of keyword arguments that returns a Recipe; axes of `grid`, `fixed` and `tuning` are
            its arguments, checked here.
        grid: Axes (all combinations) or a `Grid`; one configuration alone needs no tuning.
        fixed: Further arguments of `method`.
        select: The rule that chooses a setting.
        seeds: The random training sets (of a table: folds) of the final runs; the network's seed is the same number.
        tuning_seeds: Those it is tuned on, 90 % each, the rest being validation.
        tuning: Arguments that differ while tuning, such as fewer epochs.
        inherits: Take settings that another study has chosen.
        test_curve: Final runs keep the test AUC by epoch; tuning runs never see the test part.
        alpha_curve: Final runs keep alpha by step.
        curve_every: Epochs between two points of the test curve.
        group: Studies of one group are tuned together before any of them is refitted.
        cut: What was left out of the declared study; goes into the records.
        measures: Further metrics of scores and labels (n,), by name: records hold them on validation while tuning and
            on test at the end.
        chosen_by: The one of them that settings are chosen by on validation in place of the AUC.
        starts_from: The study of the same set whose network, of the same seed, the first stage starts from; "" for one
            that others start from. Neither is tuned, so that both may have several labels, with an AUC each in their
            records.
        about: Further entries of the records, for a page of one's own.
    """

    name: str
    task: TaskSource
    method: Callable[..., Recipe]
    grid: Grid | Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fixed: Config = field(default_factory=dict)
    select: SelectionRule = field(default_factory=BestMeanValidation)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    tuning_seeds: tuple[int, ...] = (0,)
    tuning: Config = field(default_factory=dict)
    inherits: Inherits | None = None
    test_curve: bool = False
    alpha_curve: bool = False
    curve_every: int = 1
    group: str = ""
    cut: Config = field(default_factory=dict)
    measures: Mapping[str, Metric] = field(default_factory=dict)
    chosen_by: str = AUC
    starts_from: str | None = None
    about: Config = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name or set(self.name) & set("/\\ *?[]"):
            raise ValueError(f"a study's name is part of file names: no spaces, slashes or wildcards in {self.name!r}.")
        grid = self.grid if isinstance(self.grid, Grid) else product(self.grid)
        object.__setattr__(self, "grid", grid)
        for seeds in (self.seeds, self.tuning_seeds):
            if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
                raise ValueError(f"study {self.name}: seeds are distinct whole numbers of at least 0, not {seeds}.")
        inherited = () if self.inherits is None else self.inherits.axes
        arguments = _keyword_arguments(self.method)
        for what, names in (
            ("axis of the grid", grid.axes),
            ("fixed argument", self.fixed),
            ("argument for tuning", self.tuning),
            ("inherited axis", inherited),
        ):
            for name in names:
                valid_name(name, arguments, f"{what} of study {self.name}: its method has no such argument")
        if AUC in self.measures:
            raise ValueError(f"study {self.name}: records have the AUC anyway: give the measure {AUC!r} another name.")
        valid_name(self.chosen_by, [AUC, *self.measures], f"measure of study {self.name}")
        sources = [*grid.axes, *self.fixed, *inherited]
        if twice := sorted({name for name in sources if sources.count(name) > 1}):
            raise ValueError(f"study {self.name}: {', '.join(twice)} is set in two of grid, fixed and inherits.")
        if self.starts_from is not None and self.tuned:
            raise ValueError(f"study {self.name}: only studies that are not tuned start from one another.")
        for config in grid.configs:
            for phase in ("final", "tuning"):
                self.recipe(config, phase)  # a value that the method refuses shows now, not in the middle of the night

    @property
    def configs(self) -> tuple[Config, ...]:
        assert isinstance(self.grid, Grid)
        return self.grid.configs

    @property
    def tuned(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.configs) > 1

    @property
    def needs(self) -> tuple[str, ...]:
        """Studies of the same set whose final runs of a seed come before this one's of that seed."""
        return (*self.task.needs, *([self.starts_from] if self.starts_from else []))

    def recipe(self, config: Config, phase: Phase) -> Recipe:
        """The run of a configuration, its inherited settings included."""
        changes = self.tuning if phase == "tuning" else {}
        recipe = self.method(**{**self.fixed, **config, **changes})
        curves = phase == "final"
        every = recipe.evaluate_every
        if not _looks_at_every_epoch(recipe) and (not curves or self.test_curve):
            every = max(every, self.curve_every) if curves else TUNING_EVERY
        return replace(
            recipe,
            test_curve=curves and self.test_curve,
            alpha_curve=curves and self.alpha_curve,
            evaluate_every=every,
        )

    def cut_to(
        self,
        *,
        configs: int | None = None,
        tune_epochs: int | None = None,
        tune_sets: int | None = None,
        options: Config | None = None,
    ) -> Study:
        """A smaller form, what was cut being recorded: fewer configurations, epochs or training sets while tuning.

        options: other fixed arguments of the method; those it does not have, or that the grid tries, are an error.
        """
        assert isinstance(self.grid, Grid)
        study, cut = self, dict(self.cut)
        if configs is not None and configs < len(self.grid):
            study = replace(study, grid=self.grid.first(configs))
            cut["configs"] = f"{configs} of {len(self.grid)}"
        if options:
            study = replace(study, fixed={**study.fixed, **options})
            cut.update(options)
        if study.tuned and tune_epochs is not None:
            study = replace(study, tuning={**study.tuning, "epochs": tune_epochs})
            cut["tune_epochs"] = tune_epochs
        if study.tuned and tune_sets is not None and tune_sets < len(study.tuning_seeds):
            study = replace(study, tuning_seeds=study.tuning_seeds[:tune_sets])
            cut["tune_sets"] = f"{tune_sets} of {len(self.tuning_seeds)}"
        return replace(study, cut=cut)


@dataclass(frozen=True, kw_only=True, eq=False)
class StudySet:
    """Studies that make one table.

    Args:
        name: Of the records and of the page.
        title: Of the page.
        studies: In the order in which they are run.
    """

    name: str
    title: str
    studies: tuple[Study, ...]

    def __post_init__(self) -> None:
        names = [study.name for study in self.studies]
        if len(set(names)) != len(names):
            raise ValueError(f"set {self.name}: two studies have one name.")
        for study in self.studies:
            for other in (*study.needs, *(() if study.inherits is None else study.inherits.sources)):
                valid_name(other, names, f"study of the set {self.name}, named by {study.name}")
        first = {study.name for study in self.studies if study.starts_from == ""}
        for study in self.studies:
            if study.starts_from and study.starts_from not in first:
                raise ValueError(
                    f"study {study.name} starts from {study.starts_from}, which must be declared with starts_from=''."
                )

    def parents(self, chosen: Sequence[Study]) -> tuple[Study, ...]:
        """Studies that are not chosen themselves, but whose selection a chosen one inherits, from however far."""
        wanted, waiting = set[str](), list(chosen)
        by_name = {study.name: study for study in self.studies}
        while waiting:
            inherits = waiting.pop().inherits
            named = () if inherits is None else inherits.sources
            waiting += [by_name[name] for name in named if name not in wanted]
            wanted |= set(named)
        return tuple(study for study in self.studies if study.name in wanted - {one.name for one in chosen})

    def chosen(self, patterns: Sequence[str]) -> tuple[Study, ...]:
        """Studies whose dash-separated name begins with one of the patterns (`C10-R-1`), or fits it (`*-auc_m`).

        Those that a chosen one needs come along.
        """
        names = [study.name for study in self.studies]
        found = set(chosen_names(names, patterns, f"study of the set {self.name}"))
        found |= {name for study in self.studies if study.name in found for name in study.needs}
        return tuple(study for study in self.studies if study.name in found)


def chosen_names(names: Sequence[str], patterns: Sequence[str], what: str) -> tuple[str, ...]:
    """Names whose dash-separated beginning is one of the patterns, or that fit one; all without any.

    A pattern that chooses none is an error, which calls the names `what`.
    """
    found: set[str] = set()
    for pattern in patterns:
        parts = pattern.split("-")
        mine = {name for name in names if name.split("-")[: len(parts)] == parts or fnmatchcase(name, pattern)}
        if not mine:
            valid_name(pattern, list(names), what)
        found |= mine
    return tuple(name for name in names if not patterns or name in found)


def cut_all(
    studies: Sequence[Study],
    *,
    configs: int | None = None,
    tune_epochs: int | None = None,
    tune_sets: int | None = None,
    options: Config | None = None,
) -> tuple[Study, ...]:
    """`Study.cut_to` for each; an option goes to the methods that have it, and one that none has is an error."""
    known = {study.name: _keyword_arguments(study.method) for study in studies}
    for name in options or {}:
        if studies:
            valid_name(name, sorted({argument for own in known.values() for argument in own}), "argument of a method")
    found = []
    for study in studies:
        own = {name: value for name, value in (options or {}).items() if name in known[study.name]}
        try:
            found.append(study.cut_to(configs=configs, tune_epochs=tune_epochs, tune_sets=tune_sets, options=own))
        except TypeError as error:  # of the method, which has got a text where it wants a number
            given = ", ".join(f"{name}={value!r}" for name, value in own.items())
            raise ValueError(
                f"study {study.name} cannot work with {given} ({error}). --set takes one KEY=VALUE; repeat it for more."
            ) from error
    return tuple(found)


def _keyword_arguments(method: Callable[..., Recipe]) -> list[str]:
    parameters = inspect.signature(method).parameters.values()
    if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters):
        raise ValueError(f"{method.__name__} takes any argument: name them, so that a study can check its axes.")
    return [p.name for p in parameters if p.kind != p.POSITIONAL_ONLY]


def _looks_at_every_epoch(recipe: Recipe) -> bool:
    return any(stage.keep == "best" or stage.patience is not None for stage in recipe.stages)
