"""The AUROC in chunks, merged, sent and over several processes: `auroc`'s value to the bit."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deepauc.metrics import streaming
from deepauc.metrics.auroc import auroc
from deepauc.metrics.streaming import StreamingAUROC, distributed_auroc

HYPOTHESIS = settings(derandomize=True, deadline=None)


def in_chunks(scores, labels, cuts, weights=None):
    stream = StreamingAUROC()
    for start, stop in zip([0, *cuts], [*cuts, len(scores)], strict=True):
        part = slice(start, stop)
        stream.update(scores[part], labels[part], weights=None if weights is None else weights[part])
    return stream


def problem(rows, labels=(), seed=0, dtype=np.float32, missing=0.1):
    rng = np.random.default_rng(seed)
    y = (rng.random((rows, *labels)) < 0.3).astype(np.float32)
    scores = (rng.standard_normal((rows, *labels)) + y).round(2).astype(dtype)
    y[rng.random(y.shape) < missing] = np.nan
    return scores, y, rng.random((rows, *labels))


@HYPOTHESIS
@given(
    data=st.lists(
        st.tuples(st.floats(allow_nan=False, allow_infinity=False, width=32), st.sampled_from([0.0, 1.0, np.nan])),
        min_size=2,
        max_size=40,
    ),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    pending=st.sampled_from([1, 4, 100]),
)
def test_any_floats_in_any_chunks(data, cuts, pending):
    scores, labels = (np.array(part, dtype=np.float32) for part in zip(*data, strict=True))
    assume((labels == 1).any() and (labels == 0).any())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "PENDING", pending)
        stream = in_chunks(scores, labels, sorted(min(cut, len(scores)) for cut in cuts))
        assert stream.compute() == auroc(scores, labels)
        assert StreamingAUROC.from_state(stream.state()).compute() == auroc(scores, labels)


@pytest.mark.parametrize("labels", [(), (1,), (3,)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
def test_chunks_merges_and_states_of_every_kind(labels, dtype, weighted):
    scores, y, weights = problem(5000, labels, dtype=dtype)
    weights = weights if weighted else None
    expected = auroc(scores, y, weights=weights)
    stream = in_chunks(scores, y, [0, 1, 1700, 1700, 4990], weights)
    assert np.array_equal(stream.compute(), expected)
    assert np.shape(stream.compute()) == np.shape(expected)
    first, second = in_chunks(scores[:900], y[:900], [30], None if weights is None else weights[:900]), StreamingAUROC()
    second.update(scores[900:], y[900:], weights=None if weights is None else weights[900:])
    first.merge(StreamingAUROC())
    first.merge(StreamingAUROC.from_state(second.state()))
    assert np.array_equal(first.compute(), expected)
    assert np.array_equal(StreamingAUROC.from_state(first.state()).compute(), expected)


def test_a_label_that_one_part_of_the_rows_lacks():
    """As on a process none of whose patients was asked for that finding."""
    scores, labels, _ = problem(60, (2,))
    labels[:30, 1] = np.nan
    whole = StreamingAUROC()
    for rows in (slice(0, 30), slice(30, 60)):
        part = StreamingAUROC()
        part.update(scores[rows], labels[rows])
        whole.merge(StreamingAUROC.from_state(part.state()))
        if rows.start == 0:
            with pytest.raises(ValueError, match="in column 1; there are 0 positives"):
                whole.compute()
    np.testing.assert_array_equal(whole.compute(), auroc(scores, labels))


def test_weights_of_rows_shared_by_all_labels_and_torch_tensors():
    scores, y, weights = problem(600, (2,))
    expected = auroc(scores, y, weights=weights[:, 0])
    assert np.array_equal(in_chunks(scores, y, [200], weights[:, 0]).compute(), expected)
    tensors = torch.tensor(scores).bfloat16(), torch.tensor(y)
    assert np.array_equal(in_chunks(*tensors, [10, 300]).compute(), auroc(*tensors))


def test_a_chunk_can_be_changed_after_it_was_given():
    scores, y, weights = problem(50, missing=0)
    expected = auroc(scores, y), auroc(scores, y, weights=weights)
    streams = in_chunks(scores, y, []), in_chunks(scores, y, [], weights)
    scores[:], y[:], weights[:] = 0, 0, 1
    assert (streams[0].compute(), streams[1].compute()) == expected


def test_counts_beyond_int64_are_exact():
    stream = StreamingAUROC()
    stream._agree(0, np.dtype(np.float32), weighted=False)
    many = 3_000_000_000
    values = np.array([1, 2, 3], dtype=np.float32)
    stream._counts[0].add_counts(values, np.array([many, 7, 1]), np.array([1, 5, many]))
    below = many * (5 + many) + 7 * many
    ties = many * 1 + 7 * 5 + 1 * many
    assert stream.compute() == (2 * below + ties) / (2 * (many + 8) * (many + 6))


def test_half_precision_scores_take_no_more_memory_however_many_there_are():
    stream, rng, peaks = StreamingAUROC(), np.random.default_rng(0), []
    tracemalloc.start()
    for _ in range(3):
        for _ in range(10):
            scores = rng.standard_normal(1 << 17).astype(np.float16)
            stream.update(scores, rng.random(1 << 17) < 0.01)
        stream.compute()
        peaks.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert peaks[-1] < peaks[0] + 200_000
    assert peaks[-1] < 2_000_000


def test_refusals():
    scores, y, weights = problem(20, missing=0)
    y[:2] = [0, 1]
    stream = in_chunks(scores, y, [])
    with pytest.raises(ValueError, match=r"\(n, 1\) after some of shape \(n,\)"):
        stream.update(scores[:, None], y[:, None])
    with pytest.raises(ValueError, match="float64 scores after float32"):
        stream.update(scores.astype(float), y)
    with pytest.raises(ValueError, match="some chunks have weights"):
        stream.update(scores, y, weights=weights)
    with pytest.raises(ValueError, match="NaN or infinity"):
        stream.update(scores * np.nan, y)
    assert stream.compute() == auroc(scores, y)  # what was refused left nothing behind
    with pytest.raises(ValueError, match="0 positives and 0 negatives"):
        StreamingAUROC().compute()
    with pytest.raises(ValueError, match="in column 1; there are 0 positives and 3"):
        in_chunks(np.eye(3)[:, :2], np.array([[1, 0], [0, 0], [1, 0]]), []).compute()
    for bad in (b"", b"x" * 40, stream.state()[:-1], stream.state()[:9]):
        with pytest.raises(ValueError, match="not the state"):
            StreamingAUROC.from_state(bad)


def test_without_a_process_group_it_is_auroc():
    scores, y, weights = problem(200)
    assert distributed_auroc(scores, y) == auroc(scores, y)
    assert distributed_auroc(scores, y, weights=weights) == auroc(scores, y, weights=weights)


PROCESS = """
import sys
import numpy as np
import torch
from torch import distributed
from deepauc.metrics.auroc import auroc
from deepauc.metrics.streaming import distributed_auroc

