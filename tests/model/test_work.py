"""Operations counted from shapes, against those that torch counts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon, norms, presets
from dropmuon.model.work import EXTRA_OPERATIONS, Work
from dropmuon.step.overview import Saved

CASES = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Linear(5, 3)),
        lambda: torch.randn(16, 6),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.ConvTranspose2d(8, 4, 2, stride=2),
            nn.Flatten(),
            nn.Linear(256, 5),
        ),
        lambda: torch.randn(4, 3, 9, 9),
    ),
    "tokens": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8)),
        lambda: torch.randn(4, 10, 8),
    ),
}


def counted(model: nn.Module, x: Tensor, cutoff: int | None, optimizer: DropMuon) -> int:
    """Operations of a forward pass, and of the backward at a cutoff."""
    optimizer.activate(range(cutoff or 0, len(optimizer.layers)))
    with FlopCounterMode(display=False) as counter:
        loss = model(x).square().mean()
        if cutoff is not None:
            loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("case", CASES)
def test_costs_are_the_counted_operations(case: str) -> None:
    make, data = CASES[case]
    torch.manual_seed(0)
    model, x = make(), data()
    optimizer = DropMuon(model, policy="euclidean")
    work = Work(optimizer.roster, model)
    model(x)
    work.close()
    fixed, backward = work.costs(turns=1)
    assert fixed == counted(model, x, None, optimizer)
    for cutoff in range(len(backward)):
        expected = counted(model, x, cutoff, optimizer) - fixed
        assert sum(backward[cutoff:]) == expected


def test_a_closed_counter_counts_no_more_and_evaluation_is_not_counted() -> None:
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    work = Work(DropMuon(model).roster, model)
    model(x)
    with torch.no_grad():
        model(x)
    once = work.costs(1)
    work.close()
    model(x)
    assert work.costs(1) == once


def test_updates_are_in_the_fixed_cost_and_shared_by_turns() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    work = Work(DropMuon(model).roster, model)
    work.close()
    forward = 2 * 2 * 64.0
    updates = work.costs(1)[0] - forward
    assert updates == 2 * (2 * 15 * 8**3)
    assert work.costs(4)[0] == forward + updates / 4


def test_without_modules_every_weight_counts_as_if_it_met_as_many_positions() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    work = Work(DropMuon(model.named_parameters(), policy="euclidean").roster)
    model(torch.randn(5, 6))
    assert work.costs(1) == (2 * (48 + 24), [2 * (48 + 24), 2 * 24])


def test_tables_and_vectors_multiply_nothing() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False))
    work = Work(presets.muon(model).roster, model)
    model(torch.zeros(5, 3, dtype=torch.long))
    head = 2 * 8 * 15.0
    assert work.costs(1) == (head, [0, head, head])


def step_operations(model: nn.Module, optimizer: DropMuon, *parts: Tensor) -> int:
    """Operations of a step of these parts, as torch counts them."""
    with FlopCounterMode(display=False, custom_mapping=EXTRA_OPERATIONS) as counter:
        for x in parts:
            model(x).square().mean().backward()
        optimizer.step()
    optimizer.zero_grad()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("orthogonalize", ["newton-schulz", "polar-express", "svd"])
@pytest.mark.parametrize("case", CASES)
def test_saved_operations_are_those_that_torch_counts(
    case: str, orthogonalize: norms.Orthogonalize
) -> None:
    """For every set of layers, not only for cutoffs."""
    make, data = CASES[case]
    model, x = make(), data()
    optimizer = DropMuon(model, orthogonalize=orthogonalize)
    layers = range(len(optimizer.layers))
    full = step_operations(model, optimizer, x)
    assert optimizer.saved_operations == (0.0, 0.0)
    shares = [0.0]
    for size in (1, 2):
        for active in combinations(layers, size):
            optimizer.activate(active)
            taken = step_operations(model, optimizer, x)
            shares.append(1 - taken / full)
            assert optimizer.saved_operations is not None
            assert optimizer.saved_operations.step == pytest.approx(shares[-1])
    assert optimizer.saved_operations == pytest.approx((shares[-1], sum(shares) / len(shares)))


def deep(width: int = 6) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))


@pytest.mark.parametrize(
    "settings",
    [{"parts": 4}, {"turns": 2}, {"truncate": False}, {"full_start": "momentum"}],
    ids=str,
)
def test_parts_turns_and_gradients_without_updates_are_counted(settings: dict[str, Any]) -> None:
    model = deep()
    optimizer = DropMuon(model, seed=1, **settings)
    batch = torch.randn(8, 6)
    full = step_operations(other := deep(), DropMuon(other), batch)
    for _ in range(6):
        taken = step_operations(model, optimizer, *batch.chunk(optimizer.parts))
        assert optimizer.saved_operations is not None
        assert optimizer.saved_operations.step == pytest.approx(1 - taken / full)
    assert optimizer.saved_operations is not None
    assert 0 < optimizer.saved_operations.mean < 1


class Adapted(nn.Module):
    """A chain of frozen matrices, each with a trained matrix beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained = deep().requires_grad_(False), deep()

    def forward(self, x: Tensor) -> Tensor:
        for frozen, trained in zip(self.frozen, self.trained, strict=True):
            x = frozen(x) + trained(x)
        return x


