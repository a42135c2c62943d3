"""The table of misuses: what a user did, and what the error or the warning must say.

`docs/errors.md` has a row for each.
"""

# mypy: disable-error-code="arg-type"
# Arguments of the wrong type are the point here.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from dropmuon import (
    DropMuon,
    compile_blocks,
    layer_groups,
    norms,
    policies,
    rules,
    samplers,
)
from tests.docs.mistakes_of_users import (
    Flat,
    compiled,
    decayed_and_not,
    frozen,
    fused,
    grouped,
    half_used,
    load,
    make,
    make_model,
    newer,
    of_sgd,
    one_cycle_of_muon,
    reentrant_checkpoints,
    released_copy,
    rule_group,
    step_after_release,
    step_after_zero_grad,
    step_with_nan,
    step_with_sparse_gradient,
    step_without_backward,
    tied,
    too_few_backwards,
    trained_state,
    two_that_step,
)
from tests.docs.mistakes_with_engines import ENGINE_MISUSES
from tests.docs.mistakes_with_memory import MEMORY_MISUSES
from tests.docs.misuses_of_frameworks import FRAMEWORK_MISUSES

__all__ = ["MISUSES", "Misuse", "make_model"]


@dataclass(frozen=True)
class Misuse:
    """What a user did, what is raised or warned of, and what the message must say."""

    name: str
    call: Callable[[], Any]
    kind: type[Exception]
    says: str


def of(kind: type[Exception]) -> Callable[[str, str, Callable[[], Any]], Misuse]:
    return lambda name, says, call: Misuse(name, call, kind, says)


value, kind, runtime, warned = of(ValueError), of(TypeError), of(RuntimeError), of(UserWarning)

