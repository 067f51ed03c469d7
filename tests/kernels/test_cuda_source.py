"""CUDA C++ is compiled by the library that comes with torch, for devices that need not be there, and kept."""

import ctypes
import os
import pwd
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from deepauc.kernels import cuda_source, tile_conv

LEAST_SHARED = 99 * 1024  # bytes that a block may have on sm_86, 89 and 120, the least of all from sm_80


@pytest.fixture
def compiler():
    if torch.version.cuda is None:
        pytest.skip("this torch is built without CUDA")
    try:
        return cuda_source._compiler()
    except OSError:
        pytest.skip("there is no NVRTC library beside this torch")


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A cache of its own, and what was compiled: each time other bytes."""
    calls = []

    def compiled(source, capability):
        calls.append((source, capability))
        return f"binary {len(calls)}".encode()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cuda_source, "_compiled", compiled)
    return calls


def kept_in(folder):
    return sorted(folder.glob("deepauc/kernels/*"))


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0), (12, 0)])
@pytest.mark.parametrize("channels", [16, 32, 64])
def test_the_tiles_compile_and_fit(compiler, monkeypatch, channels, capability):
    try:
        cuda_source._architecture(capability)
    except RuntimeError:
        pytest.skip("this NVRTC library is older than that")
    asked = {}

    def kernel(files, name, macros, shared, device):
        source = "".join(
            (*(f"#define {key} {value}\n" for key, value in macros), *(file.read_text() for file in files))
        )
        asked[name] = cuda_source._compiled(source, capability)
        assert shared + 4 * 2 * 8 * channels <= LEAST_SHARED  # and what eight warps add up in
        return lambda *launch: None

    monkeypatch.setattr(cuda_source, "kernel", kernel)
    monkeypatch.setattr(tile_conv, "_number", lambda device: 0)
    x = torch.zeros(2, channels, 512 // channels, 512 // channels, dtype=torch.bfloat16)
    weight = torch.zeros(channels, channels, 3, 3)
    tile_conv.weight_gradient(x, x, weight, tile_conv.GRADIENT[channels])
    if channels in tile_conv.CONV:
        form = dict.fromkeys(("FLIP", "NORM", "EXTRA", "ACTIVATED", "ELU"), True) | {"MOMENTS": False}
        tile_conv.convolve(x, weight, x, x, [x] * 7, form, tile_conv.CONV[channels])
        assert asked["tile_conv"].startswith(b"\x7fELF")
    assert asked["tile_weight_gradient"].startswith(b"\x7fELF")


@pytest.mark.parametrize(("capability", "compiles"), [((9, 0), True), ((7, 5), False)])
def test_the_probe_needs_what_the_kernels_need(compiler, capability, compiles):
    with nullcontext() if compiles else pytest.raises(RuntimeError, match="sm_"):
        assert cuda_source._compiled(cuda_source.PROBE, capability).startswith(b"\x7fELF")


def test_what_does_not_compile_says_where(compiler):
    with pytest.raises(RuntimeError, match=r"does not compile[\s\S]*kernel.cu\(2\)"):
        cuda_source._compiled("\nnot C++;", (9, 0))


def test_a_device_newer_than_the_compiler_takes_an_older_one_of_its_generation(monkeypatch):
    class Compiler:
        known = (75, 80, 86, 90, 100, 120)

        def nvrtcGetNumSupportedArchs(self, count):
            count._obj.value = len(self.known)
            return 0

        def nvrtcGetSupportedArchs(self, found):
            found[:] = self.known
            return 0

    monkeypatch.setattr(cuda_source, "_compiler", Compiler)
    asked = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 3), (12, 1)]
    assert [cuda_source._architecture(one) for one in asked] == [80, 86, 86, 90, 100, 120]
    with pytest.raises(RuntimeError, match="sm_130"):
        cuda_source._architecture((13, 0))


def test_a_binary_is_kept(cached, tmp_path):
    first = cuda_source._kept("source", (9, 0))
    assert cuda_source._kept("source", (9, 0)) == first
    assert cached == [("source", (9, 0))]
    cuda_source._kept("source", (8, 0))
    assert cuda_source._kept("source", (9, 0), afresh=True) == b"binary 3"
    assert cuda_source._kept("source", (9, 0)) == b"binary 3"
    assert len(cached) == 3
    assert [file.suffix for file in kept_in(tmp_path)] == [".cubin"] * 2


@pytest.mark.parametrize("left", [0, 20, 35])
def test_a_torn_file_is_not_believed(cached, tmp_path, left):
    cuda_source._kept("source", (9, 0))
    (file,) = kept_in(tmp_path)
    file.write_bytes(file.read_bytes()[:left])
    assert cuda_source._kept("source", (9, 0)) == b"binary 2"
    assert cuda_source._kept("source", (9, 0)) == b"binary 2"


def test_where_nothing_can_be_kept_it_is_compiled_every_time(cached, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cuda_source._kept("source", (9, 0)) == b"binary 1"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)

    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)  # a container's made-up user
    assert cuda_source._kept("source", (9, 0)) == b"binary 2"


@pytest.mark.parametrize("given", ["", "relative"])
def test_a_cache_that_is_no_absolute_path_does_not_count(cached, tmp_path, monkeypatch, given):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cuda_source._kept("source", (9, 0))
    assert not list(Path.cwd().iterdir())
    assert len(kept_in(tmp_path / "home" / ".cache")) == 1


def test_a_folder_that_others_can_write_to_is_not_read(cached, tmp_path, monkeypatch):
    cuda_source._kept("source", (9, 0))
    folder = tmp_path / "deepauc" / "kernels"
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)
    assert cuda_source._kept("source", (9, 0)) == b"binary 2"
    folder.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    assert cuda_source._kept("source", (9, 0)) == b"binary 3"


def test_many_writers_leave_one_whole_file(cached, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)  # containers that share a home
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: cuda_source._kept("source", (9, 0), afresh=True), range(40)))
    (file,) = kept_in(tmp_path)
    assert cuda_source._read(file) in found


def test_the_oldest_go(cached, tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_source, "MOST_KEPT", 3)
    for number in range(5):
        cuda_source._kept(f"source {number}", (9, 0))
        newest = max(kept_in(tmp_path), key=lambda file: file.stat().st_mtime_ns)
        os.utime(newest, (number, number))
    assert len(kept_in(tmp_path)) == 3
    cuda_source._kept("source 4", (9, 0))
    assert len(cached) == 5


class Driver:
    """What `cuda_source` asks of CUDA; loads only what it is told to."""

    def __init__(self, loads=b""):
        self.loads, self.launched = loads, 0

    def cuCtxGetCurrent(self, context):
        context._obj.value = 1
        return 0

    def cuModuleLoadData(self, module, binary):
        return 0 if binary.startswith(self.loads) else 200

    def cuModuleGetFunction(self, function, module, name):
        return 0

    def cuFuncSetAttribute(self, function, attribute, value):
        return 0

    def cuLaunchKernel(self, *arguments):
        self.launched += 1
        return 0


@pytest.fixture
def a_gpu(monkeypatch):
    """A driver in place of a GPU's; its capability can be set."""
    driver, where = Driver(), {"capability": (9, 0)}
    monkeypatch.setattr(cuda_source, "_driver", lambda: driver)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: where["capability"])
    monkeypatch.setattr(torch.cuda, "device", lambda device: warnings.catch_warnings())  # some context
    cuda_source.available.cache_clear()
    cuda_source.kernel.cache_clear()
    yield driver, where
    cuda_source.available.cache_clear()
    cuda_source.kernel.cache_clear()


