"""Give a model a norm of your own: two methods make one, and the rest follows.

The norm of a matrix here is the largest Euclidean length among its heads, groups of rows that
belong together as in attention. Its unit direction normalises each head by itself. The laws that
every norm must obey are checked first; then it trains the hidden layers of a network, beside
Muon's own norm. Learning rates are not tuned.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import DropMuon, policies
from dropmuon.norms import Norm


@dataclass(frozen=True, repr=False)
class LongestHead(Norm):
    """The largest Euclidean length of a head, which is `rows` rows of a matrix."""

    rows: int = 16

    def norm(self, x: Tensor) -> Tensor:
        return torch.amax(torch.linalg.vector_norm(self._heads(x), dim=1))

    def unit_direction(self, g: Tensor) -> Tensor:
        heads = self._heads(g)
        lengths = torch.linalg.vector_norm(heads, dim=1, keepdim=True)
        return torch.where(lengths > 0, heads / lengths, heads).reshape(g.shape)

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(-1, self.rows * x.shape[1])


def policy(member: policies.Member) -> str | Norm:
    """Return the norm of a parameter: our own for hidden matrices, AdamW for everything else."""
    hidden = member.parameter.ndim == 2 and not member.is_output
    return LongestHead() if hidden else "adamw"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args(given)
    check_laws(LongestHead(), torch.randn(64, 32))
    print(f"   own norm: test accuracy {outcome(policy, 0.05, options.epochs):.1%}")
    print(f"Muon's norm: test accuracy {outcome('muon', 0.02, options.epochs):.1%}")


def check_laws(norm: Norm, g: Tensor) -> None:
    """Check that a step of radius 2 has that length, and goes down as steeply as any can."""
    step = norm.lmo(g, 2.0)
    assert torch.isclose(norm.norm(step), torch.tensor(2.0))
    assert torch.isclose((g * step).sum(), -2.0 * norm.dual(g))
    for other in torch.randn(100, *g.shape):
        assert (g * other).sum() <= norm.dual(g) * norm.norm(other)


def outcome(chosen: policies.Policy | policies.PolicyName, lr: float, epochs: int) -> float:
    """Train a network on scikit-learn's digits, and return its accuracy."""
    torch.manual_seed(0)
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    train, test = torch.randperm(len(y)).split([1280, len(y) - 1280])
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(size, 128), nn.ReLU()) for size in (64, 128, 128)),
        nn.Linear(128, 10),
    )
    with DropMuon(model, lr=lr, momentum=0.9, policy=chosen, adamw_lr=3e-3) as optimizer:
        for _ in range(epochs):
            for index in train[torch.randperm(len(train))].split(128):
                F.cross_entropy(model(x[index]), y[index]).backward()
                optimizer.step()
                optimizer.zero_grad()
    with torch.no_grad():
        return float((model(x[test]).argmax(1) == y[test]).float().mean())


if __name__ == "__main__":
    main()
