"""Files of data sets, read as arrays."""

from __future__ import annotations

import struct

import numpy as np

from dropmuon.lab.data.readers import cifar, idx


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
