"""Parameter groups made from a model."""

from __future__ import annotations

import pytest
from torch import nn

from dropmuon import DropMuon, layer_groups
from tests.models import PROBLEMS


def test_the_optimizer_takes_the_same_ways_as_layer_groups():
    model, *_ = PROBLEMS["residual"]()
    assert DropMuon(model, by="block").layers == (
        *("stem", "blocks.0", "blocks.1", "blocks.2", "head"),
    )
    assert DropMuon(model, by=lambda name, p: name).layers == tuple(
        name for name, _ in model.named_parameters()
    )
    groups = layer_groups(model, by="block", policy="sign")
    assert DropMuon(groups).layers == DropMuon(model, by="block").layers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"by": "modules"},
            "by must be one of block, module, got 'modules'; did you mean 'mod",
        ),
        ({"by": "Blocks"}, "did you mean 'block'"),
        ({"policy": "spectal"}, "policy must be one of .*got 'spectal'; did you mean 'spectral'"),
        ({"policy": "signs"}, "did you mean 'sign'"),
    ],
)
def test_unknown_names_suggest_the_nearest(options, message):
    with pytest.raises(ValueError, match=message):
        layer_groups(nn.Linear(2, 2), **options)
    with pytest.raises(ValueError, match=message):
        DropMuon(nn.Linear(2, 2), **options)
