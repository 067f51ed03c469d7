"""All that a training run can be told, as frozen data and as a TOML file; unknown keys and wrong types are refused."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from deepauc.models.average import Buildable
from deepauc.models.build import ModelSpec
from deepauc.training.identity import names_of
from deepauc.training.plain import IMAGE_MODELS, MODELS, OBJECTIVES, OPTIMIZERS, SCHEDULES, to_plain, valid_name
from deepauc.training.plan.inputs import PlanOptions
from deepauc.training.recipe import ObjectiveSpec, OptimizerSpec, Recipe
from deepauc.training.schedule import Schedule

T = TypeVar("T")

MAX_BYTES = 1 << 20
AUTO = "auto"  # of folds

# Where a key takes one of several specs, its table says which by `type`.
_KINDS: dict[Any, tuple[type, ...]] = {
    ObjectiveSpec: OBJECTIVES,
    OptimizerSpec: OPTIMIZERS,
    Schedule: SCHEDULES,
    ModelSpec: MODELS,
    Buildable: IMAGE_MODELS,  # inside a network of bags
}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes"}
_PLAN_INSTEAD = (
    " A recipe in a file is complete. To change one thing of the plan, take [recipe] out, print the plan with "
    "`--print-config > plan.toml` (--model, or model under [plan], names its network), make the change there and train "
    "with `--config plan.toml`."
)


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where the rows come from; paths as on the command line, relative to the folder one is in."""

    table: str | None = None
    packed: str | None = None  # the folder of a packed set instead: with it nothing else here but split_of
    image_column: str | None = None
    image_root: str | None = None  # what its paths are relative to; the table's folder by default
    label_columns: tuple[str, ...] = ()
    feature_columns: tuple[str, ...] = ()
    metadata_columns: tuple[str, ...] = ()  # numbers or words, cells may be empty
    category_columns: tuple[str, ...] = ()  # the same, never taken for numbers
    group_column: str | None = None
    id_column: str | None = None
    split_column: str | None = None
    split_of: str | None = None  # the folder of a run
    weight_column: str | None = None
    bag_column: str | None = None  # rows with one entry here are images of one exam, under one label
    positive: str | None = None  # the label that is positive, where labels are not 0 and 1
    image_size: tuple[int, int] | None = None  # height, width
    skip_bad: bool = False
    allow_outside: bool = False


@dataclass(frozen=True, kw_only=True)
class SplitSettings:
    """Fractions of a table without a split column; the seed is apart from the run's: all seeds share one test part."""

    train: float = 0.7
    validation: float = 0.15
    test: float = 0.15
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `deepauc train` and `fit` take. With a recipe nothing is left to plan.

    tune: how many pairs of margin and gamma to try. folds: how many folds of cross-validation, 0 for one split; a text
    is the column of the table that names each row's fold; "auto" decides by the number of rows of the rarer class
    (`data.folds.auto_folds`).
    """

    seed: int = 0
    tune: int = 0
    folds: int | str = AUTO
    data: DataSettings = field(default_factory=DataSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    plan: PlanOptions = field(default_factory=PlanOptions)
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "tune"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}.")
        if self.folds == "" or (isinstance(self.folds, int) and (self.folds < 0 or self.folds == 1)):
            raise ValueError(f"folds must be 0 (one split), 2 or more, a column, or {AUTO}, not {self.folds!r}.")
        if self.tune and self.folds not in (AUTO, 0):
            raise ValueError("tune tries margins on the validation part of one split: leave out folds, or tune.")
        if self.tune and self.plan.auc_stage == "none":
            raise ValueError(
                "tune tries margins of the AUC stage, which auc_stage none leaves out: give one of the two."
            )
        if self.recipe is not None and self.plan != PlanOptions():
            given = ", ".join(f.name for f in fields(self.plan) if getattr(self.plan, f.name) != f.default)
            raise ValueError(f"there is a complete recipe, so nothing is planned: change {given} in the recipe itself.")


def read_settings(path: str | Path) -> Settings:
    """A TOML file as Settings. Every fault is a ValueError with the place in the file and the nearest valid name."""
    path = Path(path)
    if not path.is_file():  # opening a pipe would wait for ever
        raise ValueError(f"{path} does not exist.")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{path} has {size:,} bytes, too large for a file of settings.")
    try:
        content = tomllib.loads(_text(path))
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{path} is not a valid TOML file: {error}.") from None
    try:
        return build(Settings, content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: its tables are nested too deeply.") from None


def with_given(
    settings: Settings, *, data: Mapping[str, Any], plan: Mapping[str, Any], top: Mapping[str, Any]
) -> Settings:
    """The settings with what is given, that is not None, in place of their own; a value of another type is refused."""

    def given(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
        hints = get_type_hints(cls)
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
        return {name: _value(hints[name], value, name) for name, value in plain.items() if value is not None}

    return replace(
        settings,
        data=replace(settings.data, **given(DataSettings, data)),
        plan=replace(settings.plan, **given(PlanOptions, plan)),
        **given(Settings, top),
    )


def _text(path: Path) -> str:
    """UTF-8, also with the mark that Windows' editor puts first; UTF-16 with its mark, as its PowerShell redirects."""
    content = path.read_bytes()
    return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")


