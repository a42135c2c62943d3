"""Signal and noise are those of gradients whose distribution is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dropmuon.planning import NoiseEstimate, Problem, measure_noise
from tests.awkward_problem import awkward, batches, noisy_loss, state_of
from tests.planning.synthetic_plans import noise_of

EXAMPLES = 64
SIGNAL = torch.tensor([1.0, 2.0])
SPREAD = (0.5, 4.0)


class TwoLayers(nn.Module):
    """The gradients of layer i are the examples: they have the mean SIGNAL and a spread."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.zeros(2) for _ in SPREAD)

    def forward(self, x: Tensor) -> Tensor:
        return sum((x[:, i] @ each for i, each in enumerate(self.layers)), torch.zeros(())).mean()


def examples(count: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    drawn = torch.randn(count, EXAMPLES, 2, 2, generator=rng)
    return [SIGNAL + each * torch.tensor(SPREAD)[:, None] for each in drawn]


SETTINGS = {"lr": 0.1, "policy": "euclidean", "by": lambda name, parameter: name}


def measured(count: int, steps: int | None = None) -> NoiseEstimate:
    problem = Problem(TwoLayers(), lambda model, x: model(x), examples(count), count)
    found = measure_noise(problem, SETTINGS, steps, budget=100.0)
    assert found is not None
    return found


def test_signal_and_noise_are_the_true_ones_on_average() -> None:
    """|mean|^2 = 5, and the variance of the mean of 64 examples is 2 spread^2 / 64."""
    found = measured(300)
    assert found.steps == 512
    assert found.examples == EXAMPLES
    signal, noise = found.signal[:300].mean(axis=0), found.noise[:300].mean(axis=0)
    np.testing.assert_allclose(signal, [5.0, 5.0], rtol=0.03)
    np.testing.assert_allclose(noise, 2 * np.square(SPREAD) / EXAMPLES, rtol=0.1)


def test_estimates_agree_with_the_definition_for_each_pair_of_pieces() -> None:
    found = measured(1, steps=1)
    pieces = torch.stack([piece.mean(dim=0) for piece in examples(1)[0].chunk(4)]).double()
    for i in (0, 1):
        g = pieces[:, i]
        pairs = [float(g[p] @ g[q]) for p in range(4) for q in range(4) if p != q]
        signal = sum(pairs) / 12
        assert found.signal[0, i] == pytest.approx(signal, rel=1e-5)
        mean_square = float(g.square().sum()) / 4
        assert found.noise[0, i] == pytest.approx((mean_square - signal) / 4, rel=1e-4)


def test_the_run_takes_the_steps_of_the_whole_batch() -> None:
    """With a Euclidean step of length lr along the mean of the first batch."""
    model = TwoLayers()
    problem = Problem(model, lambda model, x: model(x), examples(2))
    with problem.prepared(SETTINGS) as optimizer:
        problem.backward(optimizer, (0, 1), 0)
        optimizer.step()
        after = [p.detach().clone() for p in model.parameters()]
    seen: list[list[Tensor]] = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        seen.append([p.detach().clone() for p in model.parameters()])
        return model(x)

    measure_noise(Problem(model, loss, examples(2)), SETTINGS, 2)
    for mine, expected in zip(seen[-1], after, strict=True):
        torch.testing.assert_close(mine, expected)


def test_a_run_sees_each_batch_four_times_at_most() -> None:
    assert measured(3).steps == 12
    assert measured(3, steps=5).steps == 5


def test_the_budget_ends_the_run_after_one_step_at_least() -> None:
    calls: list[int] = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        calls.append(1)
        return model(x)

    problem = Problem(TwoLayers(), loss, examples(40))
    clock = lambda: float(len(calls))  # noqa: E731
    long = measure_noise(problem, SETTINGS, None, 40.0, clock=clock)
    short = measure_noise(problem, SETTINGS, None, 1e-9, clock=clock)
    assert long is not None
    assert short is not None
    assert (long.steps, short.steps) == (10, 1)
    assert long.seconds == 4.0


def test_batches_that_cannot_be_cut_have_no_noise() -> None:
    problem = Problem(TwoLayers(), lambda model, x: model(torch.ones(8, 2, 2)), [None])
    assert measure_noise(problem, SETTINGS) is None
    few = Problem(TwoLayers(), lambda model, x: model(x), [torch.ones(3, 2, 2)])
    assert measure_noise(few, SETTINGS) is None


def test_a_run_that_diverges_is_refused() -> None:
    problem = Problem(nn.Linear(2, 1), lambda m, x: -m(x).exp().mean(), [torch.ones(8, 2)])
    with pytest.raises(ValueError, match="must be finite along the run, got a loss of -inf after"):
        measure_noise(problem, {"lr": 1e3})


def test_measuring_leaves_model_and_generators_bit_for_bit() -> None:
    model = awkward()
    problem = Problem(model, noisy_loss, batches())
    before = state_of(model)
    assert measure_noise(problem, {"lr": 0.1}, 3) is not None
    assert state_of(model) == before


def test_progress_rises_to_one() -> None:
    shares: list[float] = []
    problem = Problem(TwoLayers(), lambda model, x: model(x), examples(4))
    measure_noise(problem, SETTINGS, None, 50.0, shares.append)
    assert shares == sorted(shares)
    assert (shares[0] >= 0, shares[-1]) == (True, 1.0)


# What follows from signal and noise


def test_a_layer_without_a_gradient_has_the_least_noise_and_one_without_signal_the_most() -> None:
    zero = np.zeros((8, 1))
    signal = np.concatenate([zero, zero - 0.1, zero + 1.0], axis=1)
    noise = np.concatenate([zero, zero + 1.0, zero + 0.5], axis=1)
    found = NoiseEstimate(("a", "b", "c"), 10, signal, noise, 4, 0.0)
    np.testing.assert_allclose(found.ratios, np.tile([1e-4, 100.0, 0.5], (4, 1)))


@given(growth=st.floats(0.0, 1.0), level=st.floats(0.01, 1.0), times=st.sampled_from([2, 5, 10]))
def test_noise_is_extrapolated_by_its_power_of_the_steps(
    growth: float, level: float, times: int
) -> None:
    found = noise_of([level, 2 * level], growth, steps=160)
    nu, weights = found.stages(found.ratios, 160 * times)
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(nu[:, 1], 2 * nu[:, 0])
    middle = 160 * times * (1 - weights[-1] / 2)
    assert nu[-1, 0] == pytest.approx(min(level * (middle / 160) ** growth, 100.0), rel=0.05)


def test_noise_that_falls_is_not_extrapolated_to_fall_further() -> None:
    found = noise_of([0.5, 0.5], growth=-1.0)
    assert found.stages(found.ratios, 4000)[0][-1, 0] == pytest.approx(found.ratios[-1, 0])


@given(ratios=st.lists(st.floats(0.001, 10.0), min_size=2, max_size=4), q=st.floats(0.1, 1.0))
def test_the_ratio_of_a_run_takes_the_steps_of_its_stages(ratios: list[float], q: float) -> None:
    found = noise_of(ratios, growth=0.7)
    nu, weights = found.stages(found.ratios, 100)
    steps = weights @ ((1 + 3 * nu / q) / (1 + 3 * nu))
    whole = found.over(100, factor=3.0)
    np.testing.assert_allclose((1 + whole / q) / (1 + whole), steps, rtol=1e-9)


def test_a_run_shorter_than_the_measured_one_has_the_noise_of_its_beginning() -> None:
    found = noise_of([0.5], growth=1.0)
    assert found.over(5)[0] == pytest.approx(found.ratios[0, 0])
    assert found.over(40)[0] > found.over(20)[0] > found.over(10)[0]


def test_resamples_scatter_with_the_noise_of_single_steps() -> None:
    quiet = noise_of([0.1, 0.1]).resampled(20)
    np.testing.assert_allclose(quiet, 0.1)
    loud = noise_of([0.1, 0.1], spread=1.0).resampled(200, seed=1)
    assert loud.shape == (201, 8, 2)
    assert 0.02 < loud[1:].std(axis=0).mean() < 0.2
