"""Train in bfloat16 and in float32 in every framework, and print how far apart they end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tests.contract.frameworks.runs import FRAMEWORKS, Wanted, train
from tests.contract.frameworks.test_features import flat


def compared(framework: str, path: Path) -> dict[str, float]:
    mixed = train(framework, Wanted(path, accumulates=2, bfloat16=True))
    assert mixed.optimizer is not None
    start, end = flat(mixed.weights[0]), flat(mixed.weights[-1])
    plain = train("peft" if framework == "peft" else "torch", Wanted(path, accumulates=2))
    moved = flat(plain.weights[-1]).float() - start
    return {
        "distance": float((end - start - moved).norm() / moved.norm()),
        "least moves": min(mixed.optimizer.moves.values()),
        "float32 weights": float(end.dtype == torch.float32),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: compared(name, Path(sys.argv[1])) for name in FRAMEWORKS}))