class Tied(nn.Module):
    """An embedding that is tied to the head, which it moves with."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle = nn.Embedding(9, 6), deep()
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.middle(self.table(x)))
        return found


class Normed(nn.Module):
    """Weights that are computed from others, of a linear map and of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(2, 4, 3))
        self.linear = weight_norm(nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(self.conv(x).mT)
        return found


OTHERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "adapted": (Adapted, lambda: torch.randn(5, 6)),
    "tied": (Tied, lambda: torch.randint(9, (5, 3))),
    "normed": (Normed, lambda: torch.randn(3, 2, 8)),
    "attention": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        lambda: torch.randn(2, 4, 8),
    ),
    "lstm": (lambda: First(nn.LSTM(4, 8)), lambda: torch.randn(5, 2, 4)),
}


class First(nn.Sequential):
    """The first of several outputs."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = super().forward(x)[0]
        return found


@pytest.mark.parametrize("case", ["adapted", "tied", "normed"])
def test_frozen_tied_and_computed_weights_are_counted_as_torch_counts_them(case: str) -> None:
    make, data = OTHERS[case]
    model, x = make(), data()
    optimizer = DropMuon(model, policy="euclidean")
    layers = range(len(optimizer.layers))
    full = step_operations(model, optimizer, x)
    for cutoff in layers:
        optimizer.activate(layers[cutoff:])
        taken = step_operations(model, optimizer, x)
        assert optimizer.saved_operations is not None
        assert optimizer.saved_operations.step == pytest.approx(1 - taken / full)


@pytest.mark.parametrize("case", ["attention", "lstm"])
def test_modules_that_return_several_things_are_seen(case: str) -> None:
    """Against what their matrices alone multiply."""
    make, data = OTHERS[case]
    model, x = make(), data()
    work = Work(DropMuon(model, policy="euclidean").roster, model)
    model(x)
    positions = x.numel() / x.shape[-1]
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    assert work.costs(1)[0] == 2 * matrices * positions


def test_a_group_of_channels_is_multiplied_with_its_own_matrix_only() -> None:
    """Torch's counter has the weight gradient too high, by as many times as there are groups."""
    model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=4, bias=False))
    work = Work(DropMuon(model, policy="euclidean").roster, model)
    model(torch.randn(2, 8, 5, 5))
    forward = 2.0 * 8 * 2 * 9 * 2 * 9
    assert work.costs(1) == (forward, [forward])


def test_experts_multiply_only_what_is_sent_to_them() -> None:
    class Experts(nn.Module):
        """Four experts, stored as one."""

        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.randn(4, 6, 6))

        def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
            return torch.stack([x @ self.up[expert] for expert in chosen.tolist()]).sum(0)

    model = Experts()
    work = Work(DropMuon(model, policy="euclidean").roster, model)
    model(torch.randn(1, 6), torch.tensor([1, 3]))
    assert work.costs(1)[0] == 2 * 36 * 2


def test_a_checkpoint_s_second_pass_is_not_counted() -> None:
    model, x = deep(), torch.randn(3, 6)
    work = Work(DropMuon(model).roster, model)
    checkpoint(model, x, use_reentrant=False).sum().backward()
    work.close()
    plain = Work(DropMuon(model).roster, model)
    model(x)
    assert work.costs(1) == plain.costs(1)


