"""Whether the files of a finished run are those that it wrote, by the SHA-256 of each in its run.json."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from deepauc.training.run.folder import RunFolder

OWN = MODEL, BUNDLE, SCORES = "model.safetensors", "bundle.json", "scores.csv"
KEY = "sha256"  # of run.json


def digests(folder: Path) -> dict[str, dict[str, str]]:
    """What run.json says of these files when a run is finished; of those that the run has."""
    there = [name for name in OWN if (folder / name).is_file()]
    return {KEY: {name: _digest(folder / name) for name in there}} if there else {}


def require_own(folder: str | Path, *names: str, force: bool | None = False) -> tuple[str, ...]:
    """ValueError where one of these files is not what the run in this folder wrote, as after a mix-up or an edit.

    A caution for each file that is not, those among the run's that are not asked for too: they belong together. force:
    go on where one is asked for; None: whoever asks has no such option. A folder whose run.json has no such hashes
    (none at all, an older run, an exported bundle) is believed, and so is a file that no run has written.
    """
    known = None
    with suppress(ValueError):  # a damaged or foreign run.json is told of by those who need it
        known = RunFolder(Path(folder)).record().sha256
    if known is None:
        return ()
    used = [name for name in names if name in known]
    others = [name for name in OWN if name in known and name not in used]
    paths = [Path(folder) / name for name in (*used, *others)] if used else []
    changed = [path for path in paths if path.is_file() and _digest(path) != known[path.name]]
    if (refused := next((path for path in changed if path.name in used), None)) is not None and not force:
        otherwise = "" if force is None else " (--force uses this one)"
        raise ValueError(
            f"{refused} is not the file that this run wrote: it was changed, or comes from another run. Put the "
            f"run's own file back{otherwise}, or train again."
        )
    return tuple(
        f"{path} is not the file that this run wrote: it was changed, or comes from another run. The thresholds and "
        "results in the run's record may not hold for it"
        for path in changed
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
