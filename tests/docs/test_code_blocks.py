"""Every code block of the documentation runs, page by page, in the order a reader meets them.

Python blocks of a page share their names; `deepauc` lines of a shell block run in this process, training in short. A
block that cannot run says why in a comment above it (`<!-- not executed: reason -->`) or what it needs
(`<!-- needs: package -->`). A block that later ones read says as which file (`<!-- file: name -->`). A page that uses
the files of another one says which (`<!-- goes on from: start.md -->`). A block that uses the reader's own names says
what they stand for here (`<!-- given: model = ... -->`).
"""

import contextlib
import importlib.util
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from deepauc.cli.main import run

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
BLOCK = re.compile(r"(?P<marks>(?:^<!--.*?-->\n)*)^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
GOES_ON = re.compile(r"<!-- goes on from: ([\w-]+\.md) -->")
SHORT = ["--epochs", "1"]
"""What `train` is given besides what the page says, so that it ends in seconds; a settings file says all itself."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    marks: str
    line: int

    @property
    def reason(self) -> str | None:
        found = re.search(r"not executed: (.+?) -->", self.marks)
        return found[1] if found else None

    @property
    def needs(self) -> str | None:
        found = re.search(r"needs: (\w+) -->", self.marks)
        return found[1] if found else None

    @property
    def given(self) -> str:
        found = re.search(r"given: (.+?) -->", self.marks)
        return found[1] if found else ""

    @property
    def file(self) -> str | None:
        found = re.search(r"file: ([\w-]+\.(?:toml|py)) -->", self.marks)
        return found[1] if found else None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["language"], match["text"], match["marks"], 1 + text.count("\n", 0, match.start("text")))
        for match in BLOCK.finditer(text)
    ]


def run_python(page: Path, block: Block, names: dict[str, object]) -> None:
    exec(block.given, names)
    # Padded with empty lines, so that a traceback names the line of the page.
    exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)


def run_shell(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "deepauc", f"only deepauc's own commands run here, not {line!r}: say why it is not executed"
        with pytest.raises(SystemExit) as leaving:
            run([*words[1:], *shorter(words)])
        assert not leaving.value.code, line


def shorter(words: list[str]) -> list[str]:
    if words[1:3] == ["study", "run"] and not words[3].startswith("experiments/"):
        return ["--set", "epochs=1", "--seeds", "0,1"]
    if words[1] != "train" or "--config" in words:
        return []
    return [*SHORT, *(["--model", "small-cnn"] if "--image-column" in words else [])]


def run_page(page: Path) -> None:
    """In the current folder."""
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks_of(page):
        if block.reason is not None:
            continue
        if block.needs is not None and importlib.util.find_spec(block.needs) is None:
            continue
        if block.file is not None:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            run_python(page, block, names)
        elif block.language == "sh":
            run_shell(block)
        else:
            assert block.language in ("text", "toml"), f"{page.name}:{block.line}: {block.language or 'no language'}"


@pytest.fixture(scope="session")
def left_by(tmp_path_factory) -> Callable[[str], Path]:
    """The folder that the blocks of a page leave behind, each page run once."""
    folders: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in folders:
            made = tmp_path_factory.mktemp("page")
            with contextlib.chdir(made):
                run_page(ROOT / "docs" / name)
            folders[name] = made
        return folders[name]

    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page(page, tmp_path, left_by):
    if page.relative_to(ROOT).as_posix() == "docs/start.md":
        left_by("start.md")  # once, for the pages that go on from it too
        return
    before = GOES_ON.search(page.read_text(encoding="utf-8"))
    if before is not None:
        shutil.copytree(left_by(before[1]), tmp_path, dirs_exist_ok=True)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")  # what lies in the folder of a reader's clone
    with contextlib.chdir(tmp_path):
        run_page(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_records_and_files_that_a_page_names_are_there(page):
    text = re.sub(BLOCK, "", page.read_text(encoding="utf-8"))
    named = re.findall(r"`((?:results|examples|experiments|benchmarks|tests|src|docs)/[\w./-]+\.(?:md|py|json))`", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_pictures_are_small_and_used():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    pictures = [*(ROOT / "docs" / "pictures").glob("*.svg"), *(ROOT / "docs" / "pictures").glob("*.png")]
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < 150_000
        assert f"pictures/{picture.name}" in text
