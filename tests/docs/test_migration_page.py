"""The page about other optimizers: its code takes the steps that they publish."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropmuon import DropMuon, norms, presets
from tests.docs.pages import blocks, text_of
from tests.docs.published_rules import (
    JORDAN,
    Rule,
    adam,
    dion,
    dion_muon,
    jordan,
    newton_schulz,
    scion,
)
from tests.float32_muon import zeropower_without_cast
from tests.models import (
    Batch,
    Problem,
    batches,
    cnn,
    gradient,
    layers_of,
    residual,
    train,
    transformer,
)

PAGE = "docs/migration.md"
TITLES = [
    "AdamW",
    "torch.optim.Muon",
    "KellerJordan/Muon",
    "dion",
    "Scion",
    "LISA",
    "BAdam",
    "And then",
]


def made_by_the_page(title: str, model: nn.Module, **changed: Any) -> Any:
    """Run the code under a title up to its loop, and return the optimizer that it makes."""
    start = text_of(PAGE).index(f"\n## {title}\n")
    line = text_of(PAGE)[:start].count("\n")
    (first, *_) = [each for each in blocks(PAGE, "python") if each.line > line]
    source = first.text.split("\nfor ")[0] if title != "Scion" else first.text
    for name, value in changed.items():
        old = next(each for each in source.splitlines() if each.startswith(f"{name} = "))
        source = source.replace(old, f"{name} = {value}")
    names: dict[str, Any] = {"model": model, "torch": torch, "F": F, "loader": []}
    exec(compile(source, PAGE, "exec"), names)
    return names["optimizer"]


def train_by(rules: dict[str, Rule], model: nn.Module, loss: Callable, data: list[Batch]) -> None:
    """Train every parameter by its rule."""
    states: dict[str, dict[str, Any]] = {name: {} for name in rules}
    for batch in data:
        model.zero_grad()
        loss(model, batch).backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                rules[name](p, gradient(p), states[name])


def assert_same_steps(title: str, problem: Problem, rule_of: Callable[[str, Tensor], Rule]) -> None:
    """The page's optimizer and the rules take a model to the same point, away from the start."""
    start, make_batch, loss = problem
    ours, theirs = copy.deepcopy(start), copy.deepcopy(start)
    data = batches(make_batch, 12)
    train(ours, made_by_the_page(title, ours), loss, data)
    train_by({name: rule_of(name, p) for name, p in theirs.named_parameters()}, theirs, loss, data)
    assert_same(ours, theirs, 1e-9)
    for name, p in ours.named_parameters():
        assert (p - start.get_parameter(name)).abs().max() > 1e-4, name


def assert_same(one: nn.Module, other: nn.Module, tolerance: float) -> None:
    found, wanted = dict(one.named_parameters()), dict(other.named_parameters())
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def is_hidden(name: str, p: Tensor) -> bool:
    return p.ndim >= 2 and not name.startswith(("token", "position", "head", "7"))


def test_every_optimizer_has_a_section_in_this_order() -> None:
    titles = [line[3:] for line in text_of(PAGE).splitlines() if line.startswith("## ")]
    assert titles == TITLES


@pytest.mark.parametrize(
    ("title", "muon"),
    [
        ("AdamW", {"lr": 3e-4, "adjust_lr_fn": "match_rms_adamw"}),
        ("torch.optim.Muon", {"lr": 0.02}),
    ],
)
def test_torch_muon_and_torch_adamw(
    monkeypatch: pytest.MonkeyPatch, title: str, muon: dict[str, Any]
) -> None:
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", zeropower_without_cast)
    model, make_batch, loss = transformer()
    other = copy.deepcopy(model)
    data = batches(make_batch, 12)
    train(model, made_by_the_page(title, model), loss, data)
    named = dict(other.named_parameters())
    hidden = [p for name, p in named.items() if is_hidden(name, p)]
    rest = [p for name, p in named.items() if not is_hidden(name, p)]
    two = (
        torch.optim.Muon(hidden, **muon, weight_decay=0.1),
        torch.optim.AdamW(rest, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1),
    )
    for batch in data:
        loss(other, batch).backward()
        for optimizer in two:
            optimizer.step()
            optimizer.zero_grad()
    assert_same(model, other, 1e-10)


