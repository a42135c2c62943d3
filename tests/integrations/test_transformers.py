"""`DropMuonTrainer`: DropMuon from the arguments of a Trainer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon, policies, presets, samplers
from dropmuon.step.rates import rate_of
from tests.contract.frameworks.tiny_models import tiny, transformers

from dropmuon.integrations.transformers import DropMuonTrainer  # isort: skip (needs transformers)

pytestmark = pytest.mark.filterwarnings("ignore:.*loss_type", "ignore:.*pin_memory")


def rows(count: int, masked: int = 0) -> list[dict[str, Tensor]]:
    """Texts of 8 tokens; of every second one, only the last ones count unless `masked` is 0."""
    ids = torch.randint(3, 32, (count, 8), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[1::2, :masked] = -100
    return [{"input_ids": x, "labels": y} for x, y in zip(ids, labels, strict=True)]


def make(
    path: Path,
    options: dict[str, Any] | None = None,
    *,
    model: nn.Module | None = None,
    data: Any = None,
    kind: Any = DropMuonTrainer,
    others: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    settings = {
        "max_steps": 4, "per_device_train_batch_size": 1, "use_cpu": True, "report_to": [],
        "save_strategy": "no", "disable_tqdm": True, "learning_rate": 1e-3, "logging_steps": 1,
        "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "seed": 5,
    }  # fmt: skip
    args = transformers.TrainingArguments(output_dir=str(path), **{**settings, **arguments})
    return kind(
        tiny("llama")[0] if model is None else model,
        args,
        train_dataset=rows(16) if data is None else data,
        dropmuon={"sampler": "uniform", **(options or {})},
        **(others or {}),
    )


def trained(*args: Any, **kwargs: Any) -> Any:
    trainer = make(*args, **kwargs)
    trainer.train()
    return trainer


def test_settings_come_from_the_arguments(tmp_path: Path) -> None:
    trainer = trained(
        tmp_path, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=4, weight_decay=0.1
    )
    optimizer = trainer.drop_muon
    assert type(trainer.optimizer).__name__ == "AcceleratedOptimizer"
    assert (optimizer.parts, optimizer.draws.seed, optimizer.draws.total_steps) == (4, 5, 8)
    assert optimizer.steps == trainer.state.global_step == 8
    assert optimizer.layers == DropMuon(tiny("llama")[0], by="block", policy="muon").layers
    for group in optimizer.param_groups:
        assert group["lr"] == 1e-3
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.1 if parameter.ndim > 1 else 0.0)
    norms = {str(member.norm) for member in optimizer.roster.members() if member.parameter.ndim > 1}
    assert norms == {"Spectral(scale=adamw)", "AdamW"}


@pytest.mark.parametrize(
    ("options", "accumulated", "kind"),
    [
        ({}, 1, samplers.Full),
        ({}, 2, samplers.Adaptive),
        ({"parts": 1}, 2, samplers.Full),
        ({"sampler": "uniform"}, 1, samplers.Progressive),
    ],
)
def test_without_accumulation_all_layers_move_unless_a_sampler_is_given(
    tmp_path: Path, options: dict[str, Any], accumulated: int, kind: type[samplers.Sampler]
) -> None:
    args = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], gradient_accumulation_steps=accumulated
    )
    trainer = DropMuonTrainer(tiny("llama")[0], args, train_dataset=rows(4), dropmuon=options)
    trainer.create_optimizer()
    assert isinstance(trainer.drop_muon.sampler, kind)


def test_it_trains_with_the_default_sampler(tmp_path: Path) -> None:
    args = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], gradient_accumulation_steps=4, max_steps=6,
        per_device_train_batch_size=1, save_strategy="no", disable_tqdm=True, learning_rate=1e-3,
    )  # fmt: skip
    trainer = DropMuonTrainer(tiny("llama")[0], args, train_dataset=rows(24))
    trainer.train()
    assert trainer.drop_muon.steps == 6
    assert trainer.drop_muon.noise is not None
    assert set(trainer.drop_muon.moves.values()) == {6}


@pytest.mark.parametrize("policy", ["muon-adamw", policies.split_fused("muon-adamw")])
def test_the_default_policy_may_be_named(tmp_path: Path, policy: Any) -> None:
    trainer = make(tmp_path, {"policy": policy}, learning_rate=1e-2)
    trainer.create_optimizer()
    assert {rate_of(group) for group in trainer.drop_muon.param_groups} == {1e-2}


def test_matrices_move_as_far_as_adamw_would_move_them(tmp_path: Path) -> None:
    model, _ = tiny("llama")
    before = copy.deepcopy(model.state_dict())
    trained(tmp_path, model=model, max_steps=1, per_device_train_batch_size=8)
    name = "model.layers.0.mlp.up_proj.weight"
    moved = model.state_dict()[name] - before[name]
    assert float(moved.square().mean().sqrt()) == pytest.approx(0.2 * 1e-3, rel=0.2)


def test_every_setting_can_be_replaced(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        **{"lr": 0.02, "policy": "muon", "by": "module", "sampler": "full", "seed": 9, "parts": 1},
    }
    optimizer = trained(tmp_path, options, gradient_accumulation_steps=2).drop_muon
    assert (optimizer.parts, optimizer.draws.seed, optimizer.param_groups[0]["lr"]) == (1, 9, 3e-4)
    assert optimizer.layers == DropMuon(tiny("llama")[0]).layers
    assert {g["lr"] for g in optimizer.param_groups} == {0.02, 3e-4}


def test_an_optimizer_that_is_given_is_used(tmp_path: Path) -> None:
    model, _ = tiny("llama")
    given = presets.muon(model, sampler="uniform", by="block")
    trainer = trained(tmp_path, model=model, others={"optimizers": (given, None)})
    assert trainer.drop_muon is given
    assert given.steps == 4


class SeenGradients(transformers.TrainerCallback):  # type: ignore[misc]
    """Keeps the gradients that each step follows, the sets they are from, and the weights."""

    def __init__(self) -> None:
        self.sets: list[tuple[Any, ...]] = []
        self.followed: list[dict[str, Tensor]] = []
        self.weights: list[dict[str, Tensor]] = []

    def on_step_begin(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        self.weights.append(copy.deepcopy(model.state_dict()))

    def on_pre_optimizer_step(self, *args: Any, optimizer: Any = None, **kwargs: Any) -> None:
        self.sets.append(optimizer.optimizer.active_sets)

    def on_optimizer_step(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        named = model.named_parameters()
        self.followed.append({name: p.grad.clone() for name, p in named if p.grad is not None})


def gradients_of(model: Any, row: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of the mean loss of one text."""
    whole = copy.deepcopy(model).requires_grad_(True)
    whole.zero_grad()
    whole(**{name: value[None] for name, value in row.items()}).loss.backward()
    return {name: p.grad for name, p in whole.named_parameters()}


