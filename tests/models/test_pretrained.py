"""Weights from the disk: complete or refused, never downloaded, never pickled."""

import json
import socket

import pytest
import timm
import torch
from safetensors.torch import save_file

from deepauc.models.build import TimmSpec, build_model

NAME = "test_resnet"  # timm's own, 0.5 M parameters, 1,000 classes
HEAD = {"fc.weight", "fc.bias"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("something tried to open a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def published(*, num_classes=1000, in_chans=3):
    torch.manual_seed(11)
    model = timm.create_model(NAME, num_classes=num_classes, in_chans=in_chans)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean)
            torch.nn.init.uniform_(module.weight)
    return model.state_dict()


def stored(state, path):
    save_file({k: v.contiguous() for k, v in state.items()}, path)
    return str(path)


def test_everything_but_the_classifier_is_loaded(tmp_path):
    state = published()
    file = stored(state, tmp_path / "w.safetensors")
    model = build_model(TimmSpec(name=NAME, weights=file), in_channels=3, num_outputs=2, seed=0)
    loaded = model.state_dict()
    assert {k for k in loaded if not torch.equal(loaded[k], state[k])} == HEAD
    random = build_model(TimmSpec(name=NAME), in_channels=3, num_outputs=2, seed=0).state_dict()
    assert all(torch.equal(loaded[k], random[k]) for k in HEAD)


def test_a_classifier_of_the_right_size_is_loaded_too(tmp_path):
    state = published(num_classes=2)
    file = stored(state, tmp_path / "w.safetensors")
    loaded = TimmSpec(name=NAME, weights=file).build(in_channels=3, num_outputs=2).state_dict()
    assert all(torch.equal(loaded[k], state[k]) for k in loaded)


def test_a_file_without_classifier(tmp_path):
    state = {k: v for k, v in published().items() if k not in HEAD}
    file = stored(state, tmp_path / "w.safetensors")
    loaded = TimmSpec(name=NAME, weights=file).build(in_channels=3, num_outputs=1).state_dict()
    assert all(torch.equal(loaded[k], state[k]) for k in state)


def first_conv(channels, file):
    model = TimmSpec(name=NAME, weights=file).build(in_channels=channels, num_outputs=1)
    return model.get_submodule(timm.get_pretrained_cfg(NAME).first_conv).weight


def test_one_and_four_channels_are_adapted(tmp_path):
    state = published()
    file = stored(state, tmp_path / "w.safetensors")
    kernel = state[f"{timm.get_pretrained_cfg(NAME).first_conv}.weight"]
    torch.testing.assert_close(first_conv(1, file), kernel.sum(1, keepdim=True))
    torch.testing.assert_close(first_conv(4, file), kernel[:, [0, 1, 2, 0]] * 3 / 4)


def test_a_file_for_two_channels_fits_two_channels_only(tmp_path):
    state = published(in_chans=2)
    file = stored(state, tmp_path / "w.safetensors")
    assert torch.equal(first_conv(2, file), state[f"{timm.get_pretrained_cfg(NAME).first_conv}.weight"])
    with pytest.raises(ValueError, match="of another shape"):
        first_conv(4, file)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: state.pop("bn1.weight"), r"1 missing \(bn1.weight\)"),
        (lambda state: state.update(extra=torch.zeros(1)), r"1 left over \(extra\)"),
        (lambda state: state.update({"bn1.weight": torch.zeros(3)}), r"bn1.weight \(3,\) for"),
    ],
)
def test_an_incomplete_file_is_refused(tmp_path, spoil, message):
    state = published()
    spoil(state)
    file = stored(state, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=message):
        TimmSpec(name=NAME, weights=file).build(in_channels=3, num_outputs=1)


def test_another_networks_file_is_refused(tmp_path):
    file = stored(timm.create_model("test_efficientnet").state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="does not fit this network"):
        TimmSpec(name=NAME, weights=file).build(in_channels=3, num_outputs=1)


def test_older_tensor_names_are_understood(tmp_path):
    state = timm.create_model("densenet121", num_classes=1).state_dict()
    older = {
        k.replace("norm1.", "norm.1.").replace("conv2.", "conv.2.") if "denselayer" in k else k: v
        for k, v in state.items()
    }
    older = {k: v for k, v in older.items() if not k.endswith("num_batches_tracked") or "norm.1" not in k}
    older |= {k: v for k, v in state.items() if k.endswith("norm1.num_batches_tracked")}
    assert older.keys() != state.keys()
    file = stored(older, tmp_path / "w.safetensors")
    loaded = TimmSpec(weights=file).build(in_channels=3, num_outputs=1).state_dict()
    assert all(torch.equal(loaded[k], state[k]) for k in state)


def test_a_pickle_is_refused(tmp_path):
    torch.save(published(), tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"pickles, which can run code.*save_file"):
        TimmSpec(name=NAME, weights=str(tmp_path / "w.pth")).build(in_channels=3, num_outputs=1)


def test_an_absent_or_broken_file_is_refused(tmp_path):
    broken = tmp_path / "w.safetensors"
    with pytest.raises(ValueError, match="does not exist"):
        TimmSpec(name=NAME, weights=str(broken)).build(in_channels=3, num_outputs=1)
    header = json.dumps({"x": {"dtype": "F32", "shape": [0, 3, 2**62], "data_offsets": [0, 0]}}).encode()
    absurd = len(header).to_bytes(8, "little") + header
    for content in (b"nothing of the kind", absurd):
        broken.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read"):
            TimmSpec(name=NAME, weights=str(broken)).build(in_channels=3, num_outputs=1)


def test_pretrained_without_the_file_is_refused_and_says_what_to_do(empty_cache):
    with pytest.raises(ValueError, match=r"hf download timm/test_resnet.r160_in1k model.safetensors.*pretrained=False"):
        TimmSpec(name=NAME, pretrained=True).build(in_channels=3, num_outputs=1)


def test_pretrained_finds_the_cache(empty_cache):
    folder = empty_cache / "models--timm--test_resnet.r160_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    state = published()
    stored(state, folder / "snapshots" / "abc" / "model.safetensors")
    loaded = TimmSpec(name=NAME, pretrained=True).build(in_channels=3, num_outputs=1).state_dict()
    assert all(torch.equal(loaded[k], state[k]) for k in loaded if k not in HEAD)


def test_pretrained_of_a_network_without_published_weights(empty_cache):
    assert timm.get_pretrained_cfg("densenet264d").hf_hub_id is None
    with torch.device("meta"), pytest.raises(ValueError, match="publishes no weights for densenet264d"):
        TimmSpec(name="densenet264d", pretrained=True).build(in_channels=3, num_outputs=1)
