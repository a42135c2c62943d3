"""What an optimizer shows of itself: table, steps, cutoff, and how often each layer moved."""

from __future__ import annotations

import copy
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

from dropmuon import DropMuon, samplers
from dropmuon.step.overview import Tally
from tests.step.test_moves_on_device import NoWaiting
from tests.step.test_state import Half, train


def network(layers: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers)))


# Text and HTML


def test_a_bare_optimizer_is_its_table_and_not_its_groups() -> None:
    optimizer = DropMuon(network(30))
    assert repr(optimizer) == str(optimizer) == optimizer.describe()
    assert "Parameter Group" not in repr(optimizer)
    assert len(repr(optimizer).splitlines()) < 70


class Cells(HTMLParser):
    """The texts of a page, by the element they are in; every element must be closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.caption = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] == "caption":
            self.caption += data
        else:
            self.rows[-1][-1] += data


def test_a_notebook_shows_a_table_with_active_layers_and_moves() -> None:
    model = network()
    optimizer = DropMuon(model, sampler=samplers.Serial(), seed=1)
    train(model, optimizer, 5)
    optimizer.activate([1, 3])
    page = Cells(optimizer._repr_html_())
    assert "step 5, cutoff 1 (1)" in page.caption
    header, *rows = page.rows
    assert header[:5] == ["layer", "active", "moves", "parameters", "shapes"]
    assert header[5:] == ["taken for", "norm", "why"]
    first = {row[0]: row[1:3] for row in rows if row[0]}
    moves = optimizer.moves
    assert first == {name: ["●" if name in "13" else "", str(moves[name])] for name in moves}
    assert all(len(row) == len(header) for row in rows)
    assert {row[6] for row in rows} == {str(m.norm) for m in optimizer.roster.members()}


def test_no_name_is_taken_for_markup() -> None:
    model = nn.Module()
    model.add_module("<script>alert('x')</script>&amp", nn.Linear(2, 2))
    page = Cells(DropMuon(model)._repr_html_())
    assert page.tags == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert page.rows[1][0] == "<script>alert('x')</script>&amp"


# Counts


def test_steps_cutoff_and_moves_follow_the_active_sets() -> None:
    model = network()
    optimizer = DropMuon(model, sampler=samplers.Nice(2), seed=3)
    assert (optimizer.steps, optimizer.cutoff) == (0, 0)
    assert optimizer.moves == dict.fromkeys("0123", 0)
    expected = dict.fromkeys("0123", 0)
    for step in range(1, 13):
        assert optimizer.cutoff == optimizer.active[0]
        for layer in optimizer.active:
            expected[optimizer.layers[layer]] += 1
        train(model, optimizer, 1)
        assert optimizer.steps == step
        assert optimizer.moves == expected
    assert len({*expected.values()}) > 1
    with optimizer.full():
        assert optimizer.cutoff == 0


@pytest.mark.parametrize(
    "options",
    [
        {"truncate": "refresh", "full_start": False},
        {"truncate": False, "full_start": False},
        {"full_start": "momentum"},
    ],
    ids=["refreshed", "not truncated", "momentum started"],
)
def test_layers_whose_momentum_alone_follows_have_not_moved(options: dict[str, Any]) -> None:
    model = network()
    optimizer = DropMuon(model, sampler=samplers.Serial(), **options)
    train(model, optimizer, 8)
    assert sum(optimizer.moves.values()) == 8


def test_every_update_of_a_batch_is_a_move() -> None:
    model = network()
    optimizer = DropMuon(model, sampler="full", updates_per_batch=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert optimizer.steps == 1
    assert optimizer.moves == dict.fromkeys("0123", 3)


@pytest.mark.filterwarnings("ignore:step.. found no gradient")
def test_what_did_not_move_is_not_counted() -> None:
    model = network()
    optimizer = DropMuon(model, sampler="full")
    optimizer.step()
    assert optimizer.steps == 0
    train(model, optimizer, 2)
    model(torch.ones(2, 3)).square().sum().backward()
    model[1].weight.grad.fill_(float("nan"))
    model[2].requires_grad_(False)
    optimizer.step()
    assert optimizer.moves == {"0": 3, "1": 2, "2": 2, "3": 3}
    assert optimizer.skipped == {"1": 1}


@pytest.mark.filterwarnings("ignore:no gradient reached")
def test_a_layer_without_a_gradient_has_not_moved() -> None:
    model = Half()
    optimizer = DropMuon(model, sampler="full")
    train(model, optimizer, 3)
    assert list(optimizer.moves.values()) == [3, 3, 3, 0]


def test_counts_are_saved_and_follow_layers_that_are_added_below() -> None:
    pairs = []
    for steps in (2, 0):
        model = network()
        model[0].requires_grad_(False)
        optimizer = DropMuon(model, sampler="full")
        train(model, optimizer, steps)
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": model[0].parameters()})
        pairs.append((model, optimizer))
    (model, optimizer), (_, other) = pairs
    train(model, optimizer, 1)
    assert optimizer.moves == {"0": 1, "1": 3, "2": 3, "3": 3}
    other.load_state_dict(optimizer.state_dict())
    assert (other.moves, other.steps) == (optimizer.moves, 3)
    assert copy.deepcopy(optimizer).moves == optimizer.moves


def test_counting_waits_for_no_device_even_where_only_the_device_knows() -> None:
    tally = Tally()
    with NoWaiting():
        for bad in (0, 1, 1):
            found = {0: torch.tensor(bad), 1: torch.tensor(0), 2: torch.tensor(bad)}
            tally.count(["a", "b", "c"], {0, 1}, found)
    assert tally.moved(["a", "b", "c"]) == {"a": 1, "b": 3, "c": 0}
    assert tally.skipped == {"a": 2, "c": 2}


def test_a_state_of_version_4_loads_and_counts_from_then_on() -> None:
    model = network()
    optimizer = DropMuon(model, sampler="full")
    train(model, optimizer, 2)
    state = optimizer.state_dict()
    assert state["dropmuon"].pop("moves") == dict.fromkeys("0123", 2)
    state["dropmuon"]["version"] = 4
    optimizer.load_state_dict(state)
    train(model, optimizer, 1)
    assert optimizer.steps == 3
    assert optimizer.moves == dict.fromkeys("0123", 1)
