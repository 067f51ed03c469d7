"""The paper's tables, ablations and Figure 1, one small cell that runs on a CPU, and which settings diverge.

deepauc study list experiments/paper.py
deepauc study run experiments/paper.py smoke
"""

from deepauc.paper.catalogue import entries

STUDIES = [entries()[name] for name in ("paper-tables", "ablations", "toy", "smoke", "divergence")]
