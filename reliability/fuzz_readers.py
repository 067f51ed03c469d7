"""All readers, by the names that records and the command line have."""

from __future__ import annotations

from collections.abc import Callable

from fuzz_data_readers import packed_sets, pictures, sheets, tables, tfrecord
from fuzz_reader import Reader
from fuzz_run_readers import bundles, checkpoints, scores, toml

READERS: dict[str, Callable[[], Reader]] = {
    "csv and parquet tables": tables,
    "pictures": pictures,
    "TOML settings": toml,
    "TFRecord": tfrecord,
    "npz sheets": sheets,
    "packed sets": packed_sets,
    "scores": scores,
    "bundles": bundles,
    "checkpoints": checkpoints,
}
