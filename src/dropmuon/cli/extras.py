"""What commands share: rooms are imported when a command runs, since they need extras."""

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
    """Import a room of dropmuon, or say which extra brings what it needs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; install it: pip install 'dropmuon[{extra}]'") from error
