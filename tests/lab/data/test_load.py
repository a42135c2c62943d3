"""What is loaded has the stated shapes and values, and nothing damaged is ever loaded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from dropmuon.lab import data


def cached(name: str) -> data.Data:
    """A set that may be too large to fetch in a test."""
    if not next(each for each in data.status() if each.name == name).ready:
        pytest.skip(f"{name} is not in the cache; dropmuon data fetch {name}")
    return data.load(name, fetch=False)


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


@pytest.mark.parametrize("context", [0, -1, 2.5, True])
def test_context_is_a_whole_number(context: int):
    with pytest.raises(ValueError, match="context must be a whole number of at least 1, got"):
        data.load("shakespeare", context=context, fetch=False)


def test_cifar_has_the_means_everyone_knows():
    found = cached("cifar10")
    assert found.shape == (3, 32, 32)
    assert found.train.targets.bincount().tolist() == [5_000] * 10
    assert found.train.targets[:6].tolist() == [6, 9, 9, 4, 1, 1]
    assert found.test.targets[:4].tolist() == [3, 8, 8, 0]
    black = found.train.inputs.amin((0, 2, 3))
    expected = torch.tensor([-0.4914 / 0.2470, -0.4822 / 0.2435, -0.4465 / 0.2616])
    torch.testing.assert_close(black, expected, rtol=1e-3, atol=0)


def test_the_order_of_classes_is_that_of_labels():
    found = data.load("digits", classes=(7, 3))
    whole = data.load("digits")
    assert found.num_classes == 2
    assert (found.train.targets == 0).sum() == (whole.train.targets == 7).sum()
    assert (found.test.targets == 1).sum() == (whole.test.targets == 3).sum()


@pytest.mark.parametrize(
    ("name", "classes", "words"),
    [
        ("digits", (0, 10), "classes must be from 0 to 9 for digits, got 10; count classes from 0"),
        ("digits", (0, -1), "classes must be a whole number of at least 0, got -1"),
        ("digits", (0, 0.5), "classes must be a whole number of at least 0, got 0.5"),
        ("digits", (3, 1, 3), "classes must be distinct, got 3 twice; drop one"),
        ("digits", (3,), r"classes must be at least two, got \(3,\); add another"),
        ("enwik8", (0, 1), r"classes must be left out for texts, got \(0, 1\) for enwik8"),
    ],
)
def test_classes_that_cannot_be_are_named(
    name: str, classes: tuple[int, ...], words: str, tmp_path: Path
):
    with pytest.raises(ValueError, match=words):
        data.load(name, classes=classes, cache=tmp_path, fetch=False)


def test_enwik8_is_the_beginning_of_wikipedia():
    found = cached("enwik8")
    assert (found.kind, found.num_classes, found.shape) == ("bytes", 256, (64,))
    assert (len(found.train), len(found.test)) == (4_499_999 // 64, 499_999 // 64)
    assert bytes(found.train.inputs[0, :10].tolist()) == b"<mediawiki"


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
