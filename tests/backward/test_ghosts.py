"""Values that a replayed forward stores or hands out are real after the step."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import nn
from torch._C import _len_torch_function_stack
from torch.nn import functional as F

from tests.backward.replay_models import mlp, problem
from tests.backward.replay_runs import regression, started
from tests.models import gradient


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
    assert torch.allclose(gradient(weight), last.sum(0))
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
    assert _len_torch_function_stack() == 0
