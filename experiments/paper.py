"""The paper's tables, ablations and Figure 1, one small cell that runs on a CPU, and which settings diverge.

deepauc study list experiments/paper.py
deepauc study run experiments/paper.py smoke
"""

from experiments.catalogue import entries

_OURS = ("paper-tables", "ablations", "toy", "smoke", "divergence")
_RELEASED = ("notebook", "released", "causes", "fair", "released-ablations")
STUDIES = [entries()[name] for name in (*_OURS, *_RELEASED)]
