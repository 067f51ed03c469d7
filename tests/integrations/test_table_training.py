"""Networks trained side by side are those trained alone; the default network starts as nothing and nests a line."""

import numpy as np
import pytest
import torch

from deepauc.integrations.table_training import FeatureTable, LinearPlusMLP, TableRun, TableSettings


def some(rows=90, columns=1, seed=0):
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, 4))
    labels = (features[:, :columns] + 0.5 * generator.normal(size=(rows, columns)) > 0.7).astype(float)
    return FeatureTable(features, labels, generator.integers(1, 4, rows).astype(float))


def settings(**options):
    chosen = {
        "module": lambda inputs, outputs: LinearPlusMLP(inputs, outputs, hidden=(6,)), "margin": 1.0, "lr": 0.1,
        "gamma": 0.002, "weight_decay": 1e-3, "momentum": 0.9, "batch_size": 1024, "device": torch.device("cpu"),
        "seed": 5,
    }  # fmt: skip
    return TableSettings(**(chosen | options))


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("batch_size", [1024, 16])
def test_side_by_side_is_one_after_the_other(columns, batch_size):
    table = some(columns=columns)
    trains = [np.arange(0, 60), np.arange(30, 90), np.concatenate([np.arange(30), np.arange(60, 90)])]
    together = TableRun(table, trains, settings(batch_size=batch_size))
    together.advance(25)
    for rows, scorer in zip(trains, together.scorers, strict=True):
        alone = TableRun(table, [rows], settings(batch_size=batch_size))
        alone.advance(10)
        alone.advance(15)
        np.testing.assert_allclose(scorer(table.features), alone.scorers[0](table.features), rtol=1e-9, atol=1e-12)
        assert np.ptp(scorer(table.features), axis=0).min() > 0.5  # something was learnt


def normalised(inputs, outputs):
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, outputs)
    )


@pytest.mark.parametrize("options", [{}, {"module": normalised}], ids=["default", "batch normalisation"])
def test_rows_left_out_have_no_influence(options):
    table = some()
    rows = np.arange(50)
    changed = FeatureTable(table.features.copy(), table.columns.copy(), table.weights)
    changed.features[50:] *= 9
    changed.columns[50:] = 1 - changed.columns[50:]
    runs = [TableRun(one, [rows, np.arange(40)], settings(**options)) for one in (table, changed)]
    for run in runs:
        run.advance(20)
    np.testing.assert_allclose(*(run.scorers[0](table.features) for run in runs), rtol=1e-12)


def test_every_mini_batch_holds_both_classes():
    generator = np.random.default_rng(0)
    labels = (np.arange(500) < 10).astype(float)[:, None]
    run = TableRun(
        FeatureTable(generator.normal(size=(500, 2)), labels, np.ones(500)), [np.arange(500)], settings(batch_size=40)
    )
    for _ in range(30):
        inputs, drawn, weights = next(run._batches)
        assert inputs[0].shape == (40, 2)
        assert drawn.sum() == 10
        assert weights.shape == (40, 1)


def test_the_default_network_starts_at_zero_and_can_be_a_line():
    network = LinearPlusMLP(3, 2, hidden=(5,))
    x = torch.randn(8, 3)
    assert (network(x) == 0).all()
    with torch.no_grad():
        network.linear.weight.copy_(torch.arange(6.0).reshape(2, 3))
    torch.testing.assert_close(network(x), x @ torch.arange(6.0).reshape(2, 3).T)
