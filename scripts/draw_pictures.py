"""Draw the pictures of the pages, docs/pictures/*.svg, from numbers that stand elsewhere.

    python scripts/draw_pictures.py

`parts.svg` is a sketch; `tutorial.svg` shows what examples/tutorial.ipynb printed, `gains.svg` the
first table of docs/results.md. All are light or dark, as their reader is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/pictures"

Curve = Sequence[tuple[float, float]]

STYLE = """
:root { --ink: #171a21; --soft: #565e6c; --line: #d5dae1; --all: #6d7685; --parts: #0072b2;
  --adaptive: #d55e00; --idle: #e8ebf0; }
@media (prefers-color-scheme: dark) { :root { --ink: #eceff4; --soft: #a3acba; --line: #38404d;
  --all: #aab2c0; --parts: #4cb4f0; --adaptive: #ff9248; --idle: #272d38; } }
text { font: 13px system-ui, sans-serif; fill: var(--soft); }
.strong { fill: var(--ink); font-weight: 600; } .end { text-anchor: end; }
.middle { text-anchor: middle; } .line { stroke: var(--line); fill: none; }
.curve { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
.all { --c: var(--all); } .parts { --c: var(--parts); } .adaptive { --c: var(--adaptive); }
.idle { --c: var(--idle); } rect, circle, text.named { fill: var(--c); }
.curve, .range { stroke: var(--c); } .range { stroke-width: 2; }
.gap { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 3; }
"""


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture, encoding="utf-8")


def pictures() -> Mapping[str, str]:
    """Return the pictures by name."""
    notebook = (ROOT / "examples/tutorial.ipynb").read_text(encoding="utf-8")
    results = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    return {
        "parts.svg": parts(),
        "tutorial.svg": tutorial(curves(notebook)),
        "gains.svg": gains(results),
    }


def parts(layers: Sequence[str] = ("head", "4", "3", "2", "1", "stem"), count: int = 8) -> str:
    """Sketch which parts of a batch reach which layers, with all layers and in parts."""
    drawn = []
    for index, (title, reached) in enumerate(
        [("a step with all layers", count), ("a step in eight parts", 1)]
    ):
        left = 70 + 330 * index
        drawn.append(_text(left, 26, title, "strong"))
        for row, layer in enumerate(layers):
            top = 40 + 26 * row
            drawn.append(_text(left - 10, top + 16, layer, "end"))
            for column in range(count):
                is_reached = row == 0 or column < reached
                css = ("all", "parts")[index] if is_reached else "idle"
                place = f'x="{left + 31 * column}" y="{top}"'
                drawn.append(f'<rect class="{css}" {place} width="28" height="22" rx="3"/>')
        drawn.append(_text(left + 124, 216, "parts of the batch", "middle"))
    return _svg(660, 228, "Gradients that a step computes, by layer and part of the batch", drawn)


def curves(notebook: str) -> dict[str, list[tuple[float, float]]]:
    """Return bits per byte by operations of each method, as the notebook printed them."""
    outputs = [each for cell in json.loads(notebook)["cells"] for each in cell.get("outputs", ())]
    text = "".join("".join(each.get("text", "")) for each in outputs)
    found: dict[str, list[tuple[float, float]]] = {}
    for name, cost, bits in re.findall(r"^(\S.*?) +(\S+) operations .* (\S+) bits", text, re.M):
        found.setdefault(name, []).append((float(cost), float(bits)))
    return found


def distance(curve: Curve, cost: float, quality: float) -> float:
    """Return how many times the cost a curve needs for a quality, between two of its points."""
    for (before, worse), (after, better) in pairwise(curve):
        if better <= quality <= worse:
            share = (worse - quality) / (worse - better)
            needed: float = before * (after / before) ** share
            return needed / cost
    raise ValueError(f"quality must lie on the curve, got {quality}; draw more of it: {curve}")


def tutorial(found: Mapping[str, Curve]) -> str:
    """Draw quality against cost, and the distance at equal quality."""
    low, high = 3.5, 4.5

    def x(cost: float) -> float:
        return 70 + 500 * math.log(cost / 1.9e11) / math.log(4.4e11 / 1.9e11)

    def y(bits: float) -> float:
        return 20 + 260 * (high - bits) / (high - low)

    drawn = []
    for tick in (3.6, 3.8, 4.0, 4.2, 4.4):
        drawn += [
            f'<path class="line" d="M70 {y(tick):.1f}H570"/>',
            _text(62, y(tick) + 4, f"{tick:.1f}", "end"),
        ]
    drawn.append(_text(70, 12, "bits per byte on the test part", "strong"))
    for cost in (2e11, 2.8e11, 4e11):
        drawn.append(_text(x(cost), 300, f"{cost / 1e9:.0f}", "middle"))
    drawn.append(_text(320, 322, "billion operations", "middle strong"))
    for name, curve in found.items():
        css = name.split()[0]
        points = " ".join(f"{x(cost):.1f},{y(bits):.1f}" for cost, bits in curve)
        drawn.append(f'<polyline class="curve {css}" points="{points}"/>')
        drawn += [
            f'<circle class="{css}" cx="{x(cost):.1f}" cy="{y(bits):.1f}" r="4"/>'
            for cost, bits in curve
        ]
        shift = {"adaptive": -2, "parts": 11}.get(css, 4)
        drawn.append(_text(x(curve[-1][0]) + 10, y(curve[-1][1]) + shift, name, f"named {css}"))
    cost, bits = found["parts"][0]
    ratio = distance(found["all layers"], cost, bits)
    drawn.append(f'<path class="gap" d="M{x(cost) + 6:.1f} {y(bits):.1f}H{x(cost * ratio):.1f}"/>')
    drawn.append(
        _text(x(cost * math.sqrt(ratio)) + 20, y(bits) - 8, f"{ratio:.2f} times", "strong")
    )
    label = f"All layers need {ratio:.2f} times the operations of parts for the same loss"
    return _svg(650, 334, label, drawn)


def gains(results: str) -> str:
    """Draw the first table of results: how many times the operations full updates need."""
    row = re.compile(r"^\| ([^|]*) \| (\d+) \| [^|]+ \| ([^|]+) \| [^|]+ \| ([^|]+) \|$", re.M)
    drawn, top, left = [], 44.0, 90.0

    def x(value: float) -> float:
        return left + 400 * (value - 0.9) / 1.4

    for task, steps, *cells in row.findall(results.partition("\n### ")[0]):
        if task.strip():
            top += 22
            drawn.append(_text(8, top, task.replace("`", ""), "strong"))
            top += 20
        drawn.append(_text(left - 12, top + 4, f"{steps} steps", "end"))
        for css, cell, shift in zip(("parts", "adaptive"), cells, (-3.5, 3.5), strict=True):
            drawn += _dot(css, cell, x, top + shift)
        top += 20
    axis = [_text(8, 18, "times the operations that full updates need", "strong")]
    axis += [
        _text(x(1.3), 38, "8 parts", "named parts"),
        _text(x(1.7), 38, "adaptive", "named adaptive"),
    ]
    for tick in (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2):
        axis.append(f'<path class="line" d="M{x(tick):.1f} 46V{top:.0f}"/>')
        axis.append(_text(x(tick), top + 18, f"{tick:.1f}", "middle"))
    return _svg(
        530, top + 28, "Gains of parts at equal test loss, by race and budget", [*axis, *drawn]
    )


def _dot(css: str, cell: str, x: Callable[[float], float], y: float) -> Iterator[str]:
    """Return a value with its interval; an arrow where either has no end."""
    value, *ends = map(float, re.findall(r"\d+\.\d+", cell))
    if ends:
        low, high = min(value, *ends), max(value, *ends)
        yield f'<path class="range {css}" d="M{x(low):.1f} {y}H{x(high):.1f}"/>'
    for has_no_end, arrow in (
        (cell.startswith(">") or "or more" in cell, "h14m-5 -4l5 4l-5 4"),
        (cell.startswith("<") or "or less" in cell, "h-14m5 -4l-5 4l5 4"),
    ):
        if has_no_end:
            yield f'<path class="range {css}" d="M{x(value):.1f} {y}{arrow}" fill="none"/>'
    yield f'<circle class="{css}" cx="{x(value):.1f}" cy="{y}" r="3.5"/>'


def _text(x: float, y: float, text: str, css: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{css}">{text}</text>'


def _svg(width: float, height: float, label: str, drawn: Iterable[str]) -> str:
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{label}">\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    main()
