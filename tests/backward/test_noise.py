"""Signal and noise of gradients: the literal estimate, its law, and what is not measured."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import DropMuon
from dropmuon.backward.noise import Arrival, NoiseMeter
from tests.backward.parted_problem import LAYERS, gradient_of_part, make_batch, make_model, point

M = 4


def adaptive(model: nn.Module, **given: Any) -> DropMuon:
    return DropMuon(model, lr=0.02, **{"sampler": "adaptive", "parts": M, **given})


def literal_ratios(parts: int) -> list[float]:
    """nu of each layer at the initial point: pairs of parts, written out."""
    X, gradient = point(make_model()), gradient_of_part(parts)
    found = [gradient(X, 0, p) for p in range(parts)]
    ratios = []
    for layer in range(LAYERS):
        flat = [torch.cat([g.flatten() for g in each[layer]]) for each in found]
        pairs = [float(a @ b) for a, b in combinations(flat, 2)]
        signal = sum(pairs) / len(pairs)
        noise = sum(float(g @ g) for g in flat) / parts - signal
        ratios.append(noise / parts / signal)
    return ratios


def measured_ratios(optimizer: DropMuon) -> list[float]:
    """Noise over signal as estimated, also where chance made the signal negative."""
    saved = optimizer.state_dict()["dropmuon"]["adaptation"]
    return [n / s for n, s in zip(saved["noise"], saved["signal"], strict=True)]


@pytest.mark.parametrize("m", [2, 3, 4, 6])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_an_accumulating_loop_measures_the_pairs_of_its_parts(m: int, scale: float) -> None:
    model = make_model()
    optimizer = adaptive(model, parts=m)
    x, y = make_batch(0)
    for some, labels in zip(x.chunk(m), y.chunk(m), strict=True):
        (scale * F.cross_entropy(model(some), labels) / m).backward()
    optimizer.step()
    assert measured_ratios(optimizer) == pytest.approx(literal_ratios(m), rel=1e-5)


@pytest.mark.parametrize("m", [2, 4])
def test_a_batch_that_is_split_measures_the_same(m: int) -> None:
    model = make_model()
    optimizer = adaptive(model, parts=m)
    for x, y in optimizer.split(*make_batch(0)):
        F.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert measured_ratios(optimizer) == pytest.approx(literal_ratios(m), rel=1e-5)


def test_noise_is_unknown_before_the_first_step_and_without_an_adaptive_sampler() -> None:
    assert all(map(math.isnan, adaptive(make_model()).noise or ()))
    assert DropMuon(make_model(), parts=2).noise is None


@settings(max_examples=30, deadline=None)
@given(
    weights=st.lists(st.floats(0.2, 5.0), min_size=2, max_size=5),
    scaled=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_estimates_have_no_bias_whatever_the_weights_of_parts(
    weights: list[float], scaled: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    trials, size, total = 400, 30, sum(weights)
    true = torch.randn(size, generator=generator, dtype=torch.float64)
    whole = 0.5  # the variance of an entry of the gradient of the whole batch
    found = []
    for _ in range(trials):
        meter, parameter = NoiseMeter(), torch.zeros(size, dtype=torch.float64)
        for part, weight in enumerate(weights):
            share = weight / total
            noise = torch.randn(size, generator=generator, dtype=torch.float64)
            own, kept = (1.0, 0.7 * share) if scaled else (share, share)
            gradient = own * (true + (whole / share) ** 0.5 * noise)
            meter.add(parameter, 0, gradient, part, Arrival(own, kept, share))
            old = 0.0 if parameter.grad is None else parameter.grad
            parameter.grad = old + gradient * kept / own
        found.append([each[0] for each in meter.read(1)])
    estimates = torch.tensor(found)
    mean, error = estimates.mean(0), estimates.std(0) / trials**0.5
    expected = torch.tensor([float(true @ true), whole * size])
    assert ((mean - expected).abs() < 6 * error).all()


def test_a_part_of_several_losses_is_not_measured() -> None:
    model = make_model()
    optimizer = adaptive(model)
    for x, y in optimizer.split(*make_batch(0)):
        half = len(x) // 2
        F.cross_entropy(model(x[:half]), y[:half]).backward()
        F.cross_entropy(model(x[half:]), y[half:]).backward()
    optimizer.step()
    assert all(map(math.isnan, optimizer.noise or ()))
    assert optimizer.shares == (1.0,) * LAYERS


def test_gradients_that_are_only_computed_are_not_measured() -> None:
    noises = []
    for looks in (False, True):
        model = make_model()
        optimizer = adaptive(model)
        for x, y in optimizer.split(*make_batch(0)):
            loss = F.cross_entropy(model(x), y)
            if looks:
                torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            loss.backward()
        optimizer.step()
        noises.append(optimizer.noise)
    assert noises[0] == noises[1]


def test_a_gradient_that_is_not_finite_leaves_the_estimates_alone() -> None:
    model = make_model()
    optimizer = adaptive(model)
    train_one(model, optimizer, 0)
    known = optimizer.noise
    for number, (x, y) in enumerate(optimizer.split(*make_batch(1))):
        (F.cross_entropy(model(x), y) * (math.inf if number == 1 else 1.0)).backward()
    optimizer.step()
    assert optimizer.noise == known
    assert optimizer.skipped


def test_measuring_changes_no_gradient() -> None:
    def gradients(**given: Any) -> list[Tensor]:
        model = make_model()
        optimizer = adaptive(model, **given)
        for x, y in optimizer.split(*make_batch(0)):
            F.cross_entropy(model(x), y).backward()
        return [p.grad.clone() for p in model.parameters()]

    for measured, plain in zip(gradients(), gradients(sampler="full"), strict=True):
        assert torch.equal(measured, plain)


def train_one(model: nn.Module, optimizer: DropMuon, k: int) -> None:
    for x, y in optimizer.split(*make_batch(k)):
        F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
