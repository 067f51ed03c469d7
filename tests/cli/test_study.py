"""`deepauc study`: list, run, status, table; one line and exit code 2 for bad input."""

import json
from pathlib import Path

import pytest

from deepauc.cli.main import run
from deepauc.cli.study import _options
from deepauc.studies.records.book import RecordBook

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PAPER, MEDICAL, PLAN = (EXPERIMENTS / name for name in ("paper.py", "medical.py", "plan.py"))
TINY = ["--configs", "2", "--tune-epochs", "1", "--set", "epochs=1", "--seeds", "0,1", "--device", "cpu"]


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        run(["study", *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_list(capsys):
    code, out, _ = call(capsys, "list", PAPER, "--json")
    assert code == 0
    found = json.loads(out)
    code, out, _ = call(capsys, "list", MEDICAL, "--json")
    assert code == 0
    found |= json.loads(out)
    assert {"paper-tables", "ablations", "toy", "smoke"} <= set(found)
    assert "C10-R-1-paper-auc_m" in found["paper-tables"]["cells"]
    assert "path-R-best-auc_m" in found["medical"]["cells"]
    assert (found["medical"]["tuning_runs"], found["medical"]["final_runs"]) == (562, 330)
    assert [found[name]["final_runs"] for name in ("chest", "chexpert", "toy")] == [150, 125, 1]


def test_run_status_and_table(capsys, tmp_path):
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    cells = ["--cells", "digits-S-10-paper-auc_m,digits-S-10-paper-ce"]
    code, out, _ = call(capsys, "run", PAPER, "smoke", *cells, *TINY, *places)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("smoke: 2 studies; tuning runs: 4, final runs: 4.")
    assert len(lines) == 1 + 8 + 1  # one line a run
    assert lines[-1].startswith("Runs recorded: 8")
    code, out, _ = call(capsys, "run", PAPER, "smoke", *cells, *TINY, *places, "--json")
    assert (code, json.loads(out)["done"]) == (0, 0)
    code, out, _ = call(capsys, "status", PAPER, "smoke", "--results", tmp_path / "results", "--json")
    status = {one["study"]: one for one in json.loads(out)["smoke"]}
    assert (status["digits-S-10-paper-ce"]["final"], status["digits-S-10-paper-ce"]["other"]) == (2, 0)
    code, out, _ = call(capsys, "table", PAPER, "smoke", "--results", tmp_path / "results")
    assert code == 0
    assert (tmp_path / "results" / "smoke.md").read_text().startswith("# One small cell")
    (record, *_) = RecordBook(tmp_path / "results" / "smoke").final("digits-S-10-paper-ce")
    assert record["cut"] == {"configs": "2 of 4", "epochs": 1, "tune_epochs": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", PAPER, "smokee"], "did you mean 'smoke'"),
        (["table", PAPER, "smokee"], "did you mean 'smoke'"),
        (["status", PAPER, "smokee"], "did you mean 'smoke'"),
        (["run", PAPER, "smoke", "--cells", "digits-S-10-paper-cf"], "did you mean"),
        (["run", PAPER, "smoke", "--set", "epoch=3"], "did you mean 'epochs'"),
        (["run", PAPER, "smoke", "--set", "epochs"], "KEY=VALUE"),
        (["run", PAPER, "smoke", "--set", "lr=0.1"], "lr is set in two"),
        (["run", PAPER, "smoke", "--seeds", "0,x"], "whole numbers"),
        (["run", PAPER, "smoke", "--seeds", "0,0"], "distinct"),
        (["run", PAPER, "smoke", "--seeds", "0,99"], "--seeds 99: "),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, tmp_path, arguments, message):
    places = ["--results", tmp_path]
    code, _, err = call(capsys, *arguments, *places)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([PAPER, "toy", "--curves", "--jobs", "1"], "study toy has no --jobs, --curves: it is run whole"),
        ([PAPER, "toy", "--task-gpus", "2", "--task-cpus", "2"], "study toy has no --task-gpus, --task-cpus"),
        ([PAPER, "toy", "--retries", "3", "--pack", "2"], "study toy has no --pack, --retries"),
        ([PAPER, "toy", "--cells", "raw", "--set", "lr=1"], "study toy has no --cells, --set"),
        (
            [MEDICAL, "chexpert", "--configs", "2", "--tune-epochs", "1", "--tune-sets", "1"],
            "--configs, --tune-epochs, --tune-sets: nothing is tuned in",
        ),
        ([MEDICAL, "chexpert", "--cells", "densenet122"], "did you mean 'densenet1"),
        ([MEDICAL, "chexpert", "--set", "view=all"], "did you mean 'views'"),
        ([MEDICAL, "chexpert", "--set", "views=lateral"], "views must be 'frontal' or 'all'"),
        ([MEDICAL, "chest", "--set", "gamma=much"], "has another type"),
        ([MEDICAL, "chest", "--seeds", "1,1"], "distinct"),
        ([PAPER, "smoke", "--task-gpus", "1"], "--task-gpus: these options need --cluster"),
        (
            [PAPER, "ablations", "--configs", "2", "--tune-sets", "1"],
            "--configs, --tune-sets: nothing is tuned in",
        ),
        (
            [PAPER, "smoke", "--configs", "1", "--tune-epochs", "2"],
            "leave out --tune-epochs, or allow 2",
        ),
        (
            [PAPER, "smoke", "--tune-sets", "2"],
            "--tune-sets 2: these cells have at most 1 training set to tune on",
        ),
        ([PLAN, "--seeds", "0", "--curves"], "--seeds, --curves: these cells only choose a setting"),
    ],
)
def test_options_that_do_not_apply_are_refused(capsys, tmp_path, arguments, message):
    places = ["--results", tmp_path / "results", "--runs", tmp_path / "runs", "--root", tmp_path]
    code, out, err = call(capsys, "run", *arguments, *places)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_here_are_told_before_the_images_are_read(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    cells = ["--cells", "melanoma-B5-384,melanoma-B6-384-ce,melanoma-meta-ce"]
    places = ["--results", tmp_path / "results", "--runs", tmp_path / "runs", "--root", tmp_path]
    code, out, _ = call(capsys, "run", MEDICAL, "melanoma", *cells, *places)
    lines = out.splitlines()
    assert code == 2
    assert [line.split(" are not on this machine")[0] for line in lines[1:3]] == [
        f"pretrained=True, but the weights of tf_efficientnet_{which}" for which in ("b5", "b6")
    ]
    assert lines[3].startswith("Not run: melanoma-B5-384-ce: ")
    assert "not on this machine" not in "".join(lines[3:])
    _, out, _ = call(capsys, "run", MEDICAL, "melanoma", *cells, *places, "--set", "pretrained=false")
    assert "not on this machine" not in out


def test_status_of_studies_with_runs_of_their_own(capsys, tmp_path):
    place = ["--results", tmp_path]
    code, out, _ = call(capsys, "status", MEDICAL, "chest", *place)
    assert code == 0
    assert "policy-smooth_ones" in out
    code, out, _ = call(capsys, "status", PAPER, "toy", *place)
    assert code == 0
    assert f"toy: recorded runs: 0 of 1, in {tmp_path / 'toy/toy.json'}" in out
    book = RecordBook(tmp_path / "chest")
    for seed in (0, 1):
        book.add({"study": "R-Edema-auc_m", "phase": "final", "run": f"r{seed}", "seed": seed})
    other = {"set": "chest/gamma=0.1", "study": "R-x", "phase": "final", "run": "r", "seed": 0}
    RecordBook.of(tmp_path, "chest/gamma=0.1").add(other)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.json").write_text("{}")
    code, out, _ = call(capsys, "status", MEDICAL, *place)
    assert code == 0
    out += call(capsys, "status", PAPER, *place)[1]
    for line in (
        f"chest, with gamma=0.1: 1 recorded in {tmp_path / 'chest.jsonl'}",
        f"chexpert: no records in {tmp_path / 'chexpert.jsonl'}",
        f"toy: recorded runs: 1 of 1, in {tmp_path / 'toy' / 'toy.json'}",
    ):
        assert line in out.splitlines()
    code, out, _ = call(capsys, "status", MEDICAL, "chest", "--cells", "R-Edema", "--json", *place)
    found = {one["study"]: one["final"] for one in json.loads(out)["chest"]}
    edema = {"R-Edema-ce": 0, "R-Edema-focal": 0, "R-Edema-auc_s": 0, "R-Edema-auc_m": 2}
    assert found == {"R-stage1-ce": 0, **edema}  # what they start from comes along
    code, out, _ = call(capsys, "list", MEDICAL, "--json")
    assert "densenet161-Pleural_Effusion-auc_m" in json.loads(out)["chexpert"]["cells"]


def test_a_fraction_is_a_number():
    assert _options(["gamma=1/300", "network=a/b", "x=1/0", "epochs=3"]) == {
        "gamma": 1 / 300,
        "network": "a/b",
        "x": "1/0",
        "epochs": 3,
    }


def test_the_page_is_written_by_the_call_that_ends_the_work(capsys, tmp_path, monkeypatch):
    from deepauc.studies.entry import Entry
    from deepauc.studies.load import StudyFile
    from deepauc.studies.running.runner import StudiesOutcome
    from deepauc.studies.study import StudySet

    left = [2, 0]  # of the first call, of the second

    def studied(*_, **__):
        return StudiesOutcome(out_of_time=bool(left.pop(0)))

    studies = StudySet(name="some", title="Some", studies=())
    entry = Entry(name="some", title="Some", table=lambda _: "# Some", studies=studies, page_after_run=True)
    monkeypatch.setattr("deepauc.studies.load.load_studies", lambda path: StudyFile(path, {"some": entry}))
    monkeypatch.setattr("deepauc.studies.running.runner.run_studies", studied)
    for page in (False, True):
        code, out, _ = call(capsys, "run", "some.py", "--results", tmp_path)
        assert code == 0
        assert ("Run the same command again to resume." in out) is not page
        assert (f"Written: {tmp_path / 'some.md'}" in out) is page
        assert (tmp_path / "some.md").exists() is page


def test_a_failed_run_is_told_and_the_exit_code_is_1(capsys, tmp_path):
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    wild = ["--cells", "digits-S-10-paper-auc_m", "--set", "bound=none", "--set", "weight_decay=1e30"]
    code, out, _ = call(capsys, "run", PAPER, "smoke", *wild, *TINY, *places)
    assert code == 1
    assert "Failed: digits-S-10-paper-auc_m tuning" in out


def test_where_nothing_can_be_run_the_exit_code_is_2_and_no_page_is_written(capsys, tmp_path):
    words = (
        "run",
        MEDICAL,
        "pcam",
        "--root",
        tmp_path / "nowhere",
        "--device",
        "cpu",
        "--results",
        tmp_path / "results",
    )
    code, out, _ = call(capsys, *words)
    assert (code, "Not run: " in out) == (2, True)
    assert not (tmp_path / "results" / "pcam.md").exists()


def test_a_page_is_not_replaced_by_one_without_records(capsys, tmp_path):
    (tmp_path / "smoke.md").write_text("my page")
    code, _, errors = call(capsys, "table", PAPER, "smoke", "--results", tmp_path)
    assert (code, f"{tmp_path} holds no record" in errors) == (2, True)
    assert (tmp_path / "smoke.md").read_text() == "my page"
