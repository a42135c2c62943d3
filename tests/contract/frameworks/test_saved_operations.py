"""Saved operations of real architectures, counted from shapes, against torch's own counter.

They differ by what has no parameters, mostly attention scores: see the tolerance.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon
from tests.contract.frameworks.tiny_models import tiny

pytestmark = pytest.mark.filterwarnings("ignore:.*loss_type", "ignore:.*fan_in_fan_out")

TOLERANCE = {"resnet": 0.001, "vit": 0.001, "llama": 0.001, "gpt2": 0.005, "gpt2 with LoRA": 0.01}
"""The largest difference of shares, of texts of 8 tokens or pictures of 4 patches."""


def made(name: str) -> tuple[nn.Module, dict[str, Any]]:
    model, example = tiny(name.partition(" ")[0])
    if name.endswith("LoRA"):
        peft = pytest.importorskip("peft", reason="needs pip install -e '.[frameworks]'")
        targets = ["c_attn", "c_fc"]
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets))
    return model, example


@pytest.mark.parametrize("policy", ["euclidean", "muon"], ids=["passes", "whole steps"])
@pytest.mark.parametrize("name", TOLERANCE)
def test_saved_operations_are_nearly_those_that_torch_counts(name: str, policy: Any) -> None:
    model, example = made(name)
    optimizer = DropMuon(model, policy=policy, by="block")
    layers = range(len(optimizer.layers))

    def operations() -> int:
        with FlopCounterMode(display=False) as counter:
            model(**example).loss.backward()
            optimizer.step()
        optimizer.zero_grad()
        return int(counter.get_total_flops())

    full, shares = operations(), []
    for cutoff in layers:
        optimizer.activate(layers[cutoff:])
        shares.append(1 - operations() / full)
        assert optimizer.saved_operations is not None
        assert optimizer.saved_operations.step == pytest.approx(shares[-1], abs=TOLERANCE[name])
    assert shares[-1] > 0.3
