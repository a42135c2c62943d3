"""What backward skips: freezing is real, exact, and never against the user's wishes."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dropmuon import DropMuon, samplers
from tests.fixed_set import Always
from tests.models import PROBLEMS


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def take(optimizer, model, batch, loss):
    value = loss(model, batch)
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
    return value.item()


def started(name, active, **options):
    """A problem after its first, full step: frozen but for the active layers."""
    model, make_batch, loss = PROBLEMS[name]()
    optimizer = DropMuon(model, lr=0.01, sampler=Always(active), **options)
    take(optimizer, model, make_batch(0), loss)
    assert optimizer.active == active
    return model, make_batch, loss, optimizer


def parameters_of(optimizer):
    """Parameters by layer."""
    found = [[] for _ in optimizer.layers]
    for group in optimizer.param_groups:
        found[optimizer.layers.index(group["layer"])] += group["params"]
    return found


def values(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def flags(model):
    return {name: p.requires_grad for name, p in model.named_parameters()}


def leaves_of_graph(loss):
    """Parameters that the backward of a loss would write gradients to."""
    seen, stack, leaves = set(), [loss.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        stack += [following for following, _ in node.next_functions]
    return leaves


@contextmanager
def saved_bytes(model):
    """Bytes of the distinct tensors that the graph saves, beside parameters and buffers."""
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    count = {}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield count
    count["bytes"] = sum(found.values())


MODELS = ["mlp", "cnn", "transformer"]
COUNTS = {name: len(DropMuon(PROBLEMS[name]()[0]).layers) for name in (*MODELS, "residual", "unet")}
CUTOFFS = [(name, cutoff) for name in MODELS for cutoff in range(COUNTS[name])]


# Below the cutoff there is nothing


@pytest.mark.parametrize(("name", "cutoff"), CUTOFFS)
def test_the_graph_holds_the_active_layers_and_no_other(name, cutoff):
    active = tuple(range(cutoff, COUNTS[name]))
    model, make_batch, loss, optimizer = started(name, active)
    value = loss(model, make_batch(1))
    layers = parameters_of(optimizer)
    assert leaves_of_graph(value) == {id(p) for i in active for p in layers[i]}
    value.backward()
    for i, members in enumerate(layers):
        for parameter in members:
            assert (parameter.grad is not None) == (i in active), optimizer.layers[i]
            assert parameter.requires_grad == (i in active)


@pytest.mark.parametrize(("name", "cutoff"), [(n, c) for n, c in CUTOFFS if n in ("mlp", "cnn")])
def test_activations_below_the_cutoff_have_no_history(name, cutoff):
    model, make_batch, loss, optimizer = started(name, tuple(range(cutoff, COUNTS[name])))
    border = list(model).index(model.get_submodule(optimizer.layers[cutoff]))
    seen = {}

    def note(place):
        return lambda module, args, output: seen.__setitem__(place, output)

    for place, module in enumerate(model):
        module.register_forward_hook(note(place))
    loss(model, make_batch(1))
    assert len(seen) == len(model)
    for place, output in seen.items():
        if place < border:
            assert output.requires_grad is False
            assert output.grad_fn is None
        else:
            assert output.grad_fn is not None


def test_activations_of_a_transformer_below_the_cutoff_have_no_history():
    names = DropMuon(PROBLEMS["transformer"]()[0]).layers
    cutoff = names.index("blocks.1.norm1")
    model, make_batch, loss, _ = started("transformer", tuple(range(cutoff, len(names))))
    seen = {}
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda module, args, output, name=name: seen.__setitem__(name, output)
        )
    loss(model, make_batch(1))
    below = [name for name in seen if name.startswith(("blocks.0", "token", "position"))]
    assert len(below) > 5
    assert all(seen[name].grad_fn is None and not seen[name].requires_grad for name in below)
    assert all(seen[name].grad_fn is not None for name in ("blocks.1", "head"))


class Detaching(nn.Sequential):
    """A sequence in which a hand placed a detach before one item, and no_grad below it."""

    cutoff = 0

    def forward(self, x):
        with torch.no_grad():
            for module in list(self)[: self.cutoff]:
                x = module(x)
        x = x.detach()
        for module in list(self)[self.cutoff :]:
            x = module(x)
        return x


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_saved_bytes_fall_with_the_cutoff_and_equal_those_of_a_detach(name):
    counts = []
    for cutoff in range(COUNTS[name]):
        model, make_batch, loss, optimizer = started(name, tuple(range(cutoff, COUNTS[name])))
        batch = make_batch(1)
        with saved_bytes(model) as ours:
            loss(model, batch)
        by_hand = Detaching(*model)
        by_hand.cutoff = int(optimizer.layers[cutoff])
        with saved_bytes(by_hand) as theirs:
            loss(by_hand, batch)
        assert ours == theirs
        counts.append(ours["bytes"])
    assert sorted(set(counts), reverse=True) == counts


def test_saved_bytes_of_a_transformer_fall_with_every_block():
    names = DropMuon(PROBLEMS["transformer"]()[0], by="block").layers
    counts = []
    for cutoff in range(len(names)):
        model, make_batch, loss, _ = started(
            "transformer", tuple(range(cutoff, len(names))), by="block"
        )
        with saved_bytes(model) as count:
            loss(model, make_batch(1))
        counts.append(count["bytes"])
    assert all(above < below for below, above in pairwise(counts))
    assert counts[-1] < counts[0] / 4


SETS = {
    "serial": samplers.Serial(),
    "nice": samplers.Nice(2),
    "partition": samplers.Partition([(0, 2), (1,)]),
    "progressive": samplers.Progressive(),
}


@pytest.mark.parametrize("sampler", SETS.values(), ids=SETS)
@pytest.mark.parametrize("name", ["mlp"])
def test_above_the_cutoff_inactive_layers_get_no_gradient_and_do_not_move(name, sampler):
    model, make_batch, loss = PROBLEMS[name]()
    optimizer = DropMuon(model, lr=0.01, sampler=sampler)
    layers = parameters_of(optimizer)
    drawn = set()
    for step in range(25):
        active, before = optimizer.active, values(model)
        loss(model, make_batch(step)).backward()
        for i, members in enumerate(layers):
            assert all((p.grad is not None) == (i in active) for p in members)
        optimizer.step()
        optimizer.zero_grad()
        for key, value in model.state_dict().items():
            moved = not torch.equal(value, before[key])
            assert moved == (optimizer.layers.index(key.split(".")[0]) in active)
        drawn.add(active)
    assert drawn == {(0, 1, 2), *sampler.support(3)}


# Active gradients are exact


class Branches(nn.Module):
    """Three branches of unequal depth, summed, with one fed by another."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(5, 6)
        self.left = nn.Linear(6, 6)
        self.right = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.direct = nn.Linear(5, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        stem = torch.tanh(self.stem(x))
        left = self.left(stem)
        return self.head(left + self.right(stem * left) + self.direct(x))


def branches():
    torch.manual_seed(3)
    _, make_batch, loss = PROBLEMS["mlp"]()
    return Branches().double(), make_batch, loss


EXACT = {**{name: PROBLEMS[name] for name in (*MODELS, "residual", "unet")}, "branches": branches}


@pytest.mark.parametrize("order", ["forward", "wrong"])
@pytest.mark.parametrize("name", EXACT)
def test_gradients_of_active_layers_equal_those_of_a_full_backward(name, order):
    model, make_batch, loss = EXACT[name]()
    owners = list(DropMuon(model).layers)
    if order == "wrong":
        np.random.default_rng(0).shuffle(owners)
    rank = {owner: n for n, owner in enumerate(owners)}
    by_owner = sorted(model.named_parameters(), key=lambda item: rank[item[0].rpartition(".")[0]])
    optimizer = DropMuon(by_owner, lr=0.01, sampler=samplers.Nice(2), seed=1)
    assert list(optimizer.layers) == owners
    for step in range(8):
        batch = make_batch(step)
        twin = copy.deepcopy(model).requires_grad_(True)
        loss(twin, batch).backward()
        loss(model, batch).backward()
        active = {optimizer.layers[i] for i in optimizer.active}
        for (key, mine), other in zip(model.named_parameters(), twin.parameters(), strict=True):
            if key.rpartition(".")[0] in active:
                assert torch.equal(mine.grad, other.grad), key
            else:
                assert mine.grad is None, key
        optimizer.step()
        optimizer.zero_grad()


# The user's own wishes


@pytest.mark.parametrize("truncate", [True, False])
def test_what_the_user_froze_is_never_unfrozen_nor_moved(truncate):
    model, make_batch, loss = PROBLEMS["residual"]()
    model.blocks[1].requires_grad_(False)
    model.head.bias.requires_grad_(False)
    wished = flags(model)
    frozen = [name for name, wanted in wished.items() if not wanted]
    before = values(model)
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Nice(2), truncate=truncate)
    for step in range(15):
        now = flags(model)
        assert not any(now[name] for name in frozen)
        take(optimizer, model, make_batch(step), loss)
        with optimizer.full():
            assert flags(model) == wished
    after = values(model)
    for name in wished:
        assert torch.equal(before[name], after[name]) == (name in frozen), name
    del optimizer
    gc.collect()
    assert flags(model) == wished


