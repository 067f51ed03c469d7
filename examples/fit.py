"""From a DataFrame to a model, its leaderboard and scores of new rows, in one call of `fit`.

python examples/fit.py [--out example-fit] [--minutes 0.5]
"""

import argparse
from pathlib import Path

from sklearn.datasets import load_breast_cancer

import deepauc


def main(out: Path, minutes: float) -> deepauc.Model:
    """Tumours of 300 patients, few enough to be cross-validated; 100 others come later."""
    table = load_breast_cancer(as_frame=True).frame.iloc[:400]
    table = table.assign(patient=[f"p{number}" for number in range(400)], target=1 - table["target"])  # 1: malignant
    known, new = table.iloc[:300], table.iloc[300:]
    features = ["mean radius", "mean texture", "mean smoothness", "mean concavity"]
    model = deepauc.fit(known, label="target", features=features, id="patient", minutes=minutes, out=out)
    print(model.leaderboard)
    print(model.predict(new).head())
    print(model.evaluate(new))
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("example-fit"))
    parser.add_argument("--minutes", type=float, default=0.5)
    main(**vars(parser.parse_args()))
