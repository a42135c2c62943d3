"""The sampler that the planner chooses, for the method `drop-muon:planned`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon.files import write_text
from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.models import item_of
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.train.trial import initial_model
from dropmuon.lab.watch import Watcher
from dropmuon.planning import Plan, plan
from dropmuon.samplers import Sampler

__all__ = ["planned_sampler"]

_PLANNING_BATCHES = 8


def planned_sampler(
    config: Config, found: data.Data, run: RunDirectory, watcher: Watcher
) -> Sampler | None:
    """Return the planner's sampler for this model and data, planned once per comparison.

    None if no method needs one.
    """
    if not config.needs_plan:
        return None
    path = run.path / "plan.json"
    if not path.exists():
        watcher.prepare(f"planning for about {config.plan_budget:g} s")
        size = min(config.batch_size, len(found.train) // _PLANNING_BATCHES)
        places = torch.arange(size * _PLANNING_BATCHES, device=config.device).split(size)
        made = plan(
            initial_model(config, found, config.seeds[0]),
            _loss,
            [found.train.batch(each) for each in places],
            budget=config.plan_budget,
            lr=config.lr,
            momentum=config.momentum,
            policy=config.policy,
            by=item_of,
        )
        made.save(path)
        write_text(run.path / "plan.txt", f"{made}\n")
    return Plan.load(path).sampler


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])