@pytest.mark.parametrize("active", [(0,), (1, 2)])
def test_a_wish_made_inside_full_counts_from_then_on(active):
    model, make_batch, loss, optimizer = started("mlp", active)
    with optimizer.full():
        assert all(flags(model).values())
        model[2].weight.requires_grad_(False)
    before = values(model)
    optimizer.draws.sampler = samplers.Full()
    for step in range(3):
        take(optimizer, model, make_batch(step), loss)
        assert model[2].weight.requires_grad is False
    after = values(model)
    assert torch.equal(after["2.weight"], before["2.weight"])
    assert not torch.equal(after["2.bias"], before["2.bias"])
    with optimizer.full():
        model[2].weight.requires_grad_(True)
    take(optimizer, model, make_batch(3), loss)
    assert not torch.equal(model[2].weight, before["2.weight"])


def test_a_direct_wish_about_an_active_parameter_counts_from_then_on():
    model, make_batch, loss, optimizer = started("mlp", (1, 2))
    model[2].weight.requires_grad_(False)
    before = model[2].weight.detach().clone()
    for step in range(4):
        take(optimizer, model, make_batch(step), loss)
    assert torch.equal(model[2].weight, before)
    model[2].weight.requires_grad_(True)
    for step in range(2):
        take(optimizer, model, make_batch(step), loss)
    assert not torch.equal(model[2].weight, before)


