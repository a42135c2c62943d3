"""Estimates against constants in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dropmuon.planning.bounds.estimated_smoothness import SmoothnessEstimate, estimate_smoothness
from dropmuon.planning.problem import Problem
from dropmuon.step.rules import Sharp
from tests.awkward_problem import awkward, batches, noisy_loss, state_of


class Function(nn.Module):
    """A function of named tensors."""

    def __init__(self, f, **start: Tensor) -> None:
        super().__init__()
        self.f = f
        for name, value in start.items():
            setattr(self, name, nn.Parameter(value.double()))

    def forward(self) -> Tensor:
        return self.f(**dict(self.named_parameters()))


def by_name(name: str, parameter: Tensor) -> str:
    return name


def estimate(f, start: dict[str, Tensor], settings=None, **arguments) -> SmoothnessEstimate:
    """With the Euclidean norm, a radius of 0.1 and each tensor a layer, unless told otherwise."""
    problem = Problem(Function(f, **start), lambda model, _: model(), [None])
    chosen = {"lr": 0.1, "by": by_name, "policy": "euclidean", **(settings or {})}
    return estimate_smoothness(problem, chosen, **{"points": 5, **arguments})


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * 5 + 10


def half_square(x: Tensor) -> Tensor:
    return x.square().sum() / 2


def test_a_separable_quadratic_has_its_curvatures_in_every_set():
    found = estimate(
        lambda x, y, z: 2 * half_square(x) + 7 * half_square(y) + 3 * half_square(z),
        {"x": normal(3), "y": normal(4), "z": normal(2, 2)},
    )
    matrix = found.smooth.progressive_matrix(0)
    np.testing.assert_allclose(matrix, [[2, 0, 0], [7, 7, 0], [3, 3, 3]], rtol=1e-9)
    np.testing.assert_allclose(found.generalized.progressive_matrix(0), matrix, rtol=1e-6)
    assert found.generalized.progressive_matrix(1).max() < 1e-6
    assert found.points == 5


def test_in_the_sign_norm_a_quadratic_has_its_curvature_times_the_entries():
    found = estimate(
        lambda x, y: 2 * half_square(x) + 3 * half_square(y),
        {"x": normal(6), "y": normal(2, 4)},
        {"policy": "sign"},
    )
    matrix = found.smooth.progressive_matrix(0)
    np.testing.assert_allclose(matrix, [[12, 0], [24, 24]], rtol=1e-9)


def test_in_the_spectral_norm_a_quadratic_has_its_curvature_times_the_rank():
    found = estimate(
        lambda x, y: 2 * half_square(x) + 3 * half_square(y),
        {"x": normal(3, 5), "y": normal(7, 4, seed=1)},
        {"policy": "spectral", "orthogonalize": "svd"},
    )
    np.testing.assert_allclose(found.smooth.progressive_matrix(0), [[6, 0], [12, 12]], rtol=1e-9)


def test_the_scale_of_a_norm_enters_twice():
    """||x||/s and s ||g||_*: a ratio of s^2, here (out / in) for RMS to RMS."""
    found = estimate(
        lambda w, x, v: half_square(w) + half_square(x) + half_square(v),
        {"w": normal(2, 2), "x": normal(8, 2), "v": normal(2, 2)},
        {"policy": "scion", "orthogonalize": "svd"},
    )
    assert found.smooth.l0(1, (0, 1, 2)) == pytest.approx(2 * 8 / 2)


def test_newton_schulz_steps_are_measured_by_exact_norms():
    """A step with singular values u has the ratio a * sum(u) / max(u): at most a times the rank."""
    found = estimate(lambda x: 2 * half_square(x), {"x": normal(4, 6)}, {"policy": "spectral"})
    (ratios,) = found.ratios.values()
    assert ((ratios > 2 * 4 * 0.5) & (ratios <= 2 * 4 + 1e-9)).all()


def test_a_coupled_quadratic_has_the_ratios_of_its_blocks():
    def f(x: Tensor, y: Tensor) -> Tensor:
        return half_square(x) + 2 * half_square(y) + 3 * x @ y

    found = estimate(f, {"x": torch.tensor([9.0, 0.0]), "y": torch.tensor([9.0, 0.0])})
    # gradients (1+3) 9 and (2+3) 9 along e1: Gamma = -t (e1, e1), differences (1+3) t and (2+3) t
    matrix = found.smooth.progressive_matrix(0)
    np.testing.assert_allclose(matrix, [[4, 0], [5, 2]], rtol=1e-9)


def test_a_product_is_flat_in_each_factor_and_curved_in_both():
    """f = a x y: |a (y + g2) - a y| / |g1| = a |g2| / |g1|, which is a for equal radii."""
    a = 2.5
    found = estimate(
        lambda x, y: a * (x * y).sum(),
        {"x": torch.tensor([3.0]), "y": torch.tensor([2.0])},
        sets=[(0,), (1,), (0, 1)],
    )
    assert found.smooth.l0(0, (0,)) == 0.0 == found.smooth.l0(1, (1,))
    assert found.smooth.l0(0, (0, 1)) == pytest.approx(a)
    assert found.smooth.l0(1, (0, 1)) == pytest.approx(a)


def test_a_product_of_unequal_steps_has_the_ratio_of_their_lengths():
    """Sharp steps are lr times the gradient: |g2| / |g1| = |x| / |y| at the point (x, y)."""
    found = estimate(
        lambda x, y: 2.5 * (x * y).sum(),
        {"x": torch.tensor([3.0]), "y": torch.tensor([2.0])},
        {"step_rule": Sharp(), "lr": 0.01},
        points=1,
    )
    assert found.smooth.l0(0, (0, 1)) == pytest.approx(2.5 * 3 / 2, rel=1e-6)
    assert found.smooth.l0(1, (0, 1)) == pytest.approx(2.5 * 2 / 3, rel=1e-6)


def test_an_exponential_has_l1_and_no_l0():
    """f = exp(c x): the ratio is f'(x) (1 - exp(-c t)) / t, a line through the origin."""
    c, t = 0.7, 0.1
    found = estimate(lambda x: torch.exp(c * x).sum(), {"x": torch.tensor([4.0])}, points=8)
    slope = (1 - math.exp(-c * t)) / t
    assert found.generalized.l0(0, (0,)) == pytest.approx(0.0, abs=1e-9)
    assert found.generalized.l1(0, (0,)) == pytest.approx(slope, rel=1e-9)
    assert found.smooth.l0(0, (0,)) == pytest.approx(c * math.exp(c * 4.0) * slope, rel=1e-9)
    low, high = found.intervals.l1[0,][0]
    assert low == pytest.approx(slope, rel=1e-9) == high


