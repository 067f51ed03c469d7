"""Readers of what the package writes itself, changed by somebody: settings, scores, bundles, checkpoints."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from fuzz_reader import CSV_WORDS, JSON_WORDS, NUMBERS, Reader, Target, parquet
from safetensors.torch import save

from deepauc.data.augment.batch import Augment
from deepauc.models.build import FactorySpec, MLPSpec, SmallCNNSpec, build_model
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.config import DataSettings, Settings, read_settings, settings_toml
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.bundle import Bundle, save_weights
from deepauc.training.run.checkpoint import _checksum, load_state, save_state
from deepauc.training.run.scores import read_scores
from deepauc.training.schedule import Steps


def toml() -> Reader:
    stages = (
        Stage(objective=CrossEntropy(), optimizer=SGDSpec(), epochs=2, uncertain={"a": "ones"}),
        Stage(
            objective=AUCMargin(margin=(0.5, 1)),
            optimizer=PESGSpec(),
            iterations=7,
            schedule=Steps(milestones=(2, 4)),
            augment=Augment(rotation=8, scale=(0.9, 1.1)),
            positives_per_batch=4,
        ),
    )
    text = settings_toml(
        Settings(
            seed=3,
            data=DataSettings(table="a.csv", label_columns=("x", "y"), image_size=(28, 30)),
            recipe=Recipe(model=FactorySpec(factory="a.b:c", arguments={"n": 3}), stages=stages, guard=True),
        )
    )
    words = ("[]", "{}", "{type = 3}", "{type = []}", "'AUCMargin'", "=", "[[x]]", "1979-05-27T07:32:00Z", '"\\ud800"')
    return Reader(
        targets=(Target(name="run.toml", good=(text.encode(), b"seed = 1\n")),),
        read=lambda folder, name: read_settings(folder / name),
        files={},
        words=(*(word.encode() for word in words), b"[" * 2000, b"{a=" * 2000, b"\0", *NUMBERS),
    )


def scores() -> Reader:
    binary = b"id,part,group,label,score\na,test,p,1,0.5\nb,test,q,0,0.25\nc,train,q,0,1e-3\n"
    several = b"label:a,score:a,label:b,score:b,id\n1,0.5,0,0.1,x\n0,0.25,,2,y\n"

    def read(folder: Path, name: str) -> None:
        ways = (
            {},
            {"other_labels": "missing"},
            {"label_columns": ["label"], "score_columns": ["score"], "positive": "1", "group_column": "group"},
        )
        faults = []
        for options in ways:
            try:
                table = read_scores(folder / name, **options)
            except ValueError as error:
                faults.append(error)
                continue
            assert table.labels.shape == table.scores.shape == (len(table), len(table.label_names))
            assert np.isin(table.labels[~np.isnan(table.labels)], (0, 1)).all()
        if len(faults) == len(ways):
            raise next((fault for fault in faults if type(fault) is not ValueError), faults[0])

    words = (b";", b"label", b"score", b"1_0", "０".encode(), b"\x1b[31m", b"\xff", b"true")
    return Reader(
        targets=(
            Target(name="s.csv", good=(binary, several)),
            Target(name="s.tsv", good=(binary.replace(b",", b"\t"), several.replace(b",", b"\t"))),
            Target(name="s.csv.gz", good=(gzip.compress(binary),)),
            Target(name="s.csv.gz", good=(binary, several), made=lambda some: gzip.compress(some, 1)),
            Target(name="s.parquet", good=(parquet(binary),)),
        ),
        read=read,
        files={},
        words=(*CSV_WORDS, *words, *NUMBERS),
    )


def bundles() -> Reader:
    with tempfile.TemporaryDirectory() as place:
        made = []
        for name, spec, shape in (("mlp", MLPSpec(hidden=(4,)), (3,)), ("cnn", SmallCNNSpec(widths=(2, 3)), (4, 4, 3))):
            folder = Path(place) / name
            folder.mkdir()
            around = Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3, images=len(shape) == 3)
            Bundle(
                model=spec,
                shape=shape,
                kind="binary",
                label_names=("y",),
                preprocessing=around,
                thresholds={"y": {"0.95": 0.5}},
            ).save(folder)
            save_weights(folder / "model.safetensors", build_model(spec, in_channels=3, num_outputs=1, seed=0))
            made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    kinds = (b'"TimmSpec"', b'"FactorySpec"', b'"os:system"', b'"multilabel"', b'"F64"', b'"BF16"', b"1000000000000")
    mlp, cnn = made
    return Reader(
        targets=tuple(Target(name=name, good=(mlp[name], cnn[name])) for name in ("bundle.json", "model.safetensors")),
        read=lambda folder, _: Bundle.load(folder).network(folder),
        files=mlp,
        words=(*kinds, *JSON_WORDS),
    )


def checkpoints() -> Reader:
    state = {"a": [1, 2.5, None, "x"], 3: (torch.arange(4), {"deep": torch.ones(2, 2).bfloat16()}), "empty": {}}
    with tempfile.TemporaryDirectory() as place:
        save_state(Path(place) / "c", state)
        good = (Path(place) / "c").read_bytes()
    skeleton = {"dict": [["a", {"tuple": [1, {"tensor": "0"}]}], ["b", [{"tensor": "1"}, None]]]}
    tensors = {"0": torch.ones(2), "1": torch.zeros(0)}

    def signed(content: bytes) -> bytes:
        """By someone who can compute a checksum."""
        text = content.decode("utf-8", errors="replace")
        return save(tensors, metadata={"state": text, "sha256": _checksum(text, tensors)})

    return Reader(
        targets=(
            Target(name="c", good=(good,)),
            Target(name="c", good=(json.dumps(skeleton).encode(),), made=signed),
        ),
        read=lambda folder, name: load_state(folder / name),
        files={},
        words=(
            b'{"tensor":"0"}',
            b'{"tuple":[]}',
            b'{"dict":[[[],1]]}',
            b'"F8_E4M3"',
            b'"C64"',
            b"\x80\x04",
            *JSON_WORDS,
        ),
    )
