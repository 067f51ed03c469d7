"""CUDA C++ compiled when first needed, by the NVRTC library that comes with torch, and launched on torch's streams.

Triton makes most kernels here. This is for those whose readings of shared memory it cannot express. Where a device or
its software cannot take them, `available` says no, and Triton's do the work.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

LEAST_CAPABILITY = (8, 0)  # asynchronous copies, bfloat16 products
DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
# A little of what is compiled in earnest: a builtin function, and instructions that not all devices have.
PROBE = """
extern "C" __global__ void probe(unsigned* x) {
  asm volatile("cp.async.wait_all;");
  asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(x[threadIdx.x]) : "f"(__expf(x[0])));
}
"""
MOST_KEPT = 512  # binaries, of some 30 kB each
DIGEST = hashlib.sha256().digest_size


class Kernel:
    """One compiled function of a device; `shared` bytes of memory a block."""

    def __init__(self, function: ctypes.c_void_p, shared: int, device: int) -> None:
        self.function, self.shared, self.device = function, shared, device

    def __call__(self, grid: tuple[int, int], threads: int, arguments: Sequence[Tensor | int]) -> None:
        """Launch on the current stream; safe in a graph's capture. No blocks, as for an empty batch: no launch."""
        if 0 in grid:
            return
        values = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_int(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        with torch.cuda.device(self.device):
            _set_context(self.device)
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            form = (*grid, 1, threads, 1, 1, self.shared)
            _check(_driver().cuLaunchKernel(self.function, *form, stream, pointers, None), "launch")


@cache
def kernel(files: tuple[Path, ...], name: str, macros: tuple[tuple[str, int], ...], shared: int, device: int) -> Kernel:
    """The function `name` of source files, one after the other, with these macros, for this device."""
    text = [f"#define {key} {value}\n" for key, value in macros] + [file.read_text(encoding="utf-8") for file in files]
    source = "".join(text)
    capability = torch.cuda.get_device_capability(device)
    binary = _kept(source, capability)
    try:
        function = _loaded(binary, name, shared, device)
    except RuntimeError:  # what was kept may be for another driver
        function = _loaded(_kept(source, capability, afresh=True), name, shared, device)
    return Kernel(function, shared, device)


@cache
def available(device: int) -> bool:
    """Whether kernels can be compiled for this device and loaded there: tried, since the shapes of results rest on it.

    Where that should work but does not, one warning says why.
    """
    if torch.version.cuda is None or not torch.cuda.is_available():
        return False
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return False
    try:
        _loaded(_compiled(PROBE, capability), "probe", 0, device)
    except (OSError, RuntimeError, AttributeError) as problem:  # no library; it fails; it lacks a function
        warnings.warn(
            f"small convolutions use their slower kernels on GPU {device}, because CUDA C++ cannot be compiled for it: "
            f"{str(problem).strip()} The compiler is in the package nvidia-cuda-nvrtc: install that of CUDA "
            f"{torch.version.cuda}, which torch uses.",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def macros(values: Mapping[str, int | bool]) -> tuple[tuple[str, int], ...]:
    return tuple((key, int(value)) for key, value in values.items())


def _loaded(binary: bytes, name: str, shared: int, device: int) -> ctypes.c_void_p:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with torch.cuda.device(device):
        _set_context(device)
        _check(_driver().cuModuleLoadData(ctypes.byref(module), binary), "load")
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), "find")
        _check(_driver().cuFuncSetAttribute(function, DYNAMIC_SHARED_BYTES, shared), "give shared memory to")
    return function


def _kept(source: str, capability: tuple[int, int], *, afresh: bool = False) -> bytes:
    """The binary, from a folder in the user's cache where another process has compiled it; afresh: compiled anyway."""
    folder = _folder()
    if folder is None:
        return _compiled(source, capability)
    name = hashlib.sha256(f"{torch.version.cuda} {capability} {source}".encode()).hexdigest()
    file = folder / f"{name}.cubin"
    if not afresh and (known := _read(file)) is not None:
        return known
    binary = _compiled(source, capability)
    with contextlib.suppress(OSError):  # a full disk: it is compiled every time
        _write(file, binary)
    return binary


def _folder() -> Path | None:
    """Where binaries are kept; None where there is no such place, or one that others can put binaries in."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        home = given if given.is_absolute() else Path.home() / ".cache"
        folder = home / "deepauc" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError):  # not writable; a user without a home
        return None
    own = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
    return folder if own else None


def _read(file: Path) -> bytes | None:
    """The binary of a file that is whole: a driver believes the lengths that a torn one states."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, binary = content[:DIGEST], content[DIGEST:]
    return binary if digest == hashlib.sha256(binary).digest() else None


def _write(file: Path, binary: bytes) -> None:
    """At once, whoever else writes it: containers that share a home share process numbers. The oldest files go."""
    with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
        whole = Path(part.name)
        try:
            part.write(hashlib.sha256(binary).digest() + binary)
            part.close()
            whole.replace(file)
        finally:
            whole.unlink(missing_ok=True)
    by_age = sorted(file.parent.iterdir(), key=lambda kept: kept.stat().st_mtime)
    for old in by_age[:-MOST_KEPT]:
        old.unlink(missing_ok=True)


def _compiled(source: str, capability: tuple[int, int]) -> bytes:
    architecture, program = _architecture(capability), ctypes.c_void_p()
    _ask("CreateProgram", ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        options = [f"--gpu-architecture=sm_{architecture}".encode(), b"--std=c++17"]
        failed = _compiler().nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if failed:
            log = _output(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise RuntimeError(f"a kernel does not compile (NVRTC error {failed}):\n{log}")
        return _output(program, "CUBIN")
    finally:
        _ask("DestroyProgram", ctypes.byref(program))


def _architecture(capability: tuple[int, int]) -> int:
    """The newest that the compiler knows of those this device runs: its own, or an older one of its generation."""
    count = ctypes.c_int()
    _ask("GetNumSupportedArchs", ctypes.byref(count))
    known = (ctypes.c_int * count.value)()
    _ask("GetSupportedArchs", known)
    major, minor = capability
    runs = [one for one in known if one // 10 == major and one % 10 <= minor]
    if not runs:
        raise RuntimeError(f"this NVRTC library is older than devices of sm_{major}{minor}.")
    return max(runs)


def _output(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _ask(f"Get{what}Size", program, ctypes.byref(size))
    found = ctypes.create_string_buffer(size.value)
    _ask(f"Get{what}", program, found)
    return found.raw


def _ask(function: str, *arguments: object) -> None:
    failed = getattr(_compiler(), f"nvrtc{function}")(*arguments)
    if failed:
        raise RuntimeError(f"nvrtc{function} failed: error {failed}.")


@cache
def _compiler() -> ctypes.CDLL:
    """NVRTC of torch's own CUDA version, from the packages beside torch or from the system."""
    name = f"libnvrtc.so.{str(torch.version.cuda).partition('.')[0]}"
    beside = [str(found) for folder in sys.path for found in Path(folder).glob(f"nvidia/*/lib/{name}")]
    for place in beside:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(place)
    return ctypes.CDLL(name)


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
