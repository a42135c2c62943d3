"""Step rules: their formulas, what the theorems promise of them, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon, layer_groups, norms, presets, samplers
from dropmuon.step.rules import (
    LARGEST,
    ROOT_OF_SQUARES,
    Constant,
    Generalized,
    Horizon,
    NormOfLayer,
    Sharp,
    Smooth,
    StepRule,
)
from tests.models import batches, gradient, mlp, train

SHAPES = [(4, 3), (3, 5), (6,), (2, 2, 3)]
CURVATURES = [0.5, 4.0, 1.5, 20.0]

NORMS: dict[str, Callable[[int, int], float]] = {
    "spectral": min,
    "spectral-rms": lambda m, n: min(m, n) * m / n,
    "euclidean": lambda m, n: 1,
    "sign": lambda m, n: m * n,
    "column-wise": lambda m, n: n,
    "row-wise": lambda m, n: m,
}
"""The smallest c with ||z||_F^2 <= c ||z||^2 for every z (m, n): the constant of ||x||_F^2 / 2."""


def constant(norm: str, shape: tuple[int, ...]) -> float:
    rows = shape[0]
    return NORMS[norm](rows, int(np.prod(shape)) // rows)


def parameters(seed: int = 0) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for shape in SHAPES
    ]


def groups(points: list[torch.nn.Parameter], norm: str) -> list[dict[str, Any]]:
    return [{"params": [x], "layer": i, "norm": geometry(norm)} for i, x in enumerate(points)]


def geometry(norm: str) -> norms.Norm:
    if norm == "spectral-rms":
        return norms.Spectral("svd", scale="rms")
    found = norms.by_name(norm, "svd")
    assert isinstance(found, norms.Norm)
    return found


def sharp_descent(
    points: list[torch.nn.Parameter], norm: str, rule: StepRule, **settings: Any
) -> DropMuon:
    return presets.layerwise_gd(
        groups(points, norm), lr=1.0, step_rule=rule, orthogonalize="svd", **settings
    )


def duals(points: list[torch.nn.Parameter], norm: str) -> list[float]:
    return [float(geometry(norm).dual(gradient(x))) for x in points]


# Theorems


@pytest.mark.parametrize("norm", NORMS)
def test_smooth_steps_decrease_a_separable_quadratic_as_the_theorem_says(norm: str) -> None:
    """f(X^{k+1}) <= f(X^k) - sum over S of dual(G_i)^2 / (2 L_i); an equality if L_i is exact."""
    points = parameters()
    L = [h * constant(norm, s) for h, s in zip(CURVATURES, SHAPES, strict=True)]
    optimizer = sharp_descent(points, norm, Smooth(L), sampler=samplers.Nice(2))

    def f() -> Tensor:
        halves = [h / 2 * x.square().sum() for h, x in zip(CURVATURES, points, strict=True)]
        return sum(halves, start=torch.zeros((), dtype=torch.float64))

    for k in range(30):
        active = optimizer.active
        optimizer.zero_grad()
        before = f()
        before.backward()
        promised = sum(duals([points[i]], norm)[0] ** 2 / (2 * L[i]) for i in active)
        optimizer.step()
        decrease = float(before.detach() - f().detach())
        assert decrease >= promised * (1 - 1e-9) - 1e-15
        assert promised > 0 or k > 0
        if norm == "euclidean":
            assert decrease == pytest.approx(promised, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("norm", ["euclidean", "sign", "spectral"])
def test_smooth_constants_by_cutoff_hold_for_coupled_layers(norm: str) -> None:
    """f = (sum_i a_i <1, x_i>)^2 / 2. With layers s.. active, L[i, s] is |a_i| c_i sum_{j>=s} |a_j|
    by Cauchy's inequality, where c_i bounds <1, z>^2 by the norm of z: steps below a high cutoff
    may be longer."""
    points = parameters(1)
    a = [1.0, -2.0, 0.5, 3.0]
    sizes = [x.numel() * constant(norm, tuple(x.shape)) for x in points]
    weight = [abs(ai) * size**0.5 for ai, size in zip(a, sizes, strict=True)]
    L = np.array([[weight[i] * sum(weight[s:]) for s in range(4)] for i in range(4)])
    optimizer = sharp_descent(points, norm, Smooth(L), sampler="uniform", seed=1)

    def f() -> Tensor:
        return sum(ai * x.sum() for ai, x in zip(a, points, strict=True)).add(7.0).square() / 2

    cutoffs = set()
    for _ in range(15):
        active = optimizer.active
        cutoffs.add(active[0])
        optimizer.zero_grad()
        before = f()
        before.backward()
        promised = sum(duals([points[i]], norm)[0] ** 2 / (2 * L[i, active[0]]) for i in active)
        optimizer.step()
        assert float(before.detach() - f().detach()) >= promised * (1 - 1e-9) - 1e-12
    assert len(cutoffs) > 1


def test_generalized_steps_decrease_a_function_that_is_not_smooth() -> None:
    """f = sum cosh(x_i): |f'(x+z) - f'(x)| <= (1.13 + 1.65 |f'(x)|) |z| for |z| <= 1/2, by
    cosh(x+z) <= cosh(x) cosh(1/2) + |sinh(x)| sinh(1/2). Each layer is one number."""
    points = [torch.nn.Parameter(torch.tensor([v], dtype=torch.float64)) for v in (8.0, -5.0, 0.3)]
    optimizer = sharp_descent(points, "euclidean", Generalized(1.13, 2.0), sampler="full")
    for _ in range(40):
        optimizer.zero_grad()
        before = sum(x.cosh().sum() for x in points)
        before.backward()
        slopes = [abs(float(gradient(x))) for x in points]
        promised = sum(g**2 / (2 * (1.13 + 2.0 * g)) for g in slopes)
        optimizer.step()
        after = sum(x.detach().cosh().sum() for x in points)
        assert float(before.detach() - after) >= promised * (1 - 1e-9) - 1e-12
    assert max(abs(float(x.detach())) for x in points) < 1e-3


# Formulas


def moved(rule: StepRule, norm: str, active: tuple[int, ...], lr: float = 0.3) -> list[Tensor]:
    """By how much each of four one-parameter layers moves in a first step on its gradient."""
    points = parameters()
    probability: dict[Iterable[SupportsIndex], float] = {active: 0.5, tuple(range(4)): 0.5}
    sampler = samplers.Full() if len(active) == 4 else samplers.Arbitrary(probability)
    for seed in range(50):
        optimizer = presets.layerwise_gd(
            groups(points, norm),
            lr,
            step_rule=rule,
            sampler=sampler,
            seed=seed,
            orthogonalize="svd",
        )
        if optimizer.active == active:
            break
    assert optimizer.active == active
    before = [x.detach().clone() for x in points]
    for x, g in zip(points, parameters(7), strict=True):
        x.grad = g.detach() if x.requires_grad else None
    optimizer.step()
    return [x.detach() - old for x, old in zip(points, before, strict=True)]


L0, L1 = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, 0.0, 0.25, 2.0])
BY_CUTOFF = np.array([[1.0, 9, 9, 9], [2.0, 3.0, 9, 9], [4.0, 5.0, 6.0, 9], [7.0, 8.0, 1.0, 2.0]])

FORMULAS: dict[str, tuple[StepRule, Callable[[int, int, float], float]]] = {
    "constant": (Constant(), lambda i, s, dual: 1.0),
    "sharp": (Sharp(), lambda i, s, dual: dual),
    "smooth number": (Smooth(2.5), lambda i, s, dual: dual / 2.5),
    "smooth vector": (Smooth(L0), lambda i, s, dual: dual / L0[i]),
    "smooth list": (Smooth([1.0, 2.0, 3.0, 4.0]), lambda i, s, dual: dual / L0[i]),
    "smooth matrix": (Smooth(BY_CUTOFF), lambda i, s, dual: dual / BY_CUTOFF[i, s]),
    "smooth callable": (
        Smooth(lambda i, active: 1.0 + i + 10 * len(active)),
        lambda i, s, dual: dual / (1.0 + i + 10 * (4 - s)),
    ),
    "generalized": (Generalized(L0, L1), lambda i, s, dual: dual / (L0[i] + L1[i] * dual)),
    "generalized without l1": (Generalized(L0, 0.0), lambda i, s, dual: dual / L0[i]),
    "generalized without l0": (Generalized(0.0, 4.0), lambda i, s, dual: 0.25),
    "generalized mixed": (
        Generalized(lambda i, active: 0.5 + i, BY_CUTOFF),
        lambda i, s, dual: dual / (0.5 + i + BY_CUTOFF[i, s] * dual),
    ),
    "horizon": (Horizon(15), lambda i, s, dual: 16**-0.75),
    "horizon vector": (Horizon(80, L0), lambda i, s, dual: L0[i] * 81**-0.75),
    "horizon matrix": (Horizon(80, BY_CUTOFF), lambda i, s, dual: BY_CUTOFF[i, s] / 27),
}


@pytest.mark.parametrize("active", [(0, 1, 2, 3), (1, 2, 3), (3,)], ids=str)
@pytest.mark.parametrize("norm", ["spectral", "euclidean", "sign"])
@pytest.mark.parametrize("rule", FORMULAS)
def test_a_step_is_as_long_as_the_formula(rule: str, norm: str, active: tuple[int, ...]) -> None:
    chosen, formula = FORMULAS[rule]
    if chosen.momentum is not None:
        chosen.momentum = 0.0  # layerwise_gd has none
    ball = geometry(norm)
    for i, (step, g) in enumerate(zip(moved(chosen, norm, active), parameters(7), strict=True)):
        length = 0.3 * formula(i, active[0], float(ball.dual(g.detach())))
        expected = ball.lmo(g.detach(), length) if i in active else torch.zeros_like(g)
        torch.testing.assert_close(step, expected, rtol=1e-12, atol=1e-14)


def test_a_layer_of_several_parameters_is_measured_by_the_root_of_squared_duals() -> None:
    weight, bias = (torch.nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in ((2, 2), (2,)))
    optimizer = presets.layerwise_gd(
        [
            {"params": [weight], "layer": "a", "norm": "spectral"},
            {"params": [bias], "layer": "a", "norm": "euclidean"},
        ],
        lr=1.0,
        step_rule=Generalized(1.0, 2.0),
        orthogonalize="svd",
    )
    weight.grad = torch.diag(torch.tensor([5.0, 7.0], dtype=torch.float64))  # nuclear norm 12
    bias.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)  # length 5
    optimizer.step()
    gamma = 1 / (1.0 + 2.0 * 13.0)
    torch.testing.assert_close(weight.detach(), -gamma * 12 * torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(bias.detach(), -gamma * torch.tensor([3.0, 4.0]).double())


@pytest.mark.parametrize("rule", [Sharp(), Smooth(3.0), Generalized(0.0, 1.0)], ids=str)
def test_a_zero_gradient_moves_nothing(rule: StepRule) -> None:
    points = parameters()
    before = [x.detach().clone() for x in points]
    optimizer = sharp_descent(points, "spectral", rule, sampler="full")
    for x in points:
        x.grad = torch.zeros_like(x)
    optimizer.step()
    for x, old in zip(points, before, strict=True):
        assert torch.equal(x.detach(), old)


# Horizon's momentum


@pytest.mark.parametrize("steps", [1, 3, 99, 10_000])
def test_horizon_brings_its_own_momentum(steps: int) -> None:
    optimizer = DropMuon(mlp()[0], lr=1.0, step_rule=Horizon(steps))
    expected = 1 - (steps + 1) ** -0.5
    assert {group["momentum"] for group in optimizer.param_groups} == {expected}


def test_a_momentum_that_contradicts_the_horizon_is_refused() -> None:
    with pytest.raises(ValueError, match=r"momentum=0\.9 contradicts Horizon\(24, .* 0\.8;"):
        DropMuon(mlp()[0], momentum=0.9, step_rule=Horizon(24))
    DropMuon(mlp()[0], momentum=1 - 100**-0.5, step_rule=Horizon(99))


def test_without_a_horizon_momentum_is_a_half() -> None:
    for rule in (None, Sharp(), Smooth(1.0)):
        optimizer = DropMuon(mlp()[0], step_rule=rule)
        assert {group["momentum"] for group in optimizer.param_groups} == {0.5}


# What is refused

MAKERS: dict[str, Callable[[Any], StepRule]] = {
    "constants": Smooth,
    "l0": lambda values: Generalized(values, 1.0),
    "l1": lambda values: Generalized(1.0, values),
    "eta": lambda values: Horizon(9, values),
}
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "values",
    [
        -1.0,
        NAN,
        INF,
        [1.0, -2.0, 3.0],
        [1.0, NAN, 3.0],
        [[1.0, 1.0], [-1.0, 1.0]],
        [[1.0, 1.0], [INF, 1.0]],
        np.ones((2, 3)),
        np.ones((2, 2, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("argument", MAKERS)
def test_bad_constants_are_refused_by_name(argument: str, values: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{argument} must be"):
        MAKERS[argument](values)


@pytest.mark.parametrize("argument", ["constants", "eta"])
def test_zero_is_refused_where_it_divides_or_stops(argument: str) -> None:
    for values in (0.0, [1.0, 0.0]):
        with pytest.raises(ValueError, match=rf"^{argument} must be finite and positive"):
            MAKERS[argument](values)


def test_constants_above_the_diagonal_are_never_used() -> None:
    """Layer i is never active under a cutoff above it."""
    rule = Smooth([[1.0, NAN, -1.0], [1.0, 1.0, INF], [1.0, 1.0, 1.0]])
    model, make_batch, loss = mlp()
    train(model, DropMuon(model, step_rule=rule), loss, batches(make_batch, 10))
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("values", [np.ones(2), np.ones(4), np.ones((4, 4))], ids=str)
@pytest.mark.parametrize("argument", MAKERS)
def test_constants_for_another_number_of_layers_are_refused(argument: str, values: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{argument} has {len(values)} entries, .* has 3"):
        DropMuon(mlp()[0], step_rule=MAKERS[argument](values))


@pytest.mark.parametrize("returned", [-1.0, NAN, INF])
@pytest.mark.parametrize("argument", MAKERS)
def test_a_callable_that_returns_nonsense_is_refused_when_called(
    argument: str, returned: float
) -> None:
    model, make_batch, loss = mlp()
    optimizer = DropMuon(model, step_rule=MAKERS[argument](lambda i, active: returned))
    with pytest.raises(ValueError, match=rf"^{argument} must be finite"):
        train(model, optimizer, loss, batches(make_batch, 1))


@pytest.mark.parametrize("steps", [0, -3])
def test_a_horizon_without_steps_is_refused(steps: int) -> None:
    with pytest.raises(
        ValueError, match=f"steps must be a whole number of at least 1, got {steps}"
    ):
        Horizon(steps)


# Learning rates


@pytest.mark.parametrize(
    "rule",
    [Constant(), Sharp(), Smooth(L0[:3]), Generalized(1.0, L0[:3]), Horizon(15)],
    ids=lambda rule: type(rule).__name__,
)
def test_schedulers_multiply_every_rule(rule: StepRule) -> None:
    factors = [1.0, 0.5, 0.25]
    model, make_batch, loss = mlp()
    lengths = []
    optimizer = DropMuon(model, lr=0.1, step_rule=rule, sampler="full", orthogonalize="svd")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: factors[min(k, 2)])
    loss(model, make_batch(0)).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    for _ in factors:
        before = [p.detach().clone() for p in model.parameters()]
        for p, g in zip(model.parameters(), gradients, strict=True):
            p.grad = g.clone()  # the same each time, so momentum stays at it
        optimizer.step()
        schedule.step()
        lengths.append(
            [(p.detach() - old).norm() for p, old in zip(model.parameters(), before, strict=True)]
        )
    for factor, measured in zip(factors, lengths, strict=True):
        for now, first in zip(measured, lengths[0], strict=True):
            torch.testing.assert_close(now, factor * first, rtol=1e-10, atol=0)


def grouped(model: nn.Module, **settings: Any) -> list[dict[str, Any]]:
    groups = layer_groups(model)
    groups[0] |= settings
    return groups


def test_rules_of_groups_measure_their_own_parameters_of_a_layer() -> None:
    """Two rules in one layer: each measures the dual norm of what it moves."""
    weight, bias = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))
    groups = [
        {"params": [weight], "layer": 0, "norm": "euclidean", "step_rule": Generalized(1.0, 1.0)},
        {"params": [bias], "layer": 0, "norm": "euclidean"},
    ]
    optimizer = DropMuon(groups, lr=1.0, momentum=0.0, step_rule=Sharp())
    weight.grad, bias.grad = torch.full((2, 2), 2.0), torch.ones(2)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), -2.0 / (1.0 + 4.0)))
    torch.testing.assert_close(bias.detach(), -torch.ones(2))


def test_a_group_has_the_momentum_that_its_rule_requires() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    optimizer = DropMuon(grouped(model, step_rule=Horizon(99)), momentum=0.3)
    assert [group["momentum"] for group in optimizer.param_groups] == [0.9, 0.3]
    with pytest.raises(ValueError, match=r"momentum=0.5 contradicts Horizon"):
        DropMuon(grouped(model, step_rule=Horizon(99), momentum=0.5))
    with pytest.raises(ValueError, match="l0 has 3 entries, but the model has 2"):
        DropMuon(grouped(model, step_rule=Generalized([1.0, 1.0, 1.0], 1.0)))
    with pytest.raises(TypeError, match="step_rule must be"):
        DropMuon(grouped(model, step_rule=0.5))


def test_rules_of_groups_are_saved_as_text_and_kept_on_loading() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    rule = Sharp()
    optimizer = DropMuon(grouped(model, step_rule=rule))
    state = optimizer.state_dict()
    assert [group["step_rule"] for group in state["param_groups"]] == ["Sharp()", None]
    optimizer.load_state_dict(state)
    assert [group["step_rule"] for group in optimizer.param_groups] == [rule, None]


@pytest.mark.parametrize("composed", [LARGEST, ROOT_OF_SQUARES], ids=["largest", "squares"])
def test_rho_of_a_layer_bounds_the_euclidean_norm_of_its_parameters(composed: NormOfLayer) -> None:
    spectral, sign = norms.Spectral("svd"), norms.Sign()
    low, high = composed.rho([spectral.rho((4, 3)), sign.rho((5,))])
    torch.manual_seed(0)
    for _ in range(200):
        weight, bias = torch.randn(4, 3).double(), torch.rand(1) * torch.randn(5).double()
        own = composed.norm(torch.stack([spectral.norm(weight), sign.norm(bias)]))
        euclidean = torch.cat([weight.flatten(), bias]).norm()
        assert low * own <= euclidean * (1 + 1e-9)
        assert euclidean <= high * own * (1 + 1e-9)
    unit = [spectral.unit_direction(weight), sign.unit_direction(bias)]
    lengths = [float(each.norm()) for each in unit]
    reached = (sum(x**2 for x in lengths) ** 0.5) if composed is LARGEST else max(lengths)
    assert reached == pytest.approx(high)


@pytest.mark.parametrize("policy", ["spectral", "euclidean", "sign"])
@pytest.mark.parametrize("size", [1e-30, 1e19, 1e30])
@pytest.mark.parametrize(("l0", "l1"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_lengths_do_not_overflow_where_gradients_are_finite(
    policy: Any, size: float, l0: float, l1: float
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    rule = Generalized(l0, l1)
    optimizer = DropMuon(model, lr=1.0, momentum=0.0, sampler="full", policy=policy, step_rule=rule)
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = size * torch.randn_like(p)
    optimizer.step()
    for old, new in zip(before, model.parameters(), strict=True):
        assert new.isfinite().all()
        assert size < 1 or not torch.equal(old, new)
