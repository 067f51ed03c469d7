"""What the API pages show as tables of parameters: each docstring lists its parameters, all of them, in their order."""

import inspect
import re

import pytest

import deepauc
from deepauc.integrations.sklearn import DeepAUCClassifier
from deepauc.reporting.report import write_report
from deepauc.studies.study import Study
from deepauc.studies.table_source import TableSource

LISTED = [
    *(deepauc.Stage, deepauc.Recipe, deepauc.PESG, deepauc.auroc, deepauc.auroc_interval, deepauc.compare_auroc),
    *(getattr(deepauc, name) for name in deepauc.__all__ if name.endswith("Loss")),
    *(deepauc.PDSCA, deepauc.ClassQuotaSampler, deepauc.Task, deepauc.Augment, deepauc.TimmSpec),
    *(deepauc.SmallCNNSpec, deepauc.ResNet20Spec, deepauc.MLPSpec, deepauc.FactorySpec, deepauc.BagSpec),
    *(deepauc.PESGSpec, deepauc.SGDSpec, deepauc.AdamSpec, deepauc.AdamWSpec),
    *(deepauc.fit, deepauc.train, deepauc.predict, write_report, Study, TableSource, DeepAUCClassifier),
]


@pytest.mark.parametrize("public", LISTED, ids=lambda public: public.__name__)
def test_parameters_are_listed(public):
    text = inspect.getdoc(public)
    section = text.split("\nArgs:\n", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^    (\w+): \S", section, re.MULTILINE) == list(inspect.signature(public).parameters)
