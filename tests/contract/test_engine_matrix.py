"""Engines x samplers x what happens in a run: ranks do what a single process does, to rounding."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from torch import distributed

from dropmuon import samplers
from tests.contract.engine_runs import ENGINES, FEATURES, Engine, Feature, Run
from tests.ranks import Case, run_on_ranks
from tests.step.sharded_runs import check_equal
from tests.step.traffic import Traffic

SAMPLERS: dict[str, Any] = {
    "uniform": "uniform",
    "full": "full",
    "nice": samplers.Nice(3),
    "serial": samplers.Serial(),
    "subsets": samplers.RandomSubset(),
    "windows": samplers.Stratified(samplers.Progressive(), 4),
}

MIXED: dict[str, tuple[float, dict[str, Any]]] = {"tp": (5e-3, {"policy": "euclidean"})}
"""Tensor parallelism rounds two halves of a product to bfloat16 before it adds them; in a Euclidean
step that is a difference of its own size, and not more, as orthogonalisation makes of it."""


def trains_alike(engine: Engine, name: str, feature: Feature) -> None:
    tolerance, settings = 1e-9, {}
    if feature == "mixed precision":
        tolerance, settings = MIXED.get(engine, (1e-5, {}))
    ours, theirs = (
        Run(engine, feature, alone=alone, sampler=SAMPLERS[name], **settings)
        for alone in (False, True)
    )
    with Traffic() as traffic:
        ours.train()
    theirs.train()
    assert ours.drawn == theirs.drawn
    assert ours.optimizer.moves == theirs.optimizer.moves
    assert ours.optimizer.skipped == theirs.optimizer.skipped
    assert (feature == "nan") == bool(ours.optimizer.skipped)
    check_equal(ours.model, theirs.model, tolerance)
    check_ranks_agree(ours)
    if engine.startswith("ddp"):
        check_traffic(ours, traffic)


def check_ranks_agree(run: Run) -> None:
    seen: list[Any] = [None] * distributed.get_world_size()
    own = run.optimizer.state_dict()["dropmuon"]
    distributed.all_gather_object(seen, (run.drawn, own))
    assert all(each == seen[0] for each in seen)


def check_traffic(run: Run, traffic: Traffic) -> None:
    """DDP sends once per step: all gradients, or those of layers that were active in any part.

    In the first forward after wrapping, everything is trainable. With gradients comes a number per
    parameter, of those that are used.
    """
    steps = [run.drawn[n : n + run.backwards] for n in range(0, len(run.drawn), run.backwards)]
    fresh = {0, len(steps) // 2} if run.feature == "resume" else {0}
    every = range(len(run.optimizer.layers))
    sent = 0
    for number, sets in enumerate(steps):
        is_all = run.engine == "ddp" or number in fresh
        layers = every if is_all else {layer for active in sets for layer in active}
        members = [member for layer in layers for member in run.optimizer.roster.layers[layer]]
        sent += sum(m.parameter.numel() * m.parameter.element_size() for m in members)
    used = 4 * len(list(run.optimizer.roster.members()))
    counted = traffic.calls["allreduce_"], traffic.bytes["allreduce_"]
    assert counted == (2 * len(steps), sent + used * len(steps))


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo")
def test_two_ranks_train_as_one_process_does() -> None:
    cases: list[Case] = [
        partial(trains_alike, engine, name, feature)
        for engine in ENGINES
        for name in SAMPLERS
        for feature in FEATURES
        if not (name == "windows" and feature == "parts")  # refused: parts are spread already
    ]
    assert len(cases) == 4 * (6 * 5 - 1)
    run_on_ranks(2, cases)
