"""Several updates per batch: equal to recomputing to the bit, and the frozen prefix runs once."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon, samplers
from tests.fixed_set import Always
from tests.models import PROBLEMS

F = nn.functional


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@dataclass
class Outcome:
    """All that a run may leave behind."""

    tensors: dict
    losses: list
    random: torch.Tensor
    messages: list
    model: nn.Module
    optimizer: DropMuon


def train(make, sampler, recompute, *, steps=5, turns=3, wrap=lambda model: model, loss=None):
    """Run a problem; `make()` gives a model and the batch of step k, `loss` the loss of both."""
    torch.manual_seed(7)
    np.random.seed(7)
    model, make_batch = make()
    called = wrap(model)
    optimizer = DropMuon(
        called, lr=0.02, sampler=sampler, updates_per_batch=turns, policy="euclidean", seed=2
    )
    if recompute:
        optimizer._obstacle = "a test"
    loss = loss or (lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))
    losses = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            batch = make_batch(step)

            def closure(batch=batch):
                optimizer.zero_grad()
                value = loss(called, batch)
                value.backward()
                losses.append(value.detach().clone())
                return value

            returned = optimizer.step(closure)
            assert torch.equal(returned.detach(), losses[step * turns])
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"state.{name}.{key}"] = torch.as_tensor(value)
    messages = [str(each.message) for each in caught]
    return Outcome(tensors, losses, torch.get_rng_state(), messages, model, optimizer)


def assert_equal(ours, theirs):
    assert ours.tensors.keys() == theirs.tensors.keys()
    for step, (mine, other) in enumerate(zip(ours.losses, theirs.losses, strict=True)):
        assert torch.equal(mine, other), f"loss of call {step}: {mine} and {other}"
    for name, value in ours.tensors.items():
        assert type(value) in (torch.Tensor, nn.Parameter), name
        assert torch.equal(value, theirs.tensors[name]), name
    assert torch.equal(ours.random, theirs.random)


def assert_exact(make, sampler, message=None, **options):
    """Replay and recomputation agree; what the replay says, it says once."""
    ours = train(make, sampler, recompute=False, **options)
    theirs = train(make, sampler, recompute=True, **options)
    assert_equal(ours, theirs)
    forced = "updates_per_batch: frozen layers are recomputed in every update, as a test"
    assert [m for m in theirs.messages if m.startswith("updates_per_batch")] == [forced]
    told = [m for m in ours.messages if m.startswith("updates_per_batch")]
    assert len(told) == len(set(told))
    if message is None:
        assert told == []
    else:
        assert len(told) == 1
        assert message in told[0]
    return ours


def regression(*shape, out=3):
    def make_batch(step):
        generator = torch.Generator().manual_seed(step)
        return torch.randn(shape, generator=generator), torch.randn(
            shape[0], out, generator=generator
        )

    return make_batch


# Models


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(inplace=True)) for _ in range(3)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class InPlaceResidual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)) for _ in range(3)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            skip, x = x, block(x)
            x += skip
        x *= 2
        return self.head(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.downs = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)])
        self.middle = nn.Linear(8, 8)
        self.ups = nn.ModuleList([nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(16, 8)])
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = F.gelu(down(x))
            skips.append(x)
        x = F.gelu(self.middle(x))
        for up in self.ups:
            x = F.gelu(up(torch.cat([x, skips.pop()], -1)))
        return self.head(x)


class Transformer(nn.Module):
    def __init__(self, dropout=0.2):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, 8))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 12, dropout=dropout, batch_first=True)
            for _ in range(3)
        )
        self.mix = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.embed(x)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        x = x + self.mix(x, x, x)[0]
        return self.head(x[:, 0])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.LSTM(6, 8, num_layers=2, batch_first=True, dropout=0.3)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        states, (last, _) = self.front(x)
        return self.head(torch.tanh(self.hidden(states[:, -1] + last[-1])))


def mlp():
    sizes = [6, 8, 8, 8]
    hidden = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(8, 3))


def cnn(momentum):
    def stage(a, b):
        conv = nn.Conv2d(a, b, 3, padding=1)
        norm = nn.BatchNorm2d(b, momentum=momentum)
        return [conv, norm, nn.ReLU(inplace=True), nn.Dropout(0.2)]

    stages = [*stage(2, 4), *stage(4, 5), nn.MaxPool2d(2), *stage(5, 4)]
    return nn.Sequential(*stages, nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(16, 3))


def normed(kind):
    def layer(a, b):
        return kind(nn.Linear(a, b))

    return nn.Sequential(layer(6, 8), nn.ReLU(), layer(8, 8), nn.ReLU(), layer(8, 3))


FAMILY = {
    "mlp": (mlp, (10, 6)),
    "cnn": (lambda: cnn(0.1), (10, 2, 4, 4)),
    "cnn, cumulative": (lambda: cnn(None), (10, 2, 4, 4)),
    "transformer": (Transformer, (5, 4, 6)),
    "residual": (Residual, (10, 6)),
    "residual in place": (InPlaceResidual, (10, 6)),
    "unet": (UNet, (10, 6)),
    "lstm": (Recurrent, (5, 4, 6)),
    "weight norm": (lambda: normed(nn.utils.parametrizations.weight_norm), (10, 6)),
    "spectral norm": (lambda: normed(nn.utils.parametrizations.spectral_norm), (10, 6)),
}
SAMPLERS = {
    "progressive": samplers.Progressive(),
    "serial": samplers.Serial(),
    "nice": samplers.Nice(2),
    "full": samplers.Full(),
}


def problem(name):
    build, shape = FAMILY[name]
    return lambda: (build(), regression(*shape))


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("name", FAMILY)
def test_replaying_equals_recomputing_to_the_bit(name, sampler):
    ours = train(problem(name), sampler, recompute=False, steps=6)
    theirs = train(problem(name), sampler, recompute=True, steps=6)
    assert_equal(ours, theirs)
    assert len({each.item() for each in ours.losses}) > 6


@pytest.mark.parametrize("name", ["mlp", "cnn", "residual", "transformer", "unet", "lstm"])
def test_plain_models_are_replayed_without_a_word(name):
    assert_exact(problem(name), samplers.Serial(), steps=6)


@pytest.mark.parametrize("name", ["cnn", "cnn, cumulative"])
def test_batch_statistics_are_accumulated_in_every_update(name):
    outcome = train(problem(name), Always((6,)), recompute=False, steps=3, turns=4)
    counts = [v for n, v in outcome.tensors.items() if n.endswith("num_batches_tracked")]
    assert [int(count) for count in counts] == [12, 12, 12]


@pytest.mark.parametrize("name", PROBLEMS)
def test_stock_problems_are_replayed_exactly(name):
    def make():
        model, make_batch, _ = PROBLEMS[name]()
        return model, make_batch

    assert_exact(make, samplers.Progressive(), loss=PROBLEMS[name]()[2])


def test_updates_of_one_batch_are_updates_in_a_row():
    """Without randomness and statistics, three updates on a batch are three steps on it."""
    torch.manual_seed(0)
    model, make_batch = mlp(), regression(10, 6)
    twin = copy.deepcopy(model)
    kept = samplers.Serial()
    ours = DropMuon(model, lr=0.02, sampler=kept, updates_per_batch=3)
    theirs = DropMuon(twin, lr=0.02, sampler=kept)
    for step in range(6):
        x, y = make_batch(step)

        def closure(x=x, y=y):
            ours.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        active = ours.active
        ours.step(closure)
        for _ in range(3):
            theirs.activate(active)
            theirs.zero_grad()
            F.mse_loss(twin(x), y).backward()
            theirs.step()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, other)


# What is saved


class Calls(TorchDispatchMode):
    """Counts operators."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def started(model, batch, active, turns, loss=None, **options):
    """An optimizer after its full step, and a closure for the next."""
    optimizer = DropMuon(
        model,
        lr=0.02,
        sampler=Always(active),
        updates_per_batch=turns,
        policy="euclidean",
        **options,
    )
    loss = loss or (lambda: F.mse_loss(model(batch[0]), batch[1]))

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    assert optimizer.active == active
    return optimizer, closure