def build(cls: type[T], content: Mapping[str, Any]) -> T:
    """A frozen dataclass from nested plain data, by its annotations."""
    built: T = _table(cls, content, "")
    return built


def settings_toml(settings: Settings, *, comments: Sequence[str] = ()) -> str:
    """A file that `read_settings` turns into equal settings; what is None is left out, since that is the default."""
    plain = _without_types(to_plain(settings))
    if settings.recipe is not None:
        plain.pop("plan")
    header = [f"# {line}".rstrip() for comment in comments for line in comment.splitlines()]
    return "\n".join([*header, *_toml_table(plain, ())]) + "\n"


def _table(cls: type, content: Any, where: str) -> Any:
    if not isinstance(content, Mapping):
        raise ValueError(f"{where or 'the file'} must be a table with keys, not {content!r}.")
    options = {f.name: f for f in fields(cls) if f.init}
    hints = get_type_hints(cls)
    values = {}
    for name, value in content.items():
        if name == "type" and value in names_of((cls,)):
            continue
        place = f"{where}.{name}" if where else name
        try:
            valid_name(name, list(options), f"option of {cls.__name__}" if where else "section or option")
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        values[name] = _value(hints[name], value, place)
    for name, option in options.items():
        if name not in values and option.default is MISSING and option.default_factory is MISSING:
            remedy = _PLAN_INSTEAD if cls is Recipe else ""
            raise ValueError(f"{where}: {cls.__name__} needs {name}.{remedy}")
    try:
        return cls(**values)
    except (ValueError, OverflowError) as error:  # a whole number of any length is TOML, but not always a float
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


def _value(hint: Any, value: Any, where: str) -> Any:
    """The value, built where it is a table, checked where it is not."""
    if hint in _KINDS:
        return _spec(_KINDS[hint], value, where)
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    faults = []
    for option in options:
        if option is not NoneType:
            try:
                return _one(option, value, where)
            except ValueError as error:
                faults.append(error)
    words = [_WORDS[option] for option in options if option in _WORDS]
    if len(words) > 1 and not isinstance(value, list | dict):
        raise ValueError(f"{where} must be {' or '.join(words)}, not {value!r}.")
    raise faults[-1 if isinstance(value, list | dict) else 0]  # of a number and a list, the one that was meant


def _one(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _table(hint, value, where)
    if origin is tuple:
        return _array(arguments, value, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} must be a table with keys, not {value!r}.")
        return {name: _value(arguments[1], entry, f"{where}.{name}") for name, entry in value.items()}
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{where} must be one of {', '.join(map(str, arguments))}, not {value!r}.")
    elif hint is not Any:
        fits = isinstance(value, int | float if hint is float else hint)
        if not fits or (isinstance(value, bool) and hint is not bool):
            raise ValueError(f"{where} must be {_WORDS[hint]}, not {value!r}.")
    return value


def _array(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where} must be a list in square brackets, not {value!r}.")
    if arguments[-1] is Ellipsis:
        arguments = arguments[:1] * len(value)
    elif len(value) != len(arguments):
        raise ValueError(f"{where} must hold {len(arguments)} values, not {len(value)}.")
    return tuple(_value(hint, v, f"{where}[{i}]") for i, (hint, v) in enumerate(zip(arguments, value, strict=True)))


def _spec(kinds: tuple[type, ...], value: Any, where: str) -> Any:
    names = names_of(kinds)
    if not isinstance(value, Mapping) or "type" not in value:
        raise ValueError(f"{where} must be a table with a type: {', '.join(names)}.")
    try:
        cls = names[valid_name(str(value["type"]), list(names), "type for this entry")]
    except ValueError as error:
        raise ValueError(f"{where}.type: {error}") from None
    return _table(cls, value, where)


def _without_types(plain: Any, *, inside: str = "") -> Any:
    """`type` only where there is something to choose; the arguments of a user's own factory stay as they are."""
    if inside == "arguments" or not isinstance(plain, dict | list):
        return plain
    if isinstance(plain, list):
        return [_without_types(entry) for entry in plain]
    chosen = {cls.__name__ for kinds in _KINDS.values() for cls in kinds}
    kept = {k: v for k, v in plain.items() if v is not None and (k != "type" or v in chosen)}
    return {k: _without_types(v, inside=k) for k, v in kept.items()}


def _toml_table(content: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Plain values first, then the tables: TOML knows no way back to a table once a deeper one is open."""
    lines = [f"{_toml_key(k)} = {_toml_value(v)}" for k, v in content.items() if not _is_table(v)]
    for key, value in content.items():
        if not _is_table(value):
            continue
        place = (*path, key)
        name = ".".join(map(_toml_key, place))
        for one in value if isinstance(value, list) else [value]:
            lines += ["", f"[[{name}]]" if isinstance(value, list) else f"[{name}]", *_toml_table(one, place)]
    return lines


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))


def _toml_key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _toml_value(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, str):  # JSON's escapes are TOML's; DEL is the one that JSON leaves alone
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items()) + "}"
    return repr(value)
