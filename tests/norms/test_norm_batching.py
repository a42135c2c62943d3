from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dropmuon.norms import ColumnWise, Euclidean, Norm, ScaledSpectral, Sign, Spectral, spectral
from dropmuon.norms.spectral import _stacking_pays

SHAPES = [
    (6, 9),
    (9, 6),
    (6, 9),
    (4,),
    (1, 9),
    (6, 3, 3),
    (2, 6, 9),
    (),
    (0, 3),
    (6, 9),
    (1, 9),
    (2, 6, 9),
    (4,),
]
NORMS = [
    Spectral(),
    Spectral("svd", scale="muon"),
    Spectral("polar-express", blocks="batch"),
    ScaledSpectral("cubic"),
    Euclidean(scale="rms"),
    Sign(),
    ColumnWise(),
]


def mixed(device: str) -> list[Tensor]:
    wide = torch.float32 if device == "mps" else torch.float64
    dtypes = [torch.float32, torch.bfloat16, wide]
    return [torch.randn(shape).to(device, d) for d in dtypes for shape in SHAPES]


@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_directions_of_many_are_the_directions_of_each(norm: Norm, device: str) -> None:
    gs = mixed(device)
    before = [g.clone() for g in gs]
    together = norm.directions(gs)
    assert all(torch.equal(g, b) for g, b in zip(gs, before, strict=True))
    for g, direction in zip(gs, together, strict=True):
        assert (direction.shape, direction.dtype) == (g.shape, g.dtype)
        tolerance = 1e-2 if g.dtype == torch.bfloat16 else 2e-5
        torch.testing.assert_close(direction, norm.direction(g), rtol=tolerance, atol=tolerance)


def test_directions_of_nothing_are_nothing() -> None:
    assert Spectral().directions([]) == []


def test_equal_small_matrices_are_orthogonalised_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, ...]] = []
    original = spectral.orthogonalize

    def counted(x: Tensor, *rest: object) -> Tensor:
        calls.append(tuple(x.shape))
        return original(x, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(spectral, "orthogonalize", counted)
    Spectral().directions([torch.randn(s) for s in ((4, 6), (5, 5), (4, 6), (2, 3, 4, 6))])
    assert sorted(calls) == [(2, 4, 6), (2, 72), (5, 5)]
    calls.clear()
    Spectral(blocks="batch").directions([torch.randn(4, 6), torch.randn(3, 4, 6)])
    assert calls == [(4, 4, 6)]
    calls.clear()
    Spectral().directions([torch.randn(4, 6), torch.randn(4, 6, dtype=torch.float64)])
    assert calls == [(4, 6), (4, 6)]


def test_big_matrices_are_not_copied_into_a_stack_on_a_cpu() -> None:
    assert _stacking_pays(torch.empty(1, 64, 576))
    assert _stacking_pays(torch.empty(1, 576, 64))
    assert not _stacking_pays(torch.empty(1, 256, 1024))
    assert _stacking_pays(torch.empty(1, 256, 1024, device="meta"))


def test_a_stack_of_big_blocks_equals_its_blocks_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = torch.randn(3, 8, 12)
    together = Spectral(blocks="batch").direction(g)
    monkeypatch.setattr("dropmuon.norms.spectral._STACK_BELOW", 0)
    torch.testing.assert_close(Spectral(blocks="batch").direction(g), together)


def test_matrices_stay_apart_for_a_function_of_ones_own() -> None:
    shapes: list[tuple[int, ...]] = []

    def own(matrix: Tensor) -> Tensor:
        shapes.append(tuple(matrix.shape))
        return matrix

    Spectral(own).directions([torch.randn(3, 4), torch.randn(3, 4)])
    Spectral(own, blocks=2).direction(torch.randn(4, 4))
    assert shapes == [(3, 4), (3, 4), (2, 2, 4)]
