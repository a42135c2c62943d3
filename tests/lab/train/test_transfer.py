"""Transfer: trained weights and a new head, the same for all methods, and for a resumed run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.models import head_of
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.train import compare as compare_module
from dropmuon.lab.train.compare import compare
from dropmuon.lab.train.equal_terms import initial_model
from dropmuon.lab.train.transfer import Weights, digest_of, starting_weights
from dropmuon.lab.train.trial import Trial, measured
from tests.lab.short_text import replace_texts
from tests.lab.tiny import tiny
from tests.lab.train.runs import StopAfter, timeless

FIRST, SECOND = (0, 1, 2, 3, 4), (9, 8, 7, 6, 5)
METHODS = ("adamw", "full", "drop-muon:uniform")


def small(**changes: Any) -> Config:
    settings = {"classes": FIRST, "methods": METHODS, "seeds": (3, 0), "batch_norm": True}
    return tiny(**{**settings, **changes})


def weights_of(run: RunDirectory) -> Weights:
    found: Weights = torch.load(run.weights / "baseline.pt", weights_only=True)
    return found


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return compare(small(), tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture(scope="module")
def second(first: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    config = small(classes=SECOND, init=str(first.path))
    return compare(config, tmp_path_factory.mktemp("runs") / "second")


def test_a_run_keeps_its_baseline_on_the_first_seed_as_it_was_at_the_end(
    first: RunDirectory,
) -> None:
    found = data.load("digits", classes=FIRST)
    model = initial_model(small(), found, 0)
    model.load_state_dict(weights_of(first))
    (end,) = [e for e in first.evaluations() if (e.method, e.seed, e.progress) == ("full", 3, 1)]
    assert measured(model, found.test) == (end.test_accuracy, end.test_loss)
    assert [path.name for path in first.weights.iterdir()] == ["baseline.pt"]


def test_all_but_the_head_starts_as_it_was_trained_for_every_method_and_seed(
    first: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[tuple[str, int], Weights] = {}

    class Noted(Trial):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            state = self.model.state_dict()
            started[self.method.name, self.seed] = {n: t.clone() for n, t in state.items()}

    monkeypatch.setattr(compare_module, "Trial", Noted)
    config = small(classes=SECOND, init=str(first.path), epochs=1, evaluations_per_epoch=1)
    compare(config, tmp_path / "run")
    trained, found = weights_of(first), data.load("digits", classes=SECOND)
    assert set(started) == {(method, seed) for method in METHODS for seed in (0, 3)}
    for (_, seed), state in started.items():
        untrained = initial_model(config, found, seed).state_dict()
        for name, tensor in state.items():
            expected = untrained if name.startswith("head.") else trained
            assert torch.equal(tensor, expected[name]), name
    assert trained["hidden1.1.num_batches_tracked"] > 0


def test_methods_of_a_seed_begin_as_one_and_heads_differ_by_seed(second: RunDirectory) -> None:
    starts = [e for e in second.evaluations() if e.step == 0]
    assert len({e.test_loss for e in starts if e.seed == 0}) == 1
    assert len({e.test_loss for e in starts}) == 2


@pytest.mark.parametrize("evaluations", [0, 9])
def test_a_resumed_run_equals_an_unbroken_one_even_without_its_source(
    first: RunDirectory, second: RunDirectory, tmp_path: Path, evaluations: int
) -> None:
    source, out = tmp_path / "source", tmp_path / "run"
    shutil.copytree(first.path, source)
    config = small(classes=SECOND, init=str(source))
    with pytest.raises(KeyboardInterrupt):
        compare(config, out, watcher=StopAfter(evaluations))
    shutil.rmtree(source)
    run = compare(config, out, resume=True)
    assert timeless(run) == timeless(second)
    assert digest_of(weights_of(run)) == digest_of(weights_of(second))


def test_what_a_resumed_run_started_from_is_named_if_it_is_damaged(
    first: RunDirectory, tmp_path: Path
) -> None:
    config = small(classes=SECOND, init=str(first.path))
    with pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path, watcher=StopAfter(0))
    (tmp_path / "weights" / "initial.pt").write_bytes(b"")
    with pytest.raises(ValueError, match="that cannot be read; begin it again with another --out"):
        compare(config, tmp_path, resume=True)


def test_tuning_depends_on_the_weights_and_not_on_their_path(
    first: RunDirectory, tmp_path: Path
) -> None:
    cache, moved = tmp_path / "tuning", tmp_path / "moved.pt"
    shutil.copy(first.weights / "baseline.pt", moved)
    other = {name: tensor * 2 for name, tensor in weights_of(first).items()}
    torch.save(other, tmp_path / "other.pt")
    found = []
    for place, init in enumerate(("", str(first.path), str(moved), str(tmp_path / "other.pt"))):
        config = small(methods=("full",), seeds=(0,), epochs=1, tune=1, init=init)
        compare(config, tmp_path / f"{place}", tuning=cache)
        found.append(len(list(cache.iterdir())))
    assert found == [1, 2, 2, 3]


@pytest.mark.parametrize("join_head", [False, True])
@pytest.mark.parametrize(
    ("model", "channels"), [("cnn", (4, 4)), ("mlp", (4, 4)), ("resnet18", (4, 4, 4, 4))]
)
def test_every_model_starts_from_all_but_its_head(
    tmp_path: Path, model: str, channels: tuple[int, ...], join_head: bool
) -> None:
    init = tmp_path / "weights.pt"
    config = tiny(model=model, channels=channels, join_head=join_head, init=str(init))
    found = data.load("digits", classes=(0, 1))
    trained = initial_model(config, data.load("digits"), 5)
    torch.save(trained.state_dict(), init)
    start = starting_weights(config, found, RunDirectory(tmp_path), resume=False)
    assert start is not None
    own = initial_model(config, found, 0, start)
    head = own.get_submodule(head_of(own, join_head))
    assert len(own.state_dict()) - len(start) == len(head.state_dict())
    assert sum(each.numel() for each in head.state_dict().values()) % 2 == 0
    for name, tensor in start.items():
        assert torch.equal(tensor, trained.state_dict()[name])
        assert torch.equal(tensor, own.state_dict()[name])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"hidden1.0.weight": torch.zeros(16, 64)},
            "has no 'hidden1.0.bias', which mlp 16-12 needs; give weights of the same model,",
        ),
        (
            {"hidden1.0.weight": torch.zeros(8, 64)},
            r"has 'hidden1.0.weight' of shape \(8, 64\), and mlp 16-12 needs \(16, 64\); give",
        ),
        (
            {"hidden1.0.weight": torch.full((16, 64), torch.nan)},
            "has values in 'hidden1.0.weight' that are not finite; give weights of training",
        ),
        ({"model": {}, "step": 3}, "must have tensors by name, got a dict as 'model'; give"),
        ([1, 2], "must have tensors by name, got a list; give the directory"),
        (torch.zeros(3), "must have tensors by name, got a Tensor; give"),
        (b"", "has weights that cannot be read; give the directory of a run, or a file"),
        (b"no state", "has weights that cannot be read; give the directory of a run, or a file"),
        (b"root:x:0:0", "has weights that cannot be read; give the directory of a run, or a file"),
        (b"Nr", "has weights that cannot be read; give the directory of a run, or a file"),
        (None, "does not exist; give the directory of a run, or a file of weights"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, content: Any, words: str
) -> None:
    init, out = tmp_path / "weights.pt", tmp_path / "run"
    config = tiny(init=str(init))
    if isinstance(content, bytes):
        init.write_bytes(content)
    elif content is not None:
        torch.save(content, init)
    with pytest.raises(ValueError, match=f"init {init} {words}"):
        compare(config, out)
    assert not out.exists()


def test_weights_of_a_deeper_model_are_refused(tmp_path: Path) -> None:
    init = tmp_path / "weights.pt"
    deeper = initial_model(tiny(channels=(16, 12, 12)), data.load("digits"), 0)
    torch.save(deeper.state_dict(), init)
    with pytest.raises(ValueError, match=r"has 'hidden3\.0\.weight', which mlp 16-12 lacks; give"):
        compare(tiny(init=str(init)), tmp_path / "run")


def test_a_directory_must_be_a_run_that_has_trained_its_baseline(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with pytest.raises(ValueError, match=r"is not a run: it has no config\.json; give a directory"):
        compare(tiny(init=str(source)), tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        compare(tiny(), source, watcher=StopAfter(3))
    with pytest.raises(ValueError, match="has no trained weights of its baseline; continue it"):
        compare(tiny(init=str(source)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_gpt_is_trained_on_one_text_and_tuned_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"enwik8": b"abcdefg " * 100, "shakespeare": b"gfedcba " * 50}
    replace_texts(monkeypatch, **texts)
    common: dict[str, Any] = {
        "model": "gpt",
        "channels": (32, 32),
        "context": 8,
        "batch_size": 10,
        "seeds": (0,),
    }
    common |= {"methods": ("full", "drop-muon:uniform"), "lr": 0.05, "evaluations_per_epoch": 1}
    options = {name: {"adamw_lr": 0.01} for name in ("full", "drop-muon:uniform")}
    first = Config(dataset="enwik8", epochs=4, options=options, **common)
    compare(first, tmp_path / "first")
    common["init"] = str(tmp_path / "first")
    second = Config(dataset="shakespeare", epochs=2, options=options, **common)
    run = compare(second, tmp_path / "second")
    trained = weights_of(RunDirectory(tmp_path / "first"))
    began: Weights = torch.load(run.weights / "initial.pt", weights_only=True)
    assert set(trained) - set(began) == {"head.0.weight", "head.0.bias", "head.1.weight"}
    assert all(torch.equal(tensor, trained[name]) for name, tensor in began.items())
    losses = [e.test_bits_per_byte or 0 for e in run.evaluations() if e.method == "full"]
    assert losses[-1] < losses[0]


tensors = st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(torch.tensor)
states = st.dictionaries(st.sampled_from(["a", "b", "ab"]), tensors, max_size=3)


def bits(state: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: tensor.view(torch.int32).tolist() for name, tensor in state.items()}


@given(states, states)
def test_digests_are_equal_for_equal_weights_and_no_others(one: Weights, other: Weights) -> None:
    backwards = dict(reversed(one.items()))
    assert digest_of(backwards) == digest_of(one)
    assert (digest_of(one) == digest_of(other)) == (bits(one) == bits(other))
