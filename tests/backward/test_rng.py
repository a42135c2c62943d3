"""Random numbers of several updates on one batch."""

from __future__ import annotations

import torch

from tests.backward.replay_models import problem
from tests.backward.replay_runs import started


def test_generators_end_as_after_one_pass():
    """Updates on one batch draw the same numbers, and the next batch draws new ones."""
    torch.manual_seed(0)
    model, make_batch = problem("cnn")()
    x, y = make_batch(0)
    optimizer, closure = started(model, (x, y), (6,), 3)
    start = torch.get_rng_state()
    optimizer.step(closure)
    after = torch.get_rng_state()
    torch.set_rng_state(start)
    model(x)
    assert torch.equal(torch.get_rng_state(), after)
    assert not torch.equal(start, after)
