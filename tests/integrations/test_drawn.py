"""What is logged of a run, against the sets that were drawn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dropmuon import DropMuon
from dropmuon.integrations.drawn import Drawn


def net() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))


def test_a_report_is_the_mean_over_the_backwards_since_the_last() -> None:
    optimizer, drawn = DropMuon(net()), Drawn()
    for first in (0, 1, 3):
        optimizer.activate(range(first, 4))
        drawn.note(optimizer)
    means = {"dropmuon/cutoff": 4 / 3, "dropmuon/skipped": 1 / 3}
    assert drawn.report() == pytest.approx(means)
    assert drawn.report() == {}


def test_shares_are_those_of_the_parts() -> None:
    model = net()
    optimizer, drawn = DropMuon(model, parts=4, full_start=False), Drawn()
    for _ in range(4):
        drawn.note(optimizer)
        model(torch.ones(1, 2)).sum().backward()
    found = drawn.report()
    shares = tuple(found[f"dropmuon/share/{layer}"] for layer in optimizer.layers)
    assert shares == pytest.approx(optimizer.shares)
    assert min(shares) < max(shares) == 1.0


def test_savings_are_the_mean_over_the_steps_since_the_last_report() -> None:
    model = net()
    optimizer, drawn = DropMuon(model), Drawn()
    saved = []

    def take(steps: int) -> dict[str, float]:
        for _ in range(steps):
            drawn.note(optimizer)
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert optimizer.saved_operations is not None
            saved.append(optimizer.saved_operations.step)
        return drawn.report(optimizer)

    for first, last in ((0, 3), (3, 8), (8, 9)):
        found = take(last - first)
        since = sum(saved[first:]) / (last - first)
        assert found["dropmuon/saved_operations"] == pytest.approx(since)
        assert found["dropmuon/saved_operations_mean"] == pytest.approx(sum(saved) / last)
    assert 0 < sum(saved[3:8]) < 5
    assert drawn.report(optimizer) == {}


def test_nothing_is_skipped_where_all_gradients_are_computed() -> None:
    optimizer, drawn = DropMuon(net(), truncate=False), Drawn()
    optimizer.activate([3])
    drawn.note(optimizer)
    assert drawn.report() == {"dropmuon/cutoff": 3.0, "dropmuon/skipped": 0.0}


def test_a_step_in_the_middle_of_a_batch_is_not_lost() -> None:
    """As where a second network steps after DropMuon, and its backward is noted, too."""
    model = net()
    optimizer, drawn = DropMuon(model), Drawn()
    for _ in range(3):
        drawn.note(optimizer)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        drawn.note(optimizer)
        drawn.look(optimizer)
        assert drawn.has_stepped
        assert drawn.report(optimizer)["dropmuon/saved_operations"] >= 0
        assert not drawn.has_stepped
