"""Arguments that several parts of the planner share, checked in one way."""

from __future__ import annotations

import math

__all__ = ["check_budget", "check_confidence"]


def check_budget(budget: float) -> None:
    """Refuse what is no span of time."""
    if not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise ValueError(f"budget must be positive, in seconds, got {budget!r}; give 60.0")


def check_confidence(confidence: float) -> None:
    """Refuse what is no share of cases."""
    if not isinstance(confidence, int | float) or not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}; give 0.9")
