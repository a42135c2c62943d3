"""Make src/dropmuon/lab/data/fashion_mini.npz from Fashion-MNIST, the same bytes each time.

It holds the first 700 training and the first 200 test pictures of every class, in their original
order.

    python scripts/make_fashion_mini.py [--out FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dropmuon.lab.data.cache import cache_directory, contents, fetch
from dropmuon.lab.data.catalogue import find
from dropmuon.lab.data.readers import Pictures, idx
from dropmuon.output import write_bytes

TRAIN_PER_CLASS = 700
TEST_PER_CLASS = 200
BEGINNING = (1980, 1, 1, 0, 0, 0)  # the first moment a zip archive knows


def main() -> None:
    """Fetch Fashion-MNIST if needed, write the archive, and print its size and checksum."""
    parser = argparse.ArgumentParser(description="Make the embedded part of Fashion-MNIST.")
    ((_, path),) = find("fashion-mini").places(cache_directory())
    parser.add_argument("--out", type=Path, default=path)
    options = parser.parse_args()
    fetch("fashion-mnist", show_progress=True)
    whole = idx(contents(find("fashion-mnist"), cache_directory()))
    content = archive(part(whole))
    write_bytes(options.out, content)
    print(f"{options.out}: {len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


def part(whole: Pictures) -> dict[str, npt.NDArray[np.uint8]]:
    """Return the first pictures of every class."""
    train = first_of_each_class(whole.train_labels, TRAIN_PER_CLASS)
    test = first_of_each_class(whole.test_labels, TEST_PER_CLASS)
    return {
        "train_images": whole.train[train, 0],
        "train_labels": whole.train_labels[train],
        "test_images": whole.test[test, 0],
        "test_labels": whole.test_labels[test],
    }


def first_of_each_class(labels: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.intp]:
    """Return the indices of the first examples of each class, in ascending order."""
    places = [np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]
    return np.sort(np.concatenate(places))


def archive(arrays: Mapping[str, npt.NDArray[np.uint8]]) -> bytes:
    """Return what `np.savez_compressed` writes, without the time of day."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as file:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", BEGINNING)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # the same on every system
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
            file.writestr(entry, content.getvalue(), compresslevel=9)
    return whole.getvalue()


if __name__ == "__main__":
    main()
