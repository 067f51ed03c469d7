"""Kernels that a GPU compiles at their first launch, compiled for one here: Triton needs none for that."""

import pytest

CAPABILITY = 90  # of an H200
NUMBERS = {"addresses": "*i64", "blocks": "*i64", "sizes": "*i64", "lr": "*fp32", "gamma": "fp32",
           "weight_decay": "fp32", "momentum": "fp32", "clip": "fp32", "count": "i32"}  # fmt: skip
ROWS = {"source": "*bf16", "to": "*bf16", "keys": "*i64", "elements": "i32", "from_run": "i32", "from_row": "i32",
        "to_run": "i32", "to_row": "i32", "offset": "i32", "limit": "i32", "scale": "fp32"}  # fmt: skip


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Compiles a kernel for these types and constants; the binary."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def run(kernel, types, constants):
        signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        made = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options={"enable_fp_fusion": True})
        return made.asm["cubin"]

    return run


@pytest.mark.parametrize("limit", ["i32", "i64"])  # a rate up to one half, and above
def test_dropout(compiled, limit):
    pytest.importorskip("triton")
    from deepauc.kernels.dropout import FIRST, SECOND
    from deepauc.kernels.dropout_kernel import drop_kernel

    constants = {"CHANNELS": 32, "FIRST": FIRST, "SECOND": SECOND, "BLOCK": 1024}
    assert compiled(drop_kernel, {**ROWS, "limit": limit}, constants)


@pytest.mark.parametrize("on", [True, False])
def test_pesg(compiled, on):
    pytest.importorskip("triton")
    import triton.language as tl

    from deepauc.kernels.pesg_kernel import pesg_kernel

    switches = dict.fromkeys(("LR_ON_DEVICE", "PROXIMAL", "MOMENTUM", "CLIP", "ALIGNED"), on)
    types = {**NUMBERS, "lr": "*fp32" if on else "fp32"}
    assert compiled(pesg_kernel, types, {**switches, "DTYPE": tl.float32, "BLOCK": 1024})
