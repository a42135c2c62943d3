"""States by `torch.distributed.checkpoint`: whole, sharded, flattened, on more or fewer ranks."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from dropmuon import DropMuon
from tests.contract.process_group import process_group
from tests.ranks import Case, run_on_ranks
from tests.step.sharded_runs import Way, check_equal, fsdp, make, tp, train, whole

pytestmark = pytest.mark.skipif(
    not distributed.is_gloo_available(), reason="torch was built without gloo"
)

SHARDED: Any = {}
WHOLE, FLAT = {"full_state_dict": True}, {"flatten_optimizer_state_dict": True}
FORMS: list[Any] = [SHARDED, WHOLE, FLAT]
SETTINGS: list[dict[str, Any]] = [{"policy": "muon"}, {"full_start": False}]
EACH = 4
"""The steps between two checkpoints."""


def blank() -> Any:
    """A model that knows nothing of the one that was saved."""
    model = make()
    nn.init.zeros_(model.head.weight)
    return model


def states(model: Any, optimizer: DropMuon, form: Any) -> dict[str, Any]:
    of_model, of_optimizer = get_state_dict(model, optimizer, options=StateDictOptions(**form))
    return {"model": of_model, "optimizer": of_optimizer}


def put_back(model: Any, optimizer: DropMuon, saved: dict[str, Any], form: Any) -> None:
    set_state_dict(
        model,
        optimizer,
        model_state_dict=saved["model"],
        optim_state_dict=saved["optimizer"],
        options=StateDictOptions(**form),
    )


def resumes(way: Way, form: Any, settings: dict[str, Any]) -> None:
    """A resumed run equals an unbroken one, bit for bit, whatever the form of its state."""
    model = make()
    share = way(model)
    optimizer = DropMuon(model, lr=0.05, **settings)
    train(model, optimizer, EACH, share)
    saved = copy.deepcopy(states(model, optimizer, form))
    drawn = train(model, optimizer, EACH, share, EACH)
    other = blank()
    way(other)
    resumed = DropMuon(other, lr=0.01, **settings)
    put_back(other, resumed, saved, form)
    assert train(other, resumed, EACH, share, EACH) == drawn
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(whole(mine.detach()), whole(theirs.detach()))


def trains_from(folder: Path, number: int) -> None:
    """Read the checkpoint of that number, if there is one; train; and write the next."""
    model = blank() if number else make()
    share = fsdp(model)
    optimizer = DropMuon(model, lr=0.05, policy="scion")
    if number:
        saved = states(model, optimizer, SHARDED)
        assert optimizer.steps == 0  # to look at a state takes no step
        load(saved, checkpoint_id=folder / str(number))
        put_back(model, optimizer, saved, SHARDED)
    train(model, optimizer, EACH, share, EACH * number)
    save(states(model, optimizer, SHARDED), checkpoint_id=folder / str(number + 1))
    if number == 2:
        alone = make()
        train(alone, DropMuon(alone, lr=0.05, policy="scion"), 3 * EACH)
        check_equal(model, alone)


def takes_the_state_of_one_process() -> None:
    alone = make()
    single = DropMuon(alone, lr=0.05)
    train(alone, single, EACH)
    model = make()
    model.load_state_dict(alone.state_dict())
    share = fsdp(model)
    optimizer = DropMuon(model, lr=0.05)
    optimizer.load_state_dict(copy.deepcopy(single.state_dict()))
    assert train(model, optimizer, EACH, share, EACH) == train(alone, single, EACH, first=EACH)
    check_equal(model, alone)


def test_a_run_resumes_from_every_form_of_a_state() -> None:
    cases: list[Case] = [
        partial(resumes, fsdp, form, settings) for form in FORMS for settings in SETTINGS
    ]
    cases += [partial(resumes, tp, SHARDED, SETTINGS[0]), takes_the_state_of_one_process]
    run_on_ranks(2, cases)


def test_a_run_goes_on_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    for number, ranks in enumerate((2, 4, 2)):
        run_on_ranks(ranks, [partial(trains_from, tmp_path, number)])


def test_a_state_that_is_looked_at_before_the_first_step_changes_nothing() -> None:
    ours, theirs = make(), make()
    looked, plain = (DropMuon(each, lr=0.05, full_start=False) for each in (ours, theirs))
    before = looked.active
    with process_group():
        states(ours, looked, SHARDED)
    assert (looked.steps, looked.active) == (0, before)
    assert all(parameter.grad is None for parameter in ours.parameters())
    assert train(ours, looked, 6) == train(theirs, plain, 6)
    check_equal(ours, theirs, tolerance=0.0)


def test_a_first_step_with_a_learning_rate_of_zero_is_a_step() -> None:
    model = make()
    optimizer = DropMuon(model, lr=0.0)
    train(model, optimizer, 1)
    assert optimizer.steps == 1


def test_a_state_that_torch_took_frozen_layers_from_is_refused() -> None:
    model = make()
    optimizer = DropMuon(model, lr=0.05)
    train(model, optimizer, 3)
    with process_group():
        saved = copy.deepcopy(states(model, optimizer, SHARDED))
        optimizer.activate([8])
        with pytest.raises(
            ValueError, match=r"state_dict lacks 'table.weight'.*optimizer.full\(\)"
        ):
            put_back(model, optimizer, saved, SHARDED)
        with optimizer.full():
            put_back(model, optimizer, saved, SHARDED)
    assert optimizer.steps == 3
