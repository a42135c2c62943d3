"""`DropMuonCallback`: what Lightning's Trainer and DropMuon have to agree on."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from dropmuon.checks import import_extra
from dropmuon.integrations.drawn import Drawn
from dropmuon.optimizer import DropMuon

__all__ = ["DropMuonCallback", "settings_of"]

_has_lightning = importlib.util.find_spec("lightning") is not None
_has_older_name = importlib.util.find_spec("pytorch_lightning") is not None
_uses_older_name = _has_older_name and not _has_lightning
_lightning = import_extra(
    "pytorch_lightning" if _uses_older_name else "lightning.pytorch", "frameworks"
)

_MEAN = "dropmuon/saved_operations_mean"
"""A mean over all of training, of which no mean over an epoch is to be taken."""


def settings_of(trainer: Any) -> dict[str, Any]:
    """Return `parts` and `total_steps`, for DropMuon in `configure_optimizers`.

    Every accumulated batch is a part. `total_steps` is None where training has no planned end.
    """
    steps = trainer.estimated_stepping_batches
    is_planned = math.isfinite(steps) and steps > 0
    return {
        "parts": trainer.accumulate_grad_batches,
        "total_steps": int(steps) if is_planned else None,
    }


class DropMuonCallback(_lightning.Callback):  # type: ignore[misc, name-defined]
    """Checks the settings of a fit, logs what its backwards were for, and gives the flags back.

    A callback is enough here: a module makes its optimizer itself, in `configure_optimizers`, and
    Lightning tells callbacks of every backward, and of errors. It goes with one DropMuon, or with
    several; other optimizers of a module are left alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._drawn = Drawn()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        optimizers = _of(trainer)
        if not optimizers:
            found = ", ".join(type(each).__name__ for each in trainer.optimizers) or "none"
            raise ValueError(
                f"DropMuonCallback needs a DropMuon, got {found}; return one from "
                "configure_optimizers, or leave out the callback"
            )
        _check_ddp(trainer.model)
        for optimizer in optimizers:
            _check(optimizer, trainer.accumulate_grad_batches, pl_module.automatic_optimization)
            optimizer.__enter__()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        for optimizer in _of(trainer):
            self._drawn.note(optimizer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        """Log the means of a step, if one ended; with `on_epoch`, Lightning adds the epoch's."""
        optimizers = _of(trainer)
        for optimizer in optimizers:
            self._drawn.look(optimizer)
        if self._drawn.has_stepped:
            means = self._drawn.report(*optimizers)
            in_all = {name: means.pop(name) for name in (_MEAN,) if name in means}
            self.log_dict(means, on_step=True, on_epoch=True)
            self.log_dict(in_all, on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        for optimizer in _of(trainer):
            optimizer.release()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)


def _of(trainer: Any) -> list[DropMuon]:
    return [each for each in trainer.optimizers if isinstance(each, DropMuon)]


def _check(optimizer: DropMuon, accumulated: int, is_automatic: bool) -> None:
    """Raise ValueError if steps have more or fewer backwards than parts, in Lightning's own loop.

    With manual optimization the module decides how many backwards a step has.
    """
    if is_automatic and optimizer.parts not in (1, accumulated):
        raise ValueError(
            f"parts must be 1 or accumulate_grad_batches, {accumulated}, got {optimizer.parts}: "
            "every backward is a part; make DropMuon with **settings_of(self.trainer)"
        )


def _check_ddp(model: Any) -> None:
    if isinstance(model, DistributedDataParallel) and not model.find_unused_parameters:
        raise ValueError(
            "strategy must find unused parameters, since the active layers change from step to "
            'step, got DDP that does not; use strategy="ddp_find_unused_parameters_true"'
        )
