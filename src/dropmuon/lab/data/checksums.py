"""Files that are known by their checksum."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["File"]


@dataclass(frozen=True)
class File:
    """A file as it must be: its size in bytes, and its checksum as "algorithm:digest"."""

    name: str
    size: int
    checksum: str

    @property
    def algorithm(self) -> str:
        """How the checksum is made."""
        return self.checksum.partition(":")[0]

    def found_at(self, path: Path) -> str | None:
        """The checksum of what stands at this path; None if nothing does."""
        if not path.is_file():
            return None
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: _start(self.algorithm))
        return f"{self.algorithm}:{digest.hexdigest()}"

    def found_in(self, content: bytes) -> str:
        """The checksum of this content."""
        digest = _start(self.algorithm)
        digest.update(content)
        return f"{self.algorithm}:{digest.hexdigest()}"


def _start(algorithm: str) -> hashlib._Hash:
    return hashlib.new(algorithm, usedforsecurity=False)
