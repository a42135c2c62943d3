"""Stock problems in mid-training, with some layers frozen, and what can be observed of them."""

from __future__ import annotations

import torch

from dropmuon import DropMuon
from tests.fixed_set import Always
from tests.models import PROBLEMS


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


def moves_every_layer(optimizer, model, make_batch, loss, steps=15):
    before = values(model)
    for step in range(steps):
        take(optimizer, model, make_batch(step), loss)
    return all(not torch.equal(before[name], value) for name, value in values(model).items())
