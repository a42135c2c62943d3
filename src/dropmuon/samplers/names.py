"""The samplers that have a name."""

from __future__ import annotations

from dropmuon.checks import unknown_name
from dropmuon.samplers.base import Sampler
from dropmuon.samplers.full import Full
from dropmuon.samplers.progressive import Progressive
from dropmuon.samplers.schedules import SCHEDULES

__all__ = ["by_name"]


def by_name(sampler: str | Sampler) -> Sampler:
    """Return the sampler of this name; a sampler is returned as it is.

    "full" is `Full()`; the name of a schedule is `Progressive` with that schedule.
    """
    if isinstance(sampler, Sampler):
        return sampler
    if not isinstance(sampler, str):
        raise TypeError(
            f"sampler must be a name or a Sampler, got {sampler!r}; "
            "use 'uniform' or an object such as Progressive()"
        )
    if sampler == "full":
        return Full()
    if sampler not in SCHEDULES:
        raise unknown_name("sampler", sampler, ["full", *SCHEDULES])
    return Progressive(SCHEDULES[sampler])
