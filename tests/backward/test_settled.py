"""DDP sees everything trainable when it is built, also after a state was loaded."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dropmuon import DropMuon, samplers
from tests.contract.process_group import process_group
from tests.ranks import Case, run_on_ranks

pytestmark = pytest.mark.skipif(
    not distributed.is_gloo_available(), reason="torch was built without gloo"
)


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))


def wrapped(model: nn.Module, **settings: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, **{"find_unused_parameters": True, **settings})


def train(model: nn.Module, optimizer: DropMuon, steps: int) -> list[object]:
    """Train on examples of this rank's own; return the active sets."""
    drawn: list[object] = []
    for step in range(steps):
        seed = 10 * step + distributed.get_rank()
        for x in torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)).chunk(
            optimizer.parts
        ):
            drawn.append(optimizer.active)
            (model(x).square().mean() / optimizer.parts).backward()
        optimizer.step()
        optimizer.zero_grad()
    return drawn


def trainable(model: nn.Module) -> int:
    return sum(each.requires_grad for each in model.parameters())


# Two ranks


def check_ranks_agree(model: nn.Module) -> None:
    for each in model.parameters():
        first = each.detach().clone()
        distributed.broadcast(first, 0)
        assert torch.equal(first, each)


def wraps_after_loading(parts: int, knows_model: bool) -> None:
    """A resumed run that is wrapped last equals one that was wrapped first."""
    net, again = make(), make()
    ddp = wrapped(net)
    first, resumed = (
        DropMuon(
            each if knows_model else each.named_parameters(),
            lr=0.05,
            policy="sign",
            parts=parts,
            seed=2,
        )
        for each in (net, again)
    )
    train(ddp, first, 4)
    assert trainable(net) < 10
    again.load_state_dict(net.state_dict())
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    late = wrapped(again)
    assert train(late, resumed, 6) == train(ddp, first, 6)
    check_ranks_agree(again)
    for mine, other in zip(again.parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, other)


def starts_with_a_drawn_set() -> None:
    model = make()
    optimizer = DropMuon(model, lr=0.05, sampler=samplers.Serial(), full_start=False)
    ddp = wrapped(model)
    train(ddp, optimizer, 16)
    check_ranks_agree(model)
    assert min(optimizer.moves.values()) > 0


def waits_for_all_gradients_if_ddp_does() -> None:
    """Made before DDP, the optimizer finds it in the first forward."""
    ours, theirs = make(), make()
    for model, parts in ((ours, 1), (theirs, 1), (make(), 2)):
        optimizer = DropMuon(model, lr=0.05, parts=parts)
        ddp = wrapped(model, find_unused_parameters=model is theirs)
        if model is theirs:
            train(ddp, optimizer, 6)
            assert optimizer.truncate is True
            continue
        with pytest.warns(UserWarning, match="wrap the model with find_unused_parameters=True"):
            train(ddp, optimizer, 6)
        assert optimizer.truncate is False
        assert trainable(model) == 10
        check_ranks_agree(model)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_two_ranks_stay_equal_whenever_the_model_is_wrapped() -> None:
    cases: list[Case] = [
        *(
            partial(wraps_after_loading, parts, known)
            for parts in (1, 2)
            for known in (True, False)
        ),
        starts_with_a_drawn_set,
        waits_for_all_gradients_if_ddp_does,
    ]
    run_on_ranks(2, cases)


# One rank


@pytest.mark.parametrize("wrap", [lambda model: model, wrapped])
def test_flags_hold_from_the_first_forward_on(wrap: Any) -> None:
    with process_group():
        model = make()
        optimizer = DropMuon(model, lr=0.05, full_start=False)
        optimizer.activate([3, 4])
        net = wrap(model)
        assert trainable(model) == 10
        net(torch.ones(2, 4)).sum().backward()
        assert trainable(model) == 4
        assert [each.grad is not None for each in model.parameters()] == [False] * 6 + [True] * 4


def test_without_ranks_flags_hold_at_once() -> None:
    model = make()
    optimizer = DropMuon(model, lr=0.05, full_start=False)
    optimizer.activate([3, 4])
    assert trainable(model) == 4
    kinds = {type(hook).__module__ for hook in model._forward_pre_hooks.values()}
    assert "dropmuon.backward.settled" not in kinds


def test_a_model_that_is_wrapped_already_is_frozen_at_once() -> None:
    with process_group():
        ddp = wrapped(make())
        optimizer = DropMuon(ddp, lr=0.05, full_start=False)
        optimizer.activate([3, 4])
        assert trainable(ddp) == 4


