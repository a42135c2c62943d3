"""Several processes of one group, which run the same cases one after the other."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from unittest import mock

import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

__all__ = ["Case", "run_on_ranks"]

Case = Callable[[], None]
"""What every rank does: it raises if something is wrong."""


def run_on_ranks(ranks: int, cases: Sequence[Case]) -> None:
    """Run cases on that many ranks; raise what a rank raises, and leave no process behind.

    Processes take seconds to start, so many cases share them. On some virtual CPUs a product in
    bfloat16 is an illegal instruction, unless oneDNN is kept from it.
    """
    safe = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", **os.environ}
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, safe):
        spawn(_work, args=(ranks, folder, list(cases)), nprocs=ranks)


def _work(rank: int, ranks: int, folder: str, cases: list[Case]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks
    )
    for case in cases:
        try:
            case()
        except Exception as error:
            name = getattr(case, "__name__", case)
            raise AssertionError(f"{name}, rank {rank}: {traceback.format_exc()}") from error
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)  # threads of gloo may outlive the interpreter, and then abort the process