@pytest.mark.parametrize("problem", [transformer, cnn])
def test_jordans_muon_with_adam_for_the_rest(problem: Callable[[], Problem]) -> None:
    assert_same_steps(
        "KellerJordan/Muon",
        problem(),
        lambda name, p: (
            jordan(0.02, 0.95, 0.01) if is_hidden(name, p) else adam(3e-4, eps=1e-10, decay=0.01)
        ),
    )


def test_jordans_factor_leaves_out_how_tall_the_matrix_of_a_convolution_is() -> None:
    start = nn.Sequential(nn.Conv2d(2, 32, 1), nn.Flatten(), nn.Linear(32, 2)).double()
    x = torch.randn(8, 2, 1, 1, dtype=torch.float64)

    def step(make: Callable[[nn.Module], Any]) -> Tensor:
        model = copy.deepcopy(start)
        optimizer = make(model)
        model(x).square().mean().backward()
        optimizer.step()
        return (model[0].weight - start[0].weight).detach()

    theirs = step(lambda model: made_by_the_page("KellerJordan/Muon", model))
    ours = step(lambda model: presets.muon(model, weight_decay=0.01))
    decay = 0.01 * 0.02 * start[0].weight.detach()
    torch.testing.assert_close(ours + decay, 4 * (theirs + decay))


def test_dions_muon_with_adamw_for_the_rest() -> None:
    assert_same_steps(
        "dion",
        transformer(),
        lambda name, p: (
            dion_muon(0.01, 0.95, 0.01) if is_hidden(name, p) else adam(0.01, decay=0.01)
        ),
    )


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (8, 8)])
def test_dion_of_full_rank_approaches_the_polar_factor_where_the_gradient_stays(
    shape: tuple[int, int],
) -> None:
    torch.manual_seed(0)
    spectrum = torch.diag(2.0 ** torch.arange(min(shape)).double())
    u, _ = torch.linalg.qr(torch.randn(shape[0], min(shape), dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(shape[1], min(shape), dtype=torch.float64))
    g = u @ spectrum @ v.T
    ours, theirs = nn.Parameter(torch.zeros_like(g)), torch.zeros_like(g)
    group = {"params": [ours], "norm": norms.Spectral("svd", scale="rms")}
    optimizer = DropMuon([group], lr=0.1, momentum=0.9, sampler="full")
    rule = dion(0.1, 0.9, torch.randn(shape[1], min(shape), dtype=torch.float64))
    state: dict[str, Any] = {}
    apart = []
    for _ in range(40):
        before, start = theirs.clone(), ours.detach().clone()
        ours.grad = g.clone()
        optimizer.step()
        rule(theirs, g, state)
        apart.append(float(((theirs - before) - (ours.detach() - start)).norm()))
    assert apart[0] > 1e-2
    assert apart[-1] < 1e-6


def scion_lmo(name: str, p: Tensor) -> Callable[[Tensor], Tensor]:
    if p.ndim == 1:
        return lambda m: m / m.square().mean().sqrt()
    if name.startswith(("token", "position")):
        return torch.sign
    if name.startswith("head"):
        return lambda m: m.sign() / m.shape[1]
    return lambda m: (m.shape[0] / m.shape[1]) ** 0.5 * newton_schulz(m, JORDAN)


def test_constrained_scion() -> None:
    assert_same_steps(
        "Scion",
        transformer(),
        lambda name, p: scion(
            2**-12, 0.1, 3000.0 if name.startswith("head") else 50.0, scion_lmo(name, p)
        ),
    )


G = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("norm", "wanted"),
    [
        (norms.ColumnWise(scale="rms-out"), G / (G.square().sum(0, keepdim=True) / 6).sqrt()),
        (norms.RowWise(scale="rms-in"), G / (9 * G.square().sum(1, keepdim=True)).sqrt()),
        (norms.Sign(scale="mean-in"), G.sign() / 9),
        (norms.Sign(), G.sign()),
        (norms.Spectral(scale="rms"), (6 / 9) ** 0.5 * newton_schulz(G, JORDAN)),
        (norms.Spectral(scale="muon"), newton_schulz(G, JORDAN)),
    ],
    ids=str,
)
def test_scions_norms_have_these_names_here(norm: norms.Norm, wanted: Tensor) -> None:
    torch.testing.assert_close(norm.unit_direction(G), wanted, rtol=1e-9, atol=1e-9)


