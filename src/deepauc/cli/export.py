"""`deepauc export`: a run as ONNX file, as bundle, or as a model card."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from deepauc.cli.console import Output
from deepauc.cli.options import AsJson, Force


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    onnx: Annotated[
        Path | None, typer.Option(metavar="FILE", help="ONNX file, checked against PyTorch (-: standard output).")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the weights (safetensors) and a description.")
    ] = None,
    card: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Model card for Hugging Face (-: standard output).")
    ] = None,
    single: Annotated[
        bool, typer.Option("--single", help="Export one fold's network, not the average of all folds.")
    ] = False,
    force: Force = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only where the files are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a trained run to ONNX, safetensors or a model card.

    Name at least one of --onnx, --bundle and --card.
    """
    if not any((onnx, bundle, card)):
        raise ValueError("name what to write: --onnx FILE, --bundle DIR or --card FILE.")
    if single and card is not None:
        raise ValueError("a model card describes the whole run: leave out --single, or --card.")
    from deepauc.training.run.output_file import require_output, write_output

    for path, option in ((onnx, "--onnx"), (card, "--card")):
        if path is not None:
            require_output(path, option)
    _require_possible(run, onnx=onnx, card=card)
    from deepauc.pipeline.single import has_folds, save_single
    from deepauc.reporting.export import copy_bundle, export_onnx
    from deepauc.reporting.model_card import model_card
    from deepauc.training.predict.cost import prediction_cost
    from deepauc.training.run.own_files import BUNDLE, MODEL, SCORES, require_own

    output = Output.beside([onnx, card], quiet=quiet, as_json=as_json)
    used = (MODEL, BUNDLE) if card is None else (MODEL, BUNDLE, SCORES)
    cautions = require_own(run, *used, force=force)
    for text in cautions:
        output.result(f"Caution. {text}.")
    record: dict[str, Any] = {"cautions": list(cautions)} if cautions else {}
    with TemporaryDirectory() as place:
        source = run
        if single:
            source, chosen = Path(place), save_single(run, Path(place), force=force)
            record["single"] = asdict(chosen)
            output.result(f"Single network: {chosen.text}")
        costs = {"average": prediction_cost(run)} if has_folds(run) else {}
        if single:
            costs["single"] = prediction_cost(source)
        for name, cost in costs.items():
            output.say(f"The {name}: {cost.text}")
        record |= {"cost": {name: asdict(cost) for name, cost in costs.items()}} if costs else {}
        if bundle is not None:
            files = copy_bundle(source, bundle, force=force)
            output.result(f"Bundle: {', '.join(map(str, files))}")
            record["bundle"] = [str(path) for path in files]
        if onnx is not None:
            found = export_onnx(source, onnx, force=force, images_of=run)
            difference = f"max difference to torch {found.max_difference:.2g}, allowed {found.tolerance:.2g}"
            output.result(f"ONNX: {onnx} ({difference}, on {found.source})")
            record["onnx"] = {
                "path": str(onnx),
                "max_difference": found.max_difference,
                "tolerance": found.tolerance,
                "compared": found.compared,
                "source": found.source,
                "copies": found.copies,
            }
            if found.copies:
                output.say(f"As in the run, a score is the mean over {found.copies:,} augmented copies of an image.")
    if card is not None:
        write_output(card, model_card(run, force=force).encode())
        output.result(f"Model card: {card}")
        record["card"] = str(card)
    output.say("Not a medical device.")
    output.record(record)


def _require_possible(run: Path, *, onnx: Path | None, card: Path | None) -> None:
    """An export may take the place of an earlier one, but not of a file that the run is made of, or of the other.

    The packages for ONNX are looked for before anything is written.
    """
    for path, suffix in ((onnx, ".onnx"), (card, ".md")):
        if path is None or not path.exists() or run.resolve() not in path.resolve().parents:
            continue
        if path.suffix != suffix or path.name == "report.md":
            raise ValueError(f"{path} is a file of the run, which would be lost: name another file.")
    if onnx is not None and card is not None and onnx.resolve() == card.resolve():
        raise ValueError(f"{onnx} cannot be both, the ONNX file and the card: name two files.")
    if onnx is not None:
        from deepauc.reporting.export import onnx_packages

        onnx_packages()