def test_a_parameter_that_was_frozen_from_the_start_may_be_unfrozen_directly():
    model, make_batch, loss = PROBLEMS["mlp"]()
    model[2].weight.requires_grad_(False)
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial(), seed=4)
    for step in range(4):
        take(optimizer, model, make_batch(step), loss)
    before = model[2].weight.detach().clone()
    model[2].weight.requires_grad_(True)
    for step in range(4, 20):
        take(optimizer, model, make_batch(step), loss)
    assert not torch.equal(model[2].weight, before)


def test_toggling_a_whole_model_off_and_on_again_changes_nothing_that_is_trained():
    """As adversarial training does with the network that rests."""
    runs = []
    for toggles in (False, True):
        model, make_batch, loss = PROBLEMS["mlp"]()
        optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial())
        for step in range(10):
            if toggles:
                model.requires_grad_(False)
                loss(model, make_batch(step))
                model.requires_grad_(True)
            take(optimizer, model, make_batch(step), loss)
        runs.append(values(model))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


# full()


def test_full_shows_everything_inside_nests_and_puts_back():
    model, make_batch, loss, optimizer = started("mlp", (2,))
    outside = flags(model)
    assert outside == {name: name.startswith("4") for name in outside}
    with optimizer.full():
        assert optimizer.active == (0, 1, 2)
        with optimizer.full():
            assert all(flags(model).values())
        assert all(flags(model).values())
        assert len(leaves_of_graph(loss(model, make_batch(1)))) == 6
    assert flags(model) == outside
    assert optimizer.active == (2,)


def test_full_puts_back_when_its_body_raises():
    model, make_batch, loss, optimizer = started("mlp", (2,))
    outside = flags(model)

    def body():
        with optimizer.full(), optimizer.full():
            raise KeyError("x")

    with pytest.raises(KeyError):
        body()
    assert flags(model) == outside
    assert optimizer.active == (2,)
    take(optimizer, model, make_batch(1), loss)


