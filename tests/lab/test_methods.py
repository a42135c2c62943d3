"""Methods by name: the optimizers they stand for, and what is refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from dropmuon import DropMuon
from dropmuon.lab import methods
from dropmuon.lab.methods import Shared, method_named, method_names
from dropmuon.lab.models import build
from dropmuon.samplers import Full, Nice, Progressive, RandomSubset, Submodel, epoch_shift, uniform

SHARED = Shared(lr=0.1, momentum=0.5, policy="spectral", total_steps=10, seed=7)


def optimizer(name: str, **options: Any) -> Any:
    model = build("mlp", (1, 4, 4), 3, (5, 5))
    return method_named(name, options).optimizer(model, SHARED, planned=Nice(2))


@pytest.mark.parametrize(
    ("name", "sampler"),
    [
        ("full", Full()),
        ("scion", Full()),
        ("drop-muon:uniform", Progressive(uniform)),
        ("drop-muon:linear", Progressive("linear")),
        ("drop-muon:quadratic", Progressive("quadratic")),
        ("drop-muon:exponential", Progressive("exponential")),
        ("drop-muon:epoch-shift", Progressive(epoch_shift(0.5))),
        ("drop-muon:nice-2", Nice(2)),
        ("drop-muon:submodel-3", Submodel(3)),
        ("drop-muon:random-subset", RandomSubset()),
        ("drop-muon:planned", Nice(2)),
    ],
)
def test_a_name_stands_for_its_sampler(name: str, sampler: object) -> None:
    made = optimizer(name)
    assert isinstance(made, DropMuon)
    assert made.sampler == sampler
    assert made.draws.seed == 7
    assert made.layers == ("hidden1", "hidden2", "head")


def test_full_and_drop_muon_share_settings_and_others_have_their_own() -> None:
    for name in ("full", "drop-muon:uniform"):
        group = optimizer(name).param_groups[0]
        assert (group["lr"], group["momentum"]) == (0.1, 0.5)
    assert isinstance(optimizer("adamw"), torch.optim.AdamW)
    assert optimizer("adamw").param_groups[0]["lr"] == 1e-3
    assert isinstance(optimizer("sgd"), torch.optim.SGD)
    assert optimizer("sgd").param_groups[0]["momentum"] == 0.9


def test_options_of_a_method_come_before_shared_settings() -> None:
    group = optimizer("drop-muon:uniform", lr=0.3, momentum=0.9).param_groups[0]
    assert (group["lr"], group["momentum"]) == (0.3, 0.9)
    made = optimizer("drop-muon:epoch-shift", alpha=2.0)
    assert isinstance(made, DropMuon)
    assert made.sampler == Progressive(epoch_shift(2.0))
    assert optimizer("adamw", lr=0.01, betas=[0.9, 0.95]).param_groups[0]["betas"] == (0.9, 0.95)


def test_a_name_of_ones_own_needs_a_base() -> None:
    made = optimizer("fast", base="full", lr=1.0)
    assert isinstance(made, DropMuon)
    assert made.param_groups[0]["lr"] == 1.0


def test_all_names_are_accepted() -> None:
    for name in method_names():
        assert method_named(name.replace("TAU", "2")).base == name.replace("TAU", "2")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ful", {}, "did you mean 'full'"),
        ("drop-muon:unifrom", {}, "did you mean 'drop-muon:uniform'"),
        ("drop-muon:nice-0", {}, "tau must be a whole number of at least 1, got 0"),
        ("drop-muon:adaptive", {}, "does not exist yet"),
        ("fast", {"lr": 1.0}, "method must be one of"),
        ("full", {"momentun": 0.5}, "option of method 'full' .* did you mean 'momentum'"),
        ("adamw", {"policy": "muon"}, "option of method 'adamw'"),
        ("full", {"lr": -1}, "lr of method 'full' must be a positive number, got -1"),
        ("full", {"lr": "fast"}, "got 'fast'"),
        ("drop-muon:uniform", {"alpha": 1.0}, "option of method"),
    ],
)
def test_wrong_methods_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        method_named(name, options)


def test_muon_is_an_old_name_of_full_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    methods._warn_of_old_name.cache_clear()
    with caplog.at_level(logging.WARNING):
        found = [method_named("muon"), method_named("muon"), method_named("x", {"base": "muon"})]
    assert [(each.name, each.base) for each in found] == [("muon", "full")] * 2 + [("x", "full")]
    assert len(caplog.records) == 1
    assert "'muon' is an old name" in caplog.text
    assert "use 'full' instead, or 'torch-muon' for torch.optim.Muon" in caplog.text


def test_a_name_of_ones_own_may_be_muon(caplog: pytest.LogCaptureFixture) -> None:
    methods._warn_of_old_name.cache_clear()
    assert method_named("muon", {"base": "torch-muon"}).base == "torch-muon"
    assert not caplog.records
