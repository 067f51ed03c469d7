"""run.json as types: what a run was told to do, on what, by which code, and what came of it.

Every reader goes through `RunRecord.of`. A run of an earlier version, or a damaged file, lacks entries: they are None
or empty here, and whoever cannot do without one says so. `plain` is the file as it stands, one's own notes included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from deepauc.metrics.comparison import Comparison
from deepauc.metrics.intervals import Estimate
from deepauc.names import Alike, group_word, objective_title
from deepauc.training.plain import from_plain
from deepauc.training.recipe import Recipe
from deepauc.training.run.fold_record import FoldsRecord, KeptCandidate, kept_candidate

IMAGES = "images"  # in the folder of a run on images and metadata with one split: the run on images alone
Aucs = Mapping[str, Mapping[str, Estimate[float]]]  # part -> label


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What tells a run from others: two hashes and the seed."""

    recipe: str | None = None
    data: str | None = None
    seed: int | None = None

    @classmethod
    def of(cls, plain: Any) -> Identity:
        return cls(**_simple(cls, _mapping(plain)))


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """The task that was trained on. rows: labelled ones by part."""

    name: str = ""
    kind: str = ""
    labels: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    unlabelled_rows: int = 0

    @classmethod
    def of(cls, plain: Any) -> TaskRecord:
        found = _mapping(plain)
        shape = tuple(side for side in _items(found.get("shape")) if isinstance(side, int))
        return cls(**_simple(cls, found), shape=shape)


@dataclass(frozen=True, kw_only=True)
class PackedData:
    """The packed set that a run was trained on. digest: of the inputs that were packed.

    named_rows: its rows have names, such as files. Numbers may be lines of a table, which say nothing elsewhere.
    """

    path: str = ""
    digest: str = ""
    images: bool
    named_rows: bool


@dataclass(frozen=True, kw_only=True)
class DataRecord:
    """What `deepauc train` says of its table; nothing of it is there for a run that was trained from Python."""

    table: str | None = None
    packed: PackedData | None = None
    image_column: str | None = None
    group_column: str | None = None
    id_column: str | None = None
    split_column: str | None = None
    weight_column: str | None = None
    label_columns: tuple[str, ...] = ()
    feature_columns: tuple[str, ...] = ()
    metadata_columns: tuple[str, ...] = ()
    category_columns: tuple[str, ...] = ()
    positive: str | None = None  # the label that is positive, where labels are not 0 and 1
    bag_column: str | None = None  # rows are bags, as this column names them, and counts are of bags
    images: int | None = None  # in all bags
    rows: int | None = None
    labelled: int | None = None
    unlabelled: int | None = None
    positives: Mapping[str, int] = field(default_factory=dict)  # by label
    negatives: Mapping[str, int] = field(default_factory=dict)
    groups: int | None = None
    skipped_rows: int = 0
    sets_of_identical_inputs: int = 0
    alike: tuple[Alike, ...] = ()

    def prevalence(self, label: str) -> float | None:
        """The share of positives among the labelled rows."""
        positives, negatives = self.positives.get(label, 0), self.negatives.get(label, 0)
        return positives / (positives + negatives) if positives + negatives else None

    @classmethod
    def of(cls, plain: Any) -> DataRecord:
        found = _mapping(plain)
        packed = _mapping(found.get("packed"))
        images, named = bool(packed.get("images")), bool(packed.get("named_rows"))
        return cls(
            **_simple(cls, {**found, "skipped_rows": len(_items(found.get("skipped_rows")))}),
            packed=PackedData(**_simple(PackedData, packed), images=images, named_rows=named) if packed else None,
            alike=_alike(found.get("alike")),
        )

    @property
    def names_rows(self) -> bool:
        """Whether rows are called by names (ids, files), not by their lines; False if nothing says."""
        named = self.id_column or self.image_column or self.bag_column
        return bool(named or (self.packed and self.packed.named_rows))

    @property
    def group_word(self) -> str:
        """What one of its groups is called."""
        return group_word(self.group_column)


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """A stage of the recipe as it was written down, by whichever version. plain: all of it."""

    objective: str  # its type
    views: int
    augment: Mapping[str, Any] | None
    start_from: str | None
    plain: Mapping[str, Any]

    @classmethod
    def of(cls, plain: Any) -> StageRecord:
        found = _mapping(plain)
        views = _count(found.get("views"))
        return cls(
            objective=str(_mapping(found.get("objective")).get("type", "?")),
            views=1 if views is None else views,
            augment=_mapping(found.get("augment")) or None,
            start_from=_text(found.get("start_from")),
            plain=found,
        )


