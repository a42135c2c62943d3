"""PyTorch's Muon: `torch.optim.Muon` for hidden matrices, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dropmuon.lab.models import item_of
from dropmuon.model.groups import layer_groups
from dropmuon.norms import AdamW

__all__ = ["TorchMuon"]


class TorchMuon:
    """`torch.optim.Muon` and `torch.optim.AdamW` as one optimizer, for a model of the lab.

    Parameters are routed as with `policy="muon"`: matrices of hidden layers go to Muon; embeddings,
    the output layer and vectors go to AdamW. `torch.optim.Muon` takes matrices only, so a
    convolution is passed as a view of shape (out, in*kh*kw), as in Jordan's own code.

    On a CPU the Newton-Schulz iteration runs in the precision of the parameters: torch casts to
    bfloat16 there, and a product of bfloat16 matrices is slow on most CPUs and an illegal
    instruction on some. Only that cast is skipped; the rest of the step is torch's own code. On
    other devices nothing is changed.

    Args:
        model: a model of the lab, whose named items are its layers.
        lr: learning rate of Muon.
        adamw_lr: learning rate of AdamW.
        betas: of AdamW.
        weight_decay: of both; None leaves torch's defaults, 0.1 for Muon and 0.01 for AdamW.
        muon: further arguments of `torch.optim.Muon`.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.02,
        adamw_lr: float = 3e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float | None = None,
        **muon: Any,
    ) -> None:
        hidden, rest = _routed(model)
        decay: dict[str, Any] = {} if weight_decay is None else {"weight_decay": weight_decay}
        self._hidden = [(p, nn.Parameter(_as_matrix(p.detach(), like=p))) for p in hidden]
        self.muon = torch.optim.Muon([matrix for _, matrix in self._hidden], lr, **decay, **muon)
        self.adamw = torch.optim.AdamW(rest, adamw_lr, betas, **decay)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both optimizers, for learning-rate schedules."""
        return [*self.muon.param_groups, *self.adamw.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move all parameters along their gradients."""
        loss = None if closure is None else closure()
        for parameter, matrix in self._hidden:
            grad = parameter.grad
            matrix.grad = None if grad is None else _as_matrix(grad, like=parameter)
        with self._precision():
            self.muon.step()
        self.adamw.step()
        return loss

    def zero_grad(self) -> None:
        """Clear all gradients."""
        self.muon.zero_grad()
        self.adamw.zero_grad()
        for parameter, _ in self._hidden:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both optimizers."""
        return {"muon": self.muon.state_dict(), "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self.muon.load_state_dict(state["muon"])
        self.adamw.load_state_dict(state["adamw"])

    def _precision(self) -> AbstractContextManager[Any]:
        on_cpu = any(matrix.device.type == "cpu" for _, matrix in self._hidden)
        return _WithoutBfloat16() if on_cpu else nullcontext()


def _as_matrix(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a matrix of one row per output, which shares the memory of a tensor laid out `like`.

    Where channels are last in memory its columns are in another order, which changes no step.
    """
    return (tensor if like.is_contiguous() else tensor.movedim(1, -1)).flatten(1)


class _WithoutBfloat16(TorchFunctionMode):
    """A block in which `Tensor.bfloat16` returns a copy in the tensor's own precision."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.bfloat16:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


def _routed(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return the hidden matrices, and all other parameters."""
    hidden: list[Tensor] = []
    rest: list[Tensor] = []
    for group in layer_groups(model, by=item_of, policy="muon"):
        chosen = rest if isinstance(group["norm"], AdamW) else hidden
        chosen += [parameter for _, parameter in group["params"]]
    return hidden, rest
