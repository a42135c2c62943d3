"""The paper's "Useful Facts", for every norm on every kind of parameter."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon.norms import (
    ColumnWise,
    Euclidean,
    Norm,
    PolarExpress,
    RowWise,
    ScaledSpectral,
    Sign,
    Spectral,
    orthogonalize,
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
    "scaled-spectral": ScaledSpectral("svd"),
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
BLOCKED: dict[str, tuple[type[Norm], dict[str, object], tuple[int, ...]]] = {
    f"{kind.__name__}-{name}": (kind, {"blocks": blocks, "scale": scale}, shape)
    for kind in (Spectral, ScaledSpectral, ColumnWise, RowWise)
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
    assert float(norm.norm(norm.direction(g))) == pytest.approx(1, rel=tolerance)


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
    for answer in (norm.direction(zero), norm.lmo(zero, 1.0), norm.sharp(zero), norm.dual(zero)):
        assert torch.equal(answer, torch.zeros_like(answer))


@pytest.mark.parametrize(("norm", "shape"), CASES)
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e-12, 1e20, 1e30])
def test_direction_does_not_depend_on_the_size_of_the_gradient(
    norm: Norm, shape: tuple[int, ...], size: float
) -> None:
    g = torch.randn(shape)
    torch.testing.assert_close(norm.direction(g * size), norm.direction(g), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("norm", "shape"), CASES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_input_is_unchanged_to_the_bit_and_never_returned(
    norm: Norm, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    g = torch.randn(shape).to(dtype)
    before, storage = g.clone(), g.untyped_storage().data_ptr()
    answers = [norm.norm(g), norm.dual(g), norm.direction(g), norm.lmo(g, 0.1), norm.sharp(g)]
    answers += norm.directions([g, g])
    for answer in answers:
        answer.add_(1)
        assert answer.untyped_storage().data_ptr() != storage
    assert torch.equal(g, before)


@pytest.mark.parametrize(("norm", "shape"), CASES)
def test_strides_do_not_matter_and_gradients_are_not_tracked(
    norm: Norm, shape: tuple[int, ...]
) -> None:
    g = torch.randn(shape, dtype=torch.float64)
    strided = torch.empty((*shape, 2), dtype=torch.float64)[..., 0].copy_(g).requires_grad_()
    direction = norm.direction(strided)
    assert not direction.requires_grad
    torch.testing.assert_close(direction, norm.direction(g))


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_an_empty_parameter_has_an_empty_step(norm: Norm, shape: tuple[int, ...]) -> None:
    empty = torch.zeros(shape)
    assert norm.direction(empty).shape == shape
    assert float(norm.norm(empty)) == float(norm.dual(empty)) == 0.0


def nuclear(g: torch.Tensor) -> float:
    return float(torch.linalg.svdvals(g).sum())


def test_duals_equal_their_closed_forms() -> None:
    g = torch.randn(5, 8, dtype=torch.float64)
    columns, rows = g.square().sum(0).sqrt().sum(), g.square().sum(1).sqrt().sum()
    assert float(Spectral("svd").dual(g)) == pytest.approx(nuclear(g))
    assert float(Spectral("cubic").dual(g)) == pytest.approx(nuclear(g), rel=1e-6)
    assert float(ScaledSpectral("svd").dual(g)) == pytest.approx(nuclear(g) * math.sqrt(5 / 8))
    assert float(Euclidean().dual(g)) == pytest.approx(math.sqrt(dot(g, g)))
    assert float(Sign().dual(g)) == pytest.approx(float(g.abs().sum()))
    assert float(ColumnWise().dual(g)) == pytest.approx(float(columns))
    assert float(RowWise().dual(g)) == pytest.approx(float(rows))


def test_norms_equal_their_closed_forms() -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    assert float(Spectral().norm(x)) == pytest.approx(float(torch.linalg.svdvals(x)[0]))
    assert float(Sign().norm(x)) == float(x.abs().max())
    assert float(ColumnWise().norm(x)) == pytest.approx(float(x.square().sum(0).max().sqrt()))
    assert float(RowWise().norm(x)) == pytest.approx(float(x.square().sum(1).max().sqrt()))
    v = torch.randn(9, dtype=torch.float64)
    rms = float(v.square().mean().sqrt())
    assert float(Euclidean(scale="rms").norm(v)) == pytest.approx(rms)
    assert float(Spectral().norm(v)) == pytest.approx(3 * rms)


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (6, 6)])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_facts_hold_for_rank_deficient_gradients(shape: tuple[int, int], rank: int) -> None:
    m, n = shape
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-5)):
        g = torch.randn(m, rank, dtype=dtype) @ torch.randn(rank, n, dtype=dtype)
        check_facts(Spectral("svd"), g, tolerance)
        assert float(Spectral("svd").direction(g).square().sum()) == pytest.approx(rank, rel=1e-4)


def test_zero_rows_and_columns_stay_zero() -> None:
    g = torch.randn(4, 6)
    g[1], g[:, 2] = 0, 0
    for norm in (ColumnWise(), RowWise(), Spectral("svd"), Sign()):
        direction = norm.direction(g)
        assert direction.isfinite().all()
        assert torch.equal(direction[1], torch.zeros(6)) or isinstance(norm, Spectral)
        torch.testing.assert_close(direction[:, 2], torch.zeros(4))


def test_grouped_convolution_is_a_block_diagonal_matrix() -> None:
    g = torch.randn(6, 2, 3, 3, dtype=torch.float64)
    first, second = (part.reshape(3, 18) for part in g.split(3))
    norm, whole = Spectral("svd", blocks=2), Spectral("svd")
    assert float(norm.dual(g)) == pytest.approx(nuclear(torch.block_diag(first, second)))
    assert float(norm.norm(g)) == pytest.approx(float(whole.norm(torch.block_diag(first, second))))
    torch.testing.assert_close(
        norm.direction(g).reshape(6, 18),
        torch.cat([whole.direction(first), whole.direction(second)]),
    )


def test_convolution_is_the_matrix_of_outputs_by_everything_else() -> None:
    g = torch.randn(4, 3, 2, 2)
    flat = Spectral("svd", scale="rms").direction(g.reshape(4, 12)).reshape(g.shape)
    torch.testing.assert_close(Spectral("svd", scale="rms").direction(g), flat)
    assert float(ScaledSpectral("svd").norm(flat)) == pytest.approx(1, rel=1e-5)


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


def test_every_scale_has_its_stated_value() -> None:
    g = torch.ones(8, 2)
    expected = {
        "muon": 2.0,
        "rms": 2.0,
        "rms-in": 1 / math.sqrt(2),
        "rms-out": math.sqrt(8),
        "mean-in": 0.5,
        "adamw": 0.2 * math.sqrt(8),
    }
    for name, factor in expected.items():
        assert float(Sign(scale=name).direction(g)[0, 0]) == pytest.approx(factor)
    assert float(Sign(scale="muon").direction(g.mT)[0, 0]) == 1.0
    assert float(Sign(scale="rms").direction(g.mT)[0, 0]) == 0.5


def test_default_orthogonaliser_keeps_the_facts_within_its_stated_band() -> None:
    g = torch.randn(24, 40, dtype=torch.float64)
    norm, exact = Spectral(), Spectral("svd")
    assert 0.7 < float(exact.norm(norm.lmo(g, 1.0))) < 1.25
    assert float(norm.dual(g)) == pytest.approx(float(exact.dual(g)), rel=0.25)
    torch.testing.assert_close(norm.direction(g), orthogonalize(g))
