"""Policies, which choose the norm of each parameter and give the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from dropmuon.checks import unknown_name, warn
from dropmuon.model.fused import Pieces, pieces_of
from dropmuon.model.names import clean_name
from dropmuon.model.roster import Member
from dropmuon.norms import (
    AdamW,
    Blocks,
    Euclidean,
    Norm,
    Orthogonalize,
    Sign,
    Spectral,
    Split,
    Transposed,
    by_name,
)

__all__ = [
    "POLICIES",
    "Choice",
    "Member",
    "Policy",
    "PolicyName",
    "check_pieces",
    "choose",
    "route",
    "split_fused",
    "warn_of_guesses",
]

PolicyName = Literal["spectral", "muon", "muon-adamw", "scion", "euclidean", "sign"]


@dataclass(frozen=True)
class Choice:
    """A norm and the reason for it, as `describe()` prints them."""

    norm: Norm | AdamW
    reason: str


Policy = Callable[[Member], Choice | Norm | AdamW | str]


def split_fused(
    policy: PolicyName | Policy = "muon", pieces: Mapping[str, Pieces] | None = None
) -> Policy:
    """Return a policy that orthogonalises fused matrices piece by piece: Q, K and V; gate and up.

    Everything else is as `policy` chooses. Fused matrices are known by name (`c_attn`, `qkv`,
    `qkv_proj`, `Wqkv`, `in_proj_weight`, `gate_up_proj`), their sizes by what the attention module
    declares. `pieces` adds others, or overrides these: it maps the name of a module or parameter to
    a number of equal pieces, 1 to leave it whole, or to their sizes, as in {"qkv_proj": (64, 16,
    16)}. Pieces must be stored one after the other; where they are known not to be, or their sizes
    are not known, or a model has nothing of a given name, ValueError is raised.
    """
    given = dict(pieces or {})
    for label, count in given.items():
        Split(Spectral(), count)  # which refuses what are no pieces
        if not isinstance(label, str):
            raise TypeError(f"pieces must map names to pieces, got {label!r}")
    return _SplitFused(policy, given)


@dataclass(frozen=True)
class _SplitFused:
    """What `split_fused` returns: a policy around another, by name or a callable."""

    policy: PolicyName | Policy
    pieces: Mapping[str, Pieces] = field(default_factory=dict)

    def __call__(self, member: Member) -> Choice:
        return self.choose(member, "newton-schulz")

    def choose(self, member: Member, orthogonalize: Orthogonalize) -> Choice:
        """Return what the inner policy chooses, with a spectral norm split into its pieces."""
        choice = choose(self.policy, member, orthogonalize)
        stored = choice.norm
        norm = stored.base if isinstance(stored, Transposed) else stored
        if member.kind.role not in ("matrix", "stack") or not isinstance(norm, Spectral):
            return choice
        pieces = pieces_of(member, self.pieces)
        if pieces == 1:
            return choice
        split: Norm = Split(norm, pieces, dim=-2)
        count = f"{pieces} pieces" if isinstance(pieces, int) else f"pieces of {pieces}"
        reason = f"{choice.reason}, split into {count}"
        return Choice(Transposed(split) if member.is_stored_transposed else split, reason)


def route(
    members: Iterable[Member], policy: PolicyName | Policy, orthogonalize: Orthogonalize
) -> None:
    """Give each member the norm that the policy chooses for it, and the reason."""
    for member in members:
        choice = choose(policy, member, orthogonalize)
        member.norm, member.reason = choice.norm, choice.reason


def check_pieces(parameters: Iterable[tuple[str, Tensor]], policy: PolicyName | Policy) -> None:
    """Raise ValueError if `split_fused` was given pieces of a matrix that a model does not have."""
    found = [(clean_name(name).split(".")[-2:], each.ndim > 1) for name, each in parameters]
    present = {label for labels, _ in found for label in labels}
    while isinstance(policy, _SplitFused):
        for label in policy.pieces:
            if label not in present:
                matrices = {labels[0] for labels, is_matrix in found if is_matrix}
                raise unknown_name("a name in pieces", label, matrices)
        policy = policy.policy


def warn_of_guesses(members: Iterable[Member], policy: PolicyName | Policy) -> None:
    """Warn about parameters that the policy might treat differently if it knew their modules.

    These are matrices that may be embeddings, treated as hidden ones, and convolutions that may
    have groups, treated as one matrix each.
    """
    members = list(members)
    while isinstance(policy, _SplitFused):
        policy = policy.policy
    remedy = f"Pass the model itself, or layer_groups(model, policy={policy!r})"
    tables = [m.name for m in members if m.may_be_embedding and not m.is_output]
    if tables and policy in _KNOWS_EMBEDDINGS:
        warn(
            f"policy {policy!r} treats embeddings differently, but cannot tell whether "
            f"{_quoted(tables)} are embeddings; treating them as hidden matrices. {remedy}"
        )
    grouped = _may_have_groups(members)
    if grouped and policy in _KNOWS_GROUPS:
        warn(
            f"policy {policy!r} makes each group of a convolution a matrix, but cannot tell "
            f"whether {_quoted(grouped)} have groups; treating each as one matrix. {remedy}"
        )


def _may_have_groups(members: Iterable[Member]) -> list[str]:
    """Return the names of convolutions whose weight (out, in/groups, ...) may have groups.

    The shape does not tell. But where in/groups is the width of something before it, or three, as
    of an image, it is almost surely all of the input. A width of one is depthwise more often.
    """
    widths, found = {_IMAGE}, []
    for member in members:
        out, *rest = member.parameter.shape or (1,)
        is_read_as_matrix = member.may_be_convolution and isinstance(member.norm, Spectral)
        if is_read_as_matrix and out > 1 and (rest[0] == 1 or rest[0] not in widths):
            found.append(member.name)
        widths.add(out)
    return found


def _quoted(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")


def choose(
    policy: PolicyName | Policy, member: Member, orthogonalize: Orthogonalize = "newton-schulz"
) -> Choice:
    """Return the norm that a policy, a name or a callable, chooses for one parameter."""
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise unknown_name("policy", policy, POLICIES)
        return POLICIES[policy](member, orthogonalize)
    if isinstance(policy, _SplitFused):
        return policy.choose(member, orthogonalize)
    if not callable(policy):
        raise TypeError(
            f"policy must be a name or a callable of a Member, got {type(policy).__name__}; "
            f"the names are {', '.join(sorted(POLICIES))}"
        )
    chosen = policy(member)
    if isinstance(chosen, Choice):
        return chosen
    return Choice(by_name(chosen, orthogonalize), "chosen by your policy")


def _spectral(member: Member, orthogonalize: Orthogonalize, scale: str | float = 1.0) -> Choice:
    """Choose as in the paper's experiments: spectral for matrices, Euclidean for vectors.

    A scale is a function of (out, in), so that matrices stored as (in, out) are read transposed.
    """
    if not member.is_matrix:
        return Choice(Euclidean(), "a vector")
    blocks: Blocks = member.conv_groups
    if member.kind.role == "stack" or (member.is_embedding and member.parameter.ndim == 3):
        blocks = "batch"
    norm: Norm = Spectral(orthogonalize=orthogonalize, scale=scale, blocks=blocks)
    if member.is_stored_transposed and scale != 1.0:
        norm = Transposed(norm)
    return Choice(norm, _reading(member))


def _reading(member: Member) -> str:
    """Return how a parameter is read as a matrix, or as several."""
    if member.kind.role == "stack":
        return "a batch of matrices, one per block"
    if member.conv_groups > 1:
        return f"a convolution of {member.conv_groups} groups: block-diagonal"
    if member.is_transposed:
        return "a transposed convolution, as a matrix (in, out*kernel)"
    if member.kind.role == "convolution":
        return "a convolution, as a matrix (out, in*kernel)"
    return "a matrix"


def _muon(member: Member, orthogonalize: Orthogonalize, scale: str = "muon") -> Choice:
    """Choose as Jordan's Muon: hidden matrices orthogonalised, everything else on AdamW."""
    if not member.is_matrix:
        return Choice(AdamW(), "a vector")
    if member.is_embedding:
        return Choice(AdamW(), "an embedding")
    if member.is_output:
        return Choice(AdamW(), "the output layer")
    choice = _spectral(member, orthogonalize, scale)
    return Choice(choice.norm, f"hidden: {choice.reason}")


