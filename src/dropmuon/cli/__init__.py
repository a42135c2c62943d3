"""The command line: `dropmuon --help` lists its commands."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dropmuon.cli.parser import WRONG, make_parser

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; print one clear line and return 2 for any mistake of the user.

    SIGTERM is treated like Ctrl-C: finished work is kept.
    """
    _open_streams()
    options = make_parser().parse_args(arguments)
    try:
        with _sigterm_as_ctrl_c():
            return int(options.run(options))
    except BrokenPipeError:  # whoever read the output has enough; files are complete
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, TypeError, ImportError, OSError, RuntimeError) as error:
        print(f"{WRONG} {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except (LookupError, ArithmeticError, AttributeError) as error:
        print(f"{WRONG} {_unexpected(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dropmuon: stopped", file=sys.stderr)
        return 130


def _unexpected(error: Exception) -> str:
    """Say what went wrong where: a file that is not what was written, or a mistake of ours."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__}: {' '.join(str(error).split())} "
        f"(in {Path(place.filename).name}, line {place.lineno}); a file was damaged or edited; "
        "if not, please report this"
    )


def _open_streams() -> None:
    """Replace standard streams that are closed, and print what an encoding lacks as `?`.

    A closed descriptor would otherwise be given to the next file that is opened.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM inside the block, where signals can be handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