def test_what_is_kept_for_another_driver_is_compiled_again(a_gpu, cached):
    a_gpu[0].loads = b"binary 2"
    made = cuda_source.kernel(tile_conv.CONVOLUTION, "tile_conv", (), 0, 0)
    assert made.device == 0
    assert len(cached) == 2
    a_gpu[0].loads = b"nothing"
    with pytest.raises(RuntimeError, match="cannot load"):
        cuda_source.kernel(tile_conv.CONVOLUTION, "tile_conv", (), 0, 1)


def test_no_blocks_are_no_launch(a_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: type("Stream", (), {"cuda_stream": 0}))
    run = cuda_source.Kernel(ctypes.c_void_p(), 0, 0)
    run((0, 1), 32, [torch.zeros(1), 0])
    assert a_gpu[0].launched == 0
    run((2, 1), 32, [torch.zeros(1), 2])
    assert a_gpu[0].launched == 1


def no_library():
    raise OSError("libnvrtc.so.13 is not there")


def broken(source, capability):
    raise RuntimeError("nvrtc: error: failed to open libnvrtc-builtins.so.13.2.")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("_compiler", no_library, "libnvrtc.so.13 is not there"),
        ("_compiled", broken, "libnvrtc-builtins"),
        ("_compiler", object, "nvrtcGetNumSupportedArchs"),  # too old a library
        ("_compiled", lambda source, capability: b"of another driver", "cannot load"),
    ],
)
def test_where_it_does_not_work_one_warning_says_why(a_gpu, monkeypatch, name, value, says):
    a_gpu[0].loads = b"of this driver"
    monkeypatch.setattr(cuda_source, name, value)
    with pytest.warns(RuntimeWarning, match=says) as told:
        found = [cuda_source.available(0) for _ in range(3)]
    assert found == [False] * 3
    assert len(told) == 1


def test_devices_it_is_not_made_for_are_left_alone(a_gpu, monkeypatch):
    def touched(*given):
        raise AssertionError("nobody asked")

    monkeypatch.setattr(cuda_source, "_compiled", touched)
    a_gpu[1]["capability"] = (7, 5)
    assert not cuda_source.available(0)
    a_gpu[1]["capability"] = (9, 4)  # what ROCm says of an MI300
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not cuda_source.available(1)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not cuda_source.available(2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_source, "_compiled", lambda source, capability: b"binary")
    assert cuda_source.available(3)