def test_a_compiled_forward_leaves_the_wait_to_the_step() -> None:
    with process_group():
        ours, theirs = make(), make()
        first, second = (
            DropMuon(model, lr=0.05, full_start=False, seed=5) for model in (ours, theirs)
        )
        compiled: Any = torch.compile(ours, backend="eager")
        drawn = train(compiled, first, 6)
        assert drawn == train(theirs, second, 6)
        assert len(set(drawn)) > 2
        assert trainable(ours) == trainable(theirs) == 2 * len(first.active)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, other)


def test_ddp_that_is_built_while_layers_are_frozen_is_refused_in_its_first_forward() -> None:
    with process_group():
        model = make()
        optimizer = DropMuon(model, lr=0.05)
        train(model, optimizer, 1)
        optimizer.activate([4])
        late = wrapped(model)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"averages 2 of 10 gradients: .*\.full\(\)"):
                late(torch.ones(2, 4))
        with optimizer.full():
            whole = wrapped(model)
        whole(torch.ones(2, 4))


def test_ddp_that_is_built_while_layers_are_frozen_is_refused_as_a_model() -> None:
    with process_group():
        model = make()
        optimizer = DropMuon(model, lr=0.05)
        train(model, optimizer, 1)
        optimizer.activate([4])
        copied = copy.deepcopy(model)
        with pytest.raises(ValueError, match="averages 2 of 10 gradients"):
            DropMuon(wrapped(copied))


def test_what_the_user_froze_is_not_missed() -> None:
    with process_group():
        model = make()
        model[0].requires_grad_(False)
        DropMuon(wrapped(model))
        model = make()
        left_out = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        left_out(model, ["0.weight", "0.bias"])
        DropMuon(wrapped(model))


def test_a_copy_of_a_model_does_not_call_the_optimizer_of_the_original() -> None:
    with process_group():
        model = make()
        optimizer = DropMuon(model, lr=0.05, full_start=False)
        optimizer.activate([4])
        copy.deepcopy(model)(torch.ones(2, 4))
        assert trainable(model) == 10


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_of_an_optimizer_does_not_wait_again(seed: int) -> None:
    """It continues in the middle of a step, with gradients of parts that were accumulated."""
    with process_group():
        models = [make(), make()]
        optimizers = [DropMuon(model, lr=0.05, parts=3, seed=seed) for model in models]
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer, 2)
            model(torch.ones(2, 4)).square().mean().backward()
        models[1], optimizers[1] = copy.deepcopy((models[1], optimizers[1]))
        for copied, original in zip(*(model.parameters() for model in models[::-1]), strict=True):
            copied.grad = None if original.grad is None else original.grad.clone()
        for model, optimizer in zip(models, optimizers, strict=True):
            for scale in (2, 3):
                model(torch.full((2, 4), float(scale))).square().mean().backward()
            optimizer.step()
        for mine, other in zip(*(model.parameters() for model in models), strict=True):
            assert torch.equal(mine, other)


@pytest.mark.filterwarnings("ignore:params is a DistributedDataParallel that waits")
def test_weights_and_chosen_sets_survive_ddp_that_is_found_in_the_first_forward() -> None:
    with process_group():
        gradients, x = [], torch.randn(6, 4)
        for is_first in (True, False):
            model = make()
            ddp = DistributedDataParallel(model) if is_first else model
            optimizer = DropMuon(ddp, lr=0.05, parts=2)
            optimizer.activate([1, 4])
            run = ddp if is_first else DistributedDataParallel(model)
            for part in optimizer.split(x):
                run(part).square().mean().backward()
            gradients.append([each.grad.clone() for each in model.parameters()])
            before = [each.detach().clone() for each in model.parameters()]
            optimizer.step()
            moved = [
                not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True)
            ]
            assert moved == [number // 2 in (1, 4) for number in range(10)]
            optimizer.release()
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)


def test_hooks_go_with_a_release_and_do_not_pile_up() -> None:
    with process_group():
        model = make()
        for _ in range(3):
            with DropMuon(model, sampler="full"):
                pass
        kinds = [type(hook).__module__ for hook in model._forward_pre_hooks.values()]
        assert "dropmuon.backward.settled" not in kinds


def test_a_closure_without_a_model_computes_the_gradients_of_active_layers_only() -> None:
    with process_group():
        model = make()
        optimizer = DropMuon(model.named_parameters(), lr=0.05, parts=2, full_start=False)
        optimizer.activate([3, 4])

        def closure() -> None:
            for x in optimizer.split(torch.ones(4, 4)):
                model(x).square().mean().backward()

        optimizer.step(closure)
        assert all(each.grad is None for each in model[:3].parameters())


def test_parts_and_torchs_own_way_to_leave_out_buckets_are_refused() -> None:
    with process_group():
        ddp = wrapped(make(), skip_all_reduce_unused_params=True)
        DropMuon(ddp).release()
        with pytest.raises(ValueError, match="parts=2 and skip_all_reduce_unused_params=True"):
            DropMuon(ddp, parts=2)
