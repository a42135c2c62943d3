"""Which norm for which parameter: a policy looks at one parameter and says why it chose."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dropmuon import norms
from dropmuon.checks import unknown_name

__all__ = ["POLICIES", "Choice", "Policy", "Site", "choose", "groups_of"]


@dataclass(frozen=True)
class Site:
    """Where a parameter stands in its model: what a policy is asked about."""

    name: str
    parameter: Tensor
    module: nn.Module | None
    layer: int
    num_layers: int

    @property
    def is_matrix(self) -> bool:
        """Two or more axes: a linear map, a convolution, an embedding table.

        A vector that was given axes of one to broadcast, as a layer scale (C, 1, 1), is none.
        """
        shape = self.parameter.shape
        is_scale = len(shape) >= 3 and self.parameter.numel() == shape[0]
        return len(shape) >= 2 and not (is_scale and self.groups == 1)

    @property
    def is_embedding(self) -> bool:
        """A table that is looked up, not multiplied."""
        return isinstance(self.module, nn.Embedding | nn.EmbeddingBag)

    @property
    def is_output(self) -> bool:
        """The matrix of the last layer."""
        return self.is_matrix and self.layer == self.num_layers - 1

    @property
    def groups(self) -> int:
        """Groups of a convolution: its matrix is block-diagonal with so many blocks."""
        groups = getattr(self.module, "groups", 1) if self.parameter.ndim >= 3 else 1
        return groups if isinstance(groups, int) else 1

    @property
    def is_transposed(self) -> bool:
        """A transposed convolution, whose first axis is its input."""
        return bool(getattr(self.module, "transposed", False))


@dataclass(frozen=True)
class Choice:
    """A norm and the reason for it, as `describe()` prints them."""

    norm: norms.Norm | norms.AdamW
    reason: str


Policy = Callable[[Site], Choice | norms.Norm | norms.AdamW | str]


def choose(policy: str | Policy, site: Site, orthogonalize: Any) -> Choice:
    """Ask a policy, by name or callable, for the norm of one parameter."""
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise unknown_name("policy", policy, POLICIES)
        return POLICIES[policy](site, orthogonalize)
    if not callable(policy):
        raise TypeError(
            f"policy must be a name or a callable of a Site, got {type(policy).__name__}; "
            f"the names are {', '.join(sorted(POLICIES))}"
        )
    answer = policy(site)
    if isinstance(answer, Choice):
        return answer
    return Choice(norms.by_name(answer, orthogonalize), "chosen by your policy")


def groups_of(
    label: str, sites: Iterable[Site], policy: str | Policy, orthogonalize: Any
) -> list[dict[str, Any]]:
    """Parameter groups of one layer: a group for each norm that the policy chooses."""
    chosen: dict[Choice, list[tuple[str, Tensor]]] = {}
    for site in sites:
        choice = choose(policy, site, orthogonalize)
        chosen.setdefault(choice, []).append((site.name, site.parameter))
    return [
        {"params": named, "layer": label, "norm": choice.norm, "reason": choice.reason}
        for choice, named in chosen.items()
    ]


def _spectral(site: Site, orthogonalize: Any, scale: str | float = 1.0) -> Choice:
    """The paper's experiments: matrices under the spectral norm, vectors under the Euclidean."""
    if not site.is_matrix:
        return Choice(norms.Euclidean(), "a vector")
    norm = norms.Spectral(orthogonalize=orthogonalize, scale=scale, blocks=site.groups)
    if site.groups > 1:
        return Choice(norm, f"a convolution of {site.groups} groups: block-diagonal")
    if site.is_transposed:
        return Choice(norm, "a transposed convolution, as a matrix (in, out*kernel)")
    if site.parameter.ndim >= 3:
        return Choice(norm, "a convolution, as a matrix (out, in*kernel)")
    return Choice(norm, "a matrix")


def _muon(site: Site, orthogonalize: Any) -> Choice:
    """Jordan's Muon: hidden matrices orthogonalised, everything else on AdamW."""
    if not site.is_matrix:
        return Choice(norms.AdamW(), "a vector")
    if site.is_embedding:
        return Choice(norms.AdamW(), "an embedding")
    if site.is_output:
        return Choice(norms.AdamW(), "the output layer")
    choice = _spectral(site, orthogonalize, scale="muon")
    return Choice(choice.norm, f"hidden: {choice.reason}")


def _scion(site: Site, orthogonalize: Any) -> Choice:
    """Scion (Pethick et al., 2025): RMS->RMS inside, 1->inf at both ends, RMS for vectors."""
    if not site.is_matrix:
        return Choice(norms.Euclidean(scale="rms"), "a vector: RMS norm")
    if site.is_embedding:
        return Choice(norms.Sign(), "an embedding: 1->inf norm")
    if site.is_output:
        return Choice(norms.Sign(scale="mean-in"), "the output layer: 1->inf norm over fan-in")
    choice = _spectral(site, orthogonalize, scale="rms")
    return Choice(choice.norm, f"hidden: {choice.reason}, RMS->RMS")


def _euclidean(site: Site, orthogonalize: Any) -> Choice:
    """One geometry for all: the Euclidean norm, whose sharp operator is the identity."""
    return Choice(norms.Euclidean(), "policy euclidean")


def _sign(site: Site, orthogonalize: Any) -> Choice:
    """One geometry for all: the max-entry norm, whose steps are signs."""
    return Choice(norms.Sign(), "policy sign")


POLICIES: dict[str, Callable[[Site, Any], Choice]] = {
    "spectral": _spectral,
    "muon": _muon,
    "scion": _scion,
    "euclidean": _euclidean,
    "sign": _sign,
}
