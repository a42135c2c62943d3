"""What is loaded has the shapes and values it says, and nothing damaged is ever loaded."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon.lab import data
from dropmuon.lab.data.reading import Pictures, cifar, idx
from dropmuon.lab.data.tensors import images, text

CPU = torch.device("cpu")


def cached(name: str) -> data.Data:
    """A set that may be too large to fetch in a test."""
    if not next(each for each in data.status() if each.name == name).ready:
        pytest.skip(f"{name} is not in the cache; dropmuon data fetch {name}")
    return data.load(name, fetch=False)


def test_names_are_in_the_order_they_are_listed():
    assert (
        *("fashion-mini", "mnist", "fashion-mnist", "cifar10"),
        *("shakespeare", "digits"),
    ) == data.NAMES


@pytest.mark.parametrize(
    ("name", "shape", "train", "test"),
    [
        ("fashion-mini", (1, 28, 28), 7_000, 2_000),
        ("digits", (1, 8, 8), 1_437, 360),
        ("mnist", (1, 28, 28), 60_000, 10_000),
        ("fashion-mnist", (1, 28, 28), 60_000, 10_000),
    ],
)
def test_images_are_normalised_by_the_training_set(
    name: str, shape: tuple[int, ...], train: int, test: int
):
    found = cached(name)
    assert (found.name, found.kind, found.num_classes, found.shape) == (name, "images", 10, shape)
    assert (len(found.train), len(found.test)) == (train, test)
    assert found.train.inputs.dtype == torch.float32
    assert found.train.targets.dtype == torch.int64
    assert found.test.inputs.shape == (test, *shape)
    assert abs(found.train.inputs.double().mean().item()) < 1e-5
    assert math.isclose(found.train.inputs.double().std(correction=0).item(), 1, abs_tol=1e-5)


def test_fashion_mini_is_class_balanced():
    found = data.load("fashion-mini")
    assert found.train.targets.bincount().tolist() == [700] * 10
    assert found.test.targets.bincount().tolist() == [200] * 10


def test_a_batch_is_a_selection():
    train = data.load("digits").train
    index = torch.tensor([5, 0, 5])
    inputs, targets = train.batch(index)
    assert torch.equal(inputs, train.inputs[[5, 0, 5]])
    assert torch.equal(targets, train.targets[[5, 0, 5]])


def test_digits_are_split_the_same_way_each_time():
    first, second = data.load("digits"), data.load("digits")
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert first.test.targets[:8].tolist() == [7, 9, 4, 7, 0, 2, 6, 1]


def test_data_move_between_devices():
    moved = data.load("digits").to("meta")
    assert moved.train.inputs.device.type == moved.test.targets.device.type == "meta"


@settings(deadline=None)
@given(content=st.binary(min_size=40, max_size=400), context=st.integers(1, 3))
def test_windows_cover_the_text_side_by_side_and_targets_are_the_next_byte(
    content: bytes, context: int
):
    found = text("text", content, context, CPU)
    cut = len(content) * 9 // 10
    for part, examples in ((content[:cut], found.train), (content[cut:], found.test)):
        inputs = bytes(examples.inputs.flatten().tolist())
        assert inputs == part[: len(inputs)]
        assert bytes(examples.targets.flatten().tolist()) == part[1 : len(inputs) + 1]
        assert len(part) - 1 - len(inputs) < context
    assert (found.kind, found.num_classes, found.shape) == ("bytes", 256, (context,))


def test_context_is_at_most_the_text():
    assert len(text("text", bytes(100), 9, CPU).test) == 1
    with pytest.raises(ValueError, match=r"context must be at most 9, .* got 10"):
        text("text", bytes(100), 10, CPU)


@pytest.mark.parametrize("context", [0, -1, 2.5, True])
def test_context_is_a_whole_number(context: int):
    with pytest.raises(ValueError, match="context must be a whole number of at least 1, got"):
        data.load("shakespeare", context=context, fetch=False)


@settings(deadline=None)
@given(seed=st.integers(0, 100), channels=st.sampled_from([1, 3]))
def test_normalisation_is_that_of_numpy_per_channel(seed: int, channels: int):
    draws = np.random.RandomState(seed)
    pixels = draws.randint(0, 256, (20, channels, 4, 4)).astype(np.uint8)
    labels = np.arange(20, dtype=np.uint8) % 10
    found = images("some", Pictures(pixels, labels, pixels[:5], labels[:5]), CPU)
    mean = pixels.mean((0, 2, 3), keepdims=True)
    expected = (pixels - mean) / pixels.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(found.train.inputs.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(found.test.inputs, found.train.inputs[:5])


def test_idx_files_are_read_in_their_order():
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8)
    pictures = struct.pack(">4i", 2051, 2, 3, 4) + pixels.tobytes()
    labels = struct.pack(">2i", 2049, 2) + b"\x07\x03"
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    contents = (pictures, labels, pictures, labels)
    found = idx({f"{name}-ubyte": each for name, each in zip(names, contents, strict=True)})
    np.testing.assert_array_equal(found.train, pixels.reshape(2, 1, 3, 4))
    assert found.test_labels.tolist() == [7, 3]


def test_cifar_batches_are_read_plane_by_plane():
    planes = np.repeat(np.array([10, 20, 30], dtype=np.uint8), 1024)
    planes[1] = 99
    files = {f"data_batch_{n}.bin": bytes([n]) + planes.tobytes() for n in range(1, 6)}
    found = cifar(files | {"test_batch.bin": bytes([9]) + planes.tobytes()})
    assert found.train.shape == (5, 3, 32, 32)
    assert found.train_labels.tolist() == [1, 2, 3, 4, 5]
    assert found.test[0, :, 5, 5].tolist() == [10, 20, 30]
    assert found.test[0, 0, 0, 1] == 99


def test_cifar_has_the_means_everyone_knows():
    found = cached("cifar10")
    assert found.shape == (3, 32, 32)
    assert found.train.targets.bincount().tolist() == [5_000] * 10
    assert found.train.targets[:6].tolist() == [6, 9, 9, 4, 1, 1]
    assert found.test.targets[:4].tolist() == [3, 8, 8, 0]
    black = found.train.inputs.amin((0, 2, 3))
    expected = torch.tensor([-0.4914 / 0.2470, -0.4822 / 0.2435, -0.4465 / 0.2616])
    torch.testing.assert_close(black, expected, rtol=1e-3, atol=0)


def test_an_unknown_name_comes_with_the_nearest():
    for call in (data.load, data.fetch):
        with pytest.raises(ValueError, match=r"got 'fashon-mnist'; did you mean 'fashion-mnist'"):
            call("fashon-mnist")


def test_what_is_missing_is_said_with_the_remedy(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"run: dropmuon data fetch mnist$"):
        data.load("mnist", cache=tmp_path, fetch=False)


@pytest.mark.parametrize("content", [b"", b"First Citizen:\n", bytes(1_115_394)])
def test_a_wrong_file_is_never_used(tmp_path: Path, content: bytes):
    (tmp_path / "shakespeare").mkdir()
    path = tmp_path / "shakespeare/input.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"its checksum is sha256:\w+, not sha256:86c4") as caught:
        data.load("shakespeare", cache=tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{path} is damaged")
    assert message.endswith("replace it: dropmuon data fetch shakespeare")
    assert path.read_bytes() == content


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device: str):
    with pytest.raises(ValueError, match=f"device must be one that torch can use here, .*{device}"):
        data.load("digits", device=device)
