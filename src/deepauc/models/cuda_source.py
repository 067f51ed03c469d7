"""CUDA C++ compiled when first needed, by the NVRTC library that comes with torch, and launched on torch's streams.

Triton makes most kernels here. This is for those whose readings of shared memory it cannot express.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

LEAST_CAPABILITY = (8, 0)  # asynchronous copies, bfloat16 products
DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Kernel:
    """One compiled function of a device; `shared` bytes of memory a block."""

    def __init__(self, function: ctypes.c_void_p, shared: int, device: int) -> None:
        self.function, self.shared, self.device = function, shared, device

    def __call__(self, grid: tuple[int, int], threads: int, arguments: Sequence[Tensor | int]) -> None:
        """Launch on the current stream; safe in a graph's capture."""
        values = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_int(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        with torch.cuda.device(self.device):
            _set_context(self.device)
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            form = (*grid, 1, threads, 1, 1, self.shared)
            _check(_driver().cuLaunchKernel(self.function, *form, stream, pointers, None), "launch")


@cache
def kernel(file: Path, name: str, macros: tuple[tuple[str, int], ...], shared: int, device: int) -> Kernel:
    """The function `name` of a source file with these macros, for this device."""
    source = "".join(f"#define {key} {value}\n" for key, value in macros) + file.read_text(encoding="utf-8")
    binary = _kept(source, torch.cuda.get_device_capability(device))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with torch.cuda.device(device):
        _set_context(device)
        _check(_driver().cuModuleLoadData(ctypes.byref(module), binary), "load")
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), "find")
        _check(_driver().cuFuncSetAttribute(function, DYNAMIC_SHARED_BYTES, shared), "give shared memory to")
    return Kernel(function, shared, device)


@cache
def available(device: int) -> bool:
    """Whether kernels can be compiled for this device."""
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return False
    try:
        _compiler()
        _driver()
    except OSError:
        return False
    return True


def macros(values: Mapping[str, int | bool]) -> tuple[tuple[str, int], ...]:
    return tuple((key, int(value)) for key, value in values.items())


def _kept(source: str, capability: tuple[int, int]) -> bytes:
    """The binary, from a folder in the user's cache where another process has compiled it."""
    name = hashlib.sha256(f"{torch.version.cuda} {capability} {source}".encode()).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "deepauc" / "kernels"
    file = folder / f"{name}.cubin"
    try:
        return file.read_bytes()
    except OSError:
        binary = _compiled(source, capability)
    with contextlib.suppress(OSError):  # nothing can be kept here: it is compiled every time
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{name}.{os.getpid()}"
        part.write_bytes(binary)
        part.replace(file)
    return binary


def _compiled(source: str, capability: tuple[int, int]) -> bytes:
    compiler, program = _compiler(), ctypes.c_void_p()
    compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}".encode(), b"--std=c++17"]
    failed = compiler.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if failed:
        raise RuntimeError(f"a kernel does not compile:\n{_output(program, 'ProgramLog').decode(errors='replace')}")
    binary = _output(program, "CUBIN")
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    return binary


def _output(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(_compiler(), f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    found = ctypes.create_string_buffer(size.value)
    getattr(_compiler(), f"nvrtcGet{what}")(program, found)
    return found.raw


@cache
def _compiler() -> ctypes.CDLL:
    """NVRTC of torch's own CUDA version, from the packages beside torch or from the system."""
    major = str(torch.version.cuda).partition(".")[0]
    name = f"libnvrtc.so.{major}"
    places = [found for folder in sys.path for found in Path(folder).glob(f"nvidia/*/lib/{name}")]
    return ctypes.CDLL(str(places[0]) if places else name)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _set_context(device: int) -> None:
    """A thread of torch's backward pass may not have the device's context yet."""
    context, number = ctypes.c_void_p(), ctypes.c_int()
    _check(_driver().cuCtxGetCurrent(ctypes.byref(context)), "find a context for")
    if not context.value:
        _check(_driver().cuDeviceGet(ctypes.byref(number), device), "find a device for")
        _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), number), "make a context for")
        _check(_driver().cuCtxSetCurrent(context), "set a context for")


def _check(failed: int, what: str) -> None:
    if failed:
        raise RuntimeError(f"CUDA cannot {what} a kernel: error {failed}.")