def test_what_is_saved_is_not_known_without_a_forward_pass_of_a_model() -> None:
    model, x = deep(), torch.randn(3, 6)
    assert DropMuon(model).saved_operations is None
    whole: Any = torch.compile(deep(), backend="eager")
    for optimizer, run in (
        (DropMuon(model.named_parameters()), model),
        (DropMuon(whole, sampler="full"), whole),
    ):
        run(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert optimizer.saved_operations is None


class Recurrent(nn.Module):
    """A cell that is called four times in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.cell, self.last = (nn.Linear(6, 6, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(4):
            x = self.cell(x)
        out: Tensor = self.last(x)
        return out


@pytest.mark.parametrize("active", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_a_module_that_is_called_again_is_in_the_same_pass(active: tuple[int, ...]) -> None:
    model, x = Recurrent(), torch.randn(8, 6)
    optimizer = DropMuon(model)
    full = step_operations(model, optimizer, x)
    optimizer.activate(active)
    taken = step_operations(model, optimizer, x)
    assert optimizer.saved_operations is not None
    assert optimizer.saved_operations.step == pytest.approx(1 - taken / full)


def test_updates_count_as_often_as_passes() -> None:
    shares, x = [], torch.randn(8, 6)
    for updates in (1, 3):
        model = deep()
        optimizer = DropMuon(model, updates_per_batch=updates)

        def closure(model: nn.Module = model, optimizer: DropMuon = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        optimizer.activate([2, 3])
        optimizer.step(closure)
        assert optimizer.saved_operations is not None
        shares.append(optimizer.saved_operations.step)
    assert shares[0] == pytest.approx(shares[1])


def test_counting_waits_for_a_forward_pass() -> None:
    model, x = deep(), torch.randn(3, 6)
    optimizer = DropMuon(model)
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    optimizer.step()
    optimizer.zero_grad()
    found = [optimizer.saved_operations]
    optimizer.activate([3])
    model(x).sum().backward()
    optimizer.step()
    found.append(optimizer.saved_operations)
    assert found[0] is None
    assert found[1] is not None
    assert found[1].step > 0.3


def test_a_step_on_an_empty_batch_saves_nothing_that_is_known() -> None:
    model = deep()
    optimizer = DropMuon(model, policy="euclidean")
    model(torch.empty(0, 6)).sum().backward()
    optimizer.step()
    assert optimizer.steps == 1
    assert optimizer.saved_operations is None


def test_a_user_s_orthogonaliser_is_not_called_to_be_counted() -> None:
    calls = []

    def own(x: Tensor) -> Tensor:
        calls.append(x.shape)
        return x

    model = nn.Sequential(deep())
    optimizer = DropMuon(model, orthogonalize=own)
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    assert optimizer.saved_operations == (0.0, 0.0)
    assert len(calls) == 4


def test_counting_ends_with_the_first_step_and_leaves_no_hook() -> None:
    model = deep()
    optimizer = DropMuon(model, sampler="full")
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for each in copies:
        each(torch.randn(9, 6))
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    assert not any(module._forward_hooks for module in model.modules())
    assert optimizer._work.costs(1)[0] == Work(optimizer.roster, model).costs(1)[0] + 2 * 2 * 4 * 36


def test_hooks_go_with_the_optimizer_that_counts() -> None:
    model = deep()
    DropMuon(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_saved_operations_survive_copies_pickles_and_states() -> None:
    def train(model: nn.Module, optimizer: DropMuon, steps: int) -> Saved | None:
        for _ in range(steps):
            model(torch.ones(3, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return optimizer.saved_operations

    model, other = deep(), deep()
    optimizer, resumed = DropMuon(model), DropMuon(other)
    early = train(model, optimizer, 4)
    assert early is not None
    assert early.mean > 0
    both = copy.deepcopy((model, optimizer))
    state, pickled = optimizer.state_dict(), pickle.loads(pickle.dumps(optimizer))
    unbroken = train(model, optimizer, 4)
    resumed.load_state_dict(state)
    assert resumed.saved_operations == pickled.saved_operations == early
    assert train(*both, 4) == unbroken
    assert train(other, resumed, 4) == pytest.approx(unbroken)


@pytest.mark.parametrize("damaged", [[1.0], None, [float("nan"), 0.0, 1], ["x", 0.0, 1]], ids=str)
def test_a_state_with_damaged_savings_is_refused(damaged: object) -> None:
    optimizer = DropMuon(deep())
    state = optimizer.state_dict()
    state["dropmuon"]["saved"] = damaged
    with pytest.raises(ValueError, match="what was counted"):
        optimizer.load_state_dict(state)


def test_a_state_from_before_savings_were_counted_can_be_loaded() -> None:
    optimizer = DropMuon(deep())
    state = optimizer.state_dict()
    del state["dropmuon"]["saved"]
    optimizer.load_state_dict(state)
    assert optimizer.saved_operations is None
