"""The optimizer against the paper's algorithms, transcribed in `dropmuon.reference`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_, vmap

from dropmuon import DropMuon, layer_groups, norms, presets, reference, rules, samplers
from dropmuon.model.policies import Member
from dropmuon.samplers import ActiveSet
from tests.models import (
    PROBLEMS,
    Batch,
    Loss,
    Problem,
    batches,
    gradient_of,
    layers_of,
    mlp,
    point,
    residual,
    train,
    transformer,
)

STEPS = 50

MODELS: dict[str, Callable[[], Problem]] = {
    "mlp": PROBLEMS["mlp"],
    "cnn": PROBLEMS["cnn"],
    "transformer": partial(transformer, blocks=1),
}

NORMS = ["spectral", "spectral-rms", "euclidean", "sign", "column-wise", "row-wise"]

SAMPLERS: dict[str, Callable[[int], samplers.SamplerName | samplers.Sampler]] = {
    "full": lambda b: samplers.Full(),
    "uniform": lambda b: "uniform",
    "linear": lambda b: "linear",
    "quadratic": lambda b: samplers.Progressive(samplers.quadratic),
    "exponential": lambda b: "exponential",
    "epoch-shift": lambda b: samplers.Progressive(samplers.epoch_shift(0.7)),
    "array": lambda b: samplers.Progressive(np.arange(b, 0, -1) / (b * (b + 1) / 2)),
    "nice": lambda b: samplers.Nice(2),
    "submodel": lambda b: samplers.Submodel(2),
    "partition": lambda b: samplers.Partition([range(0, b, 2), range(1, b, 2)], [0.4, 0.6]),
    "serial": lambda b: samplers.Serial(samplers.linear),
    "arbitrary": lambda b: samplers.Arbitrary({(0,): 0.3, (1, 2): 0.4, tuple(range(b)): 0.3}),
}


def norm_of(norm: str, x: Tensor) -> str:
    """Matrices under the given norm; vectors under the Euclidean where it is one of matrices."""
    return norm if x.ndim >= 2 or norm == "sign" else "euclidean"


def policy(norm: str) -> Callable[[Member], norms.Norm | str]:
    def choose(member: Member) -> norms.Norm | str:
        name = norm_of(norm, member.parameter)
        return norms.Spectral("svd", scale="rms") if name == "spectral-rms" else name

    return choose


def assert_same_point(model: nn.Module, X: list[list[Tensor]], rtol: float = 1e-10) -> None:
    """Equal to rounding: an error of 1e-16 per step, grown at most a millionfold on its way."""
    torch.testing.assert_close(point(model), X, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", MODELS)
def test_the_optimizer_is_algorithm_1(name: str, norm: str) -> None:
    start, make_batch, loss = MODELS[name]()
    data = batches(make_batch, STEPS)
    b = len(layers_of(start))
    for nesterov in (False, True):
        runs, seen = [], []
        for sampler, keep in product(SAMPLERS, (1, 3)):
            model = copy.deepcopy(start)
            optimizer = DropMuon(
                model,
                lr=0.02,
                momentum=0.7,
                nesterov=nesterov,
                sampler=SAMPLERS[sampler](b),
                total_steps=STEPS,
                resample_every=keep,
                policy=policy(norm),
                orthogonalize="svd",
                seed=5,
            )
            seen.append(train(model, optimizer, loss, data))
            runs.append((f"{sampler=} {nesterov=} resample_every={keep}", model))
        settings = {"t": 0.02, "beta": 1 - 0.7, "norm": partial(norm_of, norm)}
        points = side_by_side(start, loss, data, seen, nesterov=nesterov, **settings)
        for (what, model), X in zip(runs, points, strict=True):
            try:
                assert_same_point(model, X)
            except AssertionError as error:
                error.add_note(what)
                raise


def side_by_side(
    start: nn.Module, loss: Loss, data: list[Batch], runs: list[list[ActiveSet]], **settings: Any
) -> list[list[list[Tensor]]]:
    """Algorithm 1 for several runs in one call: the layers of all of them, one after the other.

    Layers meet in the gradient only, which is taken of each run apart: `vmap` over the runs of
    the full gradient of a private, stateless copy. (In training, batch norm does not use its
    running statistics.)
    """
    private = replace_all_batch_norm_modules_(copy.deepcopy(start))
    names = [name for name, _ in private.named_parameters()]
    sizes = [len(layer) for layer in layers_of(private)]
    b = len(sizes)

    def value(parameters: dict[str, Tensor], batch: Batch) -> Tensor:
        def model(*inputs: Tensor) -> Tensor:
            return functional_call(private, parameters, inputs)

        return loss(cast(nn.Module, model), batch)

    gradients = vmap(grad(value), in_dims=(0, None))

    def gradient(X: list[list[Tensor]], k: int) -> list[list[Tensor]]:
        flat = [x for layer in X for x in layer]
        parts = [torch.stack(flat[j :: len(names)]) for j in range(len(names))]
        found = gradients(dict(zip(names, parts, strict=True)), data[k])
        entries = iter([found[name][r] for r in range(len(runs)) for name in names])
        return [[next(entries) for _ in range(size)] for _ in runs for size in sizes]

    steps = zip(*runs, strict=True)
    S = [[r * b + i for r, active in enumerate(step) for i in active] for step in steps]
    X = reference.algorithm_1(point(start) * len(runs), gradient, S, **settings)
    return [X[r * b : (r + 1) * b] for r in range(len(runs))]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_active_sets_are_a_full_step_and_then_draws_of_seed_and_window(
    sampler: str, keep: int, name: str
) -> None:
    model, make_batch, loss = MODELS[name]()
    b, total, seed = len(layers_of(model)), 20, 11
    chosen = SAMPLERS[sampler](b)
    optimizer = DropMuon(
        model, sampler=chosen, total_steps=total, resample_every=keep, seed=seed, policy="sign"
    )
    seen = train(model, optimizer, loss, batches(make_batch, total))
    expected = [tuple(range(b))]
    for k in range(1, total):
        window = (k - 1) // keep
        rng = np.random.Generator(np.random.Philox(key=[seed, window]))
        progress = (1 + window * keep) / total
        expected.append(samplers.by_name(chosen).sample(b, rng, progress))
    assert seen == expected
    assert sampler == "full" or len(set(seen)) > 1


def test_without_full_start_the_first_set_is_drawn_too() -> None:
    model, make_batch, loss = residual()
    optimizer = DropMuon(model, sampler="uniform", seed=3, full_start=False, resample_every=2)
    seen = train(model, optimizer, loss, batches(make_batch, 8))
    b = len(layers_of(model))
    for k in range(8):
        rng = np.random.Generator(np.random.Philox(key=[3, k // 2]))
        assert seen[k] == samplers.Progressive().sample(b, rng)


def test_a_layer_first_drawn_late_starts_its_momentum_at_its_own_gradient() -> None:
    start, make_batch, loss = residual()
    data = batches(make_batch, STEPS)
    model = copy.deepcopy(start)
    optimizer = DropMuon(
        model,
        lr=0.02,
        momentum=0.8,
        sampler=samplers.Serial(),
        full_start=False,
        orthogonalize="svd",
    )
    S = train(model, optimizer, loss, data)
    norm = partial(norm_of, "spectral")
    X = reference.algorithm_1(point(start), gradient_of(start, loss, data), S, 0.02, 0.2, norm)
    assert_same_point(model, X)


STARTS: dict[str, tuple[dict[str, Any], Callable[[int], bool]]] = {
    "momentum": ({"full_start": "momentum"}, lambda k: k == 0),
    "refresh": ({"full_start": False, "truncate": "refresh"}, lambda k: True),
    "both": ({"full_start": "momentum", "truncate": "refresh"}, lambda k: True),
}


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("sampler", ["uniform", "nice", "serial", "epoch-shift"])
@pytest.mark.parametrize("start", STARTS)
def test_momentum_follows_gradients_of_layers_that_do_not_move(
    start: str, sampler: str, nesterov: bool
) -> None:
    settings, refresh = STARTS[start]
    model, make_batch, loss = residual()
    data, b = batches(make_batch, STEPS), len(layers_of(model))
    X_0 = copy.deepcopy(model)
    optimizer = DropMuon(
        model,
        lr=0.02,
        momentum=0.8,
        nesterov=nesterov,
        weight_decay=0.1,
        sampler=SAMPLERS[sampler](b),
        total_steps=STEPS,
        seed=7,
        orthogonalize="svd",
        **settings,
    )
    S = [optimizer.draws.at(k, b) for k in range(STEPS)]
    seen = train(model, optimizer, loss, data)
    assert seen[1:] == S[1:]
    assert len(S[0]) < b
    X = reference.algorithm_1(
        point(X_0),
        gradient_of(X_0, loss, data),
        S,
        0.02,
        0.2,
        partial(norm_of, "spectral"),
        nesterov=nesterov,
        weight_decay=0.1,
        refresh=refresh,
    )
    assert_same_point(model, X)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_weight_decay_shrinks_active_layers_by_lr_times_decay(norm: str, nesterov: bool) -> None:
    start, make_batch, loss = mlp(seed=1)
    data = batches(make_batch, STEPS)
    model = copy.deepcopy(start)
    optimizer = DropMuon(
        model,
        lr=0.02,
        momentum=0.6,
        nesterov=nesterov,
        weight_decay=0.3,
        policy=policy(norm),
        orthogonalize="svd",
    )
    S = train(model, optimizer, loss, data)
    X = reference.algorithm_1(
        point(start),
        gradient_of(start, loss, data),
        S,
        0.02,
        0.4,
        partial(norm_of, norm),
        nesterov=nesterov,
        weight_decay=0.3,
    )
    assert_same_point(model, X)


@pytest.mark.parametrize("settings", [{"truncate": False}, {"foreach": False}], ids=str)
def test_settings_that_only_change_the_cost_leave_algorithm_1_as_it_is(
    settings: dict[str, Any],
) -> None:
    start, make_batch, loss = transformer()
    data = batches(make_batch, 20)
    model = copy.deepcopy(start)
    optimizer = DropMuon(model, lr=0.02, momentum=0.7, orthogonalize="svd", **settings)
    S = train(model, optimizer, loss, data)
    norm = partial(norm_of, "spectral")
    X = reference.algorithm_1(point(start), gradient_of(start, loss, data), S, 0.02, 0.3, norm)
    assert_same_point(model, X)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("name", PROBLEMS)
def test_inactive_layers_keep_parameters_and_momentum_bit_for_bit(
    name: str, truncate: bool
) -> None:
    model, make_batch, loss = PROBLEMS[name]()
    optimizer = DropMuon(
        model, lr=0.1, momentum=0.5, weight_decay=0.1, sampler=samplers.Nice(2), truncate=truncate
    )
    layers = layers_of(model)
    train(model, optimizer, loss, batches(make_batch, 1))
    for k in range(1, 8):
        before = _bits(optimizer, layers)
        active = optimizer.active
        loss(model, make_batch(k)).backward()
        optimizer.step()
        optimizer.zero_grad()
        for i, (old, new) in enumerate(zip(before, _bits(optimizer, layers), strict=True)):
            same = [torch.equal(a, b) for a, b in zip(old, new, strict=True)]
            assert not any(same) if i in active else all(same)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("sampler", ["uniform", "nice"])
def test_a_group_may_follow_its_gradient_without_an_lmo(sampler: str, nesterov: bool) -> None:
    model, make_batch, loss = residual()
    data, b = batches(make_batch, STEPS), len(layers_of(model))
    X_0 = copy.deepcopy(model)
    groups = layer_groups(model, policy=policy("spectral"), orthogonalize="svd")
    bypassed = {groups[0]["layer"], groups[-1]["layer"]}
    for group in groups:
        if group["layer"] in bypassed:
            group |= {"norm": "euclidean", "step_rule": rules.Sharp()}
    optimizer = DropMuon(
        groups, lr=0.02, momentum=0.8, nesterov=nesterov, sampler=SAMPLERS[sampler](b)
    )
    S = train(model, optimizer, loss, data)
    start = point(X_0)
    along_gradient = {id(x) for i in (0, b - 1) for x in start[i]}
    X = reference.algorithm_1_in_parts(
        start,
        lambda X, k, p: gradient_of(X_0, loss, data)(X, k),
        [[active] for active in S],
        0.02,
        0.2,
        partial(norm_of, "spectral"),
        nesterov=nesterov,
        bypass=lambda x: id(x) in along_gradient,
    )
    assert_same_point(model, X)


def test_a_started_momentum_moves_the_drawn_set_only() -> None:
    model, make_batch, loss = residual()
    optimizer = DropMuon(model, full_start="momentum", sampler=samplers.Serial(), policy="muon")
    layers = layers_of(model)
    drawn = optimizer.draws.at(0, len(layers))
    before = [[p.detach().clone() for p in layer] for layer in layers]
    assert optimizer.active == tuple(range(len(layers)))
    train(model, optimizer, loss, batches(make_batch, 1))
    for i, layer in enumerate(layers):
        same = [torch.equal(p, old) for p, old in zip(layer, before[i], strict=True)]
        assert not any(same) if i in drawn else all(same)
        assert all(optimizer.state[p]["updates"] == 1 for p in layer)
    assert optimizer.active == optimizer.draws.at(1, len(layers))


def test_a_set_chosen_by_hand_puts_off_the_start_of_momentum() -> None:
    model, make_batch, loss = residual()
    optimizer = DropMuon(model, full_start="momentum", sampler=samplers.Serial())
    layers = layers_of(model)
    optimizer.activate([2])
    assert train(model, optimizer, loss, batches(make_batch, 1)) == [(2,)]
    assert optimizer.active == tuple(range(len(layers)))
    with optimizer.full():
        before = [p.detach().clone() for p in model.parameters()]
        train(model, optimizer, loss, batches(make_batch, 1))
    assert not any(map(torch.equal, before, model.parameters()))  # full() moves everything


def test_refreshed_momentum_is_that_of_a_layer_that_was_never_left_out() -> None:
    model, make_batch, loss = mlp()
    optimizer = DropMuon(model, lr=0.0, truncate="refresh", sampler=samplers.Serial())
    twin = copy.deepcopy(model)
    full = DropMuon(twin, lr=0.0, sampler="full")
    for each, chosen in ((model, optimizer), (twin, full)):
        train(each, chosen, loss, batches(make_batch, 6))
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        momenta = optimizer.state[ours]["momentum_buffer"], full.state[theirs]["momentum_buffer"]
        assert torch.equal(*momenta)


def _bits(optimizer: DropMuon, layers: list[list[nn.Parameter]]) -> list[list[Tensor]]:
    """Parameters and momenta of each layer, as integers: NaN and -0.0 would count."""
    return [
        [
            x.detach().clone().view(torch.int64)
            for p in layer
            for x in (p, optimizer.state[p]["momentum_buffer"])
        ]
        for layer in layers
    ]


# Algorithm 2

B = 8
"""Layers of the residual model."""

L = np.linspace(20.0, 60.0, B)
L_BY_CUTOFF = np.tril(np.add.outer(L, -2.0 * np.arange(B)))

RULES: dict[str, tuple[rules.StepRule, Callable[[int, tuple[int, ...], float], float]]] = {
    "sharp": (rules.Sharp(), lambda i, S, dual: 1.0),
    "smooth": (rules.Smooth(L), lambda i, S, dual: 1 / L[i]),
    "smooth by cutoff": (rules.Smooth(L_BY_CUTOFF), lambda i, S, dual: 1 / L_BY_CUTOFF[i, min(S)]),
    "generalized": (
        rules.Generalized(L, L_BY_CUTOFF),
        lambda i, S, dual: 1 / (L[i] + L_BY_CUTOFF[i, min(S)] * dual),
    ),
}


@pytest.mark.parametrize("sampler", ["uniform", "nice", "serial"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rule", RULES)
def test_layerwise_gd_is_algorithm_2(rule: str, norm: str, sampler: str) -> None:
    start, make_batch, loss = residual()
    assert len(layers_of(start)) == B
    data = batches(make_batch, 20)
    model = copy.deepcopy(start)
    step_rule, gamma = RULES[rule]
    lr = 0.002 if rule == "sharp" else 0.5
    optimizer = presets.layerwise_gd(
        model,
        lr,
        step_rule=step_rule,
        sampler=SAMPLERS[sampler](B),
        policy=policy(norm),
        orthogonalize="svd",
    )
    S = train(model, optimizer, loss, data)
    X = reference.algorithm_2(
        point(start),
        gradient_of(start, loss, data),
        S,
        lambda i, active, dual: lr * gamma(i, tuple(active), dual),
        partial(norm_of, norm),
    )
    assert_same_point(model, X)


def test_block_coordinate_descent_is_algorithm_3() -> None:
    start, make_batch, loss = residual()
    data = batches(make_batch, STEPS)
    model = copy.deepcopy(start)
    optimizer = presets.block_coordinate_descent(model, 0.1, seed=2)
    S = train(model, optimizer, loss, data)
    assert {len(active) for active in S} == {1}
    X = reference.algorithm_3(
        point(start), gradient_of(start, loss, data), [i for (i,) in S], gamma=0.1
    )
    assert_same_point(model, X)
