"""What tuning searches, and which settings it tries next."""

from __future__ import annotations

import math
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.train.equal_terms import initial_model, shared_settings
from dropmuon.lab.train.proposals import Space, at_the_end, next_settings, search_space
from tests.lab.tiny import tiny

BOWL: Space = {
    "lr": FloatDistribution(0.01, 1.0, log=True),
    "momentum": FloatDistribution(0.0, 0.95),
}


def small(**changes: Any) -> Config:
    return tiny(**{"budget": "ops", "tune": 3, "epochs": 1, **changes})


@pytest.fixture(scope="module")
def digits() -> data.Data:
    return data.load("digits")


def test_batch_sizes_are_tuned_on_request_for_all_or_for_one(digits: data.Data) -> None:
    def space(name: str, **changes: Any) -> Any:
        config = small(methods=("full", "full@tuned"), **changes)
        method = config.method(name)
        shared = shared_settings(config, 1, 0)
        optimizer = method.optimizer(initial_model(config, digits, 0), shared)
        return search_space(config, method, optimizer)

    assert "batch_size" not in space("full")[0]
    assert space("full@tuned")[0]["batch_size"].choices == (50, 100, 200, 400)
    assert space("full", tune_batch_size=True)[1]["batch_size"] == 400


@pytest.mark.parametrize(
    ("method", "policy", "names"),
    [
        ("full", "spectral", {"lr", "momentum"}),
        ("full", "muon", {"lr", "momentum", "adamw_lr"}),
        ("drop-muon:uniform", "muon", {"lr", "momentum", "adamw_lr"}),
        ("torch-muon", "spectral", {"lr", "momentum", "adamw_lr"}),
        ("adamw", "spectral", {"lr", "momentum"}),
        ("sgd", "spectral", {"lr", "momentum"}),
    ],
)
def test_methods_share_the_search_of_the_settings_they_share(
    digits: data.Data, method: str, policy: str, names: set[str]
) -> None:
    config = small(methods=(method,), policy=policy)
    made = config.method(method)
    shared = shared_settings(config, 1, 0)
    optimizer = made.optimizer(initial_model(config, digits, 0), shared)
    found: Any = search_space(config, made, optimizer)
    space, given = found
    assert set(space) == set(given) == names
    assert all(space[name]._contains(space[name].to_internal_repr(given[name])) for name in names)
    if method in {"full", "drop-muon:uniform"}:
        assert (space["lr"].low, space["lr"].high) == pytest.approx((0.005, 0.5))


def test_nesterov_s_momentum_is_never_tuned_to_zero(digits: data.Data) -> None:
    config = small(methods=("sgd",), options={"sgd": {"nesterov": True}})
    method, shared = config.method("sgd"), shared_settings(config, 1, 0)
    space, _ = search_space(
        config, method, method.optimizer(initial_model(config, digits, 0), shared)
    )
    assert space["momentum"].low == 0.01  # type: ignore[attr-defined]


def bowl(lr: float, momentum: float, largest: float, beyond: float | None) -> dict[str, Any]:
    """A loss around a rate of 0.25 and a momentum of 0.4, and another one beyond a largest rate."""
    loss = 0.1 + math.log(lr / 0.25) ** 2 + 4 * (momentum - 0.4) ** 2
    settings = {"lr": lr, "momentum": momentum}
    return {"settings": settings, "loss": loss if lr <= largest else beyond}


@pytest.mark.parametrize(
    ("largest", "beyond"), [(math.inf, None), (0.5, None), (0.5, 1e6), (0.3, None)]
)
@pytest.mark.parametrize("given", [(0.1, 0.9), (0.03, 0.0)])
def test_a_dozen_trials_come_close_to_the_best_settings(
    largest: float, beyond: float | None, given: tuple[float, float]
) -> None:
    """Also where larger rates diverge, or nearly so."""
    trials = [bowl(*given, largest, beyond)]
    while len(trials) < 12:
        trials.append(bowl(**next_settings(BOWL, trials), largest=largest, beyond=beyond))
    best = min(each["loss"] for each in trials if each["loss"] is not None)
    assert best < (0.2 if largest > 0.3 else 0.5)
    assert next_settings(BOWL, trials) == next_settings(BOWL, trials)


def test_rates_that_diverge_are_left_behind() -> None:
    """Even if only the given settings did not."""
    trials = [bowl(0.012, 0.9, 0.02, None)]
    while len(trials) < 12:
        trials.append(bowl(**next_settings(BOWL, trials), largest=0.02, beyond=None))
    assert sum(each["loss"] is not None for each in trials) > 3


@pytest.mark.parametrize("first", [1, 2])
def test_the_first_trials_are_far_apart(first: int) -> None:
    """With a hint, they begin at the third place."""
    space: Space = {**BOWL, "batch_size": CategoricalDistribution([128, 256, 512, 1024])}
    settings = {"lr": 0.1, "momentum": 0.5, "batch_size": 1024}
    trials: list[dict[str, Any]] = [{"settings": settings, "loss": 1.0}] * first
    while len(trials) < 4:
        trials = [*trials, {"settings": next_settings(space, trials), "loss": 1.0}]
    rates, momenta, _ = zip(*(each["settings"].values() for each in trials[first:]), strict=True)
    assert max(rates) / min(rates) >= 9.9
    assert max(momenta) - min(momenta) > 0.3


def test_no_settings_are_tried_twice() -> None:
    """The best one is at an edge, where a model would stay."""
    trials: list[dict[str, Any]] = [{"settings": {"lr": 1.0, "momentum": 0.0}, "loss": 0.1}]
    while len(trials) < 14:
        settings = next_settings(BOWL, trials)
        trials.append({"settings": settings, "loss": 0.1 - math.log(settings["lr"])})
    tried = [each["settings"] for each in trials]
    assert all(each not in tried[:place] for place, each in enumerate(tried))


def test_a_rate_at_the_end_of_its_range_is_named() -> None:
    """Momentum ends at 0 in earnest, and batches are what was allowed."""
    space: Space = {**BOWL, "batch_size": CategoricalDistribution([128, 256])}
    for lr, names in ((1.0, ["lr"]), (0.999, ["lr"]), (0.0101, ["lr"]), (0.5, []), (0.011, [])):
        assert at_the_end({"lr": lr, "momentum": 0.0, "batch_size": 128}, space) == names