MISUSES = [
    # params
    value("model-without-parameters", "params .* has no parameters", lambda: DropMuon(nn.ReLU())),
    value("no-parameters", "params has nothing to optimize: it is empty", lambda: DropMuon([])),
    value("all-frozen", r"params .* requires_grad_\(True\)", lambda: DropMuon(frozen())),
    kind(
        "single-tensor",
        "params must be a model or an iterable of parameters, got a Parameter; give model",
        lambda: DropMuon(Parameter(torch.ones(2, 2))),
    ),
    kind("params-not-iterable", "params must be a model or an iterable", lambda: DropMuon(3)),
    kind("params-a-class", "params must be .* got", lambda: DropMuon(nn.Linear)),
    kind("params-a-string", "params must be .* got", lambda: DropMuon("model")),
    kind("not-a-module", "model must be an nn.Module, got list", lambda: layer_groups([1])),
    value(
        "some-names-missing",
        "with/without names",
        lambda: DropMuon([("w", Parameter(torch.ones(2))), Parameter(torch.ones(2))]),
    ),
    value(
        "complex-parameter",
        "'param0' is complex; .*view_as_real",
        lambda: DropMuon([torch.zeros(2, dtype=torch.complex64)]),
    ),
    value(
        "integer-parameter",
        "'param0' has dtype torch.int64; only floats",
        lambda: DropMuon([torch.zeros(2, dtype=torch.int64)]),
    ),
    warned("tied-parameter", "one tied parameter: .* moves with", lambda: DropMuon(tied())),
    warned(
        "groups-without-order",
        "order is not that of the model, .* model=model",
        lambda: DropMuon(decayed_and_not(make_model())),
    ),
    value(
        "two-models",
        "params is a model, Sequential, itself; leave out one",
        lambda: make(model=make_model()),
    ),
    value(
        "added-without-a-name",
        r"of shape \(2,\) that is not in the model; give it as a pair",
        lambda: make().add_param_group({"params": [Parameter(torch.ones(2))]}),
    ),
    # numbers
    value(
        "negative-lr", "lr must be a finite number of at least 0, got -0.1", lambda: make(lr=-0.1)
    ),
    value("nan-lr", "lr must be a finite .* got nan", lambda: make(lr=float("nan"))),
    value("infinite-lr", "lr must be a finite .* got inf", lambda: make(lr=float("inf"))),
    value("lr-of-two", "lr as a tensor .* one element", lambda: make(lr=torch.ones(2))),
    value("lr-a-word", "lr must be", lambda: make(lr="fast")),
    value("momentum-one", r"momentum must be in \[0, 1\), got 1", lambda: make(momentum=1)),
    value("negative-momentum", "momentum must .* got -0.1", lambda: make(momentum=-0.1)),
    value("nan-momentum", "momentum must .* got nan", lambda: make(momentum=float("nan"))),
    value("momentum-a-word", "momentum must .* got 'high'", lambda: make(momentum="high")),
    value("negative-decay", "weight_decay must .* got -1", lambda: make(weight_decay=-1)),
    value("nan-decay", "weight_decay must", lambda: make(weight_decay=float("nan"))),
    value("decay-a-word", "weight_decay must", lambda: make(weight_decay="low")),
    value("resample-every-zero", "resample_every must .* got 0", lambda: make(resample_every=0)),
    value("resample-every-half", "resample_every must .* 1.5", lambda: make(resample_every=1.5)),
    value("no-updates-per-batch", "updates_per_batch must", lambda: make(updates_per_batch=0)),
    value("total-steps-zero", "total_steps must .* got 0", lambda: make(total_steps=0)),
    value("negative-seed", r"seed must .* got -1", lambda: make(seed=-1)),
    value("fractional-seed", r"seed must be a whole number .* got 1.5", lambda: make(seed=1.5)),
    value("negative-adamw-lr", "adamw_lr must", lambda: make(policy="muon", adamw_lr=-1.0)),
    value("negative-adamw-ratio", "adamw_ratio must", lambda: make(adamw_ratio=-1.0)),
    value(
        "two-rates-of-adamw",
        "adamw_lr=0.001 and adamw_ratio=0.1 are both",
        lambda: make(policy="muon", adamw_lr=0.001, adamw_ratio=0.1),
    ),
    value(
        "negative-lr-ratio",
        "lr_ratio must be a finite number of at least 0, got -1",
        lambda: DropMuon([{"params": [Parameter(torch.ones(2, 2))], "lr_ratio": -1}]),
    ),
    # names
    value("unknown-sampler", "sampler must .* mean 'uniform'", lambda: make(sampler="unifrom")),
    value("unknown-policy", "policy must .* mean 'spectral'", lambda: make(policy="spectrl")),
    value("unknown-by", "by must .* mean 'module'", lambda: make(by="modules")),
    value("unknown-tied", "tied must .* mean 'head'", lambda: make(tied="heads")),
    value(
        "unknown-orthogonalize",
        "orthogonalize must .* mean 'newton-schulz'",
        lambda: make(orthogonalize="newtonschulz"),
    ),
    value(
        "unknown-momentum-start",
        "momentum_start must .* mean 'gradient'",
        lambda: make(momentum_start="gradients"),
    ),
    value(
        "unknown-full-start",
        "full_start must .* mean 'momentum'",
        lambda: make(full_start="momentun"),
    ),
    value("unknown-truncate", "truncate must .* mean 'refresh'", lambda: make(truncate="refrsh")),
    value(
        "unknown-norm",
        "norm must .* mean 'spectral'",
        lambda: DropMuon([{"params": [Parameter(torch.ones(2, 2))], "norm": "spectrall"}]),
    ),
    value("unknown-scale", "scale must .* mean 'muon'", lambda: norms.Spectral(scale="muonn")),
    value(
        "unknown-probabilities",
        "probabilities must .* mean 'linear'",
        lambda: samplers.Progressive("liner"),
    ),
    # kinds
    kind("sampler-a-list", "sampler must be a name or a Sampler", lambda: make(sampler=[0.5, 0.5])),
    kind("sampler-a-class", "sampler must be .* Sampler", lambda: make(sampler=samplers.Full)),
    kind("policy-a-number", "policy must be a name or a callable", lambda: make(policy=3)),
    kind(
        "norm-a-number",
        "norm must be",
        lambda: DropMuon([{"params": [Parameter(torch.ones(2, 2))], "norm": 2}]),
    ),
    kind(
        "norm-a-class",
        "norm must be",
        lambda: DropMuon([{"params": [Parameter(torch.ones(2, 2))], "norm": norms.Sign}]),
    ),
    kind("by-a-number", "by must be", lambda: make(by=3)),
    value(
        "horizon-reached-above-one",
        "reached must be at most 1",
        lambda: rules.Horizon(10, reached=[0.5, 2.0]),
    ),
    kind("step-rule-a-number", "step_rule must be", lambda: make(step_rule=0.5)),
    # samplers
    value("no-total-steps", "total_steps is missing", lambda: make(sampler="epoch-shift")),
    value(
        "probabilities-for-other-layers",
        "probabilities must have 3 entries, got 2; give one for each",
        lambda: make(sampler=samplers.Progressive([0.5, 0.5])),
    ),
    value(
        "tau-too-large",
        "tau must be at most the number of layers, 3, got 4",
        lambda: make(sampler=samplers.Nice(4)),
    ),
    value(
        "window-too-large",
        "tau must be at most .* 3, got 4; choose a smaller window",
        lambda: make(sampler=samplers.Submodel(4)),
    ),
    value(
        "partition-of-other-layers",
        "blocks must cover exactly the 3 layers .* see Partition.contiguous",
        lambda: make(sampler=samplers.Partition([(0,), (1,)])),
    ),
    value(
        "partition-overlaps",
        "blocks must be disjoint, got layer 1 .* one block",
        lambda: samplers.Partition([(0, 1), (1, 2)]),
    ),
    value(
        "partition-with-a-hole",
        "blocks must cover every layer .* add it",
        lambda: samplers.Partition([(0,), (2,)]),
    ),
    value(
        "set-of-other-layers",
        "distribution must hold layer indices below 3, got 3; count layers from 0",
        lambda: make(sampler=samplers.Arbitrary({(0, 1, 2, 3): 1.0})),
    ),
    value(
        "negative-probability",
        "probabilities must not be negative, got -0.5 at index 0",
        lambda: samplers.Progressive([-0.5, 1.5]),
    ),
    value(
        "probabilities-do-not-sum-to-one",
        "probabilities must sum to 1, got 0.93; divide them by their sum",
        lambda: samplers.Progressive([0.43, 0.5]),
    ),
    value(
        "nan-probability",
        "probabilities must be finite, got nan at index 1",
        lambda: samplers.Progressive([0.5, float("nan")]),
    ),
    value(
        "first-layer-never-reached",
        "the first layer would never be reached; give it a positive probability",
        lambda: make(sampler=samplers.Progressive([0.0, 0.5, 0.5])),
    ),
    kind(
        "schedule-not-called",
        r"its maker .* call it, as in epoch_shift\(alpha=0.5\)",
        lambda: samplers.Progressive(samplers.epoch_shift),
    ),
    # layers, norms and rules
    value("no-blocks", 'by="block" needs .* use by="module"', lambda: DropMuon(Flat(), by="block")),
    value(
        "example-does-not-run",
        "example could not be run .* give a tensor, a tuple",
        lambda: make(example=torch.ones(1, 99)),
    ),
    value(
        "unnamed-tensors-for-adamw",
        "policy gives 'param1' to AdamW, .* norm='adamw' and its lr",
        lambda: DropMuon([Parameter(torch.ones(2, 2)), Parameter(torch.ones(2))], policy="muon"),
    ),
    value(
        "coefficients-of-a-wrong-shape",
        r"coefficients must be finite numbers \(a, b\) or \(a, b, c\)",
        lambda: make(orthogonalize=(1.0, 2.0, 3.0, 4.0)),
    ),
    value(
        "orthogonalize-a-number",
        r"coefficients must be finite numbers .* got 5",
        lambda: make(orthogonalize=5),
    ),
    value(
        "no-newton-schulz-steps",
        "steps must be a whole number of at least 1, got 0",
        lambda: norms.NewtonSchulz(steps=0),
    ),
    value(
        "no-blocks-in-a-norm",
        "blocks must be a whole number of at least 1, got 0; use 'batch'",
        lambda: norms.Spectral(blocks=0),
    ),
    value(
        "blocks-that-do-not-divide",
        "blocks must divide the first dimension",
        lambda: norms.Spectral(blocks=4).unit_direction(torch.ones(6, 2)),
    ),
    value(
        "pieces-that-do-not-make-up",
        "pieces must make up dimension 0",
        lambda: norms.Split(norms.Spectral(), 4).unit_direction(torch.ones(6, 2)),
    ),
    value("no-pieces", "pieces must be a whole number", lambda: norms.Split(norms.Spectral(), 0)),
    value(
        "fused-sizes-unknown",
        "split_fused cannot tell the pieces",
        lambda: DropMuon(fused("qkv", 20), policy=policies.split_fused("muon")),
    ),
    value(
        "fused-head-by-head",
        "stored head by head",
        lambda: DropMuon(fused("query_key_value", 24), policy=policies.split_fused("muon")),
    ),
    value(
        "fused-sizes-do-not-fit",
        "must make up the 20 outputs",
        lambda: DropMuon(fused("qkv", 20), policy=policies.split_fused("muon", {"qkv": (8, 8)})),
    ),
    value(
        "fused-name-misspelt",
        "did you mean 'my_qkv'",
        lambda: DropMuon(fused("my_qkv", 24), policy=policies.split_fused("muon", {"my_qvk": 3})),
    ),
    value("scale-of-zero", "scale must be positive .* got 0", lambda: norms.Sign(scale=0)),
    value("precision-an-integer", "precision must", lambda: norms.Spectral(precision=torch.int32)),
    value("beta-of-one", "betas must be two numbers", lambda: norms.AdamW(betas=(1.0, 0.9))),
    value(
        "momentum-against-horizon",
        r"momentum=0.5 contradicts Horizon\(99.*leave momentum out",
        lambda: make(momentum=0.5, step_rule=rules.Horizon(99)),
    ),
    value(
        "no-horizon", "steps must be a whole number of at least 1, got 0", lambda: rules.Horizon(0)
    ),
    value(
        "constants-for-other-layers",
        "constants has 2 entries, but the model has 3 layers; give one entry per layer",
        lambda: make(step_rule=rules.Smooth([1.0, 2.0])),
    ),
    value(
        "constants-not-positive",
        "constants must be finite and positive",
        lambda: rules.Smooth([1.0, 0.0]),
    ),
    # steps
    runtime("sparse-gradient", "'0.weight' is sparse, .* sparse=False", step_with_sparse_gradient),
    runtime("step-after-release", r"after release\(\), .* 'with optimizer:'", step_after_release),
    runtime("nonfinite-gradient", "gradient of '0', .* error_if_nonfinite", step_with_nan),
    value(
        "updates-without-closure",
        r"updates_per_batch=2 needs step\(closure\)",
        lambda: make(updates_per_batch=2).step(),
    ),
    warned(
        "step-without-backward",
        r"no gradient .* call loss.backward\(\) before every step",
        step_without_backward,
    ),
    value("no-parts", "parts must be a whole number", lambda: make(parts=0)),
    value("half-a-part", "parts must be a whole number", lambda: make(parts=1.5)),
    value("adaptive-in-one-part", "no way to measure", lambda: make(sampler="adaptive")),
    value(
        "windows-in-parts",
        "parts=2 and Stratified.* cannot be combined",
        lambda: make(parts=2, sampler=samplers.Stratified(samplers.Progressive(), 8)),
    ),
    value(
        "windows-of-full-steps",
        "sampler must be one that draws",
        lambda: samplers.Stratified(samplers.Full(), 8),
    ),
    value("no-turns", "turns must be a whole", lambda: make(turns=0)),
    value(
        "turns-of-sharp-steps",
        "turns=2 needs steps of constant radius",
        lambda: make(turns=2, step_rule=rules.Sharp()),
    ),
    value(
        "turns-of-a-sharp-group",
        "turns=2 needs steps of constant radius",
        lambda: DropMuon([rule_group(rules.Sharp())], turns=2),
    ),
    value(
        "parts-and-updates",
        "cannot be combined",
        lambda: make(parts=2, updates_per_batch=2),
    ),
    value(
        "batch-smaller-than-parts",
        "at least one example per part, got 3 for parts=4",
        lambda: list(make(parts=4).split(torch.ones(3, 4))),
    ),
    value(
        "split-unequal-lengths",
        r"got lengths \[3, 4\]",
        lambda: list(make(parts=2).split(torch.ones(3, 4), torch.ones(4))),
    ),
    value(
        "split-nothing-to-cut",
        "no tensor with an axis",
        lambda: list(make(parts=2).split({"n": 3})),
    ),
    value(
        "weights-of-other-parts", "weights must be 2 positive", lambda: make(parts=2).weigh([1.0])
    ),
    value(
        "state-of-other-parts",
        "made with parts=2, but this optimizer has parts=1",
        lambda: load(make(parts=2).state_dict()),
    ),
    value(
        "decreasing-shares",
        "must not decrease towards the output",
        lambda: samplers.Shares([0.5, 0.25, 1.0]),
    ),
    value("shares-not-positive", "must be positive", lambda: samplers.Shares([0.0, 1.0])),
    value("shares-below-one", "must end with 1", lambda: samplers.Shares([0.25, 0.5])),
    value(
        "shares-for-other-layers",
        "one entry per layer, 3, got 2",
        lambda: make(sampler=samplers.Shares([0.5, 1.0])),
    ),
    warned("one-maximum-for-adamw", "raised to that of the norms", one_cycle_of_muon),
    warned("too-few-backwards", "after 1 of 2 parts, 2 times in a row", too_few_backwards),
    warned("step-after-zero-grad", "no gradient", step_after_zero_grad),
    warned("two-that-step", r"another DropMuon .*release\(\)", two_that_step),
    warned(
        "pairs-without-modules",
        "cannot tell whether '0.weight', '1.weight' are embeddings",
        lambda: DropMuon(make_model().named_parameters(), policy="muon"),
    ),
    warned(
        "pairs-that-may-have-groups",
        "cannot tell whether '1.weight' have groups",
        lambda: DropMuon(grouped().named_parameters()),
    ),
    value(
        "activate-no-such-layer",
        "layers must hold layer indices from 0 to 2",
        lambda: make().activate([3]),
    ),
    warned("unreached-layer", "no gradient reached 'second' in a full step", half_used),
    warned("copy-without-its-model", "Copy model and optimizer together", released_copy),
    warned("reentrant-checkpoints", "pass use_reentrant=False", reentrant_checkpoints),
    warned("compiled-as-a-whole", r"compile_blocks\(model\)", lambda: DropMuon(compiled(9))),
    value(
        "compile-blocks-of-a-whole",
        "model is compiled as a whole, got OptimizedModule",
        lambda: compile_blocks(compiled(2)),
    ),
    value(
        "compile-no-module",
        "by must make layers that are modules, got 'all'",
        lambda: compile_blocks(make_model(), by=lambda name, parameter: "all"),
    ),
    # states
    value("state-of-another-optimizer", "state_dict is not from DropMuon", lambda: load(of_sgd())),
    value("state-of-a-newer-release", "version 99, .* upgrade dropmuon", lambda: load(newer())),
    value(
        "state-of-another-model",
        "layer 0, but this optimizer has '0'; build it with the same model",
        lambda: load(trained_state(nn.Sequential(nn.Identity(), *make_model()))),
    ),
    value(
        "state-of-other-layers",
        "state_dict is for 2 layers, but this optimizer has 3; build",
        lambda: load(trained_state(Flat())),
    ),
    value(
        "state-of-another-sampler",
        r"made with sampler Full\(\), .* build it with the same sampler",
        lambda: load(make(sampler="full").state_dict()),
    ),
    value(
        "state-of-other-shapes",
        r"shape \(5, 4\) .* another model",
        lambda: load(
            trained_state(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 2)))
        ),
    ),
    # frameworks
    *(
        Misuse(name, call, error, says)
        for name, error, says, call in (*ENGINE_MISUSES, *FRAMEWORK_MISUSES, *MEMORY_MISUSES)
    ),
]