def test_a_step_inside_full_moves_everything():
    model, make_batch, loss, optimizer = started("mlp", (2,))
    before = values(model)
    with optimizer.full():
        take(optimizer, model, make_batch(1), loss)
    assert all(not torch.equal(before[name], value) for name, value in values(model).items())
    assert optimizer.active == (2,)
    assert flags(model)["0.weight"] is False


# After an exception


def moves_every_layer(optimizer, model, make_batch, loss, steps=15):
    before = values(model)
    for step in range(steps):
        take(optimizer, model, make_batch(step), loss)
    return all(not torch.equal(before[name], value) for name, value in values(model).items())


def failing_forward(model, make_batch, loss):
    handle = model[2].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss(model, make_batch(0))
    handle.remove()


def failing_backward(model, make_batch, loss):
    with torch.enable_grad():
        value = loss(model, make_batch(0))
    value.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        value.backward()


@pytest.mark.parametrize("fail", [failing_forward, failing_backward])
@pytest.mark.parametrize("when", [0, 1, 4])
def test_after_a_failed_pass_training_goes_on_as_if_it_had_not_been(fail, when):
    runs = []
    for fails in (False, True):
        model, make_batch, loss = PROBLEMS["mlp"]()
        optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial())
        for step in range(15):
            if fails and step == when:
                fail(model, make_batch, loss)
                optimizer.zero_grad()
            take(optimizer, model, make_batch(step), loss)
        runs.append(values(model))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.parametrize("when", [0, 3])
def test_a_step_that_raises_moves_nothing_and_training_goes_on(when):
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial(), error_if_nonfinite=True)
    for step in range(when):
        take(optimizer, model, make_batch(step), loss)
    active, before, shown = optimizer.active, values(model), flags(model)
    (loss(model, make_batch(0)) * float("nan")).backward()
    with pytest.raises(RuntimeError, match="not finite; nothing moved"):
        optimizer.step()
    optimizer.zero_grad()
    assert (optimizer.active, flags(model)) == (active, shown)
    assert all(torch.equal(before[name], value) for name, value in values(model).items())
    assert moves_every_layer(optimizer, model, make_batch, loss)


def test_a_closure_that_raises_leaves_the_optimizer_usable():
    model, make_batch, loss, optimizer = started("mlp", (1,))
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert optimizer.active == (1,)
    optimizer.draws.sampler = samplers.Serial()
    assert moves_every_layer(optimizer, model, make_batch, loss)


# Copies, files, evaluation


def run(steps, between=lambda model, optimizer: (model, optimizer), **options):
    model, make_batch, loss = PROBLEMS["cnn"]()
    optimizer = DropMuon(model, lr=0.01, **{"sampler": samplers.Serial(), **options})
    for step in range(steps):
        take(optimizer, model, make_batch(step), loss)
        model, optimizer = between(model, optimizer)
    return values(model), optimizer


def evaluated(model, optimizer):
    _, make_batch, loss = PROBLEMS["cnn"]()
    model.eval()
    with torch.no_grad():
        loss(model, make_batch(99))
    with optimizer.full():
        loss(model, make_batch(98))
    model.train()
    return model, optimizer


def deep_copied(model, optimizer):
    return copy.deepcopy((model, optimizer))


def pickled(model, optimizer):
    return pickle.loads(pickle.dumps((model, optimizer)))


def saved_beside(model, optimizer):
    torch.save(model, io.BytesIO())
    torch.save(model.state_dict(), io.BytesIO())
    torch.save(optimizer.state_dict(), io.BytesIO())
    return model, optimizer


def looked_at(model, optimizer):
    assert str(optimizer)
    assert repr(optimizer)
    return model, optimizer


BETWEEN = [evaluated, deep_copied, pickled, saved_beside, looked_at]


@pytest.mark.parametrize("between", BETWEEN)
def test_what_happens_between_steps_leaves_no_trace(between):
    plain, optimizer = run(10)
    other, twin = run(10, between)
    assert optimizer.active == twin.active
    assert all(torch.equal(plain[name], other[name]) for name in plain)


