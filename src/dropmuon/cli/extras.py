"""What all commands share: parts of dropmuon that need extra packages are imported on demand."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = Any

__all__ = ["Commands", "needed"]


def needed(module: str, extra: str) -> Any:
    """Import a module, or say which extra of dropmuon installs what it needs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error}; install the {extra} extra: pip install '.[{extra}]' in a clone of dropmuon"
        ) from error
