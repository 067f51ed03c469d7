"""What the shell calls as `deepauc`: beside the package, whose import takes seconds, so that Ctrl-C is heard before."""

from __future__ import annotations

import os
import sys

try:
    import signal
    from types import FrameType
except KeyboardInterrupt:  # these take some milliseconds themselves
    os.write(2, b"deepauc: interrupted.\n")
    os._exit(130)


def run() -> None:
    """`deepauc.cli.main.run`, with exit code 130 and one line for Ctrl-C from the first moment to the last."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a script's background job ignores it
    if heard:
        signal.signal(signal.SIGINT, _leave)  # no exception: an import that catches it would go on, or print it
    _open_what_is_closed()
    from deepauc.cli.main import run as run_command

    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run_command()
    except KeyboardInterrupt:  # a second one, while the first was being answered
        _leave()
    finally:
        if heard:
            signal.signal(signal.SIGINT, _leave_silently)  # all is said; what is left is the interpreter's own end


def _open_what_is_closed() -> None:
    """What was started with `>&-` speaks to nobody; else the next file that it opens would become its stdout."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.dup2(descriptor, number)
            if descriptor > 2:
                os.close(descriptor)
            stream = os.fdopen(number, "w" if number else "r", closefd=False, encoding="utf-8")
            setattr(sys, name, stream)


def _leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    os.write(2, b"deepauc: interrupted.\n")
    os._exit(130)


def _leave_silently(number: int, frame: FrameType | None) -> None:
    os._exit(130)


if __name__ == "__main__":  # python -m deepauc_command, as torchrun calls it
    run()
