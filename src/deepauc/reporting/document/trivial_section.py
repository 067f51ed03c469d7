"""What a network is worth beside models that need none: logistic regression on small pixels or numbers, brightness."""

from __future__ import annotations

from deepauc.reporting.document.blocks import Block, Caution, DataTable, Paragraph, Section, shown
from deepauc.reporting.document.cells import cells, decimals, signed_cell
from deepauc.reporting.evaluation.findings import Paired, RunFindings
from deepauc.reporting.figures.label import signed_text


def trivial_cautions(findings: RunFindings) -> list[Block]:
    """For each label whose network is not better than the best trivial baseline beyond chance."""
    cautions: list[Block] = []
    for number, label in enumerate(findings.label_names):
        pairs = [(one.objective, one.labels[number]) for one in findings.trivial]
        judged = [(name, pair) for name, pair in pairs if isinstance(pair, Paired)]
        name, best = max(judged, key=lambda one: one[1].baseline_auc, default=("", None))
        if best is not None and best.difference.low <= 0:
            of = "The network" if len(findings.label_names) == 1 else f"For {shown(label)} the network"
            text = f"{of} is not clearly better than {shown(name)}: AUC difference {signed_text(best.difference)}."
            cautions.append(Caution(text))
    return cautions


def trivial_section(findings: RunFindings) -> Section | None:
    """The paired comparison with each of them; None where training has fitted none."""
    rows = [
        cells(shown(one.objective), shown(label), decimals(pair.baseline_auc), signed_cell(pair.difference))
        for one in findings.trivial
        for label, pair in zip(findings.label_names, one.labels, strict=True)
        if isinstance(pair, Paired)
    ]
    if not rows:
        return None
    header = ("Trivial baseline", "Label", "AUC", "AUC of the network minus this [95 % interval]")
    table = DataTable(caption="Paired comparison with trivial baselines", header=header, rows=tuple(rows))
    text = (
        "These models need no network and train in seconds on the same rows. A network that is not clearly better "
        "may not be worth its training."
    )
    return Section(anchor="trivial", title="Against trivial baselines", blocks=(Paragraph(text), table))
