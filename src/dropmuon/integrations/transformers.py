"""`DropMuonTrainer`: the Trainer of transformers, with DropMuon as its optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from dropmuon import presets, samplers
from dropmuon.checks import import_extra
from dropmuon.integrations.drawn import Drawn
from dropmuon.optimizer import DropMuon

__all__ = ["DropMuonTrainer"]

_transformers = import_extra("transformers", "frameworks")


class DropMuonTrainer(_transformers.Trainer):  # type: ignore[misc, name-defined]
    """A Trainer that makes DropMuon from its model and arguments, and gives the flags back.

    It is a mix-in as well: `class Mine(DropMuonTrainer, Seq2SeqTrainer): pass`. A callback alone
    would not do: it sees an optimizer too late to make it, never how a loss is scaled, and is not
    called when training ends with an error.

    `learning_rate`, `weight_decay` (of what the Trainer decays), `seed`, the number of steps and
    `gradient_accumulation_steps`, which becomes `parts`, come from `TrainingArguments`. Layers are
    blocks, and the sampler is "adaptive"; without accumulation it is "full", since one active set
    per step does not pay. The learning rate is AdamW's: with policy "muon-adamw", matrices move as
    far as AdamW would move them. All of this is among what `dropmuon` may change.

    Args:
        model, args, others, further: as for Trainer.
        dropmuon: arguments of `DropMuon`, which replace those made from `TrainingArguments`.
    """

    optimizer: Any

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *others: Any,
        dropmuon: Mapping[str, Any] | None = None,
        **further: Any,
    ) -> None:
        self._options = dict(dropmuon or {})
        if args is not None:
            _check(args, self._options)
            args.ddp_find_unused_parameters = True
        super().__init__(model, args, *others, **further)
        self._drawn = Drawn()
        self.add_callback(_TakesFlags())

    @property
    def drop_muon(self) -> DropMuon:
        """The optimizer itself, without the wrapper of accelerate."""
        return _unwrapped(self.optimizer)

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """Make the optimizer, unless one was given; it takes the flags when training begins.

        Until then the model is prepared, and DDP would leave out for good what it finds frozen.
        """
        if self.optimizer is None:
            whole = self.model if model is None else model
            settings = {**self._settings(), **self._options}
            groups = _decayed_and_not(whole, self.get_decay_parameter_names(whole), settings)
            self.optimizer = presets.muon(groups, model=whole, **settings)
        _check_parts(self.drop_muon.parts, self.args.gradient_accumulation_steps)
        _check_sampler(self.drop_muon.sampler, self.drop_muon.parts, self.args)
        self.drop_muon.release()
        return self.optimizer

    def _settings(self) -> dict[str, Any]:
        """Return what the arguments of the Trainer say."""
        args = self.args
        settings: dict[str, Any] = {
            "lr": args.learning_rate,
            "weight_decay": args.weight_decay,
            "seed": args.seed,
            "total_steps": self.state.max_steps or max(args.max_steps, 0) or None,
            "parts": args.gradient_accumulation_steps,
            "sampler": _default_sampler(args, self._options),
            "by": "block",
        }
        if not {"adamw_lr", "adamw_ratio"} & self._options.keys():
            policy = self._options.get("policy", "muon-adamw")
            if getattr(policy, "policy", policy) == "muon-adamw":  # by itself, or split_fused of it
                settings |= {"policy": policy, "adamw_ratio": 1.0}
        return settings

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and give all flags back at the end, also after an error."""
        try:
            return super().train(*args, **kwargs)
        finally:
            if isinstance(getattr(self.optimizer, "optimizer", self.optimizer), DropMuon):
                self.drop_muon.release()

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[list[Any], Any]:
        """Fetch the batches of a step; if losses are scaled by items, parts have these weights."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        parts = self.drop_muon.parts
        if parts > 1 and items is not None:
            counts = [self._count_items(batch) for batch in batches]
            missing = [1.0] * (parts - len(counts))  # in the last step of an epoch: not followed
            self.drop_muon.weigh([*counts, *missing])
        return batches, items

    def _count_items(self, batch: Mapping[str, Any]) -> float:
        """Count the items of a loss, as Trainer does for all batches of a step together.

        A batch without any has a gradient of zero, and a weight of nearly zero.
        """
        labels = batch.get("shift_labels", batch["labels"])
        if "shift_labels" not in batch and self._loss_shifts_labels:
            labels = labels[..., 1:]
        return float(labels.ne(-100).sum()) or 1e-9

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run forward and backward of a part, and count what it was for."""
        self._drawn.note(self.drop_muon)
        return super().training_step(*args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, beside the training loss, what backwards were for since the last time, and saved."""
        if "loss" in logs:
            logs.update(self._drawn.report(self.drop_muon))
        super().log(logs, *args, **kwargs)


class _TakesFlags(_transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """Lets the optimizer freeze layers once the model is prepared and a state is loaded."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, optimizer = kwargs["model"], _unwrapped(kwargs["optimizer"])
        if _checkpoints_need_no_hook(model):
            model.disable_input_require_grads()
        optimizer.__enter__()


def _checkpoints_need_no_hook(model: nn.Module) -> bool:
    """Return whether all checkpoints of a model are non-reentrant.

    transformers makes the output of embeddings require a gradient for checkpoints. Only reentrant
    ones need that; with others it only keeps backward alive down to the embeddings.
    """
    found = [getattr(module, "_gradient_checkpointing_func", None) for module in model.modules()]
    keywords = [getattr(each, "keywords", {}) for each in found if each is not None]
    return bool(keywords) and all(each.get("use_reentrant") is False for each in keywords)


def _unwrapped(optimizer: Any) -> DropMuon:
    inside = getattr(optimizer, "optimizer", optimizer)
    if isinstance(inside, DropMuon):
        return inside
    raise ValueError(
        f"optimizers must hold a DropMuon, got {type(inside).__name__}; leave it out to have one "
        "made from the arguments, or use Trainer"
    )


def _check(args: Any, options: Mapping[str, Any]) -> None:
    """Raise ValueError for what cannot work in a Trainer."""
    accumulated = args.gradient_accumulation_steps
    _check_parts(options.get("parts", accumulated), accumulated)
    if options.get("updates_per_batch", 1) != 1:
        raise ValueError(
            f"updates_per_batch must be 1 in a Trainer, got {options['updates_per_batch']}: it "
            "calls step() without a closure"
        )
    if args.ddp_find_unused_parameters is False or args.ddp_static_graph:
        raise ValueError(
            "ddp_find_unused_parameters must not be False, nor ddp_static_graph True, since the "
            "active layers change from step to step; leave both out"
        )
    sampler = samplers.by_name(options.get("sampler", _default_sampler(args, options)))
    _check_sampler(sampler, options.get("parts", accumulated), args)


def _default_sampler(args: Any, options: Mapping[str, Any]) -> str:
    parts = options.get("parts", args.gradient_accumulation_steps)
    return "adaptive" if parts > 1 else "full"


def _check_sampler(sampler: samplers.Sampler, parts: int, args: Any) -> None:
    if isinstance(sampler, samplers.Adaptive) and parts == 1:
        raise ValueError(
            "sampler='adaptive' needs several parts, got parts=1: in a Trainer, they are the "
            "accumulated batches; give gradient_accumulation_steps of 2 or more, and divide "
            "per_device_train_batch_size by as much"
        )
    if args.torch_compile and not isinstance(sampler, samplers.Full):
        raise ValueError(
            "torch_compile=True compiles the model as a whole, with a graph for every active set; "
            "leave it out, and call dropmuon.compile_blocks(model) before making the trainer"
        )


def _check_parts(parts: Any, accumulated: int) -> None:
    if parts not in (1, accumulated):
        raise ValueError(
            f"parts must be 1 or gradient_accumulation_steps, {accumulated}, got {parts!r}: every "
            "backward is a part; leave it out, or accumulate as many batches"
        )


def _decayed_and_not(
    model: nn.Module, decayed: Sequence[str], settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the parameters that are trained as the Trainer's groups: vectors do not decay."""
    names = {*decayed}
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in trained if (name in names) is decays], "weight_decay": rate}
        for decays, rate in ((True, settings["weight_decay"]), (False, 0.0))
    ]
    return [group for group in groups if group["params"]]
