"""When to freeze: engines look at flags too, and keep what they saw.

FSDP2 chooses the types of reduced gradients in its first forward. DDP averages what is trainable
when it is built, which may be after a state was loaded. So where ranks work together, nothing is
frozen before the first forward or step, and DDP that left something out is refused.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from dropmuon.backward.flags import wants_training
from dropmuon.checks import warn

__all__ = ["call_when_settled", "can_truncate", "check_ddp", "find_ddp"]

Settled = Callable[[DistributedDataParallel | None], None]
"""What to do when flags may be applied, by the DDP that runs the model, if any."""


def find_ddp(model: nn.Module) -> list[DistributedDataParallel]:
    """Return what is DDP in a model: itself, inside of a wrapper, or compiled."""
    return [each for each in model.modules() if isinstance(each, DistributedDataParallel)]


def check_ddp(engines: Iterable[DistributedDataParallel], parts: int) -> None:
    """Raise ValueError where ranks would move apart in silence."""
    for ddp in engines:
        _check_complete(ddp)
        if parts > 1 and getattr(ddp, "skip_all_reduce_unused_params", False):
            raise ValueError(
                f"parts={parts} and skip_all_reduce_unused_params=True of DistributedDataParallel "
                "cannot be combined: after no_sync, it leaves out gradients of earlier parts; "
                "leave it out, and call dropmuon.integrations.ddp.reduce_active(model)"
            )


def can_truncate(engines: Iterable[DistributedDataParallel]) -> bool:
    """Return whether DDP tolerates missing gradients; by default, it waits for all."""
    if all(each.find_unused_parameters and not each.static_graph for each in engines):
        return True
    warn(
        "params is a DistributedDataParallel that waits for every gradient, so all are computed "
        "(truncate=False); to save the backward of frozen layers, wrap the model with "
        "find_unused_parameters=True and no static_graph"
    )
    return False


def _check_complete(ddp: DistributedDataParallel) -> None:
    """Raise ValueError for DDP that was built while layers were frozen temporarily."""
    wanted = {
        parameter
        for path, module in ddp.module.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if f"{path}.{name}".lstrip(".") not in ddp.parameters_to_ignore
        and wants_training(parameter, (module, name))
    }
    averaged = ddp._get_ddp_logging_data()["num_parameter_tensors"]
    if averaged < len(wanted):
        raise ValueError(
            f"params is in a DistributedDataParallel that averages {averaged} of {len(wanted)} "
            "gradients: the other parameters were frozen when it was built; wrap the model inside "
            "of 'with optimizer.full():', or before the first step"
        )


def call_when_settled(
    model: nn.Module | None, settled: Settled
) -> tuple[bool, RemovableHandle | None]:
    """Call back in the next forward, and whenever another DDP runs the model later, with that DDP.

    Return whether there is anything to wait for, and what ends the calls. Without a model there is
    no telling when its forward is; then only a step ends the wait.
    """
    if model is None:
        return _has_ranks(), None
    made = sys.modules.get("torch.distributed.fsdp")
    is_fsdp = made is not None and any(isinstance(m, made.FSDPModule) for m in model.modules())
    if not is_fsdp and not _has_ranks():
        return False, None
    handle = model.register_forward_pre_hook(_OnForward(settled))
    return is_fsdp or not find_ddp(model), handle


def _has_ranks() -> bool:
    return distributed.is_available() and distributed.is_initialized()


class _OnForward:
    """A hook at the start of a forward; copies and pickles of a model get one that does nothing."""

    def __init__(self, act: Settled | None = None) -> None:
        self._act, self._is_first = act, True
        self._known: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()

    def __call__(self, module: nn.Module, args: Any) -> None:
        if self._act is None or torch.compiler.is_compiling():
            return
        around = DistributedDataParallel._get_active_ddp_module()
        if self._is_first or (around is not None and around not in self._known):
            self._act(around)
            self._is_first = False
            self._known |= set() if around is None else {around}

    def __reduce__(self) -> tuple[type[_OnForward], tuple[()]]:
        return _OnForward, ()
