"""What CONTRIBUTING sends a newcomer to is there: files, names in them, and short names of the paper's pieces."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = [
    line
    for line in TEXT.split("## Where do I change X", 1)[1].split("\n## ", 1)[0].splitlines()
    if line.startswith("| ") and not line.startswith("| to change")
]
A_FILE = re.compile(r"[\w./-]+(?:\.(?:py|md|toml)|/)")


def place(name):
    at_the_top = name.startswith(("tests/", "docs/", "experiments/", "pyproject"))
    return ROOT / name if at_the_top else ROOT / "src/deepauc" / name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_file_is_there_and_holds_the_names_beside_it(row):
    """`file` (`name`, `name`): a name belongs to the file before it."""
    files, names = [], []
    for brackets, quoted in re.findall(r"\(([^()]*)\)|`([^`]+)`", row):
        if quoted and A_FILE.fullmatch(quoted):
            files.append(quoted)
        elif brackets and files:
            names += [(files[-1], name) for name in re.findall(r"`(\w+)`", brackets)]
    assert files
    for file in files:
        assert place(file).exists(), file
    for file, name in names:
        assert re.search(rf"\b{name}\b", place(file).read_text(encoding="utf-8")), (file, name)


def test_the_table_has_the_rows_that_newcomers_ask_for():
    asked = ("a loss", "a figure of the report", "a data set", "an augmentation", "a lever", "an option of a command")
    assert all(any(row.startswith(f"| {what}") for row in ROWS) for what in asked)


def test_every_short_name_of_the_paper_is_explained():
    glossary = (ROOT / "docs/reproduce.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"\| ([DA]\d) \|", glossary))
    sources = [
        path for folder in ("src", "docs") for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")
    ]
    used = {name for path in sources for name in re.findall(r"\b([DMA]\d)\b", path.read_text(encoding="utf-8"))}
    assert len(explained) == 16
    assert used == explained