@pytest.mark.parametrize("turns", [2, 3, 5])
@pytest.mark.parametrize("active", [(3,), (2, 3), (0, 1, 2, 3)])
def test_convolutions_of_the_frozen_prefix_run_once(active, turns):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Conv2d(2, 2, 3, padding=1) for _ in range(4)), nn.Flatten())
    optimizer, closure = started(model, regression(4, 2, 3, 3, out=18)(0), active, turns)
    with Calls() as calls:
        optimizer.step(closure)
    assert calls.counts["convolution"] == (4 - len(active)) + turns * len(active)
    assert calls.counts["convolution_backward"] == turns * len(active)


@pytest.mark.parametrize("turns", [2, 4])
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "residual", "unet", "lstm"])
def test_operations_of_the_frozen_prefix_are_counted_once(name, turns):
    """r updates cost one pass with the prefix and r - 1 without it."""

    def operations(turns, recompute=False):
        torch.manual_seed(0)
        model, make_batch = problem(name)()
        last = len(DropMuon(model).layers) - 1
        optimizer, closure = started(model, make_batch(0), (last,), turns)
        if recompute:
            optimizer._obstacle = "a test"
            optimizer._warned.add("reuse")
        with FlopCounterMode(display=False) as counter:
            optimizer.step(closure)
        return counter.get_total_flops()

    head = 2 * {"mlp": 240, "cnn": 480, "unet": 240, "residual": 240}.get(name, 5 * 24) * 2
    prefix = operations(1) - head
    assert prefix > 0
    assert operations(turns) == prefix + turns * head
    assert operations(turns, recompute=True) == turns * (prefix + head)


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


