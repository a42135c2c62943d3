"""AdamW, the rule beside the norms."""

from __future__ import annotations

from typing import Any

import pytest

from dropmuon.norms import AdamW, Norm


def test_adamw_is_not_a_norm() -> None:
    assert not isinstance(AdamW(), Norm)


@pytest.mark.parametrize("betas", [(1.0, 0.9), (-0.1, 0.9), (0.9,)])
def test_bad_betas_are_refused(betas: Any) -> None:
    with pytest.raises(ValueError, match="betas must be two numbers"):
        AdamW(betas=betas)


def test_a_negative_eps_is_refused() -> None:
    with pytest.raises(ValueError, match="eps must be at least 0"):
        AdamW(eps=-1.0)