@dataclass(frozen=True, kw_only=True)
class RecordedDecision:
    """What a plan chose, and why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PlanRecord:
    """What `deepauc train` chose by itself. pace, tuning: as written down, for the run that goes on."""

    decisions: tuple[RecordedDecision, ...] = ()
    pace: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, plain: Any) -> PlanRecord:
        found = _mapping(plain)
        each = [_mapping(one) for one in _items(found.get("choices"))]
        names = ("name", "value", "reason")
        return cls(
            decisions=tuple(RecordedDecision(**{name: str(one.get(name, "")) for name in names}) for one in each),
            pace=_mapping(found.get("pace")),
            tuning=_mapping(found.get("tuning")),
        )


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Which stage's network was kept. validation_auc: by stage. last_minus_stage: paired tests, where there are any.

    chosen_by: the metric on validation that decided, where it was not the AUC; own_values: that metric by stage.
    """

    winner: int
    validation_auc: Mapping[int, float]
    last_minus_stage: Mapping[int, Comparison]
    chosen_by: str | None = None
    own_values: Mapping[int, float] = field(default_factory=dict)

    @property
    def measure(self) -> str:
        """What decided."""
        return "AUC" if self.chosen_by is None else self.chosen_by

    @property
    def measured(self) -> Mapping[int, float]:
        """It by stage."""
        return self.validation_auc if self.chosen_by is None else self.own_values

    @classmethod
    def of(cls, plain: Any) -> Guard | None:
        found = _mapping(plain)
        winner = _count(found.get("winner"))
        if winner is None:
            return None
        tests = {}
        for number, one in _by_stage(found.get("last_minus_stage")).items():
            with suppress(LookupError, TypeError, ValueError):
                tests[number] = Comparison(*(float(one[name]) for name in ("difference", "low", "high", "p_value")))
        aucs, own = (
            {number: value for number, value in _by_stage(found.get(name)).items() if _is_number(value)}
            for name in ("validation_auc", "own_values")
        )
        chosen_by = _text(found.get("chosen_by")) if own.keys() >= aucs.keys() else None
        return cls(winner=winner, validation_auc=aucs, last_minus_stage=tests, chosen_by=chosen_by, own_values=own)

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "winner": self.winner,
            "validation_auc": {str(number): value for number, value in sorted(self.validation_auc.items())},
            "last_minus_stage": {str(number): asdict(test) for number, test in self.last_minus_stage.items()},
        }
        if self.chosen_by is not None:
            own = {str(number): value for number, value in sorted(self.own_values.items())}
            plain |= {"chosen_by": self.chosen_by, "own_values": own}
        return plain


