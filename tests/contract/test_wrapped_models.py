"""Models that are wrapped, compiled or partly frozen: what looks like a misuse and works."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from dropmuon import DropMuon
from tests.contract.process_group import process_group
from tests.docs.misuses import make_model


def test_a_model_wrapped_in_ddp_works_and_keeps_its_names() -> None:
    with process_group():
        plain = make_model()
        wrapped = nn.parallel.DistributedDataParallel(make_model(), find_unused_parameters=True)
        ours, theirs = DropMuon(wrapped, seed=1), DropMuon(plain, seed=1)
        assert ours.layers == theirs.layers == ("0", "1", "2")
        for _ in range(6):
            for model, optimizer in ((wrapped, ours), (plain, theirs)):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).square().sum().backward()
                optimizer.step()
            assert ours.active == theirs.active
        for a, b in zip(wrapped.parameters(), plain.parameters(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("wrap", [nn.Sequential, partial(torch.compile, backend="eager")])
def test_ddp_that_waits_for_every_gradient_is_found_inside_of_a_wrapper(wrap: Any) -> None:
    with process_group():
        model = wrap(nn.parallel.DistributedDataParallel(make_model()))
        with pytest.warns(UserWarning, match="wrap the model with find_unused_parameters=True"):
            optimizer = DropMuon(model)
    assert optimizer.truncate is False


def test_a_compiled_model_works_and_keeps_its_names() -> None:
    plain, inner = make_model(), make_model()
    compiled: Any = torch.compile(inner, backend="eager")
    ours, theirs = DropMuon(compiled, seed=1), DropMuon(plain, seed=1)
    assert ours.layers == theirs.layers == ("0", "1", "2")
    for _ in range(4):
        for model, optimizer in ((compiled, ours), (plain, theirs)):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
        assert ours.active == theirs.active
    for a, b in zip(inner.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_frozen_parameters_of_a_model_stay_out() -> None:
    model = make_model()
    model[1].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    optimizer = DropMuon(model)
    assert optimizer.layers == ("0", "2")
    held = [*model[1].parameters(), model[2].get_parameter("bias")]
    before = [parameter.detach().clone() for parameter in held]
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        assert not any(parameter.requires_grad for parameter in held)
    assert all(torch.equal(*pair) for pair in zip(held, before, strict=True))
