"""Frameworks and the features of their loops: docs/frameworks.md has a cell for each test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from dropmuon import rules
from tests.contract.frameworks.runs import FRAMEWORKS, Run, Wanted, train

frameworks = pytest.mark.parametrize("framework", FRAMEWORKS)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*loss_type", "ignore:.*pin_memory"),
    pytest.mark.filterwarnings("ignore::Warning:lightning"),  # hints about workers and devices
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
]

SGD: dict[str, Any] = {
    **{"policy": "euclidean", "step_rule": rules.Sharp(), "momentum": 0.0, "nesterov": False},
    **{"sampler": "full", "lr": 1.0},
}


def flat(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


def assert_equal(mine: Run, other: Run) -> None:
    assert torch.equal(flat(mine.weights[-1]), flat(other.weights[-1]))


def assert_close(mine: Run, other: Run) -> None:
    ours, theirs = flat(mine.weights[-1]), flat(other.weights[-1])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def assert_trained(run: Run, steps: int = 4) -> None:
    """Every layer moved, and the flags are back."""
    assert run.optimizer is not None
    counts = run.optimizer.moves.values()
    assert min(counts) >= 1
    assert max(counts) == run.optimizer.steps == steps
    assert all(parameter.requires_grad for parameter in run.trained)


@frameworks
def test_accumulated_batches_are_parts_of_one(tmp_path: Path, framework: str) -> None:
    """With all layers in all parts they are one large batch, and with cutoffs they are not."""
    full = {"sampler": "full"}
    parts = train(framework, Wanted(tmp_path, full, accumulates=2))
    assert_trained(parts)
    assert_close(parts, train(framework, Wanted(tmp_path, full, batch=4)))
    drawn = train(framework, Wanted(tmp_path, accumulates=2))
    assert_trained(drawn)
    assert drawn.optimizer is not None
    assert drawn.optimizer.parts == 2
    assert not torch.equal(flat(drawn.weights[-1]), flat(parts.weights[-1]))
    if framework != "peft":
        assert_close(drawn, train("torch", Wanted(tmp_path, accumulates=2)))


@frameworks
def test_steps_follow_clipped_gradients(tmp_path: Path, framework: str) -> None:
    """With steps along the gradient itself, a step is as long as the gradient."""

    def lengths(clip: float) -> list[float]:
        run = train(framework, Wanted(tmp_path, SGD, accumulates=2, clip=clip))
        path = torch.stack([flat(weights) for weights in run.weights])
        return path.diff(dim=0).norm(dim=1).tolist()

    assert max(lengths(1e-3)) == pytest.approx(1e-3, rel=1e-2)
    assert min(lengths(1e3)) > 2e-3


@frameworks
def test_checkpointed_blocks_train_as_plain_ones_do(tmp_path: Path, framework: str) -> None:
    """Without a warning, which a gradient below the cutoff or a missing one would cause."""
    checkpointed = train(framework, Wanted(tmp_path, accumulates=2, checkpoints=True, steps=6))
    assert_trained(checkpointed, 6)
    assert_close(checkpointed, train(framework, Wanted(tmp_path, accumulates=2, steps=6)))


@frameworks
def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path, framework: str) -> None:
    unbroken = train(framework, Wanted(tmp_path, accumulates=2, saves_at=2))
    resumed = train(framework, Wanted(tmp_path, accumulates=2, saves_at=2, resumes=True))
    assert len(resumed.weights) == 1 + 2
    assert_trained(resumed)
    assert_equal(resumed, unbroken)


@frameworks
def test_evaluation_in_the_middle_changes_nothing(tmp_path: Path, framework: str) -> None:
    evaluated = train(framework, Wanted(tmp_path, accumulates=2, evaluates=True))
    assert_trained(evaluated)
    assert_equal(evaluated, train(framework, Wanted(tmp_path, accumulates=2)))


@frameworks
def test_compiled_blocks_train_as_plain_ones_do(tmp_path: Path, framework: str) -> None:
    torch._dynamo.reset()  # graphs of an earlier test would be used again
    counters.clear()
    compiled = train(framework, Wanted(tmp_path, compiled=True))
    assert counters["frames"]["ok"] > 0
    assert_trained(compiled)
    assert_close(compiled, train(framework, Wanted(tmp_path)))


@frameworks
def test_weights_are_averaged_beside_training(tmp_path: Path, framework: str) -> None:
    averaged = train(framework, Wanted(tmp_path, averages=True))
    assert_trained(averaged)
    trajectory = torch.stack([flat(weights) for weights in averaged.weights[1:]])
    torch.testing.assert_close(flat(averaged.averaged), trajectory.mean(0))
    assert_equal(averaged, train(framework, Wanted(tmp_path)))


def in_16_bits(path: Path, precision: str) -> dict[str, dict[str, float]]:
    """Compare runs of all frameworks with float32, in a process of its own.

    On some virtual CPUs a product in bfloat16 is an illegal instruction, unless oneDNN is told
    before it begins not to use the widest ones.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.frameworks.in_16_bits", str(path), precision],
        capture_output=True, text=True, check=False,
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    )  # fmt: skip
    if done.returncode < 0:
        pytest.skip(f"products in {precision} are an illegal instruction on this CPU")
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    return in_16_bits(tmp_path_factory.mktemp("mixed"), "bfloat16")


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    return in_16_bits(tmp_path_factory.mktemp("scaled"), "float16")


@frameworks
def test_mixed_precision_trains_nearly_as_float32_does(
    framework: str, mixed: dict[str, dict[str, float]]
) -> None:
    found = mixed[framework]
    assert found["float32 weights"] == 1.0
    assert found["least moves"] >= 1
    assert 0.0 < found["distance"] < 0.5  # of what was moved in float32


@frameworks
def test_scaled_float16_skips_what_overflows_and_trains_nearly_as_float32_does(
    framework: str, scaled: dict[str, dict[str, float]]
) -> None:
    """Where gradients overflow, nothing moves, nothing is drawn, and the next step is the same."""
    found = scaled[framework]
    assert found["float32 weights"] == 1.0
    assert found["steps"] == 3  # of four
    assert found["least moves"] >= 1
    assert 0.0 < found["distance"] < 0.02  # of what was moved in float32
