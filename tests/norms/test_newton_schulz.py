"""The Newton-Schulz iteration, plain and on the Gram matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dropmuon.norms import NewtonSchulz, PolarExpress, orthogonalize
from dropmuon.norms.newton_schulz import CUBIC, JORDAN
from tests.norms.singular_values import literal_newton_schulz, with_singular_values

SHAPES = [(6, 6), (4, 10), (10, 4), (64, 320), (320, 64), (3, 8, 5), (2, 2, 5, 9), (2, 64, 200)]


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
        for one, result in zip(x.reshape(-1, *shape[-2:]), got, strict=True):
            twin = literal_newton_schulz(one, list(method.polynomials()))
            torch.testing.assert_close(result, twin, rtol=0, atol=1e-9)


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
