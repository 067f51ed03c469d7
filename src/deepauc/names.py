"""Names of patients, rows and categories: one form for those that look the same, and which others may be meant alike.

`é` may be one character or two, a blank may have no width, `１` may be full-width: on a screen nobody sees the
difference, but a patient with two names ends up in two parts. Every reader gives a name its `one_form`.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

MOST_EXAMPLES = 3  # of sets, and of the names of one
_LONGEST = 60  # letters of a name in a message
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:e[+-]?\d{1,3})?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+")
_LETTER_O = re.compile(r"(?<=\d)o+|o+(?=\d)")
_SEPARATORS = re.compile(r"[\s_-]+")
_BEFORE_NUMBER = re.compile(r"(?<=[^\W\d])-(?=\d)")
_FIRST_ZEROS = re.compile(r"(?<![\d.,])0+(?=\d)")
# Small Cyrillic and Greek letters by the Latin ones that they, or their capitals, look like; dashes and apostrophes.
_LOOK_ALIKES = str.maketrans(
    "авекмнорстухіїјѕԛԝһԁӏ" + "αβεζηικμνορτυχ" + "ıɑɡ" + "‐‒–—―−" + "‘’‛′",
    "abekmhopctyxiïjsqwhdl" + "abezhikmnoptyx" + "iag" + "------" + "''''",
    "\u034f\u115f\u1160\u2800" + "".join(map(chr, range(0xFE00, 0xFE10))),  # unseen, though not format characters
)


def one_form(text: str) -> str:
    """NFKC, without format and control characters (zero-width space, byte order mark, ...), blanks folded, stripped."""
    if not (text.isascii() and text.isprintable()):
        # Unseen characters first: one may stand between a letter and its accent, which NFKC then joins.
        seen = (c for c in text if c.isspace() or unicodedata.category(c) not in ("Cf", "Cc"))
        text = unicodedata.normalize("NFKC", "".join(seen))
    return " ".join(text.split())


def in_one_form(names: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`one_form` of every entry of an array; what is no text, or has it already, is returned as it is.

    So are characters beyond Unicode, which no string can hold: who reads them from a file refuses them.
    """
    if names.dtype.kind != "U" or not names.size:
        return names
    codes = np.ascontiguousarray(names, dtype=names.dtype.newbyteorder("=")).view(np.uint32)
    plain = ((codes > ord(" ")) & (codes < 127)) | (codes == 0)  # 0: the end of a shorter name
    if plain.all() or codes.max() > sys.maxunicode:
        return names
    return np.array([one_form(name) for name in names.ravel().tolist()], dtype=str).reshape(names.shape)


def loose_form(name: str, *, numbers: bool = True) -> Hashable:
    """Equal for names that a person may have meant alike: `P1` and `p1`, with a Cyrillic Р too; as numbers 12 and 012.

    name: in its `one_form`. numbers: whether those are compared by value, also inside a name (`P1`, `P-001`, `P_1`).
    """
    text = name.casefold()
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_LOOK_ALIKES))
    if not numbers:
        return text
    text = text.lstrip("'")  # '12 is how a spreadsheet is told that a number is text
    text = _LETTER_O.sub(lambda found: "0" * len(found[0]), text)
    with_point = text.replace(",", "") if _THOUSANDS.fullmatch(text) else text.replace(",", ".", 1)
    if _NUMBER.fullmatch(with_point):
        return Decimal(with_point)
    return _FIRST_ZEROS.sub("", _BEFORE_NUMBER.sub("", _SEPARATORS.sub("-", text)))


