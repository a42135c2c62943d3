"""`reduce_active`: DDP that sends the gradients of active layers, and no others.

By default DDP all-reduces every bucket of gradients in every backward, zeros of frozen layers too.
A communication hook decides what a bucket sends. What was trainable in a forward since the last
reduction may have a gradient to send, also where `no_sync` came in between; nothing else has. Flags
are the same on all ranks, whatever data each of them sees, so all send the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.futures import Future

from dropmuon.backward.settled import find_ddp
from dropmuon.shards import Group

__all__ = ["reduce_active"]


def reduce_active(model: nn.Module) -> None:
    """Let DDP all-reduce the gradients of active layers only; what it computes stays the same.

    Call it once, after the model is wrapped and before the first backward. DDP takes one
    communication hook, so this cannot be combined with another, as for compression.

    Args:
        model: a `DistributedDataParallel` with `find_unused_parameters=True`, or what holds one.
    """
    found = find_ddp(model)
    if not found:
        raise ValueError(
            f"model must hold a DistributedDataParallel, got {type(model).__name__} without one; "
            "wrap it first"
        )
    for ddp in found:
        if ddp.static_graph or not ddp.find_unused_parameters:
            raise ValueError(
                "model must be a DistributedDataParallel that tolerates missing gradients; wrap it "
                "with find_unused_parameters=True and no static_graph"
            )
        trained = _Trained()
        ddp.register_forward_pre_hook(torch.compiler.disable(trained.note))
        ddp.register_comm_hook((trained, ddp.process_group), _reduce)


class _Trained:
    """The parameters that were trainable in any forward since the last reduction."""

    def __init__(self) -> None:
        self._since: set[Tensor] = set()
        self._is_over = False

    def note(self, module: nn.Module, args: Any) -> None:
        """Note what is trainable as a forward begins."""
        if not torch.is_grad_enabled():
            return
        if self._is_over:
            self._since.clear()
            self._is_over = False
        self._since.update(each for each in module.parameters() if each.requires_grad)

    def among(self, parameters: Sequence[Tensor]) -> list[bool]:
        """Return which parameters of a bucket may have something to send."""
        self._is_over = True
        return [each.requires_grad or each in self._since for each in parameters]


def _reduce(state: tuple[_Trained, Group], bucket):  # type: ignore[no-untyped-def]
    """Average what was trained; return the whole buffer, the rest of it as it is."""
    (trained, group), buffer = state, cast(Tensor, bucket.buffer())
    is_sent = trained.among(bucket.parameters())
    pieces = [each for each, sent in zip(bucket.gradients(), is_sent, strict=True) if sent]
    if not pieces:
        done: Future[Tensor] = Future()
        done.set_result(buffer)
        return done
    first = is_sent.index(True)
    in_a_row = all(is_sent[first : first + len(pieces)])
    if in_a_row:
        start = pieces[0].storage_offset() - buffer.storage_offset()
        flat = buffer.narrow(0, start, sum(each.numel() for each in pieces))
    else:
        flat = torch.cat([each.reshape(-1) for each in pieces])
    flat.div_(group.size())
    work = distributed.all_reduce(flat, group=group, async_op=True)

    def spread(_: Future[list[Tensor]]) -> Tensor:
        if not in_a_row:
            arrived = flat.split([each.numel() for each in pieces])
            torch._foreach_copy_([each.view(-1) for each in pieces], arrived)
        return buffer

    return cast("Future[Tensor]", work.get_future().then(spread))
