"""results/reliability.md from results/reliability.json, and nothing else.

python reliability/summary.py
"""

from __future__ import annotations

from typing import Any

from record import RESULTS, read_records

from deepauc.training.run.folder import code_text

ORDER = ("chaos", "fuzz", "mishaps", "soak", "scale")


def campaign(record: dict[str, Any]) -> list[str]:
    """One campaign's section."""
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        "",
        f"## {record['campaign'].capitalize()}",
        "",
        record["about"],
        "",
        f"Again: `{record['command']}`. The last call took {record['seconds']:.0f} s on {record['hardware']}; "
        f"{versions}; {record['date'][:10]}; {code_text(record)}.",
        "",
        "| what | trials | survivors | |",
        "|---|---:|---:|---|",
    ]
    for row in record["rows"]:
        note = row["note"].replace("|", "\\|")
        if row.get("commit", record.get("commit")) != record.get("commit"):
            note += f"; {code_text({**record, **row})}"
        lines.append(f"| {row['what']} | {row['trials']:,} | {row['survivors']:,} | {note} |")
    return lines


def main() -> None:
    """Write the page."""
    found = read_records()
    names = [*(name for name in ORDER if name in found), *sorted(set(found) - set(ORDER))]
    lines = [
        "# Reliability",
        "",
        "Made by `python reliability/summary.py` from `results/reliability.json`. A trial survives if it ends as the "
        "campaign says it must; every number is from the record of the run named beside it.",
        "",
        "| campaign | trials | survivors | again |",
        "|---|---:|---:|---|",
    ]
    for name in names:
        rows = found[name]["rows"]
        trials, survivors = (sum(row[key] for row in rows) for key in ("trials", "survivors"))
        lines.append(f"| {name} | {trials:,} | {survivors:,} | `{found[name]['command']}` |")
    for name in names:
        lines += campaign(found[name])
    (RESULTS / "reliability.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
