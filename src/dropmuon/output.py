"""Tables, counts, durations and arguments as text; files written as a whole or not at all."""

from __future__ import annotations

import html
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

__all__ = [
    "aligned",
    "clear_drafts",
    "duration",
    "html_table",
    "readable",
    "short_count",
    "write_bytes",
    "write_json",
    "write_text",
    "write_with",
]


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with columns as wide as their widest cell, and a rule below the header."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([shown[0], "  ".join("-" * width for width in widths), *shown[1:]])


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a notebook; nothing in a cell is taken for markup."""
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f"<table><caption>{html.escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def short_count(count: int) -> str:
    """Return a count in three digits: 1234567 as 1.23M."""
    for size, unit in ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "k")):
        if count >= 0.9995 * size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def duration(seconds: float | None) -> str:
    """Return seconds in the unit that makes them short, such as 12.3 ms, 1.5 min or 2.1 h."""
    if seconds is None:
        return "–"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    if seconds >= 1 or seconds < 1e-9:
        return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"
    return f"{1000 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def readable(argument: str) -> str:
    """Return an argument of the command line as UTF-8, whatever the locale took it for."""
    return os.fsencode(argument).decode(errors="replace")


_ABANDONED = 3600.0
"""The age in seconds at which no draft is still being written."""


def clear_drafts(directory: Path, *, of: str = r".+", age: float = 0.0) -> None:
    """Remove drafts of files of these names that killed processes left, if they are this old.

    With no age given, nobody else may be writing to the directory.
    """
    pattern = re.compile(rf"\.{of}\.[a-z0-9_]{{8}}\.draft")
    for draft in [each for each in directory.glob(".*.draft") if pattern.fullmatch(each.name)]:
        with suppress(OSError):
            if time.time() - draft.stat().st_mtime >= age:
                draft.unlink()


def write_with(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Let `fill` write a draft next to the file, then move it into place; make its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_drafts(path.parent, of=re.escape(path.name), age=_ABANDONED)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".draft")
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).chmod(0o644)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes."""
    write_with(path, lambda file: file.write(content))


def write_text(path: Path, content: str) -> None:
    """Write text as UTF-8."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Write human-readable JSON; NaN is an error, since JSON has none."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
