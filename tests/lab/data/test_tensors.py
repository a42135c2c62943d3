"""Readers return pixels and labels, tensors hold them, and augmentation moves a few pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dropmuon.lab import data
from dropmuon.lab.data.readers import Pictures
from dropmuon.lab.data.tensors import augment, from_pictures, from_text, of_classes

CPU = torch.device("cpu")
REACH = {32: 4, 28: 2, 8: 1}


@settings(deadline=None)
@given(content=st.binary(min_size=40, max_size=400), context=st.integers(1, 3))
def test_windows_cover_the_text_side_by_side_and_targets_are_the_next_byte(
    content: bytes, context: int
):
    found = from_text("text", content, context, CPU)
    cut = len(content) * 9 // 10
    for part, examples in ((content[:cut], found.train), (content[cut:], found.test)):
        inputs = bytes(examples.inputs.flatten().tolist())
        assert inputs == part[: len(inputs)]
        assert bytes(examples.targets.flatten().tolist()) == part[1 : len(inputs) + 1]
        assert len(part) - 1 - len(inputs) < context
    assert (found.kind, found.num_classes, found.shape) == ("bytes", 256, (context,))


def test_context_is_at_most_the_text():
    assert len(from_text("text", bytes(100), 9, CPU).test) == 1
    with pytest.raises(ValueError, match=r"context must be at most 9, .* got 10"):
        from_text("text", bytes(100), 10, CPU)


@settings(deadline=None)
@given(seed=st.integers(0, 100), channels=st.sampled_from([1, 3]))
def test_normalisation_is_that_of_numpy_per_channel(seed: int, channels: int):
    draws = np.random.RandomState(seed)
    pixels = draws.randint(0, 256, (20, channels, 4, 4)).astype(np.uint8)
    labels = np.arange(20, dtype=np.uint8) % 10
    found = from_pictures("some", Pictures(pixels, labels, pixels[:5], labels[:5]), CPU)
    mean = pixels.mean((0, 2, 3), keepdims=True)
    expected = (pixels - mean) / pixels.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(found.train.inputs.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(found.test.inputs, found.train.inputs[:5])


def test_a_batch_is_a_selection():
    train = data.load("digits").train
    index = torch.tensor([5, 0, 5])
    inputs, targets = train.batch(index)
    assert torch.equal(inputs, train.inputs[[5, 0, 5]])
    assert torch.equal(targets, train.targets[[5, 0, 5]])


def test_data_move_between_devices():
    moved = data.load("digits").to("meta")
    assert moved.train.inputs.device.type == moved.test.targets.device.type == "meta"


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moved(image: Tensor, down: int, right: int) -> Tensor:
    """The image moved within its mirrored surroundings, the slow way."""
    reach = max(abs(down), abs(right))
    wide = torch.nn.functional.pad(image[None], (reach,) * 4, mode="reflect")[0]
    height, width = image.shape[1:]
    return wide[:, reach + down :, reach + right :][:, :height, :width]


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 1000), side=st.sampled_from(sorted(REACH)), channels=st.sampled_from([1, 3])
)
def test_every_image_is_a_shift_of_itself_or_of_its_mirror_image(
    seed: int, side: int, channels: int
):
    inputs = torch.rand(4, channels, side, side, generator=seeded(seed))
    found = augment(inputs, seeded(seed + 1))
    assert found.shape == inputs.shape
    shifts = range(-REACH[side], REACH[side] + 1)
    for image, result in zip(inputs, found, strict=True):
        candidates = [moved(image, down, right) for down in shifts for right in shifts]
        if channels == 3:
            candidates += [each.flip(-1) for each in candidates]
        assert any(torch.equal(result, each) for each in candidates)


def test_every_shift_and_both_sides_occur():
    inputs = torch.arange(32.0 * 32).reshape(1, 1, 32, 32).expand(4000, 3, 32, 32)
    seen = set(augment(inputs, seeded(0))[:, 0, 10, 10].tolist())
    assert len(seen) == 9 * 9 * 2
    grey = torch.arange(28.0 * 28).reshape(1, 1, 28, 28).expand(2000, 1, 28, 28)
    assert len(set(augment(grey, seeded(0))[:, 0, 10, 10].tolist())) == 5 * 5


def test_the_generator_decides_alone():
    inputs = torch.rand(8, 3, 32, 32)
    before = torch.get_rng_state()
    first, again = augment(inputs, seeded(3)), augment(inputs, seeded(3))
    assert torch.equal(first, again)
    assert not torch.equal(first, augment(inputs, seeded(4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_inputs_stay_as_they_are():
    inputs = torch.rand(8, 3, 32, 32)
    copy = inputs.clone()
    augment(inputs, seeded(0)).zero_()
    assert torch.equal(inputs, copy)


def test_augmented_images_are_on_the_device_of_the_inputs():
    assert augment(torch.empty(2, 1, 28, 28, device="meta"), seeded(0)).device.type == "meta"


def test_bytes_are_refused():
    with pytest.raises(ValueError, match=r"inputs must be images .* got \(4, 64\)"):
        augment(torch.zeros(4, 64, dtype=torch.long), seeded(0))


def test_digits_are_split_the_same_way_each_time():
    first, second = data.load("digits"), data.load("digits")
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert first.test.targets[:8].tolist() == [7, 9, 4, 7, 0, 2, 6, 1]


@settings(deadline=None)
@given(
    classes=st.permutations(range(10)).flatmap(lambda p: st.integers(2, 10).map(lambda n: p[:n]))
)
def test_chosen_classes_keep_their_images_and_are_counted_in_the_order_given(classes: list[int]):
    whole = data.load("digits")
    found = of_classes(whole, classes)
    assert (found.num_classes, found.shape) == (len(classes), whole.shape)
    for part, of in ((found.train, whole.train), (found.test, whole.test)):
        kept = torch.isin(of.targets, torch.tensor(classes))
        assert torch.equal(part.inputs, of.inputs[kept])
        assert [classes[each] for each in part.targets] == of.targets[kept].tolist()
