"""The table of layers that a person reads."""

from __future__ import annotations

import copy
import pickle
import warnings

from torch import nn

from dropmuon import DropMuon, samplers
from tests.models import PROBLEMS


def test_the_table_holds_names_counts_shapes_norms_and_reasons():
    model = nn.Sequential(nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40), nn.Flatten(), nn.Linear(40, 5))
    optimizer = DropMuon(model, policy="muon", sampler=samplers.Nice(2))
    text = optimizer.describe()
    assert str(optimizer) == text
    title, *_ = text.splitlines()
    assert title == "DropMuon: 3 layers, sampler Nice(tau=2)"
    rows = [line for line in text.splitlines() if "weight" in line or "bias" in line]
    assert [line.split()[0] for line in rows if not line.startswith(" ")] == ["0", "1", "3"]
    convolution = next(line for line in rows if "40x3x3x3" in line)
    assert "weight (1.08k)" in convolution
    assert "Spectral" in convolution
    assert convolution.rstrip().endswith("hidden: a convolution, as a matrix (out, in*kernel)")
    output = next(line for line in rows if "5x40" in line)
    assert "weight (200)" in output
    assert "AdamW" in output
    assert "the output layer" in output
    both = next(line for line in rows if "weight, bias (80)" in line)
    assert "2 of 40" in both
    assert both.rstrip().endswith("a vector")


def test_describing_a_model_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in PROBLEMS.values():
            model, make_batch, _ = make()
            assert str(DropMuon(model, example=make_batch(0)[:-1]))


def test_what_the_user_froze_is_told_and_what_the_optimizer_froze_is_not():
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    model[1].weight.requires_grad_(False)
    optimizer = DropMuon(model)
    optimizer.activate([3])
    for each in (optimizer, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        (row,) = (line for line in each.describe().splitlines() if "frozen" in line)
        assert row.startswith("1 ")
        assert "weight (9)" in row
        assert "matrix, frozen by the user" in row
