"""What to call the rows that belong together, in words to the user."""

from __future__ import annotations


def group_word(column: str | None) -> str:
    """`patient` where no column says otherwise or its name does; `group` for what anything else holds: accounts, wells.

    column: that of a table's groups, by the user's name for it.
    """
    return "patient" if column is None or "patient" in column.lower() else "group"
