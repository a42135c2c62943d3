"""Forwards that do something unusual between a frozen stem and moving layers, by name."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.backward.replay_runs import regression


class Unusual(nn.Module):
    """A stem, something unusual, and two layers after it."""

    def __init__(self, act):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.tail = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.act = act
        self.calls = 0
        self.seen = []
        self.register_buffer("total", torch.zeros(8))
        self.register_buffer("queue", torch.zeros(4, 8))

    def forward(self, x):
        self.calls += 1
        h = torch.tanh(self.norm(self.stem(x)))
        h = self.act(self, h)
        return self.head(torch.tanh(self.tail(h)))


def unusual_problem(act):
    return lambda: (Unusual(act), regression(10, 6))


UNUSUAL = {}
WARNED = {}


def unusual(function):
    UNUSUAL[function.__name__] = function
    return function


def warns(message):
    def register(function):
        WARNED[function.__name__] = (function, message)
        return function

    return register


@unusual
def writes_by_index(model, h):
    h = h * 2
    h[:, 0] = 0.5
    return h


@unusual
def writes_by_mask(model, h):
    h = h * 2
    h[h > 0.3] = 0.1
    return h


@unusual
def writes_twice_by_index(model, h):
    h = h * 2
    h[:, 1] += 1.0
    return h


@unusual
def writes_in_place(model, h):
    h = h.clone()
    h.mul_(2).add_(1)
    h.clamp_(-1, 1)
    return h.masked_fill_(h > 0.9, 0.0)


@unusual
def writes_through_out(model, h):
    y = torch.empty(10, 8)
    torch.mul(h.detach(), 2, out=y)
    return y + h


@unusual
def writes_into_an_empty_tensor(model, h):
    y = torch.zeros(len(h), 8)
    y[:5] = h[:5] * 3
    y[5:].copy_(h[5:])
    return y


@unusual
def writes_through_data(model, h):
    h = h + 1
    h.data.mul_(0.5)
    return h


@unusual
def writes_through_detach(model, h):
    h = h + 1
    h.detach().mul_(0.5)
    return h


@unusual
def adds_then_overwrites(model, h):
    h = h + 0
    y = model.tail.bias + h
    h.add_(1)
    return y * 0.1 + h


@unusual
def branches_on_values(model, h):
    if h.mean() > 0:
        h = h * 2
    return h if bool((h[0, 0] > 0).item()) else -h


@unusual
def loops_while(model, h):
    while h.norm() > 1:
        h = h / 2
    return h


@unusual
def reads_items(model, h):
    model.seen.append(h.sum().item())
    model.seen.append(float(h[0, 0]))
    return h * model.seen[-2]


@unusual
def reads_lists(model, h):
    model.seen.append(h[0].tolist())
    return h + torch.tensor(model.seen[-1])


@unusual
def goes_through_numpy(model, h):
    return h + torch.from_numpy(np.sort(h.detach().numpy(), axis=1))


@unusual
def goes_through_detached_numpy(model, h):
    return h + torch.as_tensor(h.detach().cpu().numpy() ** 2)


@unusual
def skips_at_random(model, h):
    y = model.tail(h)
    return h + y if torch.rand(()) < 0.5 else y


@unusual
def skips_rows_at_random(model, h):
    keep = torch.rand(len(h), 1) < 0.7
    return h * keep + model.tail(h) * keep.logical_not()


@unusual
def draws_noise(model, h):
    noise = torch.randn_like(h) + torch.rand(8) + h.new_empty(8).normal_()
    return h + noise * 0.1 + torch.bernoulli(torch.full((8,), 0.5)) * 0.1


@unusual
def draws_noise_for_active_layers_after_frozen_ones(model, h):
    h = F.dropout(h, 0.3)
    h = F.dropout(model.tail(h), 0.3)
    return F.dropout(h, 0.3)


@unusual
def shuffles(model, h):
    return h[torch.randperm(len(h))]


@unusual
def counts_calls(model, h):
    model.seen.append(model.calls)
    return h * (1 + 0.1 * model.calls)


@unusual
def unpacks(model, h):
    a, b = h.chunk(2, -1)
    low, where = h.min(1, keepdim=True)
    top = h.topk(3, -1)
    rows = torch.stack([row * 2 for row in h.unbind(0)])
    split = torch.cat(h.split([3, 5], -1), -1)
    gathered = h.gather(1, where)
    return torch.cat([b, a], -1) + low + top.values.sum(-1, keepdim=True) + rows + split + gathered


@unusual
def iterates_over_rows(model, h):
    return torch.stack([row.roll(1) for row in h])


@unusual
def uses_einsum_and_methods(model, h):
    y = torch.einsum("bi,bj->bij", h, h).sum(1)
    y = y.T.contiguous().t().reshape(len(h), 8).double().float().view_as(h)
    return y + h @ h.T @ h


@unusual
def accumulates_a_buffer(model, h):
    with torch.no_grad():
        model.total.mul_(0.9).add_(h.mean(0), alpha=0.1)
    return h + model.total


@unusual
def replaces_a_buffer(model, h):
    model.total = 0.9 * model.total + 0.1 * h.detach().mean(0)
    return h - model.total


@unusual
def fills_a_queue(model, h):
    with torch.no_grad():
        model.queue[model.calls % 4] = h.mean(0)
    return h + model.queue.sum(0)


@unusual
def accumulates_a_buffer_from_moving_layers(model, h):
    with torch.no_grad():
        y = model.tail(h)
        model.total.copy_(y.mean(0))
    return h + model.total


@unusual
def uses_moving_weights_without_gradient(model, h):
    weight = model.tail.weight.detach()
    return h + F.linear(h, weight) + h @ model.tail.weight.data.T


@unusual
def uses_detached_moving_activations(model, h):
    y = model.tail(h).detach()
    return h + y.relu() * 2


@unusual
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


@unusual
def uses_a_custom_function_in_the_frozen_part(model, h):
    return Square.apply(h, h + 1)


@unusual
def uses_a_custom_function_of_both_parts(model, h):
    return Square.apply(model.tail(h), h)


@unusual
def checkpoints_the_frozen_part(model, h):
    return checkpoint(lambda h: F.dropout(torch.sin(h), 0.2), h, use_reentrant=False)


@unusual
def checkpoints_both_parts(model, h):
    return checkpoint(lambda h: F.dropout(model.tail(h.sin()), 0.2), h, use_reentrant=False)


@unusual
def runs_in_autocast(model, h):
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(h, model.stem.weight.T[:3].T @ torch.ones(3, 8))
        z = model.tail(y)
    return y.float() + z.float()


@unusual
def overwrites_what_autocast_made(model, h):
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(h, model.stem.weight @ model.stem.weight.T)
    z = model.tail.bias + y
    y.add_(1)
    return z + y.float()


@unusual
def uses_inference_mode(model, h):
    with torch.inference_mode():
        scale = h.std() + 1
        scale = scale.item()
    return h / scale


@unusual
def maps_with_vmap(model, h):
    return torch.func.vmap(lambda row: row.sin() * row.sum())(h)


@unusual
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


@unusual
def prints(model, h):
    model.seen.append(f"{h[0, 0]:.4f} {h}")
    model.seen.append(repr(h.mean()))
    return h


@unusual
def copies(model, h):
    return copy.deepcopy(h.detach()) + copy.copy(h) + h.clone()


@unusual
def compares_identities(model, h):
    return h * 2 if h is h.contiguous() and h.to("cpu") is h else h


@unusual
def uses_sets_and_dicts_of_tensors(model, h):
    y = h * 2
    memo = {h: 1.0, y: 2.0}
    return h * memo[h] + y * memo[y]


@unusual
def uses_the_same_function_twice(model, h):
    return F.dropout(h, 0.5) + F.dropout(h, 0.5) + model.norm(h) + model.norm(h)


@unusual
def embeds_with_a_maximal_norm(model, h):
    return h + F.embedding(torch.arange(8), model.queue.repeat(2, 1) + h[:8], max_norm=0.5).sum(0)


@unusual
def takes_the_shape_by_value(model, h):
    n = int((h[:, 0] > 0).sum())
    return h + torch.ones(n, 8).sum() + h[h[:, 0] > 0].sum(0)


# Forwards with gradients of their own


@unusual
def asks_for_a_gradient_in_the_frozen_part(model, h):
    h.requires_grad_()
    y = (h**3).sum()
    (gradient,) = torch.autograd.grad(y, h, create_graph=True)
    return h + gradient


@unusual
def sets_requires_grad_in_the_frozen_part(model, h):
    h = h.detach()
    h.requires_grad = True
    (gradient,) = torch.autograd.grad((h**3).sum(), h, create_graph=True)
    return h + gradient


@unusual
def penalises_the_gradient_of_a_hidden_activation(model, h):
    h = h.detach().requires_grad_(True)
    y = model.tail(h)
    (gradient,) = torch.autograd.grad(y.square().sum(), h, create_graph=True)
    return h + gradient.square().mean()


@unusual
def uses_the_gradient_that_the_last_call_left(model, h):
    last = getattr(model, "last", None)
    model.last = h = h.detach().requires_grad_()
    return h if last is None else h + last.grad.mean()


# Forwards that are recomputed


@warns("views")
def writes_to_a_view(model, h):
    h = h * 2
    h.view(-1)[:4].zero_()
    return h


@warns("view")
def writes_to_what_has_a_view(model, h):
    h = h * 2
    rows = h.view(-1)
    h.mul_(3)
    return h + rows.view(10, 8)


@warns("gradients start")
def starts_a_gradient_in_the_frozen_part(model, h):
    gate = torch.zeros(8, requires_grad=True)
    (gradient,) = torch.autograd.grad(((h + gate) ** 3).sum(), gate, create_graph=True)
    return h + gradient