def new_tensor_bytes(known):
    """Bytes of the storages that came into being since `known` and are still alive.

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


def kept_bytes(name, active, turns=3):
    """Bytes that the replay holds between two turns, and what a full step's graph saves."""
    torch.manual_seed(0)
    model, make_batch = problem(name)()
    x, y = make_batch(0)
    count = len(DropMuon(model).layers)
    active = tuple(range(count))[active:]
    optimizer, closure = started(model, (x, y), active, turns)
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
    held, _, after = kept_bytes("mlp", -1, turns=3)
    activation = 10 * 8 * 4
    assert held == [0, activation, activation]
    assert after == 0


# Things that forwards do


class Odd(nn.Module):
    """A stem, something odd, and two layers after it."""

    def __init__(self, odd):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.tail = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.odd = odd
        self.calls = 0
        self.seen = []
        self.register_buffer("total", torch.zeros(8))
        self.register_buffer("queue", torch.zeros(4, 8))

    def forward(self, x):
        self.calls += 1
        h = torch.tanh(self.norm(self.stem(x)))
        h = self.odd(self, h)
        return self.head(torch.tanh(self.tail(h)))


def odd_problem(odd):
    return lambda: (Odd(odd), regression(10, 6))


ODDITIES = {}
SPOKEN = {}


def oddity(function):
    ODDITIES[function.__name__] = function
    return function


def spoken(message):
    def register(function):
        SPOKEN[function.__name__] = (function, message)
        return function

    return register


@oddity
def writes_by_index(model, h):
    h = h * 2
    h[:, 0] = 0.5
    return h


@oddity
def writes_by_mask(model, h):
    h = h * 2
    h[h > 0.3] = 0.1
    return h


@oddity
def writes_twice_by_index(model, h):
    h = h * 2
    h[:, 1] += 1.0
    return h


@oddity
def writes_in_place(model, h):
    h = h.clone()
    h.mul_(2).add_(1)
    h.clamp_(-1, 1)
    return h.masked_fill_(h > 0.9, 0.0)


@oddity
def writes_through_out(model, h):
    y = torch.empty(10, 8)
    torch.mul(h.detach(), 2, out=y)
    return y + h


