"""Training under whatever may happen to it, against a ledger and a witness.

A hypothesis state machine makes an optimizer of random settings on a small model, and lets random
events happen: steps, states saved and loaded, copies, pickles, exceptions, gradients that are not
finite, layers frozen and set free, sets chosen by hand. After each of them,

- the model is where the `Ledger` is, to rounding, which knows neither flags nor states;
- a layer that was in no active set has kept every bit;
- a witness to which the same happened, but which was never saved, copied or pickled, is at the
  same place, bit for bit, and has the same active set.

`make fuzz` does the same with 10,000 configurations.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import nn

from dropmuon import DropMuon
from dropmuon.model.policies import Member
from dropmuon.norms import Norm
from tests.contract.ledger import Ledger
from tests.models import PROBLEMS, layers_of, point
from tests.test_reference import NORMS, SAMPLERS, norm_of, policy

CONFIGURATIONS = int(os.environ.get("FUZZ", "30"))
LR = 0.02

Pair = tuple[nn.Module, DropMuon]


class Training(RuleBasedStateMachine):
    """One run, to which events happen."""

    @initialize(
        problem=st.sampled_from(["mlp", "cnn", "transformer", "residual"]),
        norm=st.sampled_from(NORMS),
        sampler=st.sampled_from(sorted(SAMPLERS)),
        parts=st.integers(1, 3),
        nesterov=st.booleans(),
        momentum=st.sampled_from([0.0, 0.7]),
        weight_decay=st.sampled_from([0.0, 0.1]),
        full_start=st.booleans(),
        resample_every=st.integers(1, 3),
        seed=st.integers(0, 99),
    )
    def begin(self, problem: str, norm: str, sampler: str, **others: Any) -> None:
        start, self.make_batch, self.loss = PROBLEMS[problem]()
        self.layers = len(layers_of(start))
        self.settings = {
            **others,
            "lr": LR,
            "sampler": SAMPLERS[sampler](self.layers),
            "total_steps": 40,
            "policy": partial(routed, norm),
            "orthogonalize": "svd",
        }
        self.start = start
        self.pair, self.witness = self.made(), self.made()
        of_rule = {name: others[name] for name in ("momentum", "nesterov", "weight_decay")}
        self.ledger = Ledger(start, self.loss, partial(norm_of, norm), lr=LR, **of_rule)
        self.frozen: set[int] = set()
        self.batches = 0

    def made(self) -> Pair:
        model = copy.deepcopy(self.start)
        with told():
            return model, DropMuon(model, **self.settings)

    @property
    def both(self) -> list[Pair]:
        return [self.pair, self.witness]

    # Steps

    @rule()
    def train(self) -> None:
        self.go_through(frozenset())

    @rule(layer=st.integers(0, 99))
    def train_with_a_gradient_that_is_not_finite(self, layer: int) -> None:
        self.go_through({layer % self.layers})

    @rule(layers=st.sets(st.integers(0, 99), min_size=1, max_size=3))
    def choose_a_set(self, layers: set[int]) -> None:
        for _, optimizer in self.both:
            optimizer.activate({layer % self.layers for layer in layers})
        self.train()

    @precondition(lambda self: self.settings["parts"] == 1)
    @rule()
    def train_by_closure(self) -> None:
        batch, active = self.next_batch(), self.pair[1].active
        before = point(self.pair[0])
        for model, optimizer in self.both:

            def closure(model: nn.Module = model, optimizer: DropMuon = optimizer) -> Any:
                optimizer.zero_grad()
                loss = self.loss(model, batch)
                loss.backward()
                return loss

            with told():
                optimizer.step(closure)
            optimizer.zero_grad()
        self.ledger.add(batch, active)
        self.ledger.step(self.frozen)
        self.check_still({*active} - self.frozen, before)

    @rule()
    def step_without_a_gradient(self) -> None:
        for _, optimizer in self.both:
            with told():
                optimizer.step()

    def go_through(self, poisoned: frozenset[int] | set[int]) -> None:
        """Take a step of all parts; some layers have a NaN in their gradient at its end."""
        parts, before = self.settings["parts"], point(self.pair[0])
        moving: set[int] = set()
        for _ in range(parts):
            batch, active = self.next_batch(), self.pair[1].active
            for model, _ in self.both:
                with told():
                    (self.loss(model, batch) / parts).backward()
            self.ledger.add(batch, active)
            moving |= {*active}
        for model, optimizer in self.both:
            for layer in poisoned:
                for parameter in layers_of(model)[layer]:
                    if parameter.grad is not None:
                        parameter.grad.flatten()[0] = float("nan")
            with told():
                optimizer.step()
            optimizer.zero_grad()
        self.ledger.step(self.frozen | poisoned)
        self.check_still(moving - poisoned - self.frozen, before)

    def next_batch(self) -> Any:
        self.batches += 1
        return self.make_batch(self.batches)

    def check_still(self, moving: set[int], before: list[list[torch.Tensor]]) -> None:
        for i, (old, new) in enumerate(zip(before, point(self.pair[0]), strict=True)):
            assert i in moving or all(map(torch.equal, old, new)), f"layer {i} moved"

    # What else happens

    @rule()
    def save_and_load(self) -> None:
        model, optimizer = self.pair
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        with optimizer.full():
            flags = [p.requires_grad for p in model.parameters()]
        self.pair = self.made()
        model, optimizer = self.pair
        with optimizer.full():
            for p, flag in zip(model.parameters(), flags, strict=True):
                p.requires_grad_(flag)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    @rule()
    def copy_both(self) -> None:
        self.pair = copy.deepcopy(self.pair)

    @rule()
    def pickle_both(self) -> None:
        self.pair = pickle.loads(pickle.dumps(self.pair))

    @rule()
    def evaluate(self) -> None:
        batch = self.make_batch(0)
        for model, optimizer in self.both:
            model.eval()
            with optimizer.full(), torch.no_grad():
                self.loss(model, batch)
            model.train()

    @rule()
    def fail_in_a_forward_pass(self) -> None:
        for model, _ in self.both:
            last = [module for module in model.modules() if list(module.parameters(False))][-1]
            handle = last.register_forward_pre_hook(fail)
            with pytest.raises(InterruptedError):
                self.loss(model, self.make_batch(0))
            handle.remove()

    @rule(layer=st.integers(0, 99))
    def freeze(self, layer: int) -> None:
        layer %= self.layers
        if len(self.frozen | {layer}) == self.layers:
            return
        self.set_free(layer, is_free=False)
        self.frozen.add(layer)

    @precondition(lambda self: self.frozen)
    @rule(which=st.integers(0, 99))
    def unfreeze(self, which: int) -> None:
        layer = sorted(self.frozen)[which % len(self.frozen)]
        self.set_free(layer, is_free=True)
        self.frozen.discard(layer)

    def set_free(self, layer: int, *, is_free: bool) -> None:
        for model, optimizer in self.both:
            with optimizer.full():
                for parameter in layers_of(model)[layer]:
                    parameter.requires_grad_(is_free)

    # What always holds

    @invariant()
    def the_model_is_where_the_ledger_is(self) -> None:
        here = [p.detach() for layer in layers_of(self.pair[0]) for p in layer]
        there = [p.detach() for layer in self.ledger.layers for p in layer]
        torch.testing.assert_close(here, there, rtol=1e-8, atol=1e-8)

    @invariant()
    def nothing_was_lost_on_the_way(self) -> None:
        (model, optimizer), (other, witness) = self.both
        assert all(map(torch.equal, model.parameters(), other.parameters()))
        assert optimizer.active == witness.active
        assert (optimizer.steps, optimizer.moves) == (witness.steps, witness.moves)
        assert [p.requires_grad for p in model.parameters()] == [
            p.requires_grad for p in other.parameters()
        ]


def routed(norm: str, member: Member) -> Norm | str:
    """Return the norm of a parameter; unlike `policy(norm)`, this can be pickled."""
    return policy(norm)(member)


def fail(module: nn.Module, args: Any) -> None:
    raise InterruptedError


@contextmanager
def told() -> Iterator[None]:
    """Let warnings pass: layers without gradients, sets that have to be joined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


Training.TestCase.settings = settings(
    max_examples=CONFIGURATIONS,
    stateful_step_count=12,
    deadline=None,
    derandomize="FUZZ" not in os.environ,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
TestTraining = Training.TestCase
