"""What training holds in memory: by cutoff, by parts, with checkpoints, with a budget.

    python benchmarks/memory.py [--models GPT-2 Llama]

The figures of docs/memory.md come from its output, kept in benchmarks/memory.txt. Nothing is timed,
and every number is the same in every run. Needs transformers (`pip install -e '.[frameworks]'`).

"saved" is what autograd keeps of one forward pass: the bytes of all storages that it packs, each
once, without parameters and buffers. "peak" is the most memory that one forward and backward take
from torch's allocator beyond what was there before, by the events of its profiler: what is saved,
what is computed in between, and gradients. Parameters and the state of the optimizer are there
before, and are counted apart.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from dropmuon import DropMuon, checkpoint_blocks

BLOCKS, WIDTH, HEADS, LENGTH, VOCABULARY = 12, 128, 4, 128, 1024
BATCH, PARTS = 4, 4
SHARES = (0.75, 0.5, 0.25)
MIB = 2**20

Batch = dict[str, Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    makers = {"GPT-2": gpt2, "Llama": llama}
    parser.add_argument("--models", nargs="+", choices=makers, default=list(makers))
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {BLOCKS} blocks of width {WIDTH}, {BATCH} x {LENGTH} tokens")
    for name in options.models:
        torch.manual_seed(0)
        model, batch = makers[name]().train(), tokens(BATCH)
        size = sum(parameter.nbytes for parameter in model.parameters()) / MIB
        print(f"\n{name}, parameters of {size:.2f} MiB (all figures in MiB)")
        by_cutoff(model, batch)
        by_parts(model, batch)
        by_budget(model, batch)
        by_method(model, batch)


def gpt2() -> nn.Module:
    sizes = {"n_layer": BLOCKS, "n_embd": WIDTH, "n_head": HEADS, "n_positions": LENGTH}
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, **ids, vocab_size=VOCABULARY, use_cache=False))  # type: ignore[no-any-return]


def llama() -> nn.Module:
    config = LlamaConfig(
        num_hidden_layers=BLOCKS,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_attention_heads=HEADS,
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    return LlamaForCausalLM(config)  # type: ignore[no-any-return]


def tokens(count: int) -> Batch:
    found = torch.randint(3, VOCABULARY, (count, LENGTH))
    return {"input_ids": found, "labels": found}


# The tables


def by_cutoff(model: nn.Module, batch: Batch) -> None:
    heading("cutoff", "saved", "peak", "peak, all blocks checkpointed")
    with DropMuon(model, by="block") as optimizer:
        count = len(optimizer.layers)
        for cutoff in (0, 1, 4, 7, 10, 12, 13):
            optimizer.activate(range(cutoff, count))
            plain = saved(model, batch), peak(model, batch)
            checkpoint_all(model)
            again = peak(model, batch)
            model.gradient_checkpointing_disable()  # type: ignore[operator]
            row(f"{cutoff} ({optimizer.layers[cutoff]})", *plain, again)


def by_parts(model: nn.Module, batch: Batch) -> None:
    part = tokens(BATCH // PARTS)
    heading("", "saved: mean", "most", "peak: mean", "most")
    row("all layers, one piece", *spread(model, batch, [None]))
    row(f"all layers, {PARTS} pieces", *spread(model, part, [None]))
    with DropMuon(model, by="block") as optimizer:
        count = len(optimizer.layers)
        cutoffs = [range(cutoff, count) for cutoff in range(count)]
        row("uniform cutoffs", *spread(model, batch, cutoffs, optimizer))
        row(f"uniform cutoffs, {PARTS} parts", *spread(model, part, cutoffs, optimizer))


def by_budget(model: nn.Module, batch: Batch) -> None:
    heading("budget", "blocks", "held at most", "peak", "operations, full", "uniform cutoffs")
    most = checkpoint_blocks(model, 2**62, batch).peak
    whole = operations(model, batch)
    uniform = mean_operations(model, batch)
    budgets = {f"{share:.0%}": int(share * most) for share in SHARES}
    for name, budget in {"none": most, **budgets, "smallest": smallest(model, batch)}.items():
        try:
            found = checkpoint_blocks(model, budget, batch)
        except ValueError:
            print(f"  {name:34} cannot be reached")
            continue
        with found:
            ratios = operations(model, batch) / whole, mean_operations(model, batch) / uniform
            row(name, len(found.names), found.peak, peak(model, batch), *ratios)


def by_method(model: nn.Module, batch: Batch) -> None:
    """Compare the sets of layers that methods train at a time; all are counted alike.

    Of LISA's pairs of blocks, six are taken that have every block once: all sums are as for all.
    """
    heading("", "saved: mean", "most", "peak: mean", "most", "gradients, most", "state")
    with DropMuon(model, by="block", policy="muon") as optimizer:
        count = len(optimizer.layers)
        blocks = range(1, count - 1)
        half = len(blocks) // 2
        lisa = [(0, block, block + half, count - 1) for block in blocks[:half]]
        cutoffs = [tuple(range(cutoff, count)) for cutoff in range(count)]
        single = [(layer,) for layer in range(count)]
        take_step(model, batch, optimizer)
        state = bytes_of_state(optimizer)
        every = [*optimizer.roster.members()]

        def adamw(sets: Iterable[Sequence[int]]) -> int:
            return max(2 * sum(m.parameter.nbytes for m in every if m.layer in s) for s in sets)

        def gradients(sets: Iterable[Sequence[int]]) -> int:
            return adamw(sets) // 2

        everything = [tuple(range(count))]
        for name, sets, kept in (
            ("all layers, AdamW", everything, adamw(everything)),
            ("all layers, Muon", everything, state),
            ("uniform cutoffs, DropMuon", cutoffs, state),
            ("LISA: two blocks, both ends", lisa, adamw(lisa)),
            ("BAdam: one block in turn", single, adamw(single)),
        ):
            row(name, *spread(model, batch, sets, optimizer), gradients(sets), kept)
        budget = smallest(model, batch)
        with checkpoint_blocks(model, budget, batch):
            *_, mean, most = spread(model, batch, cutoffs, optimizer)
            row("DropMuon, smallest budget", None, None, mean, most, gradients(cutoffs), state)


# The numbers


def saved(model: nn.Module, batch: Batch) -> int:
    """Return the bytes that autograd saves in one forward pass, beside parameters and buffers."""
    own = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(**batch)
    del outputs
    return sum(sizes.values())


def peak(model: nn.Module, batch: Batch) -> int:
    """Return the most memory that a forward and a backward take at once."""
    model.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model(**batch).loss.backward()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), place, event.nbytes())
        for place, event in enumerate(events)
        if event.name() == "[memory]"
    )
    model.zero_grad(set_to_none=True)
    total = most = 0
    for *_, change in changes:
        total += change
        most = max(most, total)
    return most


def operations(model: nn.Module, batch: Batch) -> int:
    with FlopCounterMode(display=False) as counter:
        model(**batch).loss.backward()
    model.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())


def mean_operations(model: nn.Module, batch: Batch) -> float:
    with DropMuon(model, by="block") as optimizer:
        count = len(optimizer.layers)
        found = []
        for cutoff in range(count):
            optimizer.activate(range(cutoff, count))
            found.append(operations(model, batch))
    return statistics.mean(found)


def spread(
    model: nn.Module,
    batch: Batch,
    sets: Iterable[Sequence[int] | None],
    optimizer: DropMuon | None = None,
) -> tuple[float, ...]:
    """Return mean and maximum of what is saved and of the peak, over equally likely sets."""
    kept, peaks = [], []
    for layers in sets:
        if optimizer is not None and layers is not None:
            optimizer.activate(layers)
        kept.append(saved(model, batch))
        peaks.append(peak(model, batch))
    return statistics.mean(kept), max(kept), statistics.mean(peaks), max(peaks)


def smallest(model: nn.Module, batch: Batch) -> int:
    """Return the smallest budget that can be reached, as the error of a smaller one names it."""
    try:
        checkpoint_blocks(model, 1, batch)
    except ValueError as error:
        return int(str(error).partition("at least ")[2].split()[0])
    raise AssertionError("a budget of one byte was reached")


def checkpoint_all(model: Any) -> None:
    """Checkpoint every block as transformers does, and let backward stop at the cutoff."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.disable_input_require_grads()


def take_step(model: nn.Module, batch: Batch, optimizer: DropMuon) -> None:
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def bytes_of_state(optimizer: torch.optim.Optimizer) -> int:
    values = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.nbytes for value in values if isinstance(value, Tensor) and value.ndim)


def heading(first: str, *columns: str) -> None:
    print(f"\n  {first:34} {'   '.join(columns)}")


def row(name: str, *values: float | None) -> None:
    print(f"  {name:34} {'   '.join(map(shown, values))}", flush=True)


def shown(value: float | None) -> str:
    """A count of blocks or a ratio as it is, bytes in MiB."""
    if value is None:
        return "-"
    if value < 100:
        return f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{value / MIB:.2f}"


if __name__ == "__main__":
    main()
