from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dropmuon.norms import ORTHOGONALIZERS, SVD, NewtonSchulz, PolarExpress, orthogonalize
from dropmuon.norms.newton_schulz import CUBIC, JORDAN
from dropmuon.norms.polar_express import best_quintic, polar_express_coefficients

# Amsel et al. 2025, arXiv 2505.16932, the listing of the algorithm; without its safety factor.
PUBLISHED = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]
SHAPES = [(6, 6), (4, 10), (10, 4), (64, 320), (320, 64), (3, 8, 5), (2, 2, 5, 9), (2, 64, 200)]


def with_singular_values(values: Tensor, columns: int) -> Tensor:
    rows = len(values)
    u, _ = torch.linalg.qr(torch.randn(rows, rows, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(columns, rows, dtype=torch.float64))
    return (u * values.double()) @ v.mT


def well_conditioned(*shape: int) -> Tensor:
    *batch, m, n = shape
    count = int(torch.Size(batch).numel())
    values = torch.linspace(0.3, 1.0, min(m, n))
    made = [with_singular_values(values, max(m, n)) for _ in range(count)]
    return torch.stack([x if m <= n else x.mT for x in made]).reshape(shape)


def polar_factor(x: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(x.double(), full_matrices=False)
    return u @ vh


def literal_newton_schulz(x: Tensor, polynomials: list[tuple[float, ...]]) -> Tensor:
    """The textbook iteration on one matrix, in float64 and with every power written out."""
    y = x.double() / x.double().norm()
    for a, b, *rest in polynomials:
        gram = y @ y.mT
        y = a * y + b * gram @ y + (rest[0] if rest else 0.0) * gram @ gram @ y
    return y


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "method",
    [SVD(), NewtonSchulz(CUBIC, 40), PolarExpress(9), PolarExpress(12, gram=True)],
    ids=str,
)
def test_convergent_methods_reach_the_polar_factor(
    method: object, shape: tuple[int, ...], device: str
) -> None:
    x = well_conditioned(*shape)
    for dtype in (torch.float32,) if device == "mps" else (torch.float64, torch.float32):
        got = orthogonalize(x.to(device, dtype), method).cpu().double()  # type: ignore[arg-type]
        torch.testing.assert_close(got, polar_factor(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_newton_schulz_equals_its_literal_twin(shape: tuple[int, ...], gram: bool) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    for method in (
        NewtonSchulz(gram=gram),
        PolarExpress(gram=gram),
        NewtonSchulz(CUBIC, gram=gram),
    ):
        got = method(x).reshape(-1, *shape[-2:])
        for one, answer in zip(x.reshape(-1, *shape[-2:]), got, strict=True):
            twin = literal_newton_schulz(one, list(method.polynomials()))
            torch.testing.assert_close(answer, twin, rtol=0, atol=1e-9)


def test_jordan_sends_singular_values_into_a_band_around_one() -> None:
    values = torch.logspace(0, -2, 40)
    x = with_singular_values(values, 60)
    got = torch.linalg.svdvals(orthogonalize(x, "newton-schulz"))
    assert 0.6 < float(got.min()) < float(got.max()) < 1.3


def test_newton_schulz_follows_torch_operation_by_operation() -> None:
    def torch_in_float32(grad: Tensor) -> Tensor:
        """torch.optim._muon._zeropower_via_newtonschulz with its cast to bfloat16 taken out."""
        a, b, c = JORDAN
        ortho = grad.T if grad.size(0) > grad.size(1) else grad
        ortho = ortho / ortho.norm().clamp(min=1e-7)
        for _ in range(5):
            gram = ortho @ ortho.T
            update = torch.addmm(gram, gram, gram, beta=b, alpha=c)
            ortho = torch.addmm(ortho, update, ortho, beta=a)
        return ortho.T if grad.size(0) > grad.size(1) else ortho

    for shape in ((16, 16), (32, 48), (48, 32)):
        g = torch.randn(shape)
        torch.testing.assert_close(
            NewtonSchulz(gram=False)(g), torch_in_float32(g), rtol=0, atol=2e-6
        )


def hard_matrices(m: int, n: int) -> dict[str, Tensor]:
    spike = torch.full((m,), 3e-4)
    spike[0] = 1.0
    return {
        "gaussian": torch.randn(m, n),
        "condition-1e3": with_singular_values(torch.logspace(0, -3, m), n).float(),
        "condition-1e12": with_singular_values(torch.logspace(0, -12, m), n).float(),
        "half-rank": with_singular_values((torch.arange(m) < m // 2).float(), n).float(),
        "spike": with_singular_values(spike, n).float(),
        "rank-one": torch.randn(m, 1) @ torch.randn(1, n),
        "zero": torch.zeros(m, n),
    }


@pytest.mark.parametrize("kind", list(hard_matrices(4, 8)))
@pytest.mark.parametrize("method", [NewtonSchulz, PolarExpress])
def test_iterating_on_the_gram_matrix_loses_no_accuracy_in_float32(
    kind: str, method: type[NewtonSchulz] | type[PolarExpress]
) -> None:
    x = hard_matrices(64, 320)[kind]
    plain, fast = method(gram=False)(x), method(gram=True)(x)
    difference = torch.linalg.matrix_norm(plain - fast, ord=2)
    assert float(difference) < 1e-4
    assert float((plain - fast).norm()) <= 2e-4 * float(plain.norm())


def test_the_gram_matrix_is_used_for_wide_float32_and_never_for_16_bits() -> None:
    method = NewtonSchulz()
    assert method._uses_gram(torch.empty(64, 576))
    assert not method._uses_gram(torch.empty(64, 128))
    assert not method._uses_gram(torch.empty(8, 576))
    assert not method._uses_gram(torch.empty(64, 576, dtype=torch.bfloat16))
    assert not NewtonSchulz(gram=False)._uses_gram(torch.empty(64, 576))


def test_polar_express_coefficients_are_the_published_ones() -> None:
    for ours, published in zip(polar_express_coefficients(5), PUBLISHED, strict=True):
        assert ours == pytest.approx(published, rel=1e-11)
    assert polar_express_coefficients(10)[-1] == (1.875, -1.25, 0.375)


def test_polar_express_safety_divides_the_argument() -> None:
    for (a, b, c), safe in zip(
        polar_express_coefficients(5), polar_express_coefficients(5, safety=1.01), strict=True
    ):
        assert safe == pytest.approx((a / 1.01, b / 1.01**3, c / 1.01**5))


@pytest.mark.parametrize("low", [0.03, 0.3, 0.9])
def test_best_quintic_errs_equally_at_four_points(low: float) -> None:
    a, b, c = best_quintic(low, 1.0)
    x = torch.linspace(low, 1.0, 20001, dtype=torch.float64)
    error = a * x + b * x**3 + c * x**5 - 1
    top = float(error.abs().max())
    assert float(error[0]) == pytest.approx(-top, rel=1e-5)
    assert float(error[-1]) == pytest.approx(top, rel=1e-5)
    assert float(error.max()) == pytest.approx(-float(error.min()), rel=1e-5)
    inner = error[1:-1].sign().diff().ne(0).sum()
    assert int(inner) == 3  # three sign changes between four alternating extremes


@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (3, 1, 9), (3, 9, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("method", ORTHOGONALIZERS)
def test_rows_and_columns_are_normalised_exactly(shape: tuple[int, ...], method: str) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    expected = x / x.square().sum((-2, -1), keepdim=True).sqrt()
    torch.testing.assert_close(orthogonalize(x, method), expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("method", ORTHOGONALIZERS)
@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (64, 320), (3, 4, 6)], ids=str)
def test_zero_stays_zero_and_tiny_is_still_orthogonalised(
    method: str, shape: tuple[int, ...]
) -> None:
    assert torch.equal(orthogonalize(torch.zeros(shape), method), torch.zeros(shape))
    g = well_conditioned(*shape).float()
    expected = orthogonalize(g, method)
    torch.testing.assert_close(orthogonalize(g * 1e-12, method), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ORTHOGONALIZERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_input_is_unchanged_to_the_bit(method: str, dtype: torch.dtype) -> None:
    for shape in ((5, 7), (7, 5), (64, 320), (2, 5, 7), (1, 6)):
        x = torch.randn(shape).to(dtype)
        before = x.clone()
        answer = orthogonalize(x, method)
        assert answer.dtype == dtype
        assert torch.equal(x, before)


def test_16_bit_tensors_are_never_multiplied_in_16_bits_on_a_cpu() -> None:
    class Products(TorchDispatchMode):
        seen: set[torch.dtype] = set()  # noqa: RUF012

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if any(name in str(func) for name in ("mm", "matmul")):
                self.seen.update(a.dtype for a in args if isinstance(a, Tensor))
            return func(*args, **(kwargs or {}))

    for dtype in (torch.bfloat16, torch.float16):
        with Products() as products:
            for method in ORTHOGONALIZERS:
                orthogonalize(torch.randn(4, 6).to(dtype), method)
                orthogonalize(torch.randn(2, 4, 6).to(dtype), method)
        assert products.seen == {torch.float32}


def test_own_coefficients_are_one_polynomial_or_one_per_step() -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(orthogonalize(x, JORDAN), orthogonalize(x, "newton-schulz"))
    torch.testing.assert_close(orthogonalize(x, CUBIC), orthogonalize(x, "cubic"))
    own = [(2.0, -1.5, 0.5), (1.5, -0.5)]
    torch.testing.assert_close(orthogonalize(x, own), literal_newton_schulz(x, own))
    repeated = literal_newton_schulz(x, [*own, own[-1]])
    torch.testing.assert_close(NewtonSchulz(own, steps=3)(x), repeated)
    torch.testing.assert_close(NewtonSchulz(own, steps=1)(x), literal_newton_schulz(x, own[:1]))


def test_own_function_gets_a_private_copy_in_the_working_type() -> None:
    x = torch.randn(4, 6).bfloat16()
    before = x.clone()

    def careless(matrix: Tensor) -> Tensor:
        assert matrix.dtype == torch.float32
        return matrix.mul_(2)

    answer = orthogonalize(x, careless)
    assert torch.equal(x, before)
    assert answer.dtype == torch.bfloat16
    assert torch.equal(answer, 2 * x)
    wide = torch.randn(4, 6)
    assert orthogonalize(wide, careless).data_ptr() != wide.data_ptr()
    with pytest.raises(ValueError, match=r"must keep the shape \(4, 6\)"):
        orthogonalize(wide, lambda matrix: matrix.mT)


def test_precision_is_obeyed() -> None:
    x = torch.randn(6, 9, dtype=torch.float64)
    for method in ("svd", "polar-express"):
        exact, coarse = orthogonalize(x, method), orthogonalize(x, method, torch.float32)
        assert coarse.dtype == torch.float64
        assert 1e-9 < float((exact - coarse).norm()) < 1e-4
