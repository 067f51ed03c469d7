"""`deepauc serve`: a page on this computer that scores the images dropped on it."""

from __future__ import annotations

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from deepauc.cli.console import Output
from deepauc.cli.options import AsJson, Force, checked_device


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run on images, or an exported bundle.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", show_default=False, help="Port (default: any free port).")
    ] = 0,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="cpu or cuda (default: a GPU if there is one).")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Open a web page on this computer that scores images."""
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise ValueError(f"deepauc serve needs {' and '.join(missing)}: pip install 'deepauc[serve]'.")
    from deepauc.serve.judgement import ServedRun
    from deepauc.serve.server import LocalServer

    output = Output(as_json=as_json)
    served = ServedRun(run, device=checked_device(device), force=force)
    server = LocalServer(served, port=port)
    for text in served.cautions:
        output.say(f"Caution. {text}.")
    output.result(f"Open this address in a browser on this computer: {server.address}")
    output.say("Images are scored in memory and not stored. Press Ctrl-C to stop.")
    output.say("Not a medical device: nothing here is cleared for decisions about patients.")
    output.record({"address": server.address, "port": server.port})
    # A decoder's remark on an odd file may quote what stands in it, a patient's name among others.
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        server.run()
    except KeyboardInterrupt:
        output.say("Stopped.")