@dataclass(frozen=True, kw_only=True)
class Alike:
    """Different names in a column that may be meant alike. count: how many sets of them; examples: the first ones."""

    what: Literal["group", "id", "category", "fold"]
    column: str | None
    count: int
    examples: tuple[tuple[str, ...], ...]

    def text(self, word: str = "patient") -> str:
        """One sentence on what was found, one on what to do. word: what a group is called."""
        shown = ", ".join(" and ".join(map(_shown, names)) for names in self.examples)
        where = "" if self.column is None else f"column {self.column!r}: "
        one, several = {
            "group": (word, f"{word}s"),
            "id": ("row", "rows"),
            "category": ("category", "categories"),
            "fold": ("fold", "folds"),
        }[self.what]
        found = f"{self.count:,} {one if self.count == 1 else several} may be written in several ways, such as "
        found += f"{shown}. "
        remedy = {
            "group": f"They count as different {word}s, so the rows of one {word} may be in two parts, and an AUC too "
            f"good: write each {word} one way.",
            "id": "They count as different rows, so one row may be there twice: write each id one way.",
            "category": "They count as different categories: write each category one way.",
            "fold": "They count as different folds: write each fold one way.",
        }[self.what]
        return where + found + remedy


def find_alike(
    names: Iterable[str], *, what: Literal["group", "id", "category", "fold"], column: str | None = None
) -> Alike | None:
    """The sets of different names that have one `loose_form`, or None; names in their `one_form`, repeated or not.

    Categories that are one number count as one category everywhere, so of these only letters are compared.
    """
    first: dict[Hashable, str] = {}
    sets: dict[Hashable, list[str]] = {}
    for name in dict.fromkeys(names):
        key = loose_form(name, numbers=what != "category")
        if (known := first.setdefault(key, name)) != name and name:
            sets.setdefault(key, [known]).append(name)
    if not sets:
        return None
    examples = tuple(tuple(some[:MOST_EXAMPLES]) for some in list(sets.values())[:MOST_EXAMPLES])
    return Alike(what=what, column=column, count=len(sets), examples=examples)


def count_possible_leaks(groups: npt.NDArray[Any], parts: npt.NDArray[Any]) -> int:
    """How many sets of different names that may be one patient's lie in more than one part; (N,) both.

    A patient who is in two parts under one name is a certain leak, counted elsewhere.
    """
    parts_of: dict[str, set[str]] = {}
    for name, part in dict.fromkeys(zip(groups.tolist(), parts.tolist(), strict=True)):
        parts_of.setdefault(name, set()).add(part)
    alike: dict[Hashable, list[set[str]]] = {}
    for name, where in parts_of.items():
        alike.setdefault(loose_form(name), []).append(where)
    return sum(len(set.union(*sets)) > max(map(len, sets)) for sets in alike.values())


def _shown(name: str) -> str:
    """Quoted, and by its name the letter that looks like another one."""
    text = repr(name if len(name) <= _LONGEST else name[: _LONGEST - 3] + "...")
    odd = next((c for c in name if not c.isascii() and ord(c.casefold()[0]) in _LOOK_ALIKES), None)
    return text if odd is None else f"{text} (with {unicodedata.name(odd, 'an unseen character').lower()})"


_OBJECTIVES = {
    "CrossEntropy": "cross-entropy",
    "Focal": "focal loss",
    "AUCMargin": "AUC-M",
    "AUCSquare": "AUC-S",
    "PairwiseAUC": "all pairs",
    "PartialAUC": "partial AUC",
    "AveragePrecision": "average precision",
    "Contrastive": "contrastive",
    "SupervisedContrastive": "supervised contrastive",
}


def objective_title(kind: str) -> str:
    """What people call an objective; kind: its spec's class. One of the user's own has that name."""
    return _OBJECTIVES.get(kind, kind)


def counted(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def rows_have(count: int) -> str:
    """`1 row has`, `2,000 rows have`."""
    return f"{counted(count, 'row')} {'has' if count == 1 else 'have'}"


def leak_text(kind: str, count: int, word: str) -> str:
    """`2 patients` or `1 identical image`, in two parts. kind: of a leak; word: what a group is called."""
    return counted(count, {"patient": word, "features": "identical row"}.get(kind, f"identical {kind}"))


def group_word(column: str | None) -> str:
    """What to call rows that belong together; column: that of a table's groups, by the user's name for it.

    `patient` where no column says otherwise or its name does; `group` for what anything else holds: accounts, wells.
    """
    return "patient" if column is None or "patient" in column.lower() else "group"
