"""Several updates per batch: replaying equals recomputing, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch._C import _len_torch_function_stack
from torch.nn import functional as F

from dropmuon import DropMuon, samplers
from tests.backward.replay_models import FAMILY, mlp, problem
from tests.backward.replay_runs import assert_equal, assert_exact, regression, train
from tests.fixed_set import Always
from tests.models import PROBLEMS

SAMPLERS = {
    "progressive": samplers.Progressive(),
    "serial": samplers.Serial(),
    "nice": samplers.Nice(2),
    "full": samplers.Full(),
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("name", FAMILY)
def test_replaying_equals_recomputing_bit_for_bit(name, sampler):
    """Three updates on a batch are three steps on it, with the same random numbers."""
    ours = train(problem(name), sampler, recompute=False, steps=6)
    theirs = train(problem(name), sampler, recompute=True, steps=6)
    assert_equal(ours, theirs)
    assert len({each.item() for each in ours.losses}) > 6


@pytest.mark.parametrize("name", ["mlp", "cnn", "residual", "transformer", "unet", "lstm"])
def test_plain_models_are_replayed_without_a_warning(name):
    assert_exact(problem(name), samplers.Serial(), steps=6)


@pytest.mark.parametrize("name", ["cnn", "cnn, cumulative"])
def test_batch_statistics_are_accumulated_in_every_update(name):
    outcome = train(problem(name), Always((6,)), recompute=False, steps=3, updates=4)
    counts = [v for n, v in outcome.tensors.items() if n.endswith("num_batches_tracked")]
    assert [int(count) for count in counts] == [12, 12, 12]


@pytest.mark.parametrize("name", PROBLEMS)
def test_stock_problems_are_replayed_exactly(name):
    def make():
        model, make_batch, _ = PROBLEMS[name]()
        return model, make_batch

    assert_exact(make, samplers.Progressive(), loss=PROBLEMS[name]()[2])


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


# Closures that raise


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
    assert _len_torch_function_stack() == 0
    assert optimizer.active == active
    assert torch.is_grad_enabled()
    drawn = torch.rand(3)
    assert type(drawn) is torch.Tensor
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(25):
        optimizer.step(closure)
    assert all(not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))


def test_a_failed_step_leaves_no_trace_in_a_later_one():
    """An exception in the first update changes neither parameters nor draws."""

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

            def failing(x=x):
                return model(x).sum() / (1 // 0)

            if fails and step in (0, 3):
                with pytest.raises(ZeroDivisionError):
                    optimizer.step(failing)
            optimizer.step(closure)
        return [p.detach().clone() for p in model.parameters()]

    assert all(map(torch.equal, run(False), run(True)))


# Refusals


def test_several_updates_without_a_closure_are_a_clear_error():
    model, (x, y) = mlp(), regression(10, 6)(0)
    optimizer = DropMuon(model, updates_per_batch=3)
    before = [p.detach().clone() for p in model.parameters()]
    F.mse_loss(model(x), y).backward()
    with pytest.raises(ValueError, match=r"updates_per_batch=3 needs step\(closure\)"):
        optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("updates", [0, -1, 1.5, True, "2"])
def test_a_number_of_updates_that_is_none_is_refused(updates):
    with pytest.raises(ValueError, match="updates_per_batch must be a whole number of at least 1"):
        DropMuon(mlp(), updates_per_batch=updates)
