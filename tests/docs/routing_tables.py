"""The tables of docs/routing.md: what each parameter of known models is taken for.

`python -m tests.docs.routing_tables` prints them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

from torch import nn

from dropmuon.model.layers import model_layers
from dropmuon.model.policies import route
from dropmuon.model.roster import Member
from tests.model.framework_models import MODELS, tiny_model

__all__ = ["SHOWN", "routing_table"]

SHOWN = list(MODELS)[:11]
"""The models of the page, in order."""

_HEADER = "| taken for | norm | parameters |\n| --- | --- | --- |"


def routing_table(model: nn.Module) -> str:
    """Return a table of all parameters, by what they are taken for and by norm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # tied parameters
        members = list(model_layers(model).members())
    route(members, "muon", "newton-schulz")
    rows: dict[tuple[str, str], list[str]] = {}
    for member in members:
        norm = re.sub(r"blocks=\d+", "blocks=groups", str(member.norm))
        names = rows.setdefault((member.taken_for, norm), [])
        if _pattern(member) not in names:
            names.append(_pattern(member))
    lines = [f"| {taken} | `{norm}` | {_listed(names)} |" for (taken, norm), names in rows.items()]
    return "\n".join([_HEADER, *lines])


def _pattern(member: Member) -> str:
    """Return a name without `.weight` and numbers; there are too many biases and norms to name."""
    if member.kind.text in ("bias", "normalisation"):
        return ""
    return re.sub(r"\.\d+(?=\.|$)", ".*", member.name.removesuffix(".weight"))


def _listed(names: Sequence[str]) -> str:
    """Return names between backticks, those inside the same block as one."""
    by_prefix: dict[str, list[str]] = {}
    if "" in names:
        return "all"
    for name in names:
        prefix, _, rest = name.rpartition(".*.")
        by_prefix.setdefault(prefix, []).append(rest)
    texts = []
    for prefix, rests in by_prefix.items():
        inside = rests[0] if len(rests) == 1 else "{" + ", ".join(rests) + "}"
        texts.append(f"`{prefix}.*.{inside}`" if prefix else ", ".join(f"`{r}`" for r in rests))
    return ", ".join(texts)


if __name__ == "__main__":
    for name in SHOWN:
        print(f"## {name}: `{MODELS[name][0]}`\n\n{routing_table(tiny_model(name))}\n")
