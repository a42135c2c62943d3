"""Costs are fitted to given timings, and counted on models whose operations are known."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import norms
from dropmuon.planning.measured_costs import fit_seconds, measure_costs
from dropmuon.planning.problem import Problem
from dropmuon.planning.timing import Timings
from dropmuon.theory.costs import StepCosts, cost_of_set
from tests.awkward_problem import awkward, batches, noisy_loss, state_of
from tests.planning.synthetic_plans import flat_operations, timings_of

WIDTHS = [6, 8, 10, 4]
BATCH = 16


class Ticking:
    """A clock that moves on by a fixed time whenever it is read."""

    def __init__(self, tick: float) -> None:
        self.tick, self.now = tick, 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def mlp() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(WIDTHS)))


def square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def mlp_problem() -> Problem:
    return Problem(mlp(), square, [torch.ones(BATCH, WIDTHS[0])])


TRUE = StepCosts(0.2, [1.0, 2.0, 0.5, 0.1], [2.0, 3.0, 1.0, 0.3], [0.4, 4.0, 0.0, 0.2])


def steps(costs: StepCosts) -> np.ndarray:
    fresh = costs.fresh()
    return np.array([cost_of_set(fresh, range(s, 4)) for s in range(4)])


def test_parts_of_an_additive_model_are_recovered():
    fitted = fit_seconds(timings_of(TRUE, 3, lambda: 0.0), TRUE.forward, flat_operations(4))
    np.testing.assert_allclose(fitted.forward, TRUE.forward, rtol=1e-9)
    np.testing.assert_allclose(fitted.backward[:-1], TRUE.backward[:-1], rtol=5e-3)
    np.testing.assert_allclose(fitted.sharp, TRUE.sharp, atol=0.02)
    np.testing.assert_allclose(steps(fitted), steps(TRUE), rtol=2e-3)


def test_rare_delays_do_not_enter():
    calls = iter(range(10**6))
    fitted = fit_seconds(
        timings_of(TRUE, 9, lambda: 50.0 if next(calls) % 7 == 0 else 0.0),
        TRUE.forward,
        flat_operations(4),
    )
    np.testing.assert_allclose(steps(fitted), steps(TRUE), rtol=1e-2)


@pytest.mark.parametrize(("rounds", "most"), [(3, 0.5), (8, 0.2), (20, 0.1)])
def test_equal_layers_have_about_equal_parts_on_a_noisy_machine(rounds, most):
    """Relative errors, as root mean squares: 0.35, 0.08 and 0.04.

    With medians, and a prior that does not know of noise, they are 1.31, 0.56 and 0.35.
    """
    rng, b = np.random.default_rng(rounds), 12
    true = StepCosts(0.3, np.full(b, 0.1), np.full(b, 0.1), np.full(b, 0.1))

    def noise() -> float:
        return abs(rng.normal(0.0, 0.1)) + (rng.exponential(1.0) if rng.random() < 0.1 else 0.0)

    off = []
    for _ in range(30):
        fitted = fit_seconds(timings_of(true, rounds, noise), true.forward, flat_operations(b))
        off += [fitted.backward / true.backward - 1.0, fitted.sharp / true.sharp - 1.0]
    assert np.sqrt(np.mean(np.square(off))) < most


def test_cutoffs_that_were_not_measured_go_like_operations():
    costs = StepCosts(0.1, np.ones(6), [8.0, 1.0, 4.0, 2.0, 6.0, 3.0], np.zeros(6))
    timings = timings_of(costs, 3, lambda: 0.0, cutoffs=[0, 5])
    fitted = fit_seconds(timings, np.ones(6), costs)
    np.testing.assert_allclose(fitted.backward[:5], costs.backward[:5], rtol=0.05)


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_parts_are_never_negative(b, seed):
    rng = np.random.default_rng(seed)
    timings = Timings()
    for s in range(b):
        for part in (timings.forward, timings.backward, timings.update, timings.alone):
            part[s] = rng.exponential(size=3).tolist()
    fitted = fit_seconds(timings, rng.random(b), flat_operations(b))
    parts = np.concatenate([fitted.forward, fitted.backward, fitted.sharp, [fitted.overhead]])
    assert (parts >= 0).all()


def test_operations_of_linear_layers_are_those_of_their_products():
    measured = measure_costs(mlp_problem(), {"policy": "euclidean"}, 1.0, clock=Ticking(0.01))
    product = [2 * BATCH * a * b for a, b in pairwise(WIDTHS)]
    assert measured.operations.forward.tolist() == product
    for s in range(3):  # one product per weight gradient, one per input gradient but the first
        expected = sum(product) + sum(product[s:]) + sum(product[s + 1 :])
        assert measured.operations_by_cutoff[s] == expected
        assert cost_of_set(measured.operations.fresh(), range(s, 3)) == expected
    assert not measured.operations.sharp.any()


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def three_models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Return an MLP, a CNN and a transformer of several layers, each with an input."""
    torch.manual_seed(0)
    linear = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise([12, 40, 8, 24, 8, 4])]
    cnn = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        Residual(nn.Conv2d(8, 8, 3, padding=1)),
        nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU()),
        nn.Linear(10, 4),
    )
    blocks = [
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(4)
    ]
    transformer = nn.Sequential(nn.Linear(6, 16), *blocks, nn.Linear(16, 4))
    return {
        "mlp": (nn.Sequential(*linear), torch.randn(16, 12)),
        "cnn": (cnn, torch.randn(4, 1, 8, 8)),
        "transformer": (transformer, torch.randn(4, 5, 6)),
    }


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_the_operations_of_any_set_are_predicted(name):
    model, batch = three_models()[name]
    problem = Problem(model, square, [batch])
    settings = {"policy": "sign", "by": lambda name, parameter: name.partition(".")[0]}
    measured = measure_costs(problem, settings, 100.0, clock=Ticking(0.01))
    fresh, b, rng = measured.operations.fresh(), len(measured.layers), np.random.default_rng(0)
    with problem.prepared(settings) as optimizer:
        for _ in range(50):
            active = tuple(np.flatnonzero(rng.random(b) < 0.5).tolist()) or (b - 1,)
            with FlopCounterMode(display=False) as counter:
                problem.backward(optimizer, active, 0)
            assert cost_of_set(fresh, active) == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_weight_gradients_take_their_part_of_the_time_of_backward():
    operations = StepCosts(0.0, np.ones(4), [1.0, 1.0, 3.0, 0.0], np.ones(4), weight=[0, 1, 1, 1])
    timings = timings_of(TRUE, 3, lambda: 0.0)
    fitted = fit_seconds(timings, TRUE.forward, operations)
    whole = fitted.backward + fitted.weight
    np.testing.assert_allclose(fitted.weight / whole, [0.0, 0.5, 0.25, 1.0])
    assert whole[:-1] == pytest.approx(TRUE.backward[:-1], rel=0.02)