def test_a_copied_pair_trains_apart_from_the_original():
    model, make_batch, loss, optimizer = started("mlp", (1,))
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    before = values(model)
    for step in range(3):
        take(twin_optimizer, twin, make_batch(step), loss)
    assert all(torch.equal(before[name], value) for name, value in values(model).items())
    assert not torch.equal(twin[2].weight, model[2].weight)
    shown = flags(model)
    del twin_optimizer
    gc.collect()
    assert all(flags(twin).values())
    assert flags(model) == shown


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "duplicate",
    [lambda model: model, copy.deepcopy, saved_and_loaded, copy.copy],
    ids=["itself", "deepcopy", "torch.save", "copy"],
)
def test_a_second_optimizer_on_a_model_in_mid_training_sees_everything_trainable(duplicate):
    model, make_batch, loss, optimizer = started("mlp", (2,))
    assert not model[0].weight.requires_grad
    twin = duplicate(model)
    second = DropMuon(twin, lr=0.01, sampler=samplers.Serial())
    assert second.layers == optimizer.layers
    assert all(flags(twin).values())
    assert moves_every_layer(second, twin, make_batch, loss)


def test_a_second_optimizer_leaves_what_the_user_froze():
    model, make_batch, loss = PROBLEMS["mlp"]()
    model[2].requires_grad_(False)
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial())
    for step in range(3):
        take(optimizer, model, make_batch(step), loss)
    assert DropMuon(model).layers == ("0", "4")
    assert model[2].weight.requires_grad is False


# The end of an optimizer


def test_flags_are_the_users_again_when_the_optimizer_is_gone():
    model, make_batch, loss = PROBLEMS["mlp"]()
    model[0].bias.requires_grad_(False)
    wished = flags(model)
    optimizer = DropMuon(model, lr=0.01, sampler=Always((2,)))
    take(optimizer, model, make_batch(0), loss)
    assert flags(model) != wished
    del optimizer
    gc.collect()
    assert flags(model) == wished
    assert all(not vars(p) for p in model.parameters())


def test_a_wish_made_after_a_group_was_added_outlives_the_optimizer():
    model, make_batch, loss, optimizer = started("mlp", (2,))
    late = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer.add_param_group({"params": [("late", late)], "layer": "new"})
    with optimizer.full():
        model[0].weight.requires_grad_(False)
    take(optimizer, model, make_batch(1), lambda *given: loss(*given) + late.sum())
    del optimizer
    gc.collect()
    assert flags(model) == {name: name != "0.weight" for name in flags(model)}


# truncate=False


def test_without_truncation_all_gradients_are_computed_and_only_active_layers_move():
    model, make_batch, loss = PROBLEMS["mlp"]()
    truncated = copy.deepcopy(model)
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial(), truncate=False)
    twin = DropMuon(truncated, lr=0.01, sampler=samplers.Serial())
    for step in range(10):
        active, before = optimizer.active, values(model)
        loss(model, make_batch(step)).backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        take(twin, truncated, make_batch(step), loss)
        for key, value in model.state_dict().items():
            held = optimizer.layers.index(key.split(".")[0]) not in active
            assert torch.equal(value, before[key]) == held
            assert torch.equal(value, truncated.state_dict()[key])


# The habits of training loops


def test_accumulated_gradients_equal_one_large_batch():
    model, make_batch, loss = PROBLEMS["mlp"]()
    whole = copy.deepcopy(model)
    ours = DropMuon(model, lr=0.01, sampler=samplers.Serial(), orthogonalize="svd")
    theirs = DropMuon(whole, lr=0.01, sampler=samplers.Serial(), orthogonalize="svd")
    for step in range(8):
        parts = [make_batch(100 * step + n) for n in range(3)]
        for part in parts:
            active = ours.active
            (loss(model, part) / 3).backward()
            assert ours.active == active
        ours.step()
        ours.zero_grad()
        joined = tuple(torch.cat(items) for items in zip(*parts, strict=True))
        take(theirs, whole, joined, loss)
    for mine, other in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-10)


