"""The paper's tables, ablations and Figure 1, one small cell that runs on a CPU, and which settings diverge.

deepauc study list experiments/paper.py
deepauc study run experiments/paper.py smoke
"""

from deepauc.studies.entry import Entry
from experiments.benchmarks import ablations, page, reproduction, reproduction_page, smoke, toy
from experiments.benchmarks.tables import paper_tables
from experiments.search import divergence

STUDIES = [
    Entry(studies=paper_tables(), page=page.PAGE),
    Entry(studies=ablations.ablations(), page=ablations.PAGE),
    toy.ENTRY,
    Entry(studies=smoke.smoke(), page=smoke.PAGE),
    Entry(studies=divergence.divergence(), page=divergence.PAGE),
    *(
        Entry(
            studies=one,
            page=reproduction_page.PAGES[one.name],
            settled=reproduction.settled if one.name == "fair" else None,
        )
        for one in reproduction.reproduction_sets()
    ),
]
