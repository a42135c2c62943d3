"""Several updates per batch: the frozen prefix runs once, and little is kept of it."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon
from tests.backward.replay_models import problem
from tests.backward.replay_runs import regression, started

# Operations


class Calls(TorchDispatchMode):
    """Counts operators."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("updates", [2, 3, 5])
@pytest.mark.parametrize("active", [(3,), (2, 3), (0, 1, 2, 3)])
def test_convolutions_of_the_frozen_prefix_run_once(active, updates):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Conv2d(2, 2, 3, padding=1) for _ in range(4)), nn.Flatten())
    optimizer, closure = started(model, regression(4, 2, 3, 3, out=18)(0), active, updates)
    with Calls() as calls:
        optimizer.step(closure)
    assert calls.counts["convolution"] == (4 - len(active)) + updates * len(active)
    assert calls.counts["convolution_backward"] == updates * len(active)


@pytest.mark.parametrize("updates", [2, 4])
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "residual", "unet", "lstm"])
def test_operations_of_the_frozen_prefix_are_counted_once(name, updates):
    """r updates cost one pass with the prefix and r - 1 without it, or r where it gave up."""

    def operations(updates, gives_up=False):
        torch.manual_seed(0)
        model, make_batch = problem(name)()
        last = len(DropMuon(model).layers) - 1
        x, y = make_batch(0)

        def loss():
            if gives_up:
                (x * 2)[:1].zero_()  # writes to a view
            return F.mse_loss(model(x), y)

        optimizer, closure = started(model, (x, y), (last,), updates, loss)
        with FlopCounterMode(display=False) as counter:
            optimizer.step(closure)
        return counter.get_total_flops()

    head = 2 * {"mlp": 240, "cnn": 480, "unet": 240, "residual": 240}.get(name, 5 * 24) * 2
    prefix = operations(1) - head
    assert prefix > 0
    assert operations(updates) == prefix + updates * head
    with pytest.warns(UserWarning, match="frozen layers are recomputed in every update"):
        assert operations(updates, gives_up=True) == updates * (prefix + head)


def test_operations_of_batch_norm_are_all_that_is_repeated_below_the_cutoff():
    torch.manual_seed(0)
    model, make_batch = problem("cnn")()
    optimizer, closure = started(model, make_batch(0), (6,), 4)
    with Calls() as calls:
        optimizer.step(closure)
    assert calls.counts["convolution"] == 3
    assert calls.counts["max_pool2d_with_indices"] == 1
    assert calls.counts["relu_"] == 3
    norms = [n for name, n in calls.counts.items() if "batch_norm" in name]
    assert sum(norms) == 3 * 4


# Memory


def new_tensor_bytes(known):
    """Return the bytes of storages that are alive and not in `known`, and all that are known now.

    Losses and states of generators are left out: they are few, and the same for any model.
    """
    gc.collect()
    found = {}
    for each in gc.get_objects():
        if type(each) in (torch.Tensor, nn.Parameter) and each.layout == torch.strided:
            storage = each.untyped_storage()
            counts = each.ndim > 0 and each.dtype != torch.uint8
            if counts and storage.nbytes() and storage.data_ptr() not in known:
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values()), set(found) | known


def kept_bytes(name, active, updates=3):
    """Bytes that the replay holds between two updates, and what a full step's graph saves."""
    torch.manual_seed(0)
    model, make_batch = problem(name)()
    x, y = make_batch(0)
    count = len(DropMuon(model).layers)
    active = tuple(range(count))[active:]
    optimizer, closure = started(model, (x, y), active, updates)
    saved = {}
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), x, y)}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with optimizer.full(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = F.mse_loss(model(x), y)
    del loss
    optimizer.zero_grad()
    held = []
    _, known = new_tensor_bytes(set())

    def watched():
        optimizer.zero_grad()
        held.append(new_tensor_bytes(known)[0])
        return closure()

    optimizer.step(watched)
    optimizer.zero_grad()
    return held, sum(saved.values()), new_tensor_bytes(known)[0]


@pytest.mark.parametrize("name", ["mlp", "cnn", "residual", "unet", "transformer", "lstm"])
def test_the_replay_keeps_no_more_than_a_full_graph_saves_and_nothing_afterwards(name):
    held, full, after = kept_bytes(name, -1)
    assert held[0] == 0
    assert held[1] > 0
    assert max(held) <= full
    assert after == 0


def test_a_chain_keeps_the_one_activation_that_enters_the_cutoff():
    held, _, after = kept_bytes("mlp", -1, updates=3)
    activation = 10 * 8 * 4
    assert held == [0, activation, activation]
    assert after == 0