@pytest.mark.parametrize("cutoff", range(4))
def test_operations_by_cutoff_are_those_of_the_counter(cutoff):
    model = awkward()
    model.requires_grad_(True)
    problem = Problem(model, noisy_loss, batches())
    measured = measure_costs(problem, {"policy": "sign"}, 1.0, clock=Ticking(0.01))
    for stage in [stage for stage in model if list(stage.parameters())][:cutoff]:
        stage.requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        noisy_loss(model, batches()[0]).backward()
    assert measured.operations_by_cutoff[cutoff] == counter.get_total_flops() > 0


def test_operations_of_an_update_are_those_of_its_orthogonaliser():
    measured = measure_costs(mlp_problem(), {}, 1.0, clock=Ticking(0.01))
    layers: list[Any] = list(mlp())
    for layer, count in zip(layers, measured.operations.sharp, strict=True):
        with FlopCounterMode(display=False) as counter:
            norms.Spectral().unit_direction(torch.randn_like(layer.weight))
        assert count == counter.get_total_flops() > 0


def test_a_decomposition_counts_too():
    measured = measure_costs(mlp_problem(), {"orthogonalize": "svd"}, 1.0, clock=Ticking(0.01))
    products = [(8, 6), (10, 8), (10, 4)]
    shares = [14 * m * n * n + 8 * n**3 for m, n in products]
    assert all(np.greater_equal(measured.operations.sharp, shares))