@oddity
def writes_into_an_empty_tensor(model, h):
    y = torch.zeros(len(h), 8)
    y[:5] = h[:5] * 3
    y[5:].copy_(h[5:])
    return y


@oddity
def writes_through_data(model, h):
    h = h + 1
    h.data.mul_(0.5)
    return h


@oddity
def writes_through_detach(model, h):
    h = h + 1
    h.detach().mul_(0.5)
    return h


@oddity
def adds_then_overwrites(model, h):
    h = h + 0
    y = model.tail.bias + h
    h.add_(1)
    return y * 0.1 + h


@oddity
def branches_on_values(model, h):
    if h.mean() > 0:
        h = h * 2
    return h if bool((h[0, 0] > 0).item()) else -h


@oddity
def loops_while(model, h):
    while h.norm() > 1:
        h = h / 2
    return h


@oddity
def reads_items(model, h):
    model.seen.append(h.sum().item())
    model.seen.append(float(h[0, 0]))
    return h * model.seen[-2]


@oddity
def reads_lists(model, h):
    model.seen.append(h[0].tolist())
    return h + torch.tensor(model.seen[-1])


@oddity
def goes_through_numpy(model, h):
    return h + torch.from_numpy(np.sort(h.detach().numpy(), axis=1))


@oddity
def goes_through_detached_numpy(model, h):
    return h + torch.as_tensor(h.detach().cpu().numpy() ** 2)


@oddity
def skips_at_random(model, h):
    y = model.tail(h)
    return h + y if torch.rand(()) < 0.5 else y


@oddity
def skips_rows_at_random(model, h):
    keep = torch.rand(len(h), 1) < 0.7
    return h * keep + model.tail(h) * keep.logical_not()


@oddity
def draws_noise(model, h):
    noise = torch.randn_like(h) + torch.rand(8) + h.new_empty(8).normal_()
    return h + noise * 0.1 + torch.bernoulli(torch.full((8,), 0.5)) * 0.1


@oddity
def draws_noise_for_active_layers_after_frozen_ones(model, h):
    h = F.dropout(h, 0.3)
    h = F.dropout(model.tail(h), 0.3)
    return F.dropout(h, 0.3)


@oddity
def shuffles(model, h):
    return h[torch.randperm(len(h))]


@oddity
def counts_calls(model, h):
    model.seen.append(model.calls)
    return h * (1 + 0.1 * model.calls)


@oddity
def unpacks(model, h):
    a, b = h.chunk(2, -1)
    low, where = h.min(1, keepdim=True)
    top = h.topk(3, -1)
    rows = torch.stack([row * 2 for row in h.unbind(0)])
    split = torch.cat(h.split([3, 5], -1), -1)
    gathered = h.gather(1, where)
    return torch.cat([b, a], -1) + low + top.values.sum(-1, keepdim=True) + rows + split + gathered


@oddity
def iterates_over_rows(model, h):
    return torch.stack([row.roll(1) for row in h])


@oddity
def uses_einsum_and_methods(model, h):
    y = torch.einsum("bi,bj->bij", h, h).sum(1)
    y = y.T.contiguous().t().reshape(len(h), 8).double().float().view_as(h)
    return y + h @ h.T @ h


@oddity
def accumulates_a_buffer(model, h):
    with torch.no_grad():
        model.total.mul_(0.9).add_(h.mean(0), alpha=0.1)
    return h + model.total


@oddity
def replaces_a_buffer(model, h):
    model.total = 0.9 * model.total + 0.1 * h.detach().mean(0)
    return h - model.total


@oddity
def fills_a_queue(model, h):
    with torch.no_grad():
        model.queue[model.calls % 4] = h.mean(0)
    return h + model.queue.sum(0)


@oddity
def accumulates_a_buffer_from_moving_layers(model, h):
    with torch.no_grad():
        y = model.tail(h)
        model.total.copy_(y.mean(0))
    return h + model.total


@oddity
def uses_moving_weights_without_gradient(model, h):
    weight = model.tail.weight.detach()
    return h + F.linear(h, weight) + h @ model.tail.weight.data.T


