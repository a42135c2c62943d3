"""Files that are written as a whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

__all__ = ["write_bytes", "write_json", "write_text", "write_with"]


def write_with(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Let `fill` write a draft next to the file, then move it into place."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
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
