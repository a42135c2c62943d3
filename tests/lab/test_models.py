"""The models of the lab: shapes, layers, and what is refused."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn
from torch.nn import functional as F

from dropmuon import DropMuon
from dropmuon.lab.models import MODELS, PAPER_CHANNELS, build, item_of
from dropmuon.model.policies import PolicyName

IMAGE, TEXT = (3, 32, 32), (16,)


def small(name: str) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    if name == "gpt":
        model = build(name, TEXT, 256, (32, 32))
        tokens = torch.randint(0, 256, (2, 16))
        return model, tokens, torch.randint(0, 256, (2, 16))
    channels = {"cnn": (4, 8), "mlp": (16, 8), "resnet18": (4, 4, 8, 8)}[name]
    model = build(name, IMAGE, 10, channels)
    return model, torch.randn(2, *IMAGE), torch.randint(0, 10, (2,))


@pytest.mark.parametrize("name", MODELS)
def test_logits_have_classes_second_and_every_parameter_gets_a_gradient(name: str) -> None:
    model, inputs, targets = small(name)
    logits = model(inputs)
    assert logits.shape == (2, 256 if name == "gpt" else 10, *targets.shape[1:])
    F.cross_entropy(logits, targets).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("cnn", ["conv1", "conv2", "head"]),
        ("mlp", ["hidden1", "hidden2", "head"]),
        ("resnet18", ["stem", *(f"block{k}" for k in range(1, 9)), "head"]),
        ("gpt", ["embedding", "block1", "block2", "head"]),
    ],
)
def test_layers_are_the_items_in_order_of_execution(name: str, layers: list[str]) -> None:
    model, inputs, _ = small(name)
    optimizer = DropMuon(
        model, by=item_of, policy=cast(PolicyName, MODELS[name].policy), example=inputs
    )
    assert list(optimizer.layers) == layers


@pytest.mark.parametrize("name", MODELS)
def test_backward_stops_at_the_cutoff(name: str) -> None:
    model, inputs, targets = small(name)
    optimizer = DropMuon(model, by=item_of, policy=cast(PolicyName, MODELS[name].policy))
    for step in range(8):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        below = list(optimizer.layers[: optimizer.active[0]])
        for key, parameter in model.named_parameters():
            assert (parameter.grad is None) == (item_of(key) in below), (step, key)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("channels", PAPER_CHANNELS)
def test_the_papers_cnns_have_three_convolutions_of_these_channels(
    channels: tuple[int, ...],
) -> None:
    model = build("cnn", (1, 28, 28), 10, channels)
    found = [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert tuple(found) == channels


@pytest.mark.parametrize("name", MODELS)
def test_a_joined_head_belongs_to_the_last_layer_and_changes_no_logit(name: str) -> None:
    model, inputs, _ = small(name)
    torch.manual_seed(0)
    shape, classes = (TEXT, 256) if name == "gpt" else (IMAGE, 10)
    channels = {"cnn": (4, 8), "mlp": (16, 8), "resnet18": (4, 4, 8, 8), "gpt": (32, 32)}[name]
    joined = build(name, shape, classes, channels, join_head=True)
    layers = list(dict.fromkeys(item_of(key) for key, _ in model.named_parameters()))
    assert list(dict.fromkeys(item_of(key) for key, _ in joined.named_parameters())) == layers[:-1]
    assert torch.equal(model.eval()(inputs), joined.eval()(inputs))


def test_batch_norm_stands_between_convolution_and_relu() -> None:
    model = build("cnn", IMAGE, 10, (4, 8, 16), batch_norm=True)
    for place in range(1, 4):
        kinds = [type(m) for m in model.get_submodule(f"conv{place}").children()]
        assert kinds[:2] == [nn.Conv2d, nn.BatchNorm2d]
        assert kinds[-1] is nn.ReLU


@given(arrays(np.float32, (2, 3, 7, 6), elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0, np.nan])))
def test_frozen_and_trainable_layers_of_the_cnn_pool_alike(pixels: np.ndarray) -> None:
    """With ties and NaN among the pixels; and pooling commutes with clamping."""
    block = cast(nn.Sequential, build("cnn", (3, 8, 8), 10, (4,))[0])
    images = torch.from_numpy(pixels)
    expected = F.max_pool2d(F.relu(images), 2)
    for each in (images, images.clone().requires_grad_()):
        found = block[1:](each).detach()
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_resnet18_has_the_parameters_of_its_name() -> None:
    model = build("resnet18", IMAGE, 10)
    # 11,173,962: He et al.'s ResNet-18 with a 3x3 stem and 10 classes
    assert sum(p.numel() for p in model.parameters()) == 11_173_962


def test_gpt_does_not_see_the_future() -> None:
    model, tokens, _ = small("gpt")
    changed = tokens.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :, :10], after[:, :, :10])
    assert not torch.allclose(before[:, :, 10:], after[:, :, 10:])


@pytest.mark.parametrize(
    ("name", "shape", "channels", "batch_norm", "words"),
    [
        ("cmn", IMAGE, (4,), False, "did you mean 'cnn'"),
        ("cnn", (1, 8, 8), (4, 4, 4, 4), False, "channels must be at most 3 for images of 8x8"),
        ("cnn", IMAGE, (4, 0), False, "channels must be a whole number of at least 1, got 0"),
        ("resnet18", IMAGE, (4, 4), False, "four stage widths"),
        ("gpt", TEXT, (32, 64), False, "channels must repeat one width"),
        ("gpt", TEXT, (20,), False, "multiple of 32"),
        ("gpt", TEXT, (32,), True, "batch_norm must be off"),
    ],
)
def test_what_cannot_be_built_is_refused(
    name: str, shape: tuple[int, ...], channels: tuple[int, ...], batch_norm: bool, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        build(name, shape, 10, channels, batch_norm)
