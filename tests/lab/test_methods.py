"""Methods by name: the optimizers they stand for, and what is refused."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch

from dropmuon import DropMuon, samplers
from dropmuon.lab import methods
from dropmuon.lab.methods import Shared, method_named, method_names
from dropmuon.lab.models import build
from dropmuon.samplers import (
    Full,
    Nice,
    Progressive,
    RandomSubset,
    Shares,
    Submodel,
    epoch_shift,
    uniform,
)

SHARED = Shared(lr=0.1, momentum=0.5, policy="spectral", total_steps=10, seed=7)


def optimizer(name: str, **options: Any) -> Any:
    model = build("mlp", (1, 4, 4), 3, (5, 5))
    return method_named(name, options).optimizer(model, SHARED, planned={"sampler": Nice(2)})


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
        ("drop-muon:parts-4", Shares([0.25, 0.25, 1.0])),
        ("drop-muon:parts-8:1/4", Shares([0.25, 0.25, 1.0])),
        ("drop-muon:parts-8:0.5", Shares([0.5, 0.5, 1.0])),
        ("drop-muon:parts-4:uniform", Progressive(uniform)),
        ("drop-muon:parts-4:planned", Nice(2)),
        ("drop-muon:turns-2", Full()),
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
    own = [0.5, 0.25, 0.25]
    assert optimizer("drop-muon:progressive", probabilities=own).sampler == Progressive(own)
    in_parts = optimizer("drop-muon:parts-4:progressive", probabilities=own)
    assert (in_parts.sampler, in_parts.parts) == (Progressive(own), 4)
    assert optimizer("adamw", lr=0.01, betas=[0.9, 0.95]).param_groups[0]["betas"] == (0.9, 0.95)
    assert optimizer("adamw", momentum=0.5).param_groups[0]["betas"] == (0.5, 0.999)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("drop-muon:progressive", {}, "option probabilities must be given"),
        ("drop-muon:parts-4:progressive", {}, "option probabilities must be given"),
        ("adamw", {"betas": [0.9]}, r"betas of method adamw must be two numbers, got \[0.9\]"),
        ("adamw", {"betas": 0.9}, "betas of method adamw must be two numbers, got 0.9"),
    ],
)
def test_options_that_make_no_optimizer_are_named(
    name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        optimizer(name, **options)


def test_a_name_of_ones_own_needs_a_base() -> None:
    made = optimizer("fast", base="full", lr=1.0)
    assert isinstance(made, DropMuon)
    assert made.param_groups[0]["lr"] == 1.0


def test_all_names_are_accepted() -> None:
    for name in method_names():
        full = re.sub("TAU|M$|M(?=:)|R$", "2", name).replace("KIND", "uniform")
        assert method_named(full).base == full


@pytest.mark.parametrize(
    ("name", "options", "parts", "turns"),
    [
        ("drop-muon:parts-4", {}, 4, 1),
        ("drop-muon:parts-4:turns-2", {}, 4, 2),
        ("drop-muon:uniform", {"parts": 2, "turns": 3}, 2, 3),
        ("drop-muon:parts-4", {"shares": [0.5, 0.75, 1.0]}, 4, 1),
        ("full", {"turns": 2}, 1, 2),
    ],
)
def test_parts_and_turns_come_from_the_name_or_from_options(
    name: str, options: dict[str, Any], parts: int, turns: int
) -> None:
    made = optimizer(name, **options)
    assert (made.parts, made.draws.turns) == (parts, turns)
    assert method_named(name, options).parts == parts
    if "shares" in options:
        assert made.sampler == Shares(options["shares"])


@pytest.mark.skipif(not hasattr(samplers, "Adaptive"), reason="there is no adaptive sampler")
def test_adaptive_has_eight_parts_unless_said_otherwise() -> None:
    assert optimizer("drop-muon:adaptive").parts == 8
    assert optimizer("drop-muon:adaptive", parts=4).parts == 4
    assert type(optimizer("drop-muon:adaptive").sampler).__name__ == "Adaptive"


def test_a_batch_size_of_its_own_stands_in_the_name_or_among_the_options() -> None:
    assert method_named("full@512").batch_size(64) == 512
    assert method_named("drop-muon:parts-4@512").base == "drop-muon:parts-4"
    assert method_named("small", {"base": "adamw", "batch_size": 32}).batch_size(64) == 32
    assert method_named("full").batch_size(64) == 64


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ful", {}, "did you mean 'full'"),
        ("drop-muon:unifrom", {}, "did you mean 'drop-muon:uniform'"),
        ("drop-muon:nice-0", {}, "tau must be a whole number of at least 1, got 0"),
        ("drop-muon:parts-0", {}, "parts must be a whole number of at least 1, got 0"),
        ("drop-muon:parts-4:0", {}, r"must be in \(0, 1\], got '0'; give 1/4"),
        ("drop-muon:parts-4:1/0", {}, r"must be in \(0, 1\], got '1/0'"),
        ("drop-muon:parts-4:3/2", {}, r"must be in \(0, 1\], got '3/2'"),
        ("drop-muon:parts-4:parts-2", {}, "parts must be given once"),
        ("drop-muon:parts-4:unifrom", {}, "did you mean 'drop-muon:uniform'"),
        ("drop-muon:turns-0", {}, "turns must be a whole number of at least 1, got 0"),
        ("drop-muon:uniform", {"shares": [1.0]}, "option of method"),
        ("full@big", {}, "must have a batch size or 'tuned' after @, got 'big'"),
        ("full@0", {}, "batch_size of method 'full@0' must be a whole number of at least 1"),
        ("full", {"batch_size": 2.5}, "batch_size of method 'full' must be a whole number"),
        ("full", {"tune_batch_size": 3}, "tune_batch_size of method 'full' must be true or false"),
        ("full", {"schedule": "linaer"}, "did you mean 'linear'"),
        ("full", {"warm_up": 1}, "warm_up must be a share of the budget"),
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