def test_several_parameters_of_a_layer_have_the_largest_norm_and_the_sum_of_duals():
    found = estimate(
        lambda x, y: 2 * half_square(x) + 7 * half_square(y),
        {"x": normal(3), "y": normal(4)},
        {"by": lambda name, parameter: "both"},
    )
    assert found.layers == ("both",)
    assert found.smooth.l0(0, (0,)) == pytest.approx(9)
    assert found.duals[0, 0] == pytest.approx(2 * normal(3).norm() + 7 * normal(4).norm())


def test_parameters_on_adamw_are_measured_in_the_max_entry_norm():
    found = estimate(
        lambda x: 3 * half_square(x), {"x": normal(5)}, {"policy": "muon", "adamw_lr": 0.01}
    )
    assert found.smooth.l0(0, (0,)) == pytest.approx(15)


def test_layers_that_do_not_move_have_no_ratio():
    found = estimate(lambda x, y: half_square(x) + 0.0 * y.sum(), {"x": normal(2), "y": normal(2)})
    assert np.isnan(found.ratios[0, 1][:, 1]).all()
    assert np.isnan(found.ratios[1,][:, 0]).all()
    assert found.smooth.l0(1, (0, 1)) == 0.0


class Routed(nn.Module):
    """Two experts of one number each; the gate's own sign chooses which of them is used."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.tensor([gate]).double())
        self.experts = nn.ParameterList(torch.tensor([3.0]).double() for _ in range(2))

    def forward(self) -> Tensor:
        chosen = self.experts[int(self.gate > 0)]
        return (self.gate * chosen.detach() + half_square(chosen)).sum()


@pytest.mark.filterwarnings("ignore:no gradient reached")
def test_an_expert_that_a_step_turns_on_or_off_has_gradient_zero_on_the_other_side():
    """The gate falls from 0.05 by 0.1: expert 1 has the gradients 3 and none, a change of 3."""
    made = Problem(Routed(0.05), lambda model, _: model(), [None])
    settings = {"lr": 0.1, "by": by_name, "policy": "euclidean"}
    found = estimate_smoothness(made, settings, points=2)
    first = found.ratios[0, 1, 2][0]
    np.testing.assert_allclose(first[2], 3 / 0.1)
    assert np.isnan(first[1])
    assert found.points == 2


def problem() -> Problem:
    return Problem(awkward(), noisy_loss, batches())


def test_constants_bound_the_ratios_of_a_set_and_of_its_subsets():
    found = estimate_smoothness(problem(), {"lr": 0.05}, points=6)
    assert not found.smooth.check_monotone()
    assert not found.generalized.check_monotone()
    for active in found.ratios:
        for smaller, ratios in found.ratios.items():
            for i in set(smaller) if set(smaller) <= set(active) else ():
                seen = ratios[np.isfinite(ratios[:, i]), i]
                duals = found.duals[np.isfinite(ratios[:, i]), i]
                bound = found.generalized.l0(i, active) + found.generalized.l1(i, active) * duals
                assert (seen <= bound * (1 + 1e-9)).all()
                assert (seen <= found.smooth.l0(i, active) * (1 + 1e-9)).all()
    low, high = np.moveaxis(found.intervals.smooth[0, 1, 2, 3], 1, 0)
    constants = found.smooth.constants(0, (0, 1, 2, 3))
    assert (low >= constants).all()
    assert (high > constants).all()


def test_dropout_is_the_same_before_and_after_a_step():
    """A step of length almost zero changes the gradient almost not, whatever dropout draws."""
    tiny = estimate_smoothness(problem(), {"lr": 1e-3}, points=2)
    small = estimate_smoothness(problem(), {"lr": 1e-2}, points=2)
    for i in range(4):
        assert tiny.smooth.l0(i, (0, 1, 2, 3)) < 3 * small.smooth.l0(i, (0, 1, 2, 3))


def test_the_same_seed_gives_the_same_estimate():
    one, two = (estimate_smoothness(problem(), {}, points=3, seed=5) for _ in range(2))
    np.testing.assert_array_equal(one.duals, two.duals)
    for active, ratios in one.ratios.items():
        np.testing.assert_array_equal(ratios, two.ratios[active])
        np.testing.assert_array_equal(one.intervals.l1[active], two.intervals.l1[active])


def test_estimating_leaves_model_and_generators_bit_for_bit():
    made = problem()
    before = state_of(made.model)
    estimate_smoothness(made, {"lr": 0.5}, points=2)
    assert state_of(made.model) == before


def test_an_exception_in_the_loss_leaves_model_and_generators_bit_for_bit():
    calls = iter(range(100))

    def loss(model, batch):
        if next(calls) == 4:
            raise RuntimeError("inside loss")
        return noisy_loss(model, batch)

    made = Problem(awkward(), loss, batches())
    before = state_of(made.model)
    with pytest.raises(RuntimeError, match="inside loss"):
        estimate_smoothness(made, {}, points=2)
    assert state_of(made.model) == before


def test_a_run_that_leaves_the_finite_is_refused_and_changes_nothing():
    made = Problem(
        Function(lambda x: torch.exp(x.square()).sum(), x=torch.tensor([3.0])),
        lambda model, _: model(),
        [None],
    )
    before = state_of(made.model)
    with pytest.raises(ValueError, match="must be finite along the run, got a loss of inf"):
        estimate_smoothness(made, {"lr": 100.0, "by": by_name}, points=3)
    assert state_of(made.model) == before


def test_progress_rises_to_one():
    shares: list[float] = []
    estimate_smoothness(problem(), {}, points=3, on_progress=shares.append)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"points": 0}, "points must be a whole number"),
        ({"points": 2.5}, "points must be a whole number"),
        ({"budget": 0.0}, "budget must be positive"),
        ({"budget": float("nan")}, "budget must be positive"),
        ({"confidence": 1.0}, "confidence must be between 0 and 1"),
        ({"sets": []}, "sets must not be empty"),
        ({"sets": [(0, 9)]}, "sets must hold layer indices from 0 to 3"),
        ({"sets": [()]}, "sets must name at least one layer"),
    ],
)
def test_bad_arguments_are_named_and_change_nothing(arguments, words):
    made = problem()
    before = state_of(made.model)
    with pytest.raises(ValueError, match=words):
        estimate_smoothness(made, {}, **arguments)
    assert state_of(made.model) == before
