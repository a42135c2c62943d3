"""What users do wrong, where it takes more than a line."""

# mypy: disable-error-code="arg-type"
# Arguments of the wrong type are the point here.

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from dropmuon import DropMuon, samplers
from tests.contract.process_group import process_group


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))


def make(**kwargs: Any) -> DropMuon:
    return DropMuon(make_model(), **kwargs)


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1, groups=2))


def fused(name: str, rows: int) -> nn.Module:
    return nn.ModuleDict({name: nn.Linear(8, rows), "head": nn.Linear(rows, 2)})


def frozen() -> nn.Module:
    return make_model().requires_grad_(False)


class Flat(nn.Module):
    """A model without containers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def step_with_sparse_gradient() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1))
    optimizer = DropMuon(model)
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()


def one_cycle_of_muon() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.02, policy="muon")
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=9)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def step_after_release() -> None:
    model = make_model()
    with DropMuon(model) as optimizer:
        pass
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def step_with_nan() -> None:
    model = make_model()
    optimizer = DropMuon(model, error_if_nonfinite=True)
    model(torch.full((1, 4), float("nan"))).sum().backward()
    optimizer.step()


def step_without_backward() -> None:
    make().step()


def too_few_backwards() -> None:
    model = make_model()
    optimizer = DropMuon(model, parts=2)
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def step_after_zero_grad() -> None:
    model = make_model()
    optimizer = DropMuon(model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()


def two_that_step() -> None:
    model = make_model()
    both = [DropMuon(model, seed=seed) for seed in (0, 1)]
    for optimizer in both * 3:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def load(state: dict[str, Any]) -> None:
    make().load_state_dict(state)


def of_sgd() -> dict[str, Any]:
    return torch.optim.SGD(make_model().parameters()).state_dict()


def newer() -> dict[str, Any]:
    state = make().state_dict()
    state["dropmuon"]["version"] = 99
    return state


def trained_state(model: nn.Module) -> dict[str, Any]:
    optimizer = DropMuon(model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def tied() -> nn.Module:
    model = make_model()
    model[1].weight = model[0].weight
    return model


def released_copy() -> None:
    """Copy an optimizer of a tied model without the model, and use it again."""
    table, head = nn.Embedding(4, 4), nn.Linear(4, 4, bias=False)
    head.weight = table.weight
    optimizer = DropMuon(nn.Sequential(table, nn.Linear(4, 4), head))
    optimizer.release()
    with copy.deepcopy(optimizer):
        pass


def half_used() -> None:
    model = Flat()
    optimizer = DropMuon(model)
    model.first(torch.ones(1, 4)).sum().backward()
    optimizer.step()


class Checkpointed(nn.Module):
    """Blocks that are checkpointed as torch did it first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.head(x)


def reentrant_checkpoints() -> None:
    model = Checkpointed()
    optimizer = DropMuon(model)
    for step in range(5):
        if step:
            optimizer.activate([1, 2, 3])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
            model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def compiled(layers: int) -> Any:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    return torch.compile(model, backend="eager")


def ddp_that_expects_all_gradients() -> None:
    with process_group():
        model = nn.parallel.DistributedDataParallel(make_model())
        optimizer = DropMuon(model, sampler=samplers.Serial())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()


def decayed_and_not(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    matrices = [each for each in parameters if each.ndim > 1]
    return [{"params": matrices}, {"params": [each for each in parameters if each.ndim < 2]}]


def rule_group(rule: Any) -> dict[str, Any]:
    return {"params": [Parameter(torch.ones(2, 2))], "step_rule": rule}
