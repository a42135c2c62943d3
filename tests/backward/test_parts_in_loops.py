"""Parts in the loops that people write."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import DropMuon, samplers
from tests.backward.parted_problem import (
    accumulate,
    make_batch,
    make_model,
    point,
    train,
)
from tests.fixed_set import Always

# Loops


def test_a_batch_in_one_piece_is_split_as_a_loop_would() -> None:
    ours, theirs = make_model(), make_model()
    split, loop = DropMuon(ours, lr=0.05, parts=4), DropMuon(theirs, lr=0.05, parts=4)
    for k in range(8):
        for x, y in split.split(*make_batch(k)):
            F.cross_entropy(ours(x), y).backward()
        split.step()
        split.zero_grad()
    train(theirs, loop, 8)
    torch.testing.assert_close(point(ours), point(theirs))


def test_unequal_parts_are_weighted_by_their_examples() -> None:
    """Split, and a loop with weights, give the mean over the examples that a layer was given."""
    x, y = make_batch(0, 11)
    sizes = [3, 4, 4]
    found = []
    for way in ("split", "loop", "by hand"):
        model = make_model()
        optimizer = DropMuon(model, lr=0.05, parts=3, seed=1)
        train(model, optimizer, 1)
        sets = list(optimizer.active_sets)
        pieces = list(zip(x.split([3, 4, 4]), y.split([3, 4, 4]), strict=True))
        if way == "split":
            for some, labels in optimizer.split(x, y):
                F.cross_entropy(model(some), labels).backward()
        elif way == "loop":
            optimizer.weigh(sizes)
            for some, labels in pieces:
                (F.cross_entropy(model(some), labels) * len(some) / 11).backward()
        else:
            layers = [m for m in model if isinstance(m, nn.Linear)]
            model.requires_grad_(True)
            for i, layer in enumerate(layers):
                own = [piece for piece, active in zip(pieces, sets, strict=True) if i in active]
                inputs, labels = (torch.cat(each) for each in zip(*own, strict=True))
                loss = F.cross_entropy(model(inputs), labels)
                layer.weight.grad, layer.bias.grad = torch.autograd.grad(
                    loss, [layer.weight, layer.bias]
                )
        layers = [m for m in model if isinstance(m, nn.Linear)]
        found.append([layer.weight.grad for layer in layers])
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])


def test_losses_that_are_not_divided_add_up_as_in_plain_accumulation() -> None:
    model, plain = make_model(), make_model()
    optimizer = DropMuon(model, lr=0.05, parts=3, sampler="full")
    x, y = make_batch(0)
    for some, labels in zip(x.chunk(3), y.chunk(3), strict=True):
        F.cross_entropy(model(some), labels).backward()
        F.cross_entropy(plain(some), labels).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    optimizer.step()


@pytest.mark.parametrize("done", [1, 2, 5, 8])
def test_fewer_or_more_parts_give_the_mean_over_those_that_came(done: int) -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, parts=4, seed=2, momentum=0.0)
    train(model, optimizer, 1)
    x, y = make_batch(1, 8)
    pieces = list(zip(x.chunk(8), y.chunk(8), strict=True))[:done]
    sets, gradients = [], []
    for some, labels in pieces:
        sets.append(optimizer.active)
        private = copy.deepcopy(model)
        private.requires_grad_(True)
        loss = F.cross_entropy(private(some), labels)
        gradients.append(torch.autograd.grad(loss, list(private.parameters())))
        (F.cross_entropy(model(some), labels) / done).backward()
    optimizer.step()
    for number, parameter in enumerate(model.parameters()):
        own = [g[number] for g, s in zip(gradients, sets, strict=True) if number // 2 in s]
        if own:
            mean = sum(own) / len(own)
            torch.testing.assert_close(optimizer.state[parameter]["momentum_buffer"], mean)


def test_steps_with_too_few_backwards_warn_once_where_it_recurs() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.01, parts=4)
    x, y = make_batch(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    messages = [str(each.message) for each in caught]
    assert len(messages) == 1
    assert "after 1 of 4 parts, 2 times in a row" in messages[0]


def test_the_last_batch_of_an_epoch_may_have_fewer_parts(recwarn: pytest.WarningsRecorder) -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.01, parts=4)
    for epoch in range(3):
        train(model, optimizer, 2, first=2 * epoch)
        x, y = make_batch(epoch)
        (F.cross_entropy(model(x), y) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not recwarn.list


def test_several_losses_of_one_part_are_one_part() -> None:
    ours, theirs = make_model(), make_model()
    two, one = DropMuon(ours, lr=0.05, parts=2), DropMuon(theirs, lr=0.05, parts=2)
    for k in range(5):
        x, y = make_batch(k)
        for some, labels in zip(x.chunk(2), y.chunk(2), strict=True):
            with two.part():
                (F.cross_entropy(ours(some), labels) / 2).backward()
                (ours(some).square().mean() / 2).backward()
            (F.cross_entropy(theirs(some), labels) + theirs(some).square().mean()).div(2).backward()
        for optimizer in (two, one):
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(point(ours), point(theirs))


def test_a_closure_may_accumulate() -> None:
    ours, theirs = make_model(), make_model()
    closed, plain = DropMuon(ours, lr=0.05, parts=4), DropMuon(theirs, lr=0.05, parts=4)
    for k in range(5):

        def closure(k: int = k) -> None:
            closed.zero_grad()
            accumulate(ours, closed, k, 4)

        closed.step(closure)
    train(theirs, plain, 5)
    torch.testing.assert_close(point(ours), point(theirs), rtol=0, atol=0)


def test_clipping_sees_the_gradient_that_is_followed() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, momentum=0.0, parts=4, policy="euclidean")
    train(model, optimizer, 1)
    accumulate(model, optimizer, 1, 4)
    total = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    buffers = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    assert total > 1e-3
    clipped = torch.stack([each.norm() for each in buffers]).norm()
    torch.testing.assert_close(clipped.item(), 1e-3, rtol=1e-3, atol=0)


def test_a_gradient_that_is_not_finite_in_one_part_skips_its_layers() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, parts=2, sampler=samplers.Shares([0.5, 0.5, 1.0, 1.0]))
    train(model, optimizer, 1)
    before = point(copy.deepcopy(model))
    x, y = make_batch(1)
    for some, labels in zip(x.chunk(2), y.chunk(2), strict=True):
        bad = len(optimizer.active) == 2
        loss = F.cross_entropy(model(some), labels)
        (loss * float("nan") if bad else loss).backward()
    optimizer.step()
    moved = [not torch.equal(old[0], new[0]) for old, new in zip(before, point(model), strict=True)]
    assert moved == [True, True, False, False]
    assert optimizer.skipped == {"4": 1, "6": 1}


def test_a_step_that_failed_in_the_middle_starts_again_after_zero_grad() -> None:
    ours, theirs = make_model(), make_model()
    hurt, plain = DropMuon(ours, lr=0.05, parts=4), DropMuon(theirs, lr=0.05, parts=4)
    train(ours, hurt, 2)
    x, y = make_batch(2)

    def fail(gradient: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    (F.cross_entropy(ours(x[:6]), y[:6]) / 4).backward()
    out = ours(x[6:12])
    out.register_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        F.cross_entropy(out, y[6:12]).backward()
    hurt.zero_grad()
    train(ours, hurt, 3, first=2)
    train(theirs, plain, 5)
    torch.testing.assert_close(point(ours), point(theirs), rtol=0, atol=0)


def test_full_inside_a_step_makes_one_part_of_all_layers() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, momentum=0.0, parts=2, sampler=Always((3,)))
    train(model, optimizer, 1)
    x, y = make_batch(1)
    private = copy.deepcopy(model).requires_grad_(True)
    (F.cross_entropy(private(x[:12]), y[:12])).backward()
    with optimizer.full():
        (F.cross_entropy(model(x[:12]), y[:12]) / 2).backward()
    (F.cross_entropy(model(x[12:]), y[12:]) / 2).backward()
    optimizer.step()
    for (name, parameter), other in zip(
        model.named_parameters(), private.parameters(), strict=True
    ):
        if not name.startswith("6"):
            buffer = optimizer.state[parameter]["momentum_buffer"]
            torch.testing.assert_close(buffer, other.grad)


def saved_bytes(model: nn.Module, run: Callable[[], None]) -> list[int]:
    """Bytes of activations that the graph of each backward has saved."""
    own = {parameter.data_ptr() for parameter in model.parameters()}
    found: list[dict[int, int]] = [{}]

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            found[-1][tensor.data_ptr()] = tensor.nbytes
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        if found[-1]:
            found.append({})  # a backward has begun
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        run()
    return [sum(each.values()) for each in found if each]


def test_the_memory_of_a_step_is_that_of_its_largest_part() -> None:
    model = make_model()
    shares = samplers.Shares([0.25, 0.25, 0.25, 1.0])
    optimizer = DropMuon(model, lr=0.01, sampler=shares, parts=4)
    train(model, optimizer, 1)
    x, y = make_batch(1)

    def in_parts() -> None:
        for some, labels in optimizer.split(x, y):
            F.cross_entropy(model(some), labels).backward()

    def at_once() -> None:
        F.cross_entropy(model(x), y).backward()

    by_part = saved_bytes(model, in_parts)
    optimizer.zero_grad()
    with optimizer.full():
        (whole,) = saved_bytes(model, at_once)
    assert len(by_part) == 4
    assert sorted(by_part)[2] < 0.5 * max(by_part)  # three parts are for the head only
    assert max(by_part) == pytest.approx(whole / 4, rel=0.02)


def test_gradients_set_by_hand_move_the_layers_of_all_parts() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, parts=2, sampler=samplers.Serial(), seed=1)
    train(model, optimizer, 1)
    before = point(copy.deepcopy(model))
    drawn = {layer for active in optimizer.active_sets for layer in active}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    after = point(model)
    moved = {i for i in range(len(after)) if not torch.equal(before[i][0], after[i][0])}
    assert moved == drawn
    assert len(drawn) == 2


@pytest.mark.parametrize("examples", [24, 22])
@pytest.mark.parametrize("done", [1, 3])
def test_a_split_that_is_left_early_gives_the_mean_over_what_came(done: int, examples: int) -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, momentum=0.0, sampler="full", parts=4)
    train(model, optimizer, 1)
    private = copy.deepcopy(model)
    x, y = make_batch(1, examples)
    seen: list[tuple[Tensor, Tensor]] = []
    for some, labels in optimizer.split(x, y):
        F.cross_entropy(model(some), labels).backward()
        seen.append((some, labels))
        if len(seen) == done:
            break
    optimizer.step()
    inputs, targets = (torch.cat(each) for each in zip(*seen, strict=True))
    private.requires_grad_(True)
    expected = torch.autograd.grad(
        F.cross_entropy(private(inputs), targets), list(private.parameters())
    )
    found = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    torch.testing.assert_close(found, list(expected))


def test_the_gradients_of_several_splits_add_up() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, parts=4, sampler=samplers.Shares([0.25, 0.5, 0.5, 1.0]))
    train(model, optimizer, 1)
    found: list[list[Tensor]] = []
    for times in (1, 2):
        for _ in range(times):
            for x, y in optimizer.split(*make_batch(1)):
                F.cross_entropy(model(x), y).backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        optimizer.zero_grad()
    torch.testing.assert_close(found[1], [2 * gradient for gradient in found[0]])


def test_a_part_that_fails_before_its_backward_is_still_to_come() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, parts=4)
    train(model, optimizer, 1)
    expected = list(optimizer.active_sets)
    with pytest.raises(RuntimeError, match="no data"), optimizer.part():
        raise RuntimeError("no data")
    assert optimizer.active == expected[0]
    assert train(model, optimizer, 1, first=1) == [expected]