def _muon_adamw(member: Member, orthogonalize: Orthogonalize) -> Choice:
    """Choose as Muon, with matrices that move as far as AdamW would move them at the same rate.

    Liu et al., 2025, "Muon is Scalable for LLM Training" (arXiv 2502.16982). With `adamw_ratio=1`,
    a rate that is right for AdamW serves for all parameters.
    """
    return _muon(member, orthogonalize, scale="adamw")


def _scion(member: Member, orthogonalize: Orthogonalize) -> Choice:
    """Choose as Scion (Pethick et al., 2025): RMS->RMS, 1->inf at the ends, RMS for vectors."""
    if not member.is_matrix:
        return Choice(Euclidean(scale="rms"), "a vector: RMS norm")
    if member.is_embedding:
        return Choice(Sign(), "an embedding: 1->inf norm")
    if member.is_output:
        norm = Sign(scale="mean-in")
        stored: Norm = Transposed(norm) if member.is_stored_transposed else norm
        return Choice(stored, "the output layer: 1->inf norm over fan-in")
    choice = _spectral(member, orthogonalize, scale="rms")
    return Choice(choice.norm, f"hidden: {choice.reason}, RMS->RMS")


def _euclidean(member: Member, orthogonalize: Orthogonalize) -> Choice:
    """Choose the Euclidean norm, whose sharp operator is the identity, for all."""
    return Choice(Euclidean(), "policy euclidean")


def _sign(member: Member, orthogonalize: Orthogonalize) -> Choice:
    """Choose the max-entry norm, whose steps are signs, for all."""
    return Choice(Sign(), "policy sign")


POLICIES: dict[str, Callable[[Member, Orthogonalize], Choice]] = {
    "spectral": _spectral,
    "muon": _muon,
    "muon-adamw": _muon_adamw,
    "scion": _scion,
    "euclidean": _euclidean,
    "sign": _sign,
}

_KNOWS_EMBEDDINGS = ("muon", "muon-adamw", "scion")
_KNOWS_GROUPS = ("spectral", *_KNOWS_EMBEDDINGS)
"""Policies by name that depend on modules: on whether a matrix is an embedding, on groups."""

_IMAGE = 3
"""The width of an image: red, green, blue."""