@oddity
def uses_detached_moving_activations(model, h):
    y = model.tail(h).detach()
    return h + y.relu() * 2


@oddity
def penalises_with_double_backward(model, h):
    y = model.head(h).square().sum()
    (gradient,) = torch.autograd.grad(y, model.head.weight, create_graph=True)
    return h + gradient.square().mean()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * x + y

    @staticmethod
    def backward(ctx, gradient):
        x, _ = ctx.saved_tensors
        return 2 * x * gradient, gradient


@oddity
def uses_a_custom_function_in_the_frozen_part(model, h):
    return Square.apply(h, h + 1)


@oddity
def uses_a_custom_function_of_both_parts(model, h):
    return Square.apply(model.tail(h), h)


@oddity
def checkpoints_the_frozen_part(model, h):
    return checkpoint(lambda h: F.dropout(torch.sin(h), 0.2), h, use_reentrant=False)


@oddity
def checkpoints_both_parts(model, h):
    return checkpoint(lambda h: F.dropout(model.tail(h.sin()), 0.2), h, use_reentrant=False)


@oddity
def runs_in_autocast(model, h):
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(h, model.stem.weight.T[:3].T @ torch.ones(3, 8))
        z = model.tail(y)
    return y.float() + z.float()


@oddity
def overwrites_what_autocast_made(model, h):
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(h, model.stem.weight @ model.stem.weight.T)
    z = model.tail.bias + y
    y.add_(1)
    return z + y.float()


@oddity
def uses_inference_mode(model, h):
    with torch.inference_mode():
        scale = h.std() + 1
        scale = scale.item()
    return h / scale


@oddity
def maps_with_vmap(model, h):
    return torch.func.vmap(lambda row: row.sin() * row.sum())(h)


@oddity
def compares_shapes_and_types(model, h):
    assert isinstance(h, torch.Tensor)
    assert h.shape == (10, 8)
    assert h.dtype is torch.float32
    assert len(h) == 10
    assert h.device.type == "cpu"
    assert h.is_contiguous()
    assert h.requires_grad == h.requires_grad
    assert h.ndim == h.dim() == 2
    assert h.numel() == 80
    assert h.element_size() == 4
    assert h.nelement() == 80
    assert tuple(h.size()) == (10, 8)
    return h


@oddity
def prints(model, h):
    model.seen.append(f"{h[0, 0]:.4f} {h}")
    model.seen.append(repr(h.mean()))
    return h


@oddity
def copies(model, h):
    return copy.deepcopy(h.detach()) + copy.copy(h) + h.clone()


@oddity
def compares_identities(model, h):
    return h * 2 if h is h.contiguous() and h.to("cpu") is h else h


@oddity
def uses_sets_and_dicts_of_tensors(model, h):
    y = h * 2
    memo = {h: 1.0, y: 2.0}
    return h * memo[h] + y * memo[y]


@oddity
def uses_the_same_function_twice(model, h):
    return F.dropout(h, 0.5) + F.dropout(h, 0.5) + model.norm(h) + model.norm(h)


@oddity
def embeds_with_a_maximal_norm(model, h):
    return h + F.embedding(torch.arange(8), model.queue.repeat(2, 1) + h[:8], max_norm=0.5).sum(0)


@oddity
def takes_the_shape_by_value(model, h):
    n = int((h[:, 0] > 0).sum())
    return h + torch.ones(n, 8).sum() + h[h[:, 0] > 0].sum(0)


# Fallbacks


@spoken("views")
def writes_to_a_view(model, h):
    h = h * 2
    h.view(-1)[:4].zero_()
    return h


@spoken("view")
def writes_to_what_has_a_view(model, h):
    h = h * 2
    rows = h.view(-1)
    h.mul_(3)
    return h + rows.view(10, 8)


@oddity
def asks_for_a_gradient_in_the_frozen_part(model, h):
    h.requires_grad_()
    y = (h**3).sum()
    (gradient,) = torch.autograd.grad(y, h, create_graph=True)
    return h + gradient


