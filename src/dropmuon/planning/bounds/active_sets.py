"""The active sets that a plan measures, and the order in which it does.

A family of sets is useful only as a whole, so beyond suffixes and contiguous blocks a family is
measured only if all of it fits into what may still be measured.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from dropmuon.planning.timing import bisected
from dropmuon.samplers import ActiveSet
from dropmuon.theory import contiguous_blocks

__all__ = [
    "block_sizes",
    "nice_sizes",
    "planned_sets",
    "position_blocks",
    "suffixes",
    "windows",
]

_MOST_EXTRA = 48
"""The largest number of sets measured beyond the suffixes and the contiguous blocks."""


def planned_sets(layers: Sequence[str]) -> list[ActiveSet]:
    """Return the sets whose constants are useful, each once, the most useful first.

    Suffixes at bisected cutoffs, from the full set on; contiguous blocks of 1, 2, 4, ... layers;
    layers at the same position of repeated blocks; windows; all sets of one size, for small models.
    """
    b = len(layers)
    found: dict[ActiveSet, None] = dict.fromkeys(tuple(range(s, b)) for s in bisected(b))
    for tau in block_sizes(b):
        found.update(dict.fromkeys(contiguous_blocks(b, tau)))
    left = _MOST_EXTRA
    for family in _extra_families(layers):
        new = [active for active in family if active not in found]
        if len(new) <= left:
            found.update(dict.fromkeys(new))
            left -= len(new)
    return list(found)


def suffixes(num_layers: int) -> list[ActiveSet]:
    """Return the sets of progressive training, {s, ..., b-1} for every cutoff s."""
    return [tuple(range(s, num_layers)) for s in range(num_layers)]


def block_sizes(num_layers: int) -> list[int]:
    """Return 1, 2, 4, ... below the number of layers: sizes of blocks, and from 2 on of windows."""
    return [2**k for k in range(num_layers.bit_length()) if 2**k < num_layers]


def windows(num_layers: int, tau: int) -> list[ActiveSet]:
    """Return every run of tau neighbours, by where it starts."""
    return [tuple(range(s, s + tau)) for s in range(num_layers - tau + 1)]


def nice_sizes(num_layers: int) -> list[int]:
    """Return the tau of tau-nice sampling that add to the other families, fewest sets first.

    Single layers are left out: as blocks of 1, with the best probabilities, they do better.
    """
    return sorted(range(2, num_layers), key=lambda tau: (math.comb(num_layers, tau), tau))


def position_blocks(layers: Sequence[str]) -> tuple[ActiveSet, ...]:
    """Group the layers that share a position in repeated blocks, judging by their names.

    Example "Grouping layers across transformer blocks": `blocks.0.attention` and
    `blocks.1.attention` differ in their first number only and go together. Without at least two
    such positions that repeat equally often, there are no blocks at all. All other layers, such as
    embedding and head, stay alone.
    """
    positions: dict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(layers):
        positions[re.sub(r"\d+", "*", name, count=1)].append(i)
    times = Counter(len(indices) for indices in positions.values())
    together = [
        tuple(indices)
        for indices in positions.values()
        if len(indices) > 1 and times[len(indices)] > 1
    ]
    if not together:
        return ()
    grouped = {i for block in together for i in block}
    return tuple(sorted([*together, *((i,) for i in range(len(layers)) if i not in grouped)]))


def _extra_families(layers: Sequence[str]) -> Iterator[Iterable[ActiveSet]]:
    b = len(layers)
    yield position_blocks(layers)
    for tau in block_sizes(b)[1:]:
        yield windows(b, tau)
    for tau in nice_sizes(b):
        if math.comb(b, tau) <= _MOST_EXTRA + 2 * b:
            yield combinations(range(b), tau)
