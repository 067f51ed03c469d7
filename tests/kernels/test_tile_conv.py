"""Convolutions by tiles and their gradients against torch: threads as fibers on a CPU (needs g++), and on a GPU."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from deepauc.kernels import cuda_source, small_conv, tile_conv
from deepauc.kernels.tile_conv import GradientTile, Tile

LAUNCH = """
struct Arguments {{ {fields} }};
static Arguments given;
extern "C" void launch(int across, int down, Arguments* arguments) {{
  given = *arguments;
  body = [] {{ {name}({values}); }};
  run_blocks(across, down);
}}
"""
TYPES = {
    "tile_conv": "u16* x; float* weight; u16* y; float* moments; u16* extra; u16* activated; u16* before; float* mean;"
    " float* rstd; float* gain; float* offset; int tiles;",
    "tile_weight_gradient": "u16* x; u16* dy; float* sums; int tiles;",
}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not there to compile the emulation")


@pytest.fixture
def emulated(tmp_path, monkeypatch):
    """Kernels run on the CPU; tells how many were compiled."""
    built = {}

    def kernel(files, name, macros, shared, device):
        if (name, macros) not in built:
            names = [field.split()[-1] for field in TYPES[name].split(";") if field.strip()]
            given = ", ".join(f"given.{field.lstrip('*')}" for field in names)
            defines = "".join(f"#define {key} {value}\n" for key, value in (*macros, ("SHARED_BYTES", shared)))
            header = f'typedef unsigned short u16;\n#include "{Path(__file__).with_name("emulated_cuda.h")}"\n'
            launch = LAUNCH.format(fields=TYPES[name], name=name, values=given)
            source = tmp_path / f"{len(built)}.cpp"
            source.write_text("".join((defines, header, *(file.read_text() for file in files), launch)))
            library = source.with_suffix(".so")
            options = ["-std=c++17", "-O1", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
            subprocess.run(["g++", *options, "-o", library, source], check=True)
            built[name, macros] = ctypes.CDLL(str(library))
        library = built[name, macros]

        def run(grid, threads, arguments):
            fields = [("", ctypes.c_int if isinstance(a, int) else ctypes.c_void_p) for a in arguments]
            fields = [(f"field{i}", kind) for i, (_, kind) in enumerate(fields)]
            structure = type("Arguments", (ctypes.Structure,), {"_fields_": fields})
            values = [a if isinstance(a, int) else a.data_ptr() for a in arguments]
            library.launch(*grid, ctypes.byref(structure(*values)))

        return run

    monkeypatch.setattr(cuda_source, "kernel", kernel)
    monkeypatch.setattr(cuda_source, "available", lambda device: True)
    monkeypatch.setattr(tile_conv, "_number", lambda device: 0)
    return built


def last(*shape):
    return torch.randn(shape).to(torch.bfloat16).contiguous(memory_format=torch.channels_last)


def by_block(values, tile):
    """(blocks, pixels, channels) in the order of the tiles."""
    n, c, h, w = values.shape
    cut = values.permute(0, 2, 3, 1).reshape(n, h // tile.height, tile.height, w // tile.width, tile.width, c)
    cut = cut.permute(0, 1, 3, 2, 4, 5).reshape(-1, tile.height * tile.width, c)
    return [part.reshape(-1, c) for part in cut.split(tile.each)]


TILES = [
    (16, Tile(height=8, width=32, warps=4, rows=2, each=1, blocks=1), (2, 16, 64)),
    (16, Tile(height=4, width=32, warps=4, rows=1, each=2, blocks=1), (3, 4, 32)),
    (32, Tile(height=8, width=16, warps=4, rows=2, each=4, blocks=1), (3, 16, 16)),
    (64, Tile(height=8, width=8, warps=4, rows=1, each=2, blocks=1), (3, 8, 8)),
    (16, tile_conv.CONV[16], (1, 24, 32)),  # one block of two tiles, one of one
    (32, tile_conv.CONV[32], (1, 24, 16)),
]


@needs_compiler
@pytest.mark.parametrize(("channels", "tile", "shape"), TILES)
def test_a_convolution_and_its_moments(emulated, channels, tile, shape):
    torch.manual_seed(channels)
    x = last(shape[0], channels, *shape[1:])
    weight = torch.randn(channels, channels, 3, 3) / channels  # not channels_last: copied
    blocks = by_block(x, tile)
    y, moments = torch.empty_like(x), torch.empty(len(blocks), 2, 1, channels)
    form = dict.fromkeys(("FLIP", "NORM", "EXTRA", "ACTIVATED", "ELU"), False) | {"MOMENTS": True}
    tile_conv.convolve(x, weight, y, moments, [moments] * 7, form, tile)
    expected = functional.conv2d(x.float(), weight.to(torch.bfloat16).float(), padding=1)
    torch.testing.assert_close(y.float(), expected, rtol=0.01, atol=0.005)
    for (mean, around), part in zip(moments[:, :, 0], by_block(y.float(), tile), strict=True):
        torch.testing.assert_close(mean, part.mean(0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(around, ((part - part.mean(0)) ** 2).sum(0), rtol=1e-4, atol=1e-4)


# A ReLU is the same line of code for all channels.
ACTIVATED_TILES = [(*form, elu) for form in TILES for elu in (True, False) if elu or form[0] == 16]


@needs_compiler
@pytest.mark.parametrize(("channels", "tile", "shape", "elu"), ACTIVATED_TILES)
@pytest.mark.parametrize("shortcut", [False, True])
def test_the_transpose_through_an_activation_and_a_norm(emulated, channels, tile, shape, shortcut, elu):
    torch.manual_seed(channels)
    dy, extra, activated, before = (last(shape[0], channels, *shape[1:]) for _ in range(4))
    weight = (torch.randn(channels, channels, 3, 3) / channels).contiguous(memory_format=torch.channels_last)
    mean, rstd, gain, offset = (torch.rand(channels) + 0.1 for _ in range(4))
    y = torch.empty_like(dy)
    sums = torch.empty(len(by_block(dy, tile)), 2, 1, channels)
    form = {"FLIP": True, "MOMENTS": False, "NORM": True, "EXTRA": shortcut, "ACTIVATED": shortcut, "ELU": elu}
    norm = [extra, activated, before, mean, rstd, gain, offset]
    tile_conv.convolve(dy, weight, y, sums, norm, form, tile)

    wide = (1, -1, 1, 1)
    expected = functional.conv_transpose2d(dy.float(), weight.to(torch.bfloat16).float(), padding=1)
    centred = before.float() - mean.reshape(wide)
    out = activated.float() if shortcut else centred * (gain * rstd).reshape(wide) + offset.reshape(wide)
    below = (out + 1 if shortcut else out.exp()) if elu else torch.zeros_like(out)
    expected = (expected + extra.float() if shortcut else expected) * torch.where(out > 0, 1.0, below)
    torch.testing.assert_close(y.float(), expected, rtol=0.01, atol=0.005)
    parts = zip(sums[:, :, 0], by_block(y.float(), tile), by_block(centred, tile), strict=True)
    for (plain, times), part, around in parts:
        torch.testing.assert_close(plain, part.sum(0), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(times, (part * around).sum(0) * rstd, rtol=1e-4, atol=1e-3)


@needs_compiler
@pytest.mark.parametrize(
    ("channels", "tile", "shape"),
    [
        (16, GradientTile(height=8, width=32, warps=4, outs=16, taps=9, each=2, blocks=1), (3, 8, 32)),
        (16, GradientTile(height=8, width=32, warps=6, outs=16, taps=3, each=1, blocks=1), (1, 16, 64)),
        (32, GradientTile(height=8, width=16, warps=12, outs=32, taps=3, each=4, blocks=1), (3, 16, 16)),
        (64, GradientTile(height=8, width=8, warps=12, outs=64, taps=3, each=2, blocks=1), (3, 8, 8)),
        (64, GradientTile(height=8, width=8, warps=6, outs=32, taps=3, each=2, blocks=1), (2, 8, 16)),
        (16, tile_conv.GRADIENT[16], (5, 8, 32)),
        (32, tile_conv.GRADIENT[32], (1, 16, 16)),
        (64, tile_conv.GRADIENT[64], (9, 8, 8)),
    ],
)
def test_the_gradient_of_a_weight(emulated, channels, tile, shape):
    torch.manual_seed(channels)
    x, dy = (last(shape[0], channels, *shape[1:]) for _ in range(2))
    weight = torch.zeros(channels, channels, 3, 3, requires_grad=True)
    sums = tile_conv.weight_gradient(x, dy, weight, tile)
    functional.conv2d(x.float(), weight, padding=1).backward(dy.float())
    found = sums.sum(0).reshape(channels, 3, 3, channels).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, weight.grad, rtol=1e-4, atol=1e-3)


def displaced(values):
    """The same in memory that begins two or four bytes off, as a view into a larger buffer does."""
    room = torch.empty(values.numel() + 1, dtype=values.dtype)
    return room[1:].as_strided(values.shape, values.stride()).copy_(values)


@needs_compiler
def test_other_types_of_weights_and_views_into_buffers(emulated):
    torch.manual_seed(0)
    channels, tile, shape = TILES[1]
    dy, extra, activated, before = (last(shape[0], channels, *shape[1:]) for _ in range(4))
    weight = (torch.randn(channels, channels, 3, 3) / channels).to(torch.bfloat16)
    norm = [(torch.rand(channels) + 0.1).to(torch.bfloat16) for _ in range(4)]
    form = dict.fromkeys(("FLIP", "NORM", "EXTRA", "ACTIVATED", "ELU"), True) | {"MOMENTS": False}
    found = []
    for all_bfloat16 in (False, True):
        images = [extra, activated, before]
        x, w, of = dy, weight.float(), [t.float() for t in norm]
        if all_bfloat16:
            x, w, *images = (displaced(t) for t in (dy, weight, *images))
            of = norm
        y, sums = torch.empty_like(dy), torch.empty(len(by_block(dy, tile)), 2, 1, channels)
        tile_conv.convolve(x, w, y, sums, [*images, *of], form, tile)
        gradient = tile_conv.weight_gradient(x, images[2], w, GradientTile(
            height=4, width=32, warps=4, outs=16, taps=9, each=2, blocks=1))  # fmt: skip
        found.append((y, sums, gradient))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_images_of_another_type_are_refused(emulated, dtype):
    x, weight = torch.zeros(1, 16, 8, 32, dtype=dtype), torch.zeros(16, 16, 3, 3)
    form = dict.fromkeys(("FLIP", "NORM", "EXTRA", "ACTIVATED", "ELU", "MOMENTS"), False)
    with pytest.raises(ValueError, match="bfloat16"):
        tile_conv.convolve(x, weight, x, weight, [weight] * 7, form, tile_conv.CONV[16])
    with pytest.raises(ValueError, match="bfloat16"):
        tile_conv.weight_gradient(last(1, 16, 8, 32), x, weight, tile_conv.GRADIENT[16])


def test_tiles_fill_an_image_on_a_device_that_can(monkeypatch):
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    monkeypatch.setattr(cuda_source, "available", lambda device: True)
    assert tile_conv.conv_tile(16, (8, 16, 32, 32), 1, cuda) is tile_conv.CONV[16]
    assert tile_conv.conv_tile(16, (8, 16, 32, 32), 1, cpu) is None
    assert tile_conv.conv_tile(16, (8, 32, 16, 16), 2, cuda) is None
    assert tile_conv.conv_tile(16, (8, 16, 28, 28), 1, cuda) is None
    monkeypatch.setattr(cuda_source, "available", lambda device: False)
    assert tile_conv.conv_tile(16, (8, 16, 32, 32), 1, cuda) is None


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [16, 32, 64])
def test_on_a_gpu(channels):
    torch.manual_seed(channels)
    size = 512 // channels
    x = last(5, channels, size, size).cuda().requires_grad_()
    weight = (torch.randn(channels, channels, 3, 3) / channels).cuda().requires_grad_()
    assert tile_conv.gradient_tile(x, x, 1) is not None
    mine = small_conv.small_conv(x, weight, 1)
    exact_x, exact_w = (v.detach().to(torch.bfloat16).float().requires_grad_() for v in (x, weight))
    theirs = functional.conv2d(exact_x, exact_w, padding=1)
    torch.testing.assert_close(mine.float(), theirs, rtol=0.01, atol=0.01)
    dy = torch.randn_like(mine)
    got = torch.autograd.grad(mine, (x, weight), dy)
    wanted = torch.autograd.grad(theirs, (exact_x, exact_w), dy.float())
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.float(), b, rtol=0.01, atol=0.02)


@pytest.mark.gpu
def test_views_into_buffers_and_an_empty_batch_on_a_gpu():
    torch.manual_seed(0)
    x = last(5, 16, 32, 32).cuda()
    weight = (torch.randn(16, 16, 3, 3) / 16).to(torch.bfloat16).cuda()
    room = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")
    view = room[1:].as_strided(x.shape, x.stride()).copy_(x)
    assert view.data_ptr() % 16
    expected = small_conv.small_conv(x, weight.float(), 1)
    assert torch.equal(small_conv.small_conv(view, weight, 1), expected)
    assert small_conv.small_conv(x[:0], weight, 1).shape == (0, 16, 32, 32)
    assert not small_conv.small_conv_weight_gradient(x[:0], x[:0], weight, 1).any()