@oddity
def sets_requires_grad_in_the_frozen_part(model, h):
    h = h.detach()
    h.requires_grad = True
    (gradient,) = torch.autograd.grad((h**3).sum(), h, create_graph=True)
    return h + gradient


@oddity
def penalises_the_gradient_of_a_hidden_activation(model, h):
    h = h.detach().requires_grad_(True)
    y = model.tail(h)
    (gradient,) = torch.autograd.grad(y.square().sum(), h, create_graph=True)
    return h + gradient.square().mean()


@oddity
def uses_the_gradient_that_the_last_call_left(model, h):
    last = getattr(model, "last", None)
    model.last = h = h.detach().requires_grad_()
    return h if last is None else h + last.grad.mean()


@spoken("gradients start")
def starts_a_gradient_in_the_frozen_part(model, h):
    gate = torch.zeros(8, requires_grad=True)
    (gradient,) = torch.autograd.grad(((h + gate) ** 3).sum(), gate, create_graph=True)
    return h + gradient


@pytest.mark.parametrize("name", ODDITIES)
def test_what_forwards_do_is_replayed_exactly(name):
    """Whether a forward is replayed or recomputed, and says so, it is exact."""
    for active in ((2, 3), (3,)):
        ours = train(odd_problem(ODDITIES[name]), Always(active), recompute=False, turns=4)
        theirs = train(odd_problem(ODDITIES[name]), Always(active), recompute=True, turns=4)
        assert_equal(ours, theirs)
        assert ours.model.calls == theirs.model.calls == 20
        assert ours.model.seen == theirs.model.seen
        told = [m for m in ours.messages if m.startswith("updates_per_batch")]
        assert len(told) == len(set(told)) <= 1


@pytest.mark.parametrize("name", SPOKEN)
def test_fallbacks_say_so_once_and_stay_exact(name):
    odd, message = SPOKEN[name]
    assert_exact(odd_problem(odd), Always((2, 3)), message)


