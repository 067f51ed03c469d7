"""Shell completion, as a shell asks for it."""

import pytest

from deepauc.cli.main import run


@pytest.fixture
def deepauc(capsys, monkeypatch, tmp_path):
    """Run the command in a home of its own; (exit code, stdout)."""
    monkeypatch.setattr("sys.argv", ["deepauc"])
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # the shell is named instead

    def call(*words, **variables):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as end:
                run(words)
        return end.value.code, capsys.readouterr().out

    return call


def test_the_script_is_shown_and_installed_where_the_shell_looks(deepauc, tmp_path):
    code, script = deepauc("--show-completion", "bash")
    assert code == 0
    assert "_DEEPAUC_COMPLETE=complete_bash" in script
    assert not list(tmp_path.iterdir())
    code, _ = deepauc("--install-completion", "bash")
    assert code == 0
    (installed,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".bashrc")
    assert "_DEEPAUC_COMPLETE=complete_bash" in installed.read_text()
    assert str(installed) in (tmp_path / ".bashrc").read_text()


def test_commands_and_options_are_completed(deepauc):
    asked = {"_DEEPAUC_COMPLETE": "complete_bash"}
    assert deepauc(COMP_WORDS="deepauc re", COMP_CWORD="1", **asked) == (0, "report\n")
    assert deepauc(COMP_WORDS="deepauc report --thu", COMP_CWORD="2", **asked) == (0, "--thumbnails\n")
