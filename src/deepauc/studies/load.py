"""A Python file that declares studies in `STUDIES`: trusted code, loaded here and again in every worker process."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from deepauc.studies.entry import Entry
from deepauc.studies.study import StudySet
from deepauc.training.plain import valid_name

_loaded: dict[str, Path] = {}  # files by the name of their module


@dataclass(frozen=True)
class StudyFile:
    """What a file declares, by name."""

    path: Path
    entries: Mapping[str, Entry]

    def find(self, name: str | None = None) -> Entry:
        """An entry; where there is only one, its name may be left out. An unknown name is an error with the nearest."""
        if name is not None:
            return self.entries[valid_name(name, list(self.entries), f"study of {self.path}")]
        if len(self.entries) > 1:
            raise ValueError(
                f"{self.path} declares {len(self.entries)} studies; name one of them: {', '.join(self.entries)}."
            )
        return next(iter(self.entries.values()))


def load_studies(path: Path) -> StudyFile:
    """The entries of a file's `STUDIES`: each an `Entry`, or a `StudySet` with the default table."""
    declared = getattr(_module(path), "STUDIES", None)
    if declared is None:
        raise ValueError(f"{path} defines no STUDIES: add a list of StudySet or Entry, such as STUDIES = [my_set].")
    if not isinstance(declared, Sequence) or not declared:
        raise ValueError(f"{path}: STUDIES must be a list of StudySet or Entry with at least one of them.")
    entries: dict[str, Entry] = {}
    for one in declared:
        if not isinstance(one, StudySet | Entry):
            raise ValueError(f"{path}: STUDIES holds a {type(one).__name__}; it takes StudySet and Entry.")
        entry = Entry(studies=one) if isinstance(one, StudySet) else one
        if entry.name in entries:
            raise ValueError(f"{path}: two entries of STUDIES are called {entry.name!r}; their records would mix.")
        entries[entry.name] = entry
    return StudyFile(path, entries)


@dataclass(frozen=True)
class Parcel:
    """Something on its way to another process, which may be made of functions and classes of loaded files.

    Pickle names these by their module, so the receiver loads the same files first, by the same paths.
    """

    files: tuple[Path, ...]
    content: bytes

    @classmethod
    def of(cls, content: Any) -> Parcel:
        try:
            return cls(tuple(_loaded.values()), pickle.dumps(content))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"a study cannot be sent to another process ({error}): define its functions and classes at the top "
                "level of a file."
            ) from error

    def open(self) -> Any:
        for path in self.files:
            if path not in _loaded.values():  # once in a process: a second time its classes would be others
                _module(path)
        return pickle.loads(self.content)


def _module(path: Path) -> ModuleType:
    """The file as a module, under the same name in every process, its folder importable.

    In a package (a folder with an __init__.py) it is the package's module, and the folder above can be imported from.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist: name a Python file that defines STUDIES.")
    if path.suffix != ".py":
        raise ValueError(f"{path} is not a Python file: its name must end in .py.")
    path = path.resolve()
    top, package = path.parent, list[str]()
    while (top / "__init__.py").is_file():
        top, package = top.parent, [top.name, *package]
    if str(top) not in sys.path:
        sys.path.insert(0, str(top))
    try:
        if package:
            module = importlib.import_module(".".join([*package, path.stem]))
        else:
            module = _alone(f"deepauc_study_{path.stem}", path)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{_where(error, path)}: {_what(error)}") from error
    if module.__file__ is None or Path(module.__file__).resolve() != path:
        raise ValueError(f"{path} cannot be loaded: {module.__file__} has the same module name, {module.__name__}.")
    _loaded[module.__name__] = path
    return module


def _alone(name: str, path: Path) -> ModuleType:
    """Executed under this name, which the modules of its folder and installed ones do not have."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it is executed: dataclasses look it up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _where(error: BaseException, path: Path) -> str:
    """The line of a syntax error, else the last line of the file itself that was executed."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _what(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
