"""CUDA C++ is compiled by the library that comes with torch, for devices that need not be there, and kept."""

import pytest
import torch

from deepauc.models import cuda_source, tile_conv


@pytest.fixture
def compiler():
    if torch.version.cuda is None:
        pytest.skip("this torch is built without CUDA")
    try:
        return cuda_source._compiler()
    except OSError:
        pytest.skip("there is no NVRTC library beside this torch")


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize("channels", [16, 32, 64])
def test_the_tiles_compile(compiler, monkeypatch, channels, capability):
    asked = {}

    def kernel(file, name, macros, shared, device):
        source = "".join(f"#define {key} {value}\n" for key, value in macros) + file.read_text()
        asked[name] = cuda_source._compiled(source, capability)
        return lambda *launch: None

    monkeypatch.setattr(cuda_source, "kernel", kernel)
    monkeypatch.setattr(tile_conv, "_number", lambda device: 0)
    x, weight = torch.zeros(2, channels, 512 // channels, 512 // channels), torch.zeros(channels, channels, 3, 3)
    tile_conv.weight_gradient(x, x, weight, tile_conv.GRADIENT[channels])
    if channels in tile_conv.CONV:
        form = dict.fromkeys(("FLIP", "NORM", "EXTRA", "ACTIVATED", "ELU"), True) | {"MOMENTS": False}
        tile_conv.convolve(x, weight, x, x, [x] * 7, form, tile_conv.CONV[channels])
        assert asked["tile_conv"].startswith(b"\x7fELF")
    assert asked["tile_weight_gradient"].startswith(b"\x7fELF")


def test_what_does_not_compile_says_where(compiler):
    with pytest.raises(RuntimeError, match=r"does not compile[\s\S]*kernel.cu\(2\)"):
        cuda_source._compiled("\nnot C++;", (9, 0))


def test_a_binary_is_kept(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cuda_source, "_compiled", lambda *what: calls.append(what) or b"binary")
    assert cuda_source._kept("source", (9, 0)) == cuda_source._kept("source", (9, 0)) == b"binary"
    assert calls == [("source", (9, 0))]
    cuda_source._kept("source", (8, 0))
    assert len(calls) == 2


def test_where_nothing_can_be_kept_it_is_compiled_every_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(cuda_source, "_compiled", lambda *what: b"binary")
    assert cuda_source._kept("source", (9, 0)) == b"binary"
