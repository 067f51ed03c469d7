"""The entry point: help, version, and one line with exit code 2 for whatever is wrong with the input."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
import typer

from deepauc.cli import main
from deepauc.cli.main import run


def outcome(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        run(arguments)
    said = capsys.readouterr()
    return stopped.value.code, said.out, said.err


def test_help_names_the_commands_and_fits_one_screen(capsys):
    code, out, err = outcome(capsys, "--help")
    assert code == 0
    assert err == ""
    assert "demo" in out
    assert len(out.splitlines()) <= 24
    assert outcome(capsys)[1] == out  # without a command: the same


def test_version(capsys):
    code, out, _ = outcome(capsys, "--version")
    assert code == 0
    assert out.startswith("deepauc 0.")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
        (["demo", "--seed", "x"], "--seed"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "surplus"], "surplus"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_two(capsys, arguments, part):
    code, out, err = outcome(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("deepauc: ")
    assert part in err


@pytest.fixture
def failing(monkeypatch):
    """An app whose one command raises what it is told to."""

    def install(error):
        small = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        small.callback()(main.deepauc)

        @small.command()
        def fail() -> None:
            raise error

        monkeypatch.setattr(main, "app", small)

    return install


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("labels hold 7.\nName the positive class."), "labels hold 7. Name the positive class."),
        (ValueError(), "ValueError"),
        (FileNotFoundError(2, "No such file or directory", "scans.csv"), "No such file or directory: scans.csv"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(capsys, failing, error, line):
    failing(error)
    assert outcome(capsys, "fail") == (2, "", f"deepauc: {line}\n")


def test_debug_shows_the_traceback(capsys, failing):
    failing(ValueError("labels hold 7."))
    code, _, err = outcome(capsys, "--debug", "fail")
    assert code == 2
    assert "Traceback" in err
    assert "raise error" in err


def test_a_defect_of_ours_is_not_taken_for_bad_input(failing):
    failing(KeyError("gone"))
    with pytest.raises(KeyError):
        run(["fail"])


def test_interrupted(capsys, failing):
    failing(KeyboardInterrupt())
    code, _, err = outcome(capsys, "fail")
    assert code == 130
    assert "Traceback" not in err


def test_the_installed_command_refuses_in_plain_text(tmp_path):
    """In a process of its own, not a terminal: no traceback, no colours, exit code 2."""
    file = tmp_path / "taken"
    file.write_text("")
    code = "from deepauc.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--out", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"deepauc: {file} is a file: name a folder, which is made if it does not exist.\n"


def test_a_pipe_that_has_no_greek_letters(tmp_path):
    """As on Windows, where a pipe has the country's encoding: escapes; a file of settings is UTF-8 all the same."""
    table = tmp_path / "δ.csv"
    table.write_text("age,ill\n" + "\n".join(f"{n},{int(n % 5 == 0)}" for n in range(60)), encoding="utf-8")
    command = [sys.executable, "-m", "deepauc.cli.main"]
    options = ["--feature-column", "age", "--label-column", "ill"]
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}

    def told(*words):
        done = subprocess.run([*command, *words], capture_output=True, check=False, env=environment)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    assert rb"\u03b4.csv" in told("data", "check", str(table), *options)
    plan = told("train", "--table", str(table), *options, "--print-config").decode("utf-8")
    assert tomllib.loads(plan)["data"]["table"] == str(table)


COMMANDS = ["demo", "train", "predict", "evaluate", "compare", "report", "export", "serve", "data", "study"]
OF_DATA = [f"data {name}" for name in ("list", "info", "check", "pack", "export")]
OF_STUDY = [f"study {name}" for name in ("list", "run", "status", "table")]


@pytest.mark.parametrize("words", [[], *(words.split() for words in (*COMMANDS, *OF_DATA, *OF_STUDY))])
def test_help_fits_a_screen_of_80_by_24(capsys, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = outcome(capsys, *words, "--help")
    assert (code, err) == (0, "")
    lines = out.rstrip("\n").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_what_help_only_names_is_explained_by_help_all(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["train"], ["data", "pack"]):
        short = outcome(capsys, *words, "--help")[1]
        code, whole, _ = outcome(capsys, *words, "--help-all")
        assert code == 0
        rare = re.findall(r"--[a-z-]+", short.rpartition("--help-all")[2])
        assert "--weight-column" in rare
        for option in rare:
            assert re.search(rf"^  {option}( [A-Za-z]+)?  +[A-Za-z]", whole, re.MULTILINE), option
        assert "--help-all" not in whole
