"""The examples run."""

from __future__ import annotations

import io
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from torch import distributed

from tests.ranks import run_on_ranks

EXAMPLES = Path(__file__).parents[2] / "examples"


def fsdp2() -> None:
    output = io.StringIO()
    with redirect_stdout(output):
        runpy.run_path(str(EXAMPLES / "fsdp2.py"))["run"](torch.device("cpu"))
    losses = [float(found) for found in re.findall(r"loss (\S+)", output.getvalue())]
    if distributed.get_rank() == 0:
        assert len(losses) == 6
        assert losses == sorted(losses, reverse=True)


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo")
def test_the_example_of_fsdp2_learns_and_resumes() -> None:
    run_on_ranks(2, [fsdp2])