def test_clipping_sees_the_active_gradients_only():
    model, make_batch, loss, optimizer = started("mlp", (1,), policy="euclidean")
    loss(model, make_batch(1)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(gradients) == 2
    total = torch.stack([g.norm() for g in gradients]).norm()
    torch.testing.assert_close(total, torch.tensor(1e-3).double(), rtol=1e-3, atol=0)
    assert norm > total
    optimizer.step()
    optimizer.zero_grad()
    take(optimizer, model, make_batch(2), loss)


def test_a_grad_scaler_scales_skips_and_goes_on():
    model, make_batch, loss = PROBLEMS["mlp"](dtype=torch.float32)
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = values(model)
    for step in range(20):
        bad = step in (0, 5)
        active, held = optimizer.active, values(model)
        value = loss(model, make_batch(step)) * (float("inf") if bad else 1.0)
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if bad:
            assert optimizer.active == active
            assert all(torch.equal(held[name], value) for name, value in values(model).items())
    assert scaler.get_scale() == 2.0**8
    after = values(model)
    assert all(not torch.equal(before[name], after[name]) for name in after)
    assert all(torch.isfinite(value).all() for value in after.values())


def test_a_lambda_schedule_sets_the_length_of_each_step():
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial(), policy="euclidean")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for step in range(8):
        active, before = optimizer.active, values(model)
        take(optimizer, model, make_batch(step), loss)
        schedule.step()
        for i in active:
            name = f"{optimizer.layers[i]}.weight"
            length = (model.state_dict()[name] - before[name]).norm()
            assert length == pytest.approx(0.1 / (1 + step), rel=1e-9)


def test_one_cycle_moves_rate_and_momentum_of_every_group():
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial())
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.05, total_steps=12, base_momentum=0.4, max_momentum=0.8
    )
    seen = []
    for step in range(11):
        take(optimizer, model, make_batch(step), loss)
        seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        assert len({(g["lr"], g["momentum"]) for g in optimizer.param_groups}) == 1
        schedule.step()
    rates, momenta = zip(*seen, strict=True)
    assert max(rates) == pytest.approx(0.05, rel=0.1)
    assert momenta[0] == pytest.approx(0.8)
    assert min(momenta) == pytest.approx(0.4, rel=0.1)


def test_the_cycled_momentum_is_the_one_that_is_used():
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.0, momentum=0.5, sampler="full")
    loss(model, make_batch(0)).backward()
    optimizer.step()
    old = model[0].weight.grad.clone()
    for group in optimizer.param_groups:
        group["momentum"] = 0.25
    optimizer.zero_grad()
    loss(model, make_batch(1)).backward()
    optimizer.step()
    expected = 0.25 * old + 0.75 * model[0].weight.grad
    torch.testing.assert_close(optimizer.state[model[0].weight]["momentum_buffer"], expected)


def test_maximize_is_minimising_the_negative_loss():
    down, make_batch, loss = PROBLEMS["mlp"]()
    up = copy.deepcopy(down)
    minimise = DropMuon(down, lr=0.01, sampler=samplers.Serial())
    maximise = DropMuon(up, lr=0.01, sampler=samplers.Serial(), maximize=True)
    for step in range(6):
        take(minimise, down, make_batch(step), loss)
        take(maximise, up, make_batch(step), lambda model, batch: -loss(model, batch))
    assert all(torch.equal(values(down)[name], value) for name, value in values(up).items())


def test_a_closure_is_one_pass_and_its_loss_is_returned():
    plain, make_batch, loss = PROBLEMS["mlp"]()
    closed = copy.deepcopy(plain)
    ours = DropMuon(closed, lr=0.01, sampler=samplers.Serial())
    theirs = DropMuon(plain, lr=0.01, sampler=samplers.Serial())
    for step in range(6):
        batch, calls = make_batch(step), []

        def closure(batch=batch, calls=calls):
            calls.append(1)
            ours.zero_grad()
            value = loss(closed, batch)
            value.backward()
            return value

        returned = ours.step(closure)
        assert len(calls) == 1
        assert returned.item() == take(theirs, plain, batch, loss)
    assert all(torch.equal(values(plain)[name], value) for name, value in values(closed).items())


