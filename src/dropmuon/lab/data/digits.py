"""The handwritten digits that come with scikit-learn."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from dropmuon.lab.data.reading import Pictures

__all__ = ["digits"]

_SEED = 0
_TRAIN_SHARE = 0.8


def digits() -> Pictures:
    """All 1,797 of them, four in five to train on; which ones never changes."""
    found = load_digits()
    images, labels = found.images.astype(np.uint8)[:, None], found.target.astype(np.uint8)
    order = np.random.RandomState(_SEED).permutation(len(images))
    train, test = np.split(order, [int(_TRAIN_SHARE * len(images))])
    return Pictures(images[train], labels[train], images[test], labels[test])