@pytest.mark.parametrize("masked", [0, 6], ids=["equal", "unequal"])
@pytest.mark.parametrize("count", [12, 10], ids=["whole", "short"])
def test_a_layer_follows_the_mean_over_the_tokens_of_its_parts(
    tmp_path: Path, masked: int, count: int
) -> None:
    """Also in the last step of an epoch, if fewer batches than parts are left for it."""
    model, data, seen = tiny("llama")[0].double(), rows(count, masked), SeenGradients()
    trainer = make(
        tmp_path, model=model, data=data, gradient_accumulation_steps=4, max_steps=-1,
        num_train_epochs=1, train_sampling_strategy="sequential", others={"callbacks": [seen]},
    )  # fmt: skip
    trainer.train()
    layer_of = {member.name: member.layer for member in trainer.drop_muon.roster.members()}
    assert len(seen.sets) == 3
    for step, (followed, sets) in enumerate(zip(seen.followed, seen.sets, strict=True)):
        model.load_state_dict(seen.weights[step])
        texts = data[4 * step : 4 * step + 4]
        each = [gradients_of(model, text) for text in texts]
        tokens = [int((text["labels"][1:] != -100).sum()) for text in texts]
        for name, gradient in followed.items():
            inside = [n for n, active in enumerate(sets[: len(texts)]) if layer_of[name] in active]
            total = sum(tokens[n] for n in inside)
            mean = sum(tokens[n] / total * each[n][name] for n in inside)
            torch.testing.assert_close(gradient, mean, rtol=1e-4, atol=1e-7)
    assert any(len({*sets}) > 1 for sets in seen.sets)


