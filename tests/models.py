"""Tiny models for tests, each with data and a loss, made from a seed.

Every maker returns `(model, make_batch, loss)`: `make_batch(k)` is the batch of step k, inputs
first and the target last, and `loss(model, batch)` a scalar. Batches are functions of (seed, k).

The models are chosen so that no gradient is degenerate: batches are larger than layers are wide,
every token of a vocabulary occurs, no bias stands before a norm that removes it, no loss is
invariant to a shift that a narrow layer could make, and activations are smooth. So gradients of
matrices have full rank, and exact orthogonalisation is well-conditioned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]
MakeBatch = Callable[[int], Batch]
Loss = Callable[[nn.Module, Batch], Tensor]
Problem = tuple[nn.Module, MakeBatch, Loss]


def mlp(seed: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Problem:
    """Three linear layers, one tall, one wide, one nearly square."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3)
        )

    return _built(build, seed, dtype, device), _regression((16, 5), 3, seed, dtype, device), _mse


def cnn(seed: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Problem:
    """Two convolutions with batch norm, and a linear head."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.GELU(),
            nn.Conv2d(4, 5, 2, stride=2, bias=False),
            nn.BatchNorm2d(5),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(20, 3),
        )

    make_batch = _regression((24, 2, 4, 4), 3, seed, dtype, device)
    return _built(build, seed, dtype, device), make_batch, _mse


def transformer(
    seed: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu", blocks: int = 2
) -> Problem:
    """A pre-norm transformer on tokens: embeddings, blocks, a head; cross-entropy."""

    def make_batch(k: int) -> Batch:
        generator = _generator(seed, k)
        tokens = torch.randint(_VOCABULARY, (8 * _LENGTH,), generator=generator)
        tokens[:_VOCABULARY] = torch.randperm(_VOCABULARY, generator=generator)
        target = torch.randint(_VOCABULARY, (8, _LENGTH), generator=generator)
        return tokens.reshape(8, _LENGTH).to(device), target.to(device)

    return _built(lambda: _Transformer(blocks), seed, dtype, device), make_batch, _cross_entropy


def unet(seed: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Problem:
    """Down, middle, up, with a skip that joins the first layer to the last."""
    make_batch = _regression((6, 2, 4, 4), (1, 4, 4), seed, dtype, device)
    return _built(_UNet, seed, dtype, device), make_batch, _mse


def residual(seed: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Problem:
    """A stem, three residual blocks in a `ModuleList`, a head."""
    make_batch = _regression((16, 5), 3, seed, dtype, device)
    return _built(_Residual, seed, dtype, device), make_batch, _mse


PROBLEMS: dict[str, Callable[..., Problem]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": transformer,
    "unet": unet,
    "residual": residual,
}
"""All makers, by name."""


def batches(make_batch: MakeBatch, steps: int) -> list[Batch]:
    """The batches of the first steps."""
    return [make_batch(k) for k in range(steps)]


def layers_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters of each module that owns some, in order of registration."""
    owned = [list(module.parameters(recurse=False)) for module in model.modules()]
    return [parameters for parameters in owned if parameters]


def point(model: nn.Module) -> list[list[Tensor]]:
    """Copies of all parameters, by layer: the X of `dropmuon.reference`."""
    return [[p.detach().clone() for p in layer] for layer in layers_of(model)]


def gradient_of(
    model: nn.Module, loss: Loss, data: Sequence[Batch]
) -> Callable[[list[list[Tensor]], int], list[list[Tensor]]]:
    """The full gradient at a point on the batch of step k, on a private copy of the model."""
    private = copy.deepcopy(model).requires_grad_(True)
    layers = layers_of(private)
    flat = [p for layer in layers for p in layer]

    def at(X: list[list[Tensor]], k: int) -> list[list[Tensor]]:
        for p, x in zip(flat, (x for layer in X for x in layer), strict=True):
            p.data.copy_(x)
        found = iter(torch.autograd.grad(loss(private, data[k]), flat))
        return [[next(found) for _ in layer] for layer in layers]

    return at


def gradient(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter that has one."""
    assert parameter.grad is not None
    return parameter.grad


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, data: Sequence[Batch]
) -> list[tuple[int, ...]]:
    """Run the usual loop; return the active set of each step, as the optimizer announced it."""
    active = []
    for batch in data:
        active.append(getattr(optimizer, "active", ()))
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return active


_VOCABULARY, _WIDTH, _INNER, _LENGTH = 11, 8, 6, 6


class _Attention(nn.Module):
    """Causal self-attention with two heads, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(_WIDTH, _INNER, bias=False) for _ in range(3))
        self.out = nn.Linear(_INNER, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._heads(f(x)) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))

    @staticmethod
    def _heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (2, -1)).transpose(1, 2)


def _layer_norm() -> nn.LayerNorm:
    """As if trained: a fresh one puts out vectors that sum to zero, and gradients lose a rank."""
    norm = nn.LayerNorm(_WIDTH)
    nn.init.normal_(norm.weight, mean=1.0, std=0.3)
    nn.init.normal_(norm.bias, std=0.3)
    return norm


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = _layer_norm()
        self.attention = _Attention()
        self.norm2 = _layer_norm()
        self.up = nn.Linear(_WIDTH, 12)
        self.down = nn.Linear(12, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class _Transformer(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.token = nn.Embedding(_VOCABULARY, _WIDTH)
        self.position = nn.Embedding(_LENGTH, _WIDTH)
        self.blocks = nn.ModuleList([_Block() for _ in range(blocks)])
        self.head = nn.Linear(_WIDTH, _VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(_LENGTH, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.enter_norm = nn.GroupNorm(2, 4)
        self.down = nn.Conv2d(4, 6, 2, stride=2)
        self.middle = nn.Conv2d(6, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = nn.functional.gelu(self.enter_norm(self.enter(x)))
        x = nn.functional.gelu(self.middle(nn.functional.gelu(self.down(skip))))
        return self.out(torch.cat([skip, nn.functional.gelu(self.up(x))], dim=1))


class _ResidualBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.outer = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.tanh(self.inner(x)))


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 6)
        self.blocks = nn.ModuleList([_ResidualBlock() for _ in range(3)])
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(torch.tanh(x))


def _built(build: Callable[[], nn.Module], seed: int, dtype: torch.dtype, device: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build().double()
    return model.to(device=device, dtype=dtype)


def _regression(
    shape: tuple[int, ...],
    target: int | tuple[int, ...],
    seed: int,
    dtype: torch.dtype,
    device: str,
) -> MakeBatch:
    wanted = (target,) if isinstance(target, int) else target

    def make_batch(k: int) -> Batch:
        generator = _generator(seed, k)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        y = torch.randn(shape[0], *wanted, generator=generator, dtype=torch.float64)
        return x.to(device, dtype), y.to(device, dtype)

    return make_batch


def _generator(seed: int, k: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * (seed + 1) + k)


def _mse(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(*batch[:-1]), batch[-1])


def _cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(*batch[:-1]).flatten(0, -2), batch[-1].flatten())
