"""Train in 16 bits and in more in every framework, and print how far apart they end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from tests.contract.frameworks.runs import FRAMEWORKS, Wanted, train
from tests.contract.frameworks.test_features import flat


def compared(framework: str, path: Path, precision: str) -> dict[str, float]:
    settings: dict[str, Any] = {"accumulates": 2, "repeats": precision == "float16"}
    mixed = train(framework, Wanted(path, **{**settings, precision: True}))
    assert mixed.optimizer is not None
    start, end = flat(mixed.weights[0]), flat(mixed.weights[-1])
    steps = mixed.optimizer.steps
    alone = "peft" if framework == "peft" else "torch"
    plain = train(alone, Wanted(path, steps=steps, **settings))
    moved = flat(plain.weights[-1]).float() - start
    return {
        "distance": float((end - start - moved).norm() / moved.norm()),
        "steps": steps,
        "least moves": min(mixed.optimizer.moves.values()),
        "float32 weights": float(end.dtype == torch.float32),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, precision = Path(sys.argv[1]), sys.argv[2]
    print(json.dumps({name: compared(name, folder, precision) for name in FRAMEWORKS}))
