"""Several updates per batch: whatever a forward does, it is replayed exactly or recomputed."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from dropmuon import samplers
from tests.backward.replay_models import mlp
from tests.backward.replay_runs import assert_equal, assert_exact, regression, train
from tests.backward.unusual_forwards import UNUSUAL, WARNED, unusual_problem
from tests.fixed_set import Always


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_forwards_do_is_replayed_exactly(name):
    """Whether a forward is replayed or recomputed, and says so, it is exact."""
    for active in ((2, 3), (3,)):
        ours = train(unusual_problem(UNUSUAL[name]), Always(active), recompute=False, updates=4)
        theirs = train(unusual_problem(UNUSUAL[name]), Always(active), recompute=True, updates=4)
        assert_equal(ours, theirs)
        assert ours.model.calls == theirs.model.calls == 20
        assert ours.model.seen == theirs.model.seen
        told = [m for m in ours.messages if m.startswith("updates_per_batch")]
        assert len(told) == len(set(told)) <= 1


@pytest.mark.parametrize("name", WARNED)
def test_fallbacks_say_so_once_and_stay_exact(name):
    forward, message = WARNED[name]
    assert_exact(unusual_problem(forward), Always((2, 3)), message)


def test_a_scripted_module_is_recomputed_and_says_so_once():
    def make():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            model = nn.Sequential(torch.jit.script(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
        return model, regression(10, 6)

    ours = train(make, samplers.Serial(), recompute=False)
    theirs = train(make, samplers.Serial(), recompute=True)
    assert_equal(ours, theirs)
    told = [m for m in ours.messages if m.startswith("updates_per_batch")]
    assert len(told) == 1
    assert "scripted" in told[0]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("what", ["model", "module", "in place"])
def test_a_compiled_model_is_recomputed_and_says_so_once(what):
    def make():
        model = mlp()
        if what == "module":
            model[2] = torch.compile(model[2], backend="eager")
        if what == "in place":
            model[2].compile(backend="eager")
        return model, regression(10, 6)

    def wrap(model):
        return torch.compile(model, backend="eager") if what == "model" else model

    ours = train(make, samplers.Serial(), recompute=False, wrap=wrap)
    torch._dynamo.reset()
    theirs = train(make, samplers.Serial(), recompute=True, wrap=wrap)
    assert_equal(ours, theirs)
    told = [m for m in ours.messages if m.startswith("updates_per_batch")]
    assert len(told) == 1
    assert "compiled" in told[0]
