"""Matrices that are stored as one: Q, K and V of attention, gate and up of a gated block.

They are known by the names that models have for them, and cut into pieces one after the other, by
the sizes that the attention module declares: with grouped queries K and V are smaller than Q.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from dropmuon.model.roster import Member

__all__ = ["Pieces", "pieces_of"]

Pieces = int | tuple[int, ...]
"""A number of equal pieces, or the size of each."""

_QKV = {"c_attn", "qkv", "qkv_proj", "Wqkv", "wqkv", "in_proj_weight"}
_GATE_AND_UP = {"gate_up_proj"}
_MIXED = {"query_key_value"}
"""Names of fused matrices; the last are stored head by head, as in GPT-NeoX, BLOOM and Falcon."""

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_n_heads", "kv_heads")
_HEAD_SIZES = ("head_dim", "head_size")
"""Attributes of attention modules, or of their configurations."""


def pieces_of(member: Member, given: Mapping[str, Pieces]) -> Pieces:
    """Return the pieces that a matrix was fused from, as given or as known; 1 if it is whole."""
    *_, owner, own = ("", *member.name.split("."))
    label = next((name for name in (own, owner) if name in given), None)
    if label is not None:
        return _checked(member, label, given[label])
    label = own if own in _QKV | _GATE_AND_UP else owner
    if label in _QKV:
        return _attention(member, label)
    if label in _GATE_AND_UP:
        rows, _ = member.matrix_shape
        if rows % 2 or not getattr(member.module, "is_concatenated", True):
            raise _unknown(member, label, "which is not one half after the other", "")
        return 2
    if label in _MIXED:
        raise _unknown(member, label, "which is stored head by head", "")
    return 1


def _attention(member: Member, label: str) -> Pieces:
    """Return the pieces of Q, K and V, or of K and V where Q is apart, as in cross-attention."""
    rows, width = member.matrix_shape
    sizes = _declared_sizes(member.parent, width)
    if sizes is None:
        if rows == 3 * width:
            return 3
    else:
        query, key = sizes
        if rows == query + 2 * key:
            return 3 if query == key else (query, key, key)
        if rows == 2 * key:
            return 2
    why = f"which has {rows} outputs for {width} inputs"
    raise _unknown(member, label, why, f"give their sizes, as in {{{label!r}: (q, k, v)}}, or ")


def _declared_sizes(module: nn.Module | None, width: int) -> tuple[int, int] | None:
    """Return the sizes of Q and of K that an attention module declares."""
    heads = _declared(module, _HEADS)
    if heads is None:
        return None
    head_size = _declared(module, _HEAD_SIZES) or width // heads
    return heads * head_size, (_declared(module, _KEY_HEADS) or heads) * head_size


def _declared(module: nn.Module | None, names: tuple[str, ...]) -> int | None:
    """Return the first of these attributes of a module, or of its configuration, that it has."""
    for holder in (module, getattr(module, "config", None)):
        for name in names:
            found = getattr(holder, name, None)
            if isinstance(found, int):
                return found
    return None


def _checked(member: Member, label: str, pieces: Pieces) -> Pieces:
    rows, _ = member.matrix_shape
    fits = rows % pieces == 0 if isinstance(pieces, int) else sum(pieces) == rows
    if not fits:
        raise ValueError(
            f"pieces[{label!r}] must make up the {rows} outputs of {member.name!r}, got {pieces!r}"
        )
    return pieces


def _unknown(member: Member, label: str, why: str, remedy: str) -> ValueError:
    return ValueError(
        f"split_fused cannot tell the pieces of {member.name!r}, {why}; {remedy}pass "
        f"pieces={{{label!r}: 1}} to leave it whole"
    )