def weights(trainer: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def equal(mine: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in mine.items())


@pytest.mark.parametrize("sampler", ["uniform", "epoch-shift", "adaptive"])
def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path, sampler: str) -> None:
    settings: dict[str, Any] = {
        "gradient_accumulation_steps": 2, "max_steps": 8, "save_strategy": "steps",
        "save_steps": 3, "lr_scheduler_type": "linear", "weight_decay": 0.1,
    }  # fmt: skip
    unbroken = trained(tmp_path, {"sampler": sampler}, **settings)
    resumed = make(tmp_path, {"sampler": sampler}, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.drop_muon.steps == 8
    assert resumed.drop_muon.moves == unbroken.drop_muon.moves
    mine, other = (each.drop_muon.saved_operations for each in (resumed, unbroken))
    assert mine == pytest.approx(other)
    assert equal(weights(resumed), weights(unbroken))


def test_flags_are_given_back_at_the_end_and_taken_for_more_training(tmp_path: Path) -> None:
    frozen = []

    class Watch(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
            frozen.append(sum(not p.requires_grad for p in model.parameters()))

    trainer = make(tmp_path, others={"callbacks": [Watch()]})
    for _ in range(2):
        trainer.train()
        assert all(p.requires_grad for p in trainer.model.parameters())
    assert sum(frozen[:4]) > 0
    assert sum(frozen[4:]) > 0
    assert trainer.drop_muon.steps == 8


def test_flags_are_given_back_after_an_error(tmp_path: Path) -> None:
    class Stop(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            frozen = [p for p in kwargs["model"].parameters() if not p.requires_grad]
            if frozen:
                raise InterruptedError

    trainer = make(tmp_path, others={"callbacks": [Stop()]})
    with pytest.raises(InterruptedError):
        trainer.train()
    assert all(p.requires_grad for p in trainer.model.parameters())


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_the_hook_on_embeddings_is_off_where_it_is_needless(
    tmp_path: Path, is_reentrant: bool
) -> None:
    """Where it stays, the optimizer warns of what it costs."""
    model, _ = tiny("llama")
    trainer = make(
        tmp_path, model=model, gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": is_reentrant},
    )  # fmt: skip
    if is_reentrant:
        with pytest.warns(UserWarning, match="backward goes on below its cutoff"):
            trainer.train()
    else:
        trainer.train()
    assert bool(model._require_grads_hooks) == is_reentrant


def test_ddp_is_told_that_gradients_may_be_missing(tmp_path: Path) -> None:
    trainer = make(tmp_path, gradient_checkpointing=True)
    assert trainer.accelerator.ddp_handler.find_unused_parameters


def test_a_model_is_prepared_with_all_flags_on(tmp_path: Path) -> None:
    """DDP leaves out for good what it finds frozen, and the first step need not be full."""
    trainer = make(tmp_path, {"full_start": False})
    optimizer = trainer.create_optimizer()
    assert all(p.requires_grad for p in trainer.model.parameters())
    trainer.train()
    assert trainer.drop_muon is optimizer
    assert optimizer.steps == 4


def test_training_logs_tell_what_backwards_were_for(tmp_path: Path) -> None:
    trainer = trained(tmp_path, gradient_accumulation_steps=2, logging_steps=2)
    first, second, _ = trainer.state.log_history
    names = {f"dropmuon/share/{layer}" for layer in trainer.drop_muon.layers}
    assert {name for name in first if "/" in name} == {
        *names,
        "dropmuon/cutoff",
        "dropmuon/skipped",
        "dropmuon/saved_operations",
        "dropmuon/saved_operations_mean",
    }
    assert first["dropmuon/share/stem"] >= 0.5  # of the full step
    assert second["dropmuon/cutoff"] == pytest.approx(5 * second["dropmuon/skipped"])
    assert sum(second[name] for name in names) == pytest.approx(5 - second["dropmuon/cutoff"])
    assert not any("/" in name for name in trainer.state.log_history[-1])
    saved = [each["dropmuon/saved_operations"] for each in (first, second)]
    assert 0 < saved[0] < saved[1]  # the first is of a full step and another
    assert second["dropmuon/saved_operations_mean"] == pytest.approx(sum(saved) / 2)
    assert trainer.drop_muon.saved_operations.mean == second["dropmuon/saved_operations_mean"]


def test_it_is_a_mix_in(tmp_path: Path) -> None:
    class Both(DropMuonTrainer, transformers.Seq2SeqTrainer):  # type: ignore[misc]
        """A trainer of encoders and decoders."""

    model, example = tiny("t5")
    data = [{name: value[0] for name, value in example.items()}] * 8
    args = transformers.Seq2SeqTrainingArguments(
        str(tmp_path), max_steps=2, use_cpu=True, report_to=[], save_strategy="no",
        disable_tqdm=True, per_device_train_batch_size=1,
    )  # fmt: skip
    trainer = Both(model, args, train_dataset=data, dropmuon={"example": example})
    trainer.train()
    assert trainer.drop_muon.steps == 2