rank, world, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=world)
cuts = {1: [0, 3000], 2: [0, 10, 3000], 3: [0, 2000, 2000, 3000]}[world]  # uneven; one of three has no rows
mine = slice(cuts[rank], cuts[rank + 1])
rng = np.random.default_rng(0)
checked = 0
for shape in ((3000,), (3000, 3)):
    for dtype in (np.float16, np.float32, np.float64, np.int32):
        labels = (rng.random(shape) < 0.2).astype(np.float32)
        scores = (3 * (rng.standard_normal(shape) + labels)).round(2).astype(dtype)
        labels[rng.random(shape) < 0.1] = np.nan
        for weights in (None, rng.random(3000), rng.random(shape)):
            whole = auroc(scores, labels, weights=weights)
            part = distributed_auroc(
                torch.tensor(scores[mine]), labels[mine], weights=None if weights is None else weights[mine]
            )
            assert np.array_equal(part, whole) and np.shape(part) == np.shape(whole), (shape, dtype, part, whole)
            checked += 1
scores, labels = rng.standard_normal(3000), rng.random(3000) < 0.5
assert distributed_auroc(scores[rank::world], labels[rank::world]) == auroc(scores, labels)  # any order of the rows
some = distributed.new_group([world - 1])
if rank == world - 1:
    assert distributed_auroc(scores, labels, group=some) == auroc(scores, labels)

broken = scores[mine].copy()
if rank == 0:
    broken[0] = np.nan
for bad_scores, bad_labels, reason in (
    (broken, labels[mine], "process 0: scores hold NaN"),
    (scores[mine], 0 * labels[mine], "0 positives and 3000 negatives"),
):
    try:
        distributed_auroc(bad_scores, bad_labels)
    except ValueError as error:
        assert reason in str(error), error
    else:
        raise AssertionError(reason)
print("checked", checked, flush=True)
distributed.barrier()  # nobody leaves while another still speaks
distributed.destroy_process_group()  # or its threads are still alive when the interpreter goes, which may abort it
"""


@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_give_what_one_gives_to_the_bit(world, tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(world), str(tmp_path / "meet")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    for process in started:
        out, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        assert out.strip() == "checked 24"
