"""Each preset is the method whose name it has."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon, presets, reference, samplers
from tests.float32_muon import zeropower_without_cast
from tests.models import (
    PROBLEMS,
    Problem,
    batches,
    cnn,
    gradient,
    gradient_of,
    layers_of,
    mlp,
    point,
    residual,
    train,
    transformer,
)

STEPS = 20


def assert_same(one: nn.Module, other: nn.Module, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(
        dict(one.named_parameters()),
        dict(other.named_parameters()),
        rtol=tolerance,
        atol=tolerance,
    )


Step = Callable[[str, Tensor], Tensor]


def assert_steps(problem: Problem, preset: Callable, momentum: float, step: Step) -> None:
    """A preset at lr 0.01 moves parameters by `step(name, momentum)`."""
    model, make_batch, loss = problem
    other = copy.deepcopy(model)
    ours = preset(model, 1e-2, momentum, orthogonalize="svd")
    train(model, ours, loss, batches(make_batch, STEPS))
    by_hand(other, make_batch, loss, step, momentum)
    assert_same(model, other, 1e-10)


def by_hand(
    model: nn.Module,
    make_batch: Callable,
    loss: Callable,
    step: Step,
    momentum: float,
) -> None:
    """X -= step(name, M), written out, for every parameter."""
    kept: dict[str, Tensor] = {}
    for k in range(STEPS):
        model.zero_grad()
        loss(model, make_batch(k)).backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                old = kept.get(name, gradient(p))
                kept[name] = momentum * old + (1 - momentum) * gradient(p)
                p.sub_(step(name, kept[name]))


def polar(m: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(m.flatten(1), full_matrices=False)
    return (u @ vh).reshape(m.shape)


# SGD


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("name", PROBLEMS)
def test_sgd_is_torch_sgd_with_dampening_equal_to_momentum(name: str, momentum: float) -> None:
    """torch starts its buffer at the undamped gradient too, so nothing else needs matching."""
    model, make_batch, loss = PROBLEMS[name]()
    other = copy.deepcopy(model)
    data = batches(make_batch, STEPS)
    train(model, presets.sgd(model, 0.05, momentum), loss, data)
    theirs = torch.optim.SGD(other.parameters(), 0.05, momentum=momentum, dampening=momentum)
    train(other, theirs, loss, data)
    assert_same(model, other)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_from_zero_momentum_is_torch_sgd_without_dampening_at_a_smaller_lr(
    nesterov: bool,
) -> None:
    """From M = 0, M is (1-momentum) times torch's undamped buffer B, and the look-ahead
    (1-momentum)*G + momentum*M is (1-momentum) * (G + momentum*B)."""
    model, make_batch, loss = residual()
    other = copy.deepcopy(model)
    data = batches(make_batch, STEPS)
    ours = presets.sgd(model, 0.2, 0.8, nesterov=nesterov, momentum_start="zero")
    train(model, ours, loss, data)
    theirs = torch.optim.SGD(other.parameters(), 0.2 * (1 - 0.8), momentum=0.8, nesterov=nesterov)
    train(other, theirs, loss, data)
    assert_same(model, other)


# signSGD


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sign_sgd_steps_by_signs(momentum: float) -> None:
    model, make_batch, loss = cnn()
    other = copy.deepcopy(model)
    train(model, presets.sign_sgd(model, 1e-3, momentum), loss, batches(make_batch, STEPS))
    by_hand(other, make_batch, loss, lambda name, m: 1e-3 * m.sign(), momentum)
    assert_same(model, other)


# Muon


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-10)])
def test_muon_is_torch_muon_on_hidden_matrices_and_torch_adamw_on_the_rest(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float, weight_decay: float
) -> None:
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", zeropower_without_cast)
    model, make_batch, loss = transformer(dtype=dtype)
    other = copy.deepcopy(model)
    data = batches(make_batch, 10)
    train(model, presets.muon(model, weight_decay=weight_decay), loss, data)

    outside = ("token", "position", "head")
    named = dict(other.named_parameters())
    hidden = [n for n, p in named.items() if p.ndim == 2 and not n.startswith(outside)]
    rest = [n for n in named if n not in hidden]
    assert len(hidden) == 12
    two = (
        torch.optim.Muon(
            [named[n] for n in hidden], lr=0.02, momentum=0.95, weight_decay=weight_decay
        ),
        torch.optim.AdamW(
            [named[n] for n in rest], lr=3e-4, betas=(0.9, 0.95), weight_decay=weight_decay
        ),
    )
    for batch in data:
        loss(other, batch).backward()
        for optimizer in two:
            optimizer.step()
            optimizer.zero_grad()
    assert_same(model, other, tolerance)


def test_adamw_lr_is_the_learning_rate_of_what_muon_gives_to_adamw() -> None:
    model, make_batch, loss = mlp()
    other = copy.deepcopy(model)
    data = batches(make_batch, 1)
    train(model, presets.muon(model, adamw_lr=1e-2), loss, data)
    theirs = torch.optim.AdamW(other.parameters(), 1e-2, (0.9, 0.95), weight_decay=0.0)
    train(other, theirs, loss, data)
    for ours, wanted in zip(model.parameters(), other.parameters(), strict=True):
        hidden = ours.ndim == 2 and ours is not model[4].weight
        assert torch.allclose(ours, wanted, rtol=1e-12, atol=1e-12) != hidden


# Scion and Gluon


def test_scion_steps_by_the_operator_norm_of_each_kind_of_layer() -> None:
    """Hidden: sqrt(out/in) U V^T. Embeddings: signs. Output: signs over fan-in. Vectors: RMS 1."""

    def step(name: str, m: Tensor) -> Tensor:
        if m.ndim == 1:
            return 1e-2 * math.sqrt(m.numel()) * m / m.norm()
        if name.startswith(("token", "position")):
            return 1e-2 * m.sign()
        if name == "head.weight":
            return 1e-2 * m.sign() / m.shape[1]
        return 1e-2 * math.sqrt(m.shape[0] / m.shape[1]) * polar(m)

    assert_steps(transformer(), presets.scion, 0.9, step)


def test_scion_takes_a_hidden_convolution_for_a_matrix() -> None:
    def step(name: str, m: Tensor) -> Tensor:
        if m.ndim == 1:
            return 1e-2 * math.sqrt(m.numel()) * m / m.norm()
        if m.ndim == 2:
            return 1e-2 * m.sign() / m.shape[1]
        return 1e-2 * math.sqrt(m.shape[0] / m[0].numel()) * polar(m)

    assert_steps(cnn(), presets.scion, 0.9, step)


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_gluon_steps_by_the_polar_factor_and_by_unit_vectors(name: str) -> None:
    def step(name: str, m: Tensor) -> Tensor:
        return 1e-2 * (polar(m) if m.ndim >= 2 else m / m.norm())

    assert_steps(PROBLEMS[name](), presets.gluon, 0.8, step)


# Randomized methods


@pytest.mark.parametrize("probabilities", [samplers.uniform, [0.5, 0.3, 0.2]], ids=str)
def test_rpt_is_algorithm_2_with_euclidean_norms_and_a_random_cutoff(
    probabilities: Any,
) -> None:
    start, make_batch, loss = mlp()
    model = copy.deepcopy(start)
    data = batches(make_batch, 50)
    optimizer = presets.rpt(model, 0.1, probabilities, seed=1)
    assert optimizer.sampler == samplers.Progressive(probabilities)
    S = train(model, optimizer, loss, data)
    assert all(active == tuple(range(active[0], 3)) for active in S)
    assert {active[0] for active in S} == {0, 1, 2}
    X = reference.algorithm_2(
        point(start),
        gradient_of(start, loss, data),
        S,
        lambda i, active, dual: 0.1,
        lambda x: "euclidean",
    )
    torch.testing.assert_close(point(model), X, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("probabilities", [samplers.linear, [0.5, 0.3, 0.2]], ids=str)
def test_block_coordinate_descent_is_algorithm_3_with_one_random_layer(
    probabilities: Any,
) -> None:
    start, make_batch, loss = mlp()
    model = copy.deepcopy(start)
    data = batches(make_batch, 50)
    optimizer = presets.block_coordinate_descent(model, 0.1, probabilities, seed=1)
    assert optimizer.sampler == samplers.Serial(probabilities)
    S = train(model, optimizer, loss, data)
    assert set(S) == {(0,), (1,), (2,)}
    X = reference.algorithm_3(
        point(start), gradient_of(start, loss, data), [i for (i,) in S], gamma=0.1
    )
    torch.testing.assert_close(point(model), X, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("preset", presets.__all__)
def test_every_preset_takes_the_settings_of_the_optimizer(preset: str) -> None:
    model, make_batch, loss = residual()
    optimizer = getattr(presets, preset)(
        model, sampler=samplers.Nice(2), seed=4, resample_every=2, full_start=True
    )
    S = train(model, optimizer, loss, batches(make_batch, 5))
    assert S[0] == tuple(range(len(layers_of(model))))
    assert [len(active) for active in S[1:]] == [2] * 4
    assert (S[1], S[3]) == (S[2], S[4])


# AdamW


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_the_adamw_rule_is_torch_adamw(name: str, weight_decay: float, maximize: bool) -> None:
    model, make_batch, loss = PROBLEMS[name]()
    other = copy.deepcopy(model)
    data = batches(make_batch, 50)
    settings: dict[str, Any] = {"weight_decay": weight_decay, "maximize": maximize}
    ours = DropMuon(model, sampler="full", policy=lambda member: "adamw", adamw_lr=3e-3, **settings)
    theirs = torch.optim.AdamW(other.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, **settings)
    train(model, ours, loss, data)
    train(other, theirs, loss, data)
    assert_same(model, other, 1e-12)


def test_the_adamw_rule_of_a_layer_counts_the_steps_of_that_layer_only() -> None:
    """An inactive layer keeps its state bit for bit, bias correction included: it moves as if
    torch's AdamW had been stepped on its own gradients alone."""
    model, make_batch, loss = residual()
    other = copy.deepcopy(model)
    ours = DropMuon(
        model, sampler="uniform", policy=lambda member: "adamw", adamw_lr=3e-3, weight_decay=0.1
    )
    theirs = [
        torch.optim.AdamW(layer, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
        for layer in layers_of(other)
    ]
    for k in range(30):
        for i in ours.active:
            assert all(p.requires_grad for p in layers_of(model)[i])
        active = ours.active
        for one in (model, other):
            one.zero_grad()
            loss(one, make_batch(k)).backward()
        ours.step()
        for i in active:
            theirs[i].step()
    assert_same(model, other, 1e-12)