def test_scions_convolution_is_a_kth_of_ours() -> None:
    torch.manual_seed(0)
    k = 3
    g = torch.randn(8, 4, k, k, dtype=torch.float64)
    theirs = (8 / 4) ** 0.5 / k**2 * newton_schulz(g.flatten(1), JORDAN).reshape(g.shape)
    ours = norms.Spectral(scale="rms").unit_direction(g)
    torch.testing.assert_close(theirs, ours / k, rtol=1e-9, atol=1e-9)


def blocks_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters of the stem, of each block and of the head."""
    inside = [list(block.parameters()) for block in model.blocks]
    head = list(model.head.parameters())
    known = {id(p) for layer in (*inside, head) for p in layer}
    stem = [p for p in model.parameters() if id(p) not in known]
    return [stem, *inside, head]


def test_lisa_trains_the_ends_and_random_blocks_by_torchs_adamw() -> None:
    model, make_batch, loss = transformer(blocks=4)
    other = copy.deepcopy(model)
    optimizer = made_by_the_page("LISA", model, **{"gamma, interval": "2, 5"})
    adamw = torch.optim.AdamW(other.parameters(), lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
    drawn = []
    for k in range(40):
        active = optimizer.active
        drawn.append(active)
        for i, layer in enumerate(blocks_of(other)):
            for p in layer:
                p.requires_grad_(i in active)
        for net, each in ((model, optimizer), (other, adamw)):
            loss(net, make_batch(k)).backward()
            each.step()
            each.zero_grad()
    assert all(len(active) == 4 and {0, 5} <= {*active} for active in drawn)
    assert all(drawn[k] == drawn[k - k % 5] for k in range(40))
    assert len(set(drawn)) > 2
    optimizer.release()
    assert_same(model, other, 1e-10)


@pytest.mark.parametrize("forgets", [True, False])
def test_badam_trains_one_block_at_a_time_by_a_new_adamw(forgets: bool) -> None:
    """Without the line that forgets, the first round is the same, and the second is not."""
    model, make_batch, loss = residual()
    other = copy.deepcopy(model)
    optimizer = made_by_the_page("BAdam", model, switch_every=4)
    count = len(blocks_of(other))
    order: list[int] = []
    for k in range(2 * 4 * count):
        (active,) = optimizer.active
        if k % 4 == 0:
            order.append(active)
            chosen = blocks_of(other)[active]
            adamw = torch.optim.AdamW(chosen, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
            if forgets:
                optimizer.state.clear()
        for net, each in ((model, optimizer), (other, adamw)):
            net.zero_grad()
            loss(net, make_batch(k)).backward()
            each.step()
        if k == 4 * count - 1 or forgets:
            assert_same(model, other, 1e-10)
    assert sorted(order[:count]) == sorted(order[count:]) == list(range(count))
    if not forgets:
        with pytest.raises(AssertionError):
            assert_same(model, other, 1e-10)


def test_what_comes_then_cuts_batches_into_parts() -> None:
    model, make_batch, _ = transformer()
    optimizer = made_by_the_page("And then", model)
    assert optimizer.parts == 4
    assert len(list(optimizer.split(*make_batch(0)))) == 4
    assert len(layers_of(model)) == len(optimizer.layers)