@dataclass(frozen=True, kw_only=True)
class Results:
    """seconds: of the whole run, as far as they were measured. scoring_seconds: of the final scores among them."""

    auc: Aucs = field(default_factory=dict)
    seconds: float | None = None
    scoring_seconds: float | None = None
    guard: Guard | None = None

    @classmethod
    def of(cls, plain: Any) -> Results:
        found = _mapping(plain)
        auc: dict[str, dict[str, Estimate[float]]] = {}
        for part, labels in _mapping(found.get("auc")).items():
            each = {name: _items(values) for name, values in _mapping(labels).items()}
            whole = {name: values for name, values in each.items() if len(values) == 3 and all(map(_is_number, values))}
            auc[part] = {name: Estimate(*values) for name, values in whole.items()}
        return cls(
            auc=auc,
            seconds=_number(found.get("seconds")),
            scoring_seconds=_number(found.get("scoring_seconds")),
            guard=Guard.of(found.get("guard")),
        )

    def to_plain(self) -> dict[str, Any]:
        """What is there."""
        plain: dict[str, Any] = {"auc": plain_aucs(self.auc)}
        timed = {"seconds": self.seconds, "scoring_seconds": self.scoring_seconds}
        plain |= {name: value for name, value in timed.items() if value is not None}
        return plain if self.guard is None else {**plain, "guard": self.guard.to_plain()}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """All of run.json. leaks: what is in two parts, by kind; None: not looked for. sha256: of the run's files."""

    plain: Mapping[str, Any]
    identity: Identity
    task: TaskRecord
    data: DataRecord
    plan: PlanRecord
    network: str  # its type
    stages: tuple[StageRecord, ...]
    tta: int  # over how many augmented copies of an image a score of validation and test is the mean; 0: as it is
    results: Results
    folds: FoldsRecord | None  # of cross-validation; None: of one split
    inputs: KeptCandidate | None  # of images and metadata with one split: what validation has kept
    command: str
    leaks: Mapping[str, int] | None
    possible_leaks: int | None
    hardware: str | None
    versions: Mapping[str, str]
    commit: str | None
    numerics: int | None  # None: of a run from before they were counted
    sha256: Mapping[str, str] | None

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> RunRecord:
        """From the content of the file."""
        recipe, command, digests = _mapping(plain.get("recipe")), plain.get("command"), plain.get("sha256")
        return cls(
            plain=plain,
            identity=Identity.of(plain.get("identity")),
            task=TaskRecord.of(plain.get("task")),
            data=DataRecord.of(plain.get("data")),
            plan=PlanRecord.of(plain.get("plan")),
            network=str(_mapping(recipe.get("model")).get("type", "?")),
            stages=tuple(StageRecord.of(stage) for stage in _items(recipe.get("stages"))),
            tta=max(0, _count(recipe.get("tta")) or 0),
            results=Results.of(plain.get("results")),
            folds=FoldsRecord.of(plain.get("folds")),
            inputs=kept_candidate(plain.get("inputs")),
            command=" ".join(_texts(command)) if isinstance(command, list) else str(command or ""),
            leaks=_leaks(plain.get("leaks")),
            possible_leaks=_count(plain.get("possible_leaks")),
            hardware=_text(plain.get("hardware")),
            versions={str(name): str(value) for name, value in _mapping(plain.get("versions")).items()},
            commit=_text(plain.get("commit")),
            numerics=_count(plain.get("numerics")),
            sha256=digests if isinstance(digests, Mapping) else None,
        )

    def changed(self, **entries: Any) -> RunRecord:
        """With these entries of the file, as plain data, in place of its own or after them; None takes one out."""
        plain = {**self.plain, **entries}
        return RunRecord.of({name: value for name, value in plain.items() if name not in entries or value is not None})

    def recipe(self) -> Recipe:
        """ValueError where this version does not know it."""
        recipe = from_plain(self.plain.get("recipe"))
        if not isinstance(recipe, Recipe):
            raise ValueError("run.json is damaged: it has no recipe.")
        return recipe

    @property
    def choice(self) -> KeptCandidate | None:
        """The candidates and the one that was kept, on held-out rows of folds or on validation."""
        return self.inputs if self.folds is None else self.folds.choice

    @property
    def objectives(self) -> list[str]:
        """Of each stage, as people call it."""
        return [objective_title(stage.objective) for stage in self.stages]

    @property
    def kept_stage(self) -> int:
        """The number of the stage whose network is the run's: the guard's choice, or the last."""
        last = max(0, len(self.stages) - 1)
        guard = self.results.guard
        return guard.winner if guard is not None and 0 <= guard.winner <= last else last

    @property
    def baseline_stage(self) -> int:
        """The number of the earliest stage with scores, which those after it have to beat; views give none."""
        return next((number for number, stage in enumerate(self.stages) if stage.views == 1), 0)

    @property
    def made_by(self) -> dict[str, Any]:
        """The entries of `folder.surroundings`; a run from before them was made by numerics version 1."""
        return {
            "hardware": self.hardware,
            "versions": dict(self.versions),
            "commit": self.commit,
            "numerics": 1 if self.numerics is None else self.numerics,
        }


def plain_aucs(aucs: Aucs) -> dict[str, dict[str, list[float]]]:
    """[value, low, high] by part and label."""
    return {part: {label: [e.value, e.low, e.high] for label, e in found.items()} for part, found in aucs.items()}


def _leaks(found: Any) -> Mapping[str, int] | None:
    """A list with one entry a leak ({"what": kind, ...} or text), as earlier versions have it, or counts by kind."""
    if isinstance(found, Mapping):
        return {kind: count for kind, count in _counts(found).items() if count}
    if not isinstance(found, list):
        return None
    counts: dict[str, int] = {}
    for leak in found:
        kind = str(leak.get("what", "leak")) if isinstance(leak, Mapping) else str(leak).split(" ", 1)[0]
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _alike(found: Any) -> tuple[Alike, ...]:
    with suppress(AttributeError, LookupError, TypeError, ValueError):
        return tuple(
            Alike(
                what=one["what"],
                column=_text(one["column"]),
                count=int(one["count"]),
                examples=tuple(tuple(map(str, names)) for names in one["examples"]),
            )
            for one in _items(found)
            if one["what"] in ("group", "id", "category")
        )
    return ()


def _by_stage(value: Any) -> dict[int, Any]:
    """By the numbers of stages, which JSON keeps as text."""
    return {int(key): one for key, one in _mapping(value).items() if str(key).isdecimal()}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in _items(value))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return value if _is_number(value) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _counts(value: Any) -> dict[str, int]:
    return {str(name): count for name, count in _mapping(value).items() if _count(count) is not None}


_READ: Mapping[str, Callable[[Any], Any]] = {  # by what the field is annotated as
    "str": lambda value: _text(value) or "",
    "str | None": _text,
    "tuple[str, ...]": _texts,
    "int": lambda value: _count(value) or 0,
    "int | None": _count,
    "Mapping[str, int]": _counts,
}


def _simple(record: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that are texts, counts, or several of either, from entries of the same names."""
    return {one.name: _READ[str(one.type)](found.get(one.name)) for one in fields(record) if one.type in _READ}