def test_a_step_without_a_gradient_moves_nothing_and_says_so():
    model, make_batch, loss, optimizer = started("mlp", (1,))
    before = values(model)
    with pytest.warns(UserWarning, match="found no gradient"):
        optimizer.step()
    loss(model, make_batch(1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    moved = values(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert all(torch.equal(moved[name], value) for name, value in values(model).items())
    assert not torch.equal(before["2.weight"], moved["2.weight"])


# Groups that come later


def test_an_added_layer_makes_the_next_step_full_and_moves():
    model, make_batch, _, optimizer = started("mlp", (1,))
    late = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [("late.shift", late)]})
    assert optimizer.layers == ("0", "2", "4", "late")
    assert optimizer.active == (0, 1, 2, 3)
    assert all(flags(model).values())
    before = values(model)
    shifted = lambda model, batch: nn.functional.mse_loss(model(batch[0]) + late, batch[1])  # noqa: E731
    take(optimizer, model, make_batch(1), shifted)
    assert all(not torch.equal(before[name], value) for name, value in values(model).items())
    assert late.abs().sum() > 0
    assert optimizer.active == (1,)
    assert late.requires_grad is False


def test_an_added_group_may_join_a_layer():
    model, make_batch, loss, optimizer = started("mlp", (1,))
    gain = nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer.add_param_group({"params": [("2.gain", gain)], "layer": "2"})
    assert optimizer.layers == ("0", "2", "4")
    scaled = lambda model, batch: gain * loss(model, batch)  # noqa: E731
    take(optimizer, model, make_batch(1), scaled)
    take(optimizer, model, make_batch(2), scaled)
    assert gain.requires_grad
    assert optimizer.state[gain]["updates"] == 2


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"layer": "new"}, "probabilities"),
        ({"layer": "0", "lr": -1.0}, "lr must be"),
        ({"layer": "0", "norm": "spectrall"}, "did you mean"),
        ({"layer": "0", "momentum": 2.0}, "momentum must be"),
    ],
)
def test_a_group_that_does_not_fit_is_a_clear_error_and_changes_nothing(group, message):
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial([0.2, 0.3, 0.5]))
    for step in range(3):
        take(optimizer, model, make_batch(step), loss)
    active, shown, text = optimizer.active, flags(model), str(optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [("w", nn.Parameter(torch.ones(2)))], **group})
    assert (optimizer.active, flags(model), str(optimizer)) == (active, shown, text)
    assert len(optimizer.state_dict()["param_groups"]) == len(saved["param_groups"])
    assert optimizer.state_dict()["dropmuon"] == saved["dropmuon"]
    assert moves_every_layer(optimizer, model, make_batch, loss)


# Checkpointing and compilation


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(5, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)) for _ in range(3)
        )
        self.head = nn.Linear(6, 3)
        self.saves_memory = True

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            saving = self.saves_memory
            x = x + (checkpoint(block, x, use_reentrant=False) if saving else block(x))
        return self.head(x)


def test_checkpointed_blocks_train_as_plain_ones_do():
    torch.manual_seed(5)
    plain = Checkpointed().double()
    saving = copy.deepcopy(plain)
    plain.saves_memory = False
    _, make_batch, loss = PROBLEMS["mlp"]()
    ours = DropMuon(saving, lr=0.01, sampler=samplers.Serial())
    theirs = DropMuon(plain, lr=0.01, sampler=samplers.Serial())
    before, drawn = values(saving), set()
    for step in range(50):
        drawn.add(ours.active)
        assert take(ours, saving, make_batch(step), loss) == take(
            theirs, plain, make_batch(step), loss
        )
    assert len(drawn) == 9
    after = values(saving)
    assert all(torch.equal(values(plain)[name], value) for name, value in after.items())
    assert all(not torch.equal(before[name], after[name]) for name in after)


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("what", ["model", "blocks"])
def test_compiled_models_train_as_eager_ones_do(what):
    eager, make_batch, loss = PROBLEMS["residual"]()
    compiled = copy.deepcopy(eager)
    called = compiled
    if what == "model":
        called = torch.compile(compiled, backend="eager")
    else:
        for block in compiled.blocks:
            block.compile(backend="eager")
    ours = DropMuon(called, lr=0.01, sampler=samplers.Progressive(), by="block")
    theirs = DropMuon(eager, lr=0.01, sampler=samplers.Progressive(), by="block")
    drawn = set()
    for step in range(20):
        drawn.add(ours.active)
        assert ours.active == theirs.active
        batch = make_batch(step)
        value = loss(called, batch)
        value.backward()
        loss(eager, batch).backward()
        for mine, other in zip(compiled.parameters(), eager.parameters(), strict=True):
            assert mine.requires_grad == other.requires_grad
            assert (mine.grad is None) == (other.grad is None)
            if mine.grad is not None:
                torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-12)
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    assert len(drawn) > 3
    for mine, other in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-10)
