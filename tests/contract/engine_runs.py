"""Short runs under an engine of several ranks, and the same in a single process."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from dropmuon import DropMuon
from dropmuon.integrations.ddp import reduce_active
from tests.step.sharded_runs import Net, batch, make, tp

__all__ = ["ENGINES", "FEATURES", "Engine", "Feature", "Run"]

Engine = Literal["ddp", "ddp, active only", "fsdp", "tp"]
Feature = Literal["resume", "nan", "parts", "accumulation", "mixed precision"]
ENGINES: tuple[Engine, ...] = ("ddp", "ddp, active only", "fsdp", "tp")
FEATURES: tuple[Feature, ...] = ("resume", "nan", "parts", "accumulation", "mixed precision")

STEPS, SICK = 6, 3


class Run:
    """A run of a few steps with one feature; `alone` does in a single process what ranks would."""

    def __init__(self, engine: Engine, feature: Feature, *, alone: bool, **settings: Any) -> None:
        self.engine, self.feature, self.alone, self.settings = engine, feature, alone, settings
        self.backwards = {"parts": 4, "accumulation": 2}.get(feature, 1)
        self.drawn: list[tuple[int, ...]] = []
        self._is_sick = False
        self._begin()

    def train(self) -> None:
        self._wrap()
        for step in range(STEPS):
            if self.feature == "resume" and step == STEPS // 2:
                self._resume()
            if self.feature == "nan" and step == SICK:
                self.optimizer.activate(range(len(self.optimizer.layers)))
            self._is_sick = self.feature == "nan" and step == SICK
            for number in range(self.backwards):
                self.drawn.append(self.optimizer.active)
                with self._averaging(number == self.backwards - 1), self.optimizer.part():
                    self._backward(*(each.chunk(self.backwards)[number] for each in batch(step)))
            self.optimizer.step()
            self.optimizer.zero_grad()

    # Making a model

    def _begin(self) -> None:
        self.model = make()
        if self.feature == "mixed precision":
            self.model.float()
        if not self.alone:
            self._shard(self.model)
        parts = self.backwards if self.feature == "parts" else 1
        self.optimizer = DropMuon(self.model, lr=0.05, seed=5, parts=parts, **self.settings)
        self.model.blocks[1].register_forward_hook(self._infect)

    def _shard(self, model: Net) -> None:
        if self.engine == "tp":
            tp(model)
        if self.engine == "fsdp":
            mixed = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
            own: dict[str, Any] = {"mp_policy": mixed} if self.feature == "mixed precision" else {}
            for each in (*model.blocks, model):
                fully_shard(each, **own)

    def _wrap(self) -> None:
        """Wrap the model in DDP as late as a user may: after a state was loaded."""
        self.net: nn.Module = self.model
        if not self.alone and self.engine in ("ddp", "ddp, active only"):
            self.net = DistributedDataParallel(self.model, find_unused_parameters=True)
            if self.engine == "ddp, active only":
                reduce_active(self.net)

    def _resume(self) -> None:
        model, state = self.model.state_dict(), copy.deepcopy(self.optimizer.state_dict())
        self._begin()
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(state)
        self._wrap()

    # A backward

    def _backward(self, x: Tensor, y: Tensor) -> None:
        ranks = 1 if self.engine == "tp" else distributed.get_world_size()
        shares = [distributed.get_rank() % ranks]
        if self.alone and self.feature == "mixed precision":
            shares = list(range(ranks))  # one by one: sums are then rounded as those of ranks
        elif self.alone:
            ranks, shares = 1, [0]
        for share in shares:
            out = self._forward(x.chunk(ranks)[share])
            loss = F.cross_entropy(out.double(), y.chunk(ranks)[share])
            (loss / self.backwards / len(shares)).backward()

    def _forward(self, x: Tensor) -> Any:
        if self.feature != "mixed precision":
            return self.net(x)
        if self.engine != "fsdp":
            with torch.autocast("cpu", torch.bfloat16):
                return self.net(x)
        if not self.alone:
            return self.net(x)  # by its policy
        named = {name: each.bfloat16() for name, each in self.model.named_parameters()}
        return functional_call(self.model, named, x)

    @contextmanager
    def _averaging(self, is_last: bool) -> Iterator[None]:
        """Average gradients in the last backward of a step only."""
        if isinstance(self.net, FSDPModule):
            self.net.set_requires_gradient_sync(is_last)
        is_ddp = isinstance(self.net, DistributedDataParallel)
        with self.net.no_sync() if is_ddp and not is_last else nullcontext():
            yield

    def _infect(self, module: nn.Module, args: Any, out: Tensor) -> None:
        """Make gradients below a block NaN, on one rank only."""
        if self._is_sick and (self.alone or distributed.get_rank() == 1):
            out.register_hook(lambda gradient: gradient * math.nan)
