"""What the stochastic theorem needs of a model, as measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dropmuon.planning import plan
from dropmuon.planning.bounds.stochastic_case import measure_case
from dropmuon.planning.noise import NoiseEstimate, measure_noise
from dropmuon.planning.problem import Problem


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


def loss(network: nn.Module, batch: Any) -> Tensor:
    return (network(batch[0]) - batch[1]).square().mean() + 1.0


def batches(count: int, size: int = 64) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 6, generator=generator), torch.randn(size, 2, generator=generator))
        for _ in range(count)
    ]


def noise_of(table: np.ndarray) -> NoiseEstimate:
    return NoiseEstimate(("0", "2"), 64, np.ones_like(table), table, 4, 0.0)


def test_gap_noise_and_norms_are_those_of_the_model() -> None:
    network, given = model(), batches(3)
    noise = noise_of(np.array([[1.0, -1.0]] * 4 + [[9.0, -1.0]] * 4))
    case = measure_case(Problem(network, loss, given), {"lr": 0.1}, noise)
    assert case.gap == pytest.approx(float(np.mean([loss(network, b).item() for b in given])))
    sigma, low, high = case.per_layer(2)
    assert sigma.tolist() == [3.0, 0.0]  # the noisiest window; what is below 0 is none
    assert low.tolist() == [1.0, 1.0]
    # The spectral norm of a matrix of rank 4 or 2, and a Euclidean bias: the largest of the two.
    np.testing.assert_allclose(high, [5**0.5, 3**0.5])


def test_sigma_is_the_deviation_of_the_gradient_over_a_batch() -> None:
    network, given = model(), batches(64)
    problem = Problem(network, loss, given)
    settings = {"lr": 1e-6}  # the model stays where it is
    sigma = measure_case(problem, settings, measure_noise(problem, settings, 64)).per_layer(2)[0]
    for layer, expected in zip((network[0], network[2]), sigma, strict=True):
        found = []
        for batch in given:
            network.zero_grad()
            loss(network, batch).backward()
            found.append(torch.cat([p.grad.flatten() for p in layer.parameters()]))
        deviation = float(torch.stack(found).var(dim=0).sum().sqrt())
        assert deviation < expected < 1.5 * deviation  # the noisiest of 8 windows


@pytest.mark.parametrize(
    ("shift", "given", "says"),
    [
        (-100.0, batches(2), "takes 0 for the least loss, got a loss of -97"),
        (0.0, batches(2, size=1), "needs the noise of gradients, but the batches cannot be cut"),
    ],
)
def test_what_the_regime_cannot_do_without_is_named(shift: float, given: Any, says: str) -> None:
    def shifted(network: nn.Module, batch: Any) -> Tensor:
        return loss(network, batch) + shift

    with pytest.raises(ValueError, match=says):
        plan(model(), shifted, given, budget=0.3, lr=0.1, regime="stochastic")
