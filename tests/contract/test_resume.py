"""A resumed run equals an unbroken one, bit for bit; a state that does not fit changes nothing."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon, layer_groups, rules, samplers

STEPS = 16
RESUME_AT = range(13)
AHEAD = 4  # beyond the end of a window of 3

RUNS: dict[str, dict[str, Any]] = {
    "full": {"sampler": "full"},
    "uniform": {},
    "linear": {"sampler": "linear"},
    "quadratic": {"sampler": "quadratic"},
    "exponential": {"sampler": "exponential"},
    "fixed": {"sampler": samplers.Progressive([0.1, 0.2, 0.3, 0.4])},
    "nice": {"sampler": samplers.Nice(2)},
    "submodel": {"sampler": samplers.Submodel(2)},
    "partition": {"sampler": samplers.Partition([(0, 2), (1, 3)])},
    "serial": {"sampler": samplers.Serial()},
    "arbitrary": {"sampler": samplers.Arbitrary({(0, 3): 0.4, (1, 2): 0.6})},
    "windows": {"sampler": samplers.Nice(2), "resample_every": 3},
    "epoch-shift": {"sampler": "epoch-shift", "total_steps": STEPS},
    "epoch-shift in windows": {
        "sampler": "epoch-shift",
        "total_steps": STEPS,
        "resample_every": 3,
    },
    "epoch-shift by epochs": {
        "sampler": samplers.Progressive(samplers.epoch_shift(0.5, epochs=4)),
        "total_steps": STEPS,
    },
    "stratified": {"sampler": samplers.Stratified(samplers.Nice(2), 5), "resample_every": 2},
    "updates per batch": {"updates_per_batch": 3, "resample_every": 2},
    "adamw": {"policy": "muon", "adamw_lr": 0.01, "weight_decay": 0.1},
    "scion": {"policy": "scion"},
    "nesterov": {"nesterov": True, "momentum": 0.9, "momentum_start": "zero"},
    "sharp": {"step_rule": rules.Sharp(), "policy": "euclidean", "full_start": False},
    "no truncation": {"truncate": False, "sampler": samplers.Nice(1)},
    "refreshed": {"truncate": "refresh", "sampler": samplers.Nice(1), "policy": "muon"},
    "started": {"full_start": "momentum", "sampler": samplers.Serial(), "resample_every": 2},
}


def make_model(seed: int = 0, width: int = 5) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 5), nn.LayerNorm(5), nn.Linear(5, 2)
    )


def make_optimizer(model: nn.Module, **kwargs: Any) -> DropMuon:
    return DropMuon(model, **{"lr": 0.05, "seed": 3, **kwargs})


def train(model: nn.Module, optimizer: DropMuon, step: int) -> None:
    """One step as a user writes it, on the batch of that step."""
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x[:, :2]).square().mean()
        loss.backward()
        return loss

    if optimizer.updates_per_batch > 1:
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


@dataclass(frozen=True)
class Moment:
    """All that a run is, before a step."""

    parameters: dict[str, Tensor]
    state: dict[str, Any]
    active: tuple[int, ...]
    flags: tuple[bool, ...]

    @classmethod
    def of(cls, model: nn.Module, optimizer: DropMuon) -> Moment:
        state = copy.deepcopy(optimizer.state_dict())
        for group in state["param_groups"]:
            group.pop("differentiable", None)  # torch's own mark of a group that was loaded
        return cls(
            copy.deepcopy(model.state_dict()),
            state,
            optimizer.active,
            tuple(parameter.requires_grad for parameter in model.parameters()),
        )


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Equal bit for bit, through nested containers."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, Tensor):
        assert ours.dtype == theirs.dtype, where
        assert torch.equal(ours, theirs), where
    elif isinstance(ours, Moment):
        assert_same(vars(ours), vars(theirs), where)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs), where
        for key, value in ours.items():
            assert_same(value, theirs[key], f"{where}/{key}")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), where
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}/{i}")
    else:
        assert ours == theirs, where


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@cache
def unbroken(name: str) -> list[Moment]:
    model = make_model()
    optimizer = make_optimizer(model, **RUNS[name])
    moments = []
    for step in range(STEPS):
        moments.append(Moment.of(model, optimizer))
        train(model, optimizer, step)
    return [*moments, Moment.of(model, optimizer)]


@pytest.mark.parametrize("step", RESUME_AT)
@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_equals_an_unbroken_one(name: str, step: int) -> None:
    moments = unbroken(name)
    saved = through_a_file({"model": moments[step].parameters, "optimizer": moments[step].state})
    model = make_model(seed=99)
    optimizer = make_optimizer(model, **RUNS[name])
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    for later in range(step, step + AHEAD):
        assert_same(Moment.of(model, optimizer), moments[later], f"step {later}")
        train(model, optimizer, later)
    assert_same(Moment.of(model, optimizer), moments[step + AHEAD], "end")


@pytest.mark.parametrize("name", RUNS)
def test_the_runs_are_worth_resuming(name: str) -> None:
    moments = unbroken(name)
    for before, after in pairwise(moments):
        changed = [not torch.equal(before.parameters[k], v) for k, v in after.parameters.items()]
        assert any(changed)
    if name != "full":
        assert len({moment.active for moment in moments}) > 1


@pytest.mark.parametrize("name", ["windows", "epoch-shift in windows"])
def test_some_of_the_resumed_steps_are_inside_a_window(name: str) -> None:
    actives = [moment.active for moment in unbroken(name)]
    assert any(actives[step] == actives[step - 1] for step in RESUME_AT[2:])
    assert any(actives[step] != actives[step - 1] for step in RESUME_AT[2:])


def test_the_settings_of_the_draws_come_from_the_state() -> None:
    old = make_optimizer(
        make_model(), sampler="epoch-shift", seed=3, resample_every=3, total_steps=9
    )
    new = make_optimizer(
        make_model(), sampler="epoch-shift", seed=4, resample_every=1, total_steps=50
    )
    new.load_state_dict(through_a_file(old.state_dict()))
    assert (new.draws.seed, new.draws.resample_every, new.draws.total_steps) == (3, 3, 9)
    assert new.draws == old.draws
    assert_same(new.state_dict()["dropmuon"], old.state_dict()["dropmuon"])


def test_a_run_resumed_with_other_draw_settings_follows_those_of_the_state() -> None:
    moments = unbroken("epoch-shift in windows")
    model = make_model(seed=99)
    optimizer = make_optimizer(model, sampler="epoch-shift", seed=77, total_steps=1000)
    model.load_state_dict(moments[5].parameters)
    optimizer.load_state_dict(through_a_file(moments[5].state))
    for later in range(5, STEPS):
        assert_same(Moment.of(model, optimizer), moments[later], f"step {later}")
        train(model, optimizer, later)


def test_group_settings_come_from_the_state() -> None:
    old = make_optimizer(make_model(), lr=0.05, weight_decay=0.1, momentum=0.9, nesterov=True)
    old.param_groups[0]["lr"] = 0.01
    new = make_optimizer(make_model(), lr=0.5)
    new.load_state_dict(through_a_file(old.state_dict()))
    for ours, theirs in zip(new.param_groups, old.param_groups, strict=True):
        for key in ("lr", "weight_decay", "momentum", "nesterov", "norm", "layer"):
            assert ours[key] == theirs[key]


def test_loading_keeps_the_norms_as_objects() -> None:
    optimizer = make_optimizer(make_model(), policy="muon")
    before = [group["norm"] for group in optimizer.param_groups]
    optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    assert [group["norm"] for group in optimizer.param_groups] == before


def test_loading_back_in_time_rewinds_a_run() -> None:
    moments = unbroken("uniform")
    model = make_model()
    optimizer = make_optimizer(model)
    for step in range(9):
        train(model, optimizer, step)
    model.load_state_dict(moments[2].parameters)
    optimizer.load_state_dict(through_a_file(moments[2].state))
    for step in range(2, STEPS):
        train(model, optimizer, step)
    end = Moment.of(model, optimizer)
    assert_same(end.parameters, moments[STEPS].parameters)
    assert_same(end.state, moments[STEPS].state)


def test_counts_and_momentum_of_skipped_layers_are_resumed() -> None:
    def run(model: nn.Module, optimizer: DropMuon, steps: range) -> list[Moment]:
        found = []
        for step in steps:
            found.append(Moment.of(model, optimizer))
            x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
            model(x).square().sum().backward()
            last = model[4].weight
            if step in {0, 3, 7}:
                last.grad[0, 0] = float("nan")
            optimizer.step()
            optimizer.zero_grad()
        return found

    model = make_model()
    moments = run(model, make_optimizer(model), range(10))
    assert moments[-1].state["dropmuon"]["skipped"] == {"4": 3}
    for step in range(9):
        other = make_model(seed=99)
        optimizer = make_optimizer(other)
        other.load_state_dict(moments[step].parameters)
        optimizer.load_state_dict(through_a_file(moments[step].state))
        for ours, theirs in zip(
            run(other, optimizer, range(step, 10)), moments[step:], strict=True
        ):
            assert_same(ours, theirs)


def test_layers_that_no_gradient_reaches_stay_known() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    def start() -> tuple[nn.Module, DropMuon]:
        torch.manual_seed(0)
        model = Idle()
        return model, DropMuon(model, lr=0.1, sampler=samplers.Serial())

    model, optimizer = start()
    with pytest.warns(UserWarning, match="no gradient reached 'idle'"):
        train(model, optimizer, 0)
    other, resumed = start()
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    for step in range(1, 8):
        assert resumed.active == optimizer.active
        assert 0 in optimizer.active
        train(model, optimizer, step)
        train(other, resumed, step)
    assert_same(Moment.of(other, resumed), Moment.of(model, optimizer))


# States that do not fit


def trained(model: nn.Module | None = None, **kwargs: Any) -> DropMuon:
    model = make_model() if model is None else model
    optimizer = make_optimizer(model, **kwargs)
    for step in range(3):
        train(model, optimizer, step)
    return optimizer


def saved_by(model: nn.Module | None = None, **kwargs: Any) -> dict[str, Any]:
    return through_a_file(trained(model, **kwargs).state_dict())


def of_sgd() -> dict[str, Any]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    state = saved_by()
    change(state)
    return state


def with_other_names() -> nn.Module:
    first, tanh, *rest = make_model()
    return nn.Sequential(first, *rest, tanh)


def with_more_layers() -> nn.Module:
    return nn.Sequential(*make_model(), nn.Linear(2, 2))


def without_a_bias() -> nn.Module:
    model = make_model()
    model[2] = nn.Linear(5, 5, bias=False)
    return model


MISFITS: dict[str, tuple[Callable[[], Any], str]] = {
    "shapes": (lambda: saved_by(make_model(width=7)), "shape .* another model"),
    "names": (lambda: saved_by(with_other_names()), "as layer 1, .* has '2'; build it with"),
    "more layers": (lambda: saved_by(with_more_layers()), "is for 5 layers, .* has 4"),
    "fewer layers": (lambda: saved_by(nn.Sequential(nn.Linear(4, 2))), "is for 1 layers"),
    "no bias": (lambda: saved_by(without_a_bias()), "parameter groups"),
    "cut by block": (lambda: saved_by(by=lambda name, _: name), "layers"),
    "sampler": (lambda: saved_by(sampler="full"), r"sampler Full\(\), .* same sampler"),
    "policy": (lambda: saved_by(policy="euclidean"), "parameter groups|policy"),
    "adamw": (lambda: saved_by(policy="muon"), "no momentum_buffer .* same policy"),
    "sgd": (of_sgd, "not from DropMuon"),
    "empty": (dict, "not from DropMuon"),
    "newer": (
        lambda: changed(lambda state: state["dropmuon"].update(version=99)),
        "version 99, .* upgrade dropmuon",
    ),
    "no tensors": (lambda: changed(lambda state: state.pop("state")), "not from DropMuon"),
    "no groups": (lambda: changed(lambda state: state.pop("param_groups")), "not from DropMuon"),
    "no version": (lambda: changed(lambda state: state["dropmuon"].pop("version")), "version"),
    "no layers": (lambda: changed(lambda state: state["dropmuon"].pop("layers")), "layers"),
    "no seed": (lambda: changed(lambda state: state["dropmuon"].pop("seed")), "seed"),
    "no active set": (lambda: changed(lambda state: state["dropmuon"].pop("active")), "active"),
    "no momentum": (
        lambda: changed(lambda state: state["state"][0].pop("momentum_buffer")),
        "no momentum_buffer",
    ),
    "momentum of one parameter less": (
        lambda: changed(lambda state: state["param_groups"][0]["params"].pop()),
        "0 parameters in group 0",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name: str) -> None:
    make_state, message = MISFITS[name]
    model, twin = make_model(), make_model()
    optimizer, untouched = trained(model), trained(twin)
    state = make_state()
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    assert_same(Moment.of(model, optimizer), Moment.of(twin, untouched))
    assert optimizer.draws == untouched.draws
    for step in range(3, 9):
        train(model, optimizer, step)
        train(twin, untouched, step)
        assert_same(Moment.of(model, optimizer), Moment.of(twin, untouched))


def test_a_state_of_groups_does_not_fit_other_groups() -> None:
    groups = layer_groups(make_model())
    merged = DropMuon(
        [{"params": [p for _, p in group["params"]], "layer": 0} for group in groups], lr=0.1
    )
    with pytest.raises(ValueError, match="is for 4 layers"):
        merged.load_state_dict(saved_by())


def test_loading_leaves_the_given_state_alone() -> None:
    state = saved_by()
    before = copy.deepcopy(state)
    make_optimizer(make_model()).load_state_dict(state)
    assert_same(state, before)


def test_a_loaded_state_is_saved_as_it_was() -> None:
    state = saved_by()
    optimizer = make_optimizer(make_model())
    optimizer.load_state_dict(copy.deepcopy(state))
    assert_same(optimizer.state_dict(), state)
