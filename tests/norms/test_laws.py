"""The paper's "Useful Facts", for every norm on every kind of parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon.norms import (
    ColumnWise,
    Euclidean,
    MatrixNorm,
    Norm,
    PolarExpress,
    RowWise,
    ScaledNorm,
    Sign,
    Spectral,
    Split,
    Transposed,
)

RADIUS = 0.3
SHAPES = {
    "scalar": (),
    "vector": (7,),
    "tall": (9, 4),
    "wide": (4, 9),
    "square": (6, 6),
    "row": (1, 8),
    "column": (8, 1),
    "conv2d": (6, 2, 3, 3),
    "conv1d": (6, 4, 3),
    "layer-scale": (5, 1, 1),
}


def third_root(out: int, in_: int) -> float:
    return (out / in_) ** (1 / 3)


NORMS: dict[str, Norm] = {
    "spectral": Spectral("svd"),
    "spectral-muon": Spectral("svd", scale="muon"),
    "spectral-converged": Spectral(PolarExpress(steps=12)),
    "spectral-rms": Spectral("svd", scale="rms"),
    "euclidean": Euclidean(),
    "euclidean-rms": Euclidean(scale="rms"),
    "sign": Sign(),
    "sign-mean-in": Sign(scale="mean-in"),
    "column-wise": ColumnWise(scale="rms-out"),
    "row-wise": RowWise(scale="rms-in"),
    "row-wise-function": RowWise(scale=third_root),
    "column-wise-adamw": ColumnWise(scale="adamw"),
    "half": Sign(scale=0.5),
}
BLOCKED: dict[str, tuple[type[MatrixNorm], dict[str, Any], tuple[int, ...]]] = {
    f"{kind.__name__}-{name}": (kind, {"blocks": blocks, "scale": scale}, shape)
    for kind in (Spectral, ColumnWise, RowWise)
    for name, blocks, shape, scale in [
        ("grouped", 2, (6, 2, 3, 3), 1.0),
        ("depthwise", 6, (6, 1, 3, 3), "muon"),
        ("batch", "batch", (3, 4, 5), "rms"),
        ("batch-of-batches", "batch", (2, 2, 5, 3), 2.0),
        ("batch-of-one", "batch", (4, 5), 1.0),
        ("vector", 2, (6,), 1.0),
    ]
}
CASES = [
    pytest.param(norm, shape, id=f"{name}-{kind}")
    for name, norm in NORMS.items()
    for kind, shape in SHAPES.items()
] + [
    pytest.param(
        kind(**{**arguments, **({"orthogonalize": "svd"} if issubclass(kind, Spectral) else {})}),
        shape,
        id=name,
    )
    for name, (kind, arguments, shape) in BLOCKED.items()
]
COMPOSED: dict[str, tuple[Norm, tuple[int, ...]]] = {
    "transposed": (Transposed(Spectral("svd", scale="rms")), (4, 9)),
    "transposed-columns": (Transposed(ColumnWise(scale="rms-out")), (4, 9)),
    "transposed-batch": (Transposed(Spectral("svd", scale="muon", blocks="batch")), (3, 4, 9)),
    "split": (Split(Spectral("svd", scale="muon"), 3), (12, 5)),
    "split-unequal": (Split(Spectral("svd", scale="rms"), (6, 2, 2)), (10, 5)),
    "split-columns": (Split(RowWise(), (1, 4), dim=-1), (3, 5)),
    "split-batch": (Split(Spectral("svd", blocks="batch"), 2, dim=-2), (3, 8, 5)),
    "transposed-split": (Transposed(Split(Spectral("svd", scale="muon"), (5, 4))), (4, 9)),
}
CASES += [pytest.param(norm, shape, id=name) for name, (norm, shape) in COMPOSED.items()]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def dot(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x.double() * y.double()).sum())


def check_facts(norm: Norm, g: torch.Tensor, tolerance: float) -> None:
    dual = float(norm.dual(g))
    step, sharp = norm.lmo(g, RADIUS), norm.sharp(g)
    assert step.shape == sharp.shape == g.shape
    assert step.dtype == sharp.dtype == g.dtype
    assert dual > 0
    assert float(norm.norm(step)) == pytest.approx(RADIUS, rel=tolerance)
    assert dot(g, step) == pytest.approx(-RADIUS * dual, rel=tolerance)
    assert float(norm.norm(sharp)) == pytest.approx(dual, rel=tolerance)
    assert dot(g, sharp) == pytest.approx(dual**2, rel=tolerance)
    assert float(norm.norm(norm.unit_direction(g))) == pytest.approx(1, rel=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("norm", "shape"), CASES)
def test_useful_facts_hold(
    norm: Norm, shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    if device == "mps" and dtype == torch.float64:
        pytest.skip("no float64 on mps")
    check_facts(norm, torch.randn(shape).to(device, dtype), TOLERANCE[dtype])


@pytest.mark.parametrize(("norm", "shape"), CASES)
def test_no_point_of_the_unit_ball_beats_the_dual_norm(norm: Norm, shape: tuple[int, ...]) -> None:
    g = torch.randn(shape, dtype=torch.float64)
    for x in (torch.randn(shape, dtype=torch.float64) for _ in range(20)):
        assert dot(g, x) <= float(norm.norm(x) * norm.dual(g)) * (1 + 1e-9)


@pytest.mark.parametrize(("norm", "shape"), CASES)
def test_norm_is_a_norm(norm: Norm, shape: tuple[int, ...]) -> None:
    x, y = torch.randn(2, *shape, dtype=torch.float64)
    assert float(norm.norm(-3 * x)) == pytest.approx(3 * float(norm.norm(x)))
    assert float(norm.norm(x + y)) <= float(norm.norm(x) + norm.norm(y)) * (1 + 1e-12)
    assert norm.norm(x).shape == norm.dual(x).shape == ()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("norm", "shape"), CASES)
def test_zero_gradient_makes_a_zero_step(
    norm: Norm, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    zero = torch.zeros(shape, dtype=dtype)
    for result in (
        norm.unit_direction(zero),
        norm.lmo(zero, 1.0),
        norm.sharp(zero),
        norm.dual(zero),
    ):
        assert torch.equal(result, torch.zeros_like(result))


@pytest.mark.parametrize(("norm", "shape"), CASES)
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e-12, 1e20, 1e30])
def test_unit_direction_does_not_depend_on_the_size_of_the_gradient(
    norm: Norm, shape: tuple[int, ...], size: float
) -> None:
    g = torch.randn(shape)
    torch.testing.assert_close(
        norm.unit_direction(g * size), norm.unit_direction(g), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("norm", "shape"), CASES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_input_is_unchanged_bit_for_bit_and_never_returned(
    norm: Norm, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    g = torch.randn(shape).to(dtype)
    before, storage = g.clone(), g.untyped_storage().data_ptr()
    results = [norm.norm(g), norm.dual(g), norm.unit_direction(g), norm.lmo(g, 0.1), norm.sharp(g)]
    results += norm.unit_directions([g, g])
    for result in results:
        result.add_(1)
        assert result.untyped_storage().data_ptr() != storage
    assert torch.equal(g, before)


@pytest.mark.parametrize(("norm", "shape"), CASES)
def test_strides_do_not_matter_and_gradients_are_not_tracked(
    norm: Norm, shape: tuple[int, ...]
) -> None:
    g = torch.randn(shape, dtype=torch.float64)
    strided = torch.empty((*shape, 2), dtype=torch.float64)[..., 0].copy_(g).requires_grad_()
    direction = norm.unit_direction(strided)
    assert not direction.requires_grad
    torch.testing.assert_close(direction, norm.unit_direction(g))


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_an_empty_parameter_has_an_empty_step(norm: Norm, shape: tuple[int, ...]) -> None:
    empty = torch.zeros(shape)
    assert norm.unit_direction(empty).shape == shape
    assert float(norm.norm(empty)) == float(norm.dual(empty)) == 0.0


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(NORMS)),
    m=st.integers(1, 12),
    n=st.integers(1, 12),
    seed=st.integers(0, 2**31),
    exponent=st.integers(-12, 12),
)
def test_useful_facts_hold_for_any_matrix(
    name: str, m: int, n: int, seed: int, exponent: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(m, n, generator=generator, dtype=torch.float64) * 10.0**exponent
    singular = torch.linalg.svdvals(g)
    if name == "spectral-converged" and singular[-1] < 1e-3 * singular[0]:
        return  # an iteration of fixed length converges on well-conditioned matrices only
    check_facts(NORMS[name], g, 1e-6)


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (6, 6)])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_facts_hold_for_rank_deficient_gradients(shape: tuple[int, int], rank: int) -> None:
    m, n = shape
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-5)):
        g = torch.randn(m, rank, dtype=dtype) @ torch.randn(rank, n, dtype=dtype)
        check_facts(Spectral("svd"), g, tolerance)
        assert float(Spectral("svd").unit_direction(g).square().sum()) == pytest.approx(
            rank, rel=1e-4
        )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NORMS)
def test_rho_bounds_the_euclidean_norm_and_is_reached(name: str, shape: str) -> None:
    norm = NORMS[name]
    low, high = norm.rho(SHAPES[shape])
    x = torch.randn(SHAPES[shape], dtype=torch.float64)
    for each in (x, x**5):
        own, euclidean = float(norm.norm(each)), float(each.norm())
        assert low * own <= euclidean * (1 + 1e-9)
        assert euclidean <= high * own * (1 + 1e-9)
    one_entry = torch.zeros(SHAPES[shape], dtype=torch.float64)
    one_entry.view(-1)[0] = 2.0
    assert low * float(norm.norm(one_entry)) == pytest.approx(2.0)
    widest = norm.unit_direction(x)
    tolerance = 1e-4 if name == "spectral-converged" else 1e-9
    assert float(widest.norm()) == pytest.approx(high * float(norm.norm(widest)), rel=tolerance)


@pytest.mark.parametrize("case", BLOCKED)
def test_rho_of_blocks_counts_all_of_them(case: str) -> None:
    kind, settings_, shape = BLOCKED[case]
    norm = kind("svd", **settings_) if kind is Spectral else kind(**settings_)
    widest = norm.unit_direction(torch.randn(shape, dtype=torch.float64))
    low, high = norm.rho(shape)
    assert float(widest.norm()) == pytest.approx(high * float(norm.norm(widest)), rel=1e-9)
    assert 0 < low <= high


@pytest.mark.parametrize("case", COMPOSED)
def test_rho_of_composed_norms_is_reached(case: str) -> None:
    norm, shape = COMPOSED[case]
    x = torch.randn(shape, dtype=torch.float64)
    low, high = norm.rho(shape)
    widest = norm.unit_direction(x)
    assert float(widest.norm()) == pytest.approx(high * float(norm.norm(widest)), rel=1e-9)
    entries = torch.eye(x.numel(), dtype=torch.float64).reshape(-1, *shape)
    ratios = [1.0 / float(norm.norm(entry)) for entry in entries]
    assert min(ratios) == pytest.approx(low)
    assert low * float(norm.norm(x)) <= float(x.norm()) <= high * float(norm.norm(x))


def test_rho_needs_entries() -> None:
    with pytest.raises(ValueError, match="shape must have entries"):
        Spectral().rho((3, 0))


def test_a_norm_without_rho_says_what_is_missing() -> None:
    class Own(Sign):
        _pieces = ScaledNorm._pieces

    with pytest.raises(NotImplementedError, match="Own must define rho"):
        Own().rho((3, 2))