def test_the_parts_sum_to_the_measured_steps():
    measured = measure_costs(mlp_problem(), {"lr": 0.1}, 5.0, clock=Ticking(0.01))
    np.testing.assert_allclose(measured.seconds_by_cutoff, 0.03)
    predicted = [measured.predict(range(s, 3)) for s in range(3)]
    np.testing.assert_allclose(predicted, 0.03, rtol=0.02)
    assert measured.fit_error == pytest.approx(np.abs(np.array(predicted) / 0.03 - 1).max())
    assert measured.layers == ("0", "1", "2")


@pytest.mark.parametrize("budget", [0.5, 2.0, 8.0])
def test_the_budget_ends_the_measurement(budget):
    clock = Ticking(0.01)
    measured = measure_costs(mlp_problem(), {}, budget, clock=clock)
    assert clock.now <= budget + 0.25
    assert np.isfinite(measured.seconds_by_cutoff[[0, -1]]).all()
    if budget > 1:
        assert measured.rounds >= 3


def test_a_deep_model_takes_no_more_passes_than_there_is_time_for():
    """Every loss takes a second: 2 to warm up, 4 to count, 3 to split, 2 to time the ends."""
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(60)))
    calls: list[float] = []

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        calls.append(1.0)
        return square(model, batch)

    problem = Problem(model, loss, [torch.ones(2, 3)])
    measured = measure_costs(problem, {}, 1.0, clock=lambda: float(len(calls)))
    assert len(calls) <= 12
    assert measured.rounds == 0
    assert not measured.known
    assert measured.resampled == ()


def test_resampled_costs_come_with_whole_rounds():
    measured = measure_costs(mlp_problem(), {}, 2.0, clock=Ticking(0.01))
    assert measured.known
    assert len(measured.resampled) == 40
    assert all(each.num_layers == 3 for each in measured.resampled)


def test_a_slow_model_is_measured_at_its_ends_and_predicted_between():
    measured = measure_costs(mlp_problem(), {}, 1.0, clock=Ticking(10.0))
    assert measured.rounds == 0
    assert np.isnan(measured.seconds_by_cutoff[1])
    assert 0 < measured.predict((1, 2)) < np.inf


def test_progress_rises_to_one():
    shares: list[float] = []
    measure_costs(mlp_problem(), {}, 2.0, shares.append, clock=Ticking(0.01))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert shares[0] >= 0


def test_a_model_of_one_layer_has_costs():
    problem = Problem(nn.Linear(3, 2), square, [torch.ones(4, 3)])
    measured = measure_costs(problem, {}, 1.0, clock=Ticking(0.01))
    assert measured.predict([0]) == pytest.approx(0.03, rel=0.02)


def test_measuring_leaves_model_and_generators_bit_for_bit():
    model = awkward()
    problem = Problem(model, noisy_loss, batches())
    before = state_of(model)
    measure_costs(problem, {"lr": 0.5, "weight_decay": 0.1}, 1.0, clock=Ticking(0.01))
    assert state_of(model) == before


def test_an_exception_in_the_loss_leaves_model_and_generators_bit_for_bit():
    calls = iter(range(100))

    def loss(model, batch):
        if next(calls) == 9:
            raise RuntimeError("inside loss")
        return noisy_loss(model, batch)

    model = awkward()
    problem = Problem(model, loss, batches())
    before = state_of(model)
    with pytest.raises(RuntimeError, match="inside loss"):
        measure_costs(problem, {}, 5.0, clock=Ticking(0.01))
    assert state_of(model) == before


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf"), "long"])
def test_a_budget_must_be_positive_seconds(budget):
    with pytest.raises(ValueError, match="budget must be positive, in seconds"):
        measure_costs(mlp_problem(), {}, budget)
