"""A problem is checked at once, and its model is left bit for bit as it was."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from dropmuon import DropMuon
from dropmuon.planning import problem as problem_module
from dropmuon.planning.problem import Problem
from tests.awkward_problem import awkward, batches, noisy_loss, state_of


def test_a_problem_leaves_its_model_as_it_was():
    model = awkward()
    before = state_of(model)
    problem = Problem(model, noisy_loss, batches())
    assert state_of(model) == before
    with problem.prepared({"lr": 0.1}) as optimizer:
        problem.backward(optimizer, (1, 2), 0)
        optimizer.step()
        assert state_of(model) != before
    del optimizer
    assert state_of(model) == before


def test_the_users_own_optimizer_keeps_its_frozen_layers():
    model = awkward()
    mine = DropMuon(model, lr=0.1, sampler="uniform", seed=3)
    for batch in batches():
        noisy_loss(model, batch).backward()
        mine.step()
        mine.zero_grad()
    while mine.active[0] == 0:
        noisy_loss(model, batches()[0]).backward()
        mine.step()
        mine.zero_grad()
    before, active = state_of(model), mine.active
    problem = Problem(model, noisy_loss, batches())
    with problem.prepared({}) as other:
        assert other.layers == mine.layers
        assert other.active == tuple(range(len(other.layers)))
    del other
    assert state_of(model) == before
    assert mine.active == active
    with mine.full():
        assert model[0].weight.requires_grad
    assert state_of(model) == before


def test_backward_leaves_gradients_of_the_active_layers_only():
    model = awkward()
    problem = Problem(model, noisy_loss, batches())
    with problem.prepared({"lr": 0.1}) as optimizer:
        problem.backward(optimizer, (2, 3), 0)
        has = {name for name, p in model.named_parameters() if p.grad is not None}
    assert has == {"4.bias", "6.weight", "6.bias"}


def test_batches_are_taken_once_and_cycled():
    problem = Problem(awkward(), noisy_loss, iter(batches()))
    assert torch.equal(problem.batch(4), problem.batch(1))


def test_drawing_batches_leaves_the_generators_as_they_were():
    rows: Any = torch.randn(16, 5)
    data = DataLoader(rows, batch_size=4, shuffle=True)
    model = awkward()
    before = state_of(model)
    Problem(model, noisy_loss, data)
    assert state_of(model) == before


def test_a_loader_keeps_the_state_of_its_own_generator():
    generator = torch.Generator().manual_seed(3)
    rows: Any = torch.randn(16, 5)
    data = DataLoader(rows, batch_size=4, shuffle=True, generator=generator)
    before = generator.get_state()
    Problem(awkward(), noisy_loss, data)
    assert torch.equal(generator.get_state(), before)


def test_no_more_batches_are_drawn_than_asked_for_and_none_after_the_time():
    drawn: list[int] = []

    def endless():
        while True:
            drawn.append(len(drawn))
            yield batches()[0]

    assert len(Problem(awkward(), noisy_loss, endless(), 5).batches) == 5 == len(drawn)
    assert len(Problem(awkward(), noisy_loss, endless(), 5, seconds=0.0).batches) == 1


def test_no_more_batches_are_kept_than_fit(monkeypatch):
    size = batches()[0].numel() * 4
    monkeypatch.setattr(problem_module, "_MOST_BYTES", 5 * size)
    nested = ({"x": batches()[0], "names": ["a"] * 8} for _ in range(100))
    problem = Problem(awkward(), lambda model, batch: noisy_loss(model, batch["x"]), nested)
    assert len(problem.batches) == 5


class Hoarder(nn.Module):
    """Keeps what it has seen in every way that is not a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.losses: list[float] = [0.5]
        self.nested: dict[str, Any] = {"deep": [{"count": torch.zeros(2)}], "pair": ([1],)}
        self.mean = torch.ones(3)
        self.recent = deque([1, 2], maxlen=2)
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) + 0.0 * torch.rand(3, generator=self.generator)
        self.losses.append(float(y.detach().sum()))
        self.nested["deep"][0]["count"] += 1
        self.nested["deep"].append("new")
        self.nested["pair"][0].append(2)
        self.mean.mul_(0.9)
        self.recent.append(3)
        return y

    def kept(self) -> list[object]:
        state = self.generator.get_state().tolist()
        return [str(self.losses), str(self.nested), str(self.mean), str(self.recent), state]


def test_what_modules_keep_in_plain_attributes_comes_back():
    model = Hoarder()
    before, objects = model.kept(), [id(each) for each in vars(model).values()]
    problem = Problem(model, noisy_loss, batches())
    assert model.kept() == before
    with problem.prepared({}) as optimizer:
        problem.backward(optimizer, (0,), 0)
        assert model.kept() != before
    assert model.kept() == before
    assert [id(each) for each in vars(model).values()] == objects


def test_a_lazy_model_is_refused_and_stays_lazy():
    model = nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match="call the model once on an input first"):
        Problem(model, noisy_loss, batches())
    assert type(model[0]) is nn.LazyLinear
    model(batches()[0])
    Problem(model, noisy_loss, batches())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampler": "uniform"}, "sampler is not a setting to plan with, got 'uniform'"),
        ({"parts": 4}, "parts is not a setting to plan with, got 4"),
        ({"turns": 2}, "turns is not a setting to plan with, got 2"),
        ({"total_steps": 7}, "total_steps is not a setting to plan with"),
        ({"lr": 0}, "lr must be positive to plan with, got 0"),
    ],
)
def test_settings_that_a_plan_cannot_have_are_refused(settings, words):
    problem = Problem(awkward(), noisy_loss, batches())
    with pytest.raises(ValueError, match=words), problem.prepared(settings):
        pass


def test_tied_parameters_are_told_of_once():
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    model[1].weight = model[0].weight
    problem = Problem(model, noisy_loss, batches())
    with pytest.warns(UserWarning, match="tied"):
        problem.prepared({}).__enter__()
    with problem.prepared({}):  # warnings are errors in tests
        pass


def fails(model, batch):
    model.train()
    model[0].weight.data.zero_()
    torch.rand(1)
    raise RuntimeError("inside loss")


@pytest.mark.parametrize(
    ("loss", "data", "error", "words"),
    [
        (None, [0], ValueError, "loss must be a function of"),
        (noisy_loss, [], ValueError, "batches must not be empty"),
        (noisy_loss, 3, ValueError, "batches must be an iterable"),
        (noisy_loss, torch.zeros(2, 5), ValueError, "batches must be an iterable of batches"),
        (lambda m, b: m(b), batches(), ValueError, r"loss must return a scalar tensor, got \(8, 3"),
        (lambda m, b: 1.0, batches(), ValueError, "loss must return a scalar tensor, got a float"),
        (lambda m, b: m(b).mean() / 0.0, batches(), ValueError, "loss must be finite at the start"),
        (lambda m, b: m(b).mean().detach(), batches(), ValueError, "trainable parameter"),
        (fails, batches(), RuntimeError, "inside loss"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(loss, data, error, words):
    model = awkward()
    before = state_of(model)
    with pytest.raises(error, match=words):
        Problem(model, loss, data)
    assert state_of(model) == before


def test_a_model_and_settings_must_be_what_they_are_said_to_be():
    with pytest.raises(ValueError, match=r"model must be an nn.Module, got a str"):
        Problem("model", noisy_loss, [0])  # type: ignore[arg-type]
    problem = Problem(awkward(), noisy_loss, batches())
    with (
        pytest.raises(ValueError, match="optimizer_settings must be a dict, got a float"),
        problem.prepared(0.1),  # type: ignore[arg-type]
    ):
        pass