def test_a_scripted_module_is_recomputed_and_says_so_once():
    def make():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            model = nn.Sequential(torch.jit.script(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
        return model, regression(10, 6)

    ours = train(make, samplers.Serial(), recompute=False)
    theirs = train(make, samplers.Serial(), recompute=True)
    assert_equal(ours, theirs)
    told = [m for m in ours.messages if m.startswith("updates_per_batch")]
    assert len(told) == 1
    assert "scripted" in told[0]


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("what", ["model", "module", "in place"])
def test_a_compiled_model_is_recomputed_and_says_so_once(what):
    def make():
        model = mlp()
        if what == "module":
            model[2] = torch.compile(model[2], backend="eager")
        if what == "in place":
            model[2].compile(backend="eager")
        return model, regression(10, 6)

    def wrap(model):
        return torch.compile(model, backend="eager") if what == "model" else model

    ours = train(make, samplers.Serial(), recompute=False, wrap=wrap)
    torch._dynamo.reset()
    theirs = train(make, samplers.Serial(), recompute=True, wrap=wrap)
    assert_equal(ours, theirs)
    told = [m for m in ours.messages if m.startswith("updates_per_batch")]
    assert len(told) == 1
    assert "compiled" in told[0]


# Closures that are not functions of one batch


def fresh_batches(kind):
    """A loss that takes a new batch in every call."""
    make_batch = regression(10, 6)
    calls = []
    buffer = torch.zeros(10, 6)

    def loss(model, batch):
        calls.append(1)
        x, y = make_batch(100 + len(calls))
        if kind == "copied":
            buffer.copy_(x)
            x = buffer
        if kind == "numpy":
            x, y = torch.from_numpy(x.numpy()), torch.from_numpy(y.numpy())
        if kind == "tensor":
            x = torch.tensor(x.tolist())
        if kind == "stacked":
            x = torch.stack(list(x))
        if kind == "data":
            buffer.data.copy_(x)
            x = buffer
        if kind == "set":
            buffer.data = x
            x = buffer
        return F.mse_loss(model(x), y)

    return loss


@pytest.mark.parametrize("kind", ["new", "copied", "numpy", "tensor", "stacked", "data", "set"])
def test_a_closure_that_takes_a_new_batch_in_every_call_gets_it(kind):
    def run(recompute):
        return train(
            lambda: (mlp(), regression(10, 6)),
            samplers.Serial(),
            recompute,
            loss=fresh_batches(kind),
        )

    assert_equal(run(recompute=False), run(recompute=True))


def test_a_closure_may_use_the_model_twice_and_add_losses():
    def loss(model, batch):
        x, y = batch
        views = model(x + 0.1 * torch.randn_like(x)), model(x)
        return F.mse_loss(views[0], y) + F.mse_loss(views[1], views[0].detach())

    assert_exact(problem("cnn"), samplers.Serial(), loss=loss)


def test_a_closure_may_accumulate_over_micro_batches():
    def loss(model, batch):
        x, y = batch
        first = F.mse_loss(model(x[:5]), y[:5]) / 2
        first.backward()
        return F.mse_loss(model(x[5:]), y[5:]) / 2

    assert_exact(problem("mlp"), samplers.Serial(), loss=loss)


def test_a_closure_may_evaluate_in_between():
    def loss(model, batch):
        model.eval()
        with torch.no_grad():
            score = F.mse_loss(model(batch[0]), batch[1]).item()
        model.train()
        return F.mse_loss(model(batch[0]), batch[1]) * (1 + score)

    assert_exact(problem("cnn"), samplers.Serial(), loss=loss)


# What a step leaves behind


class Remembering(nn.Module):
    """Keeps a rotary cache and its last activations, as many models do."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.tail = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.cache = None
        self.last = None
        self.history = []

    def forward(self, x):
        if self.cache is None or self.cache.shape != (8,):
            self.cache = torch.arange(8.0).cos()
        h = self.stem(x) * self.cache
        self.last = h.softmax(-1)
        self.history.append(h.mean(0))
        return self.head(torch.tanh(self.tail(h)))


def remembering():
    torch.manual_seed(0)
    model = Remembering()
    batch = regression(10, 6)(0)
    optimizer, closure = started(model, batch, (1, 2), 3)
    model.history.clear()
    model.cache = None
    optimizer.step(closure)
    return model, optimizer, batch


def test_tensors_that_a_forward_stores_have_their_values_after_the_step():
    model, _, (x, _) = remembering()
    expected = (F.linear(x, model.stem.weight, model.stem.bias) * torch.arange(8.0).cos()).detach()
    assert len(model.history) == 3
    assert torch.equal(model.cache, torch.arange(8.0).cos())
    assert torch.equal(model.last, expected.softmax(-1))
    for mean in model.history:
        assert torch.equal(mean, expected.mean(0))


def test_tensors_that_a_forward_stores_work_after_the_step():
    model, optimizer, (x, y) = remembering()
    last = model.last
    assert last.sum().item() == pytest.approx(10, rel=1e-5)
    assert last.numpy().shape == (10, 8)
    assert last.tolist()[0][0] == last[0, 0].item()
    assert "tensor(" in repr(last)
    assert last.data_ptr() != 0
    assert last.clone().add_(1).min() >= 1
    last.add_(1)
    assert last.min() >= 1
    assert torch.equal(copy.deepcopy(last), last)
    weight = torch.ones(8, requires_grad=True)
    (last * weight).sum().backward()
    assert torch.allclose(weight.grad, last.sum(0))
    assert F.mse_loss(model(x), y).item() > 0
    assert optimizer.active == (1, 2)


def test_a_model_that_stores_tensors_is_copied_and_pickled_after_the_step():
    model, _, _ = remembering()
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(twin.last, model.last)
        assert torch.equal(twin.cache, model.cache)
        assert all(map(torch.equal, twin.history, model.history))


def test_values_that_a_closure_hands_out_are_usable_after_the_step():
    torch.manual_seed(0)
    model, (x, y) = mlp(), regression(10, 6)(0)
    handed = []

    def loss():
        h = model[:2](x)
        handed.append(h)
        return F.mse_loss(model[2:](h), y)

    optimizer, closure = started(model, (x, y), (3,), 3, loss)
    handed.clear()
    optimizer.step(closure)
    assert len(handed) == 3
    expected = model[:2](x).detach()
    for h in handed:
        assert torch.equal(h, expected)
        assert torch.equal(torch.from_numpy(h.detach().numpy()), expected)


def test_nothing_is_left_on_the_users_tensors():
    torch.manual_seed(0)
    model, make_batch = problem("cnn")()
    x, y = make_batch(0)
    optimizer, closure = started(model, (x, y), (5, 6), 3)
    optimizer.step(closure)
    for tensor in (x, y, *model.buffers()):
        assert vars(tensor) == {}
        assert not tensor.requires_grad
    del optimizer, closure
    gc.collect()
    for parameter in model.parameters():
        assert vars(parameter) == {}
        assert parameter.requires_grad
    assert torch.overrides._len_torch_function_stack() == 0


@pytest.mark.parametrize("when", [0, 1, 2])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_an_exception_inside_the_closure_leaves_everything_usable(name, when):
    torch.manual_seed(0)
    model, make_batch = problem(name)()
    x, y = make_batch(0)
    optimizer = DropMuon(model, lr=0.02, sampler=samplers.Serial(), updates_per_batch=3)
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        calls.append(1)
        if len(calls) == fails_at:
            raise KeyError("from the closure")
        loss.backward()
        return loss

    fails_at = None
    for _ in range(3):
        optimizer.step(closure)
    active = optimizer.active
    fails_at = len(calls) + when + 1
    with pytest.raises(KeyError, match="from the closure"):
        optimizer.step(closure)
    assert torch.overrides._len_torch_function_stack() == 0
    assert optimizer.active == active
    assert torch.is_grad_enabled()
    drawn = torch.rand(3)
    assert type(drawn) is torch.Tensor
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(25):
        optimizer.step(closure)
    assert all(not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))


def test_a_failed_step_leaves_no_trace_in_a_later_one():
    """An exception in the first turn changes neither parameters nor draws."""

    def run(fails):
        torch.manual_seed(0)
        model, make_batch = mlp(), regression(10, 6)
        optimizer = DropMuon(model, lr=0.02, sampler=samplers.Serial(), updates_per_batch=3)
        for step in range(6):
            x, y = make_batch(step)

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss

            if fails and step in (0, 3):
                with pytest.raises(ZeroDivisionError):
                    optimizer.step(lambda x=x: model(x).sum() / (1 // 0))
            optimizer.step(closure)
        return [p.detach().clone() for p in model.parameters()]

    assert all(map(torch.equal, run(False), run(True)))


def test_generators_go_on_as_after_one_pass():
    """Turns are about one sample: they draw the same numbers, and the next batch new ones."""
    torch.manual_seed(0)
    model, make_batch = problem("cnn")()
    x, y = make_batch(0)
    optimizer, closure = started(model, (x, y), (6,), 3)
    start = torch.get_rng_state()
    optimizer.step(closure)
    after = torch.get_rng_state()
    torch.set_rng_state(start)
    model(x)
    assert torch.equal(torch.get_rng_state(), after)
    assert not torch.equal(start, after)


# Refusals


def test_several_updates_without_a_closure_are_a_clear_error():
    model, (x, y) = mlp(), regression(10, 6)(0)
    optimizer = DropMuon(model, updates_per_batch=3)
    before = [p.detach().clone() for p in model.parameters()]
    F.mse_loss(model(x), y).backward()
    with pytest.raises(ValueError, match=r"updates_per_batch=3 needs step\(closure\)"):
        optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("turns", [0, -1, 1.5, True, "2"])
def test_a_number_of_updates_that_is_none_is_refused(turns):
    with pytest.raises(ValueError, match="updates_per_batch must be a whole number of at least 1"):
        DropMuon(mlp(), updates_per_batch=turns)
