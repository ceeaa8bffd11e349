"""A line chart with logarithmic axes as an SVG, the same bytes for the same numbers."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 20, 56  # margins
COLOURS = ("#0b6e99", "#c2410c", "#4d7c0f", "#7e22ce", "#525252")


@dataclasses.dataclass(frozen=True)
class Line:
    """A name and its points (x, y), all positive."""

    name: str
    points: Sequence[tuple[float, float]]


def draw(lines: Sequence[Line], *, x_title: str, y_title: str) -> str:
    """The chart of some lines. Ticks of x are the points' own, those of y 1, 2 and 5 times powers of ten."""
    xs = sorted({x for line in lines for x, _ in line.points})
    ys = [y for line in lines for _, y in line.points]
    ticks = list(_ticks(min(ys), max(ys)))
    low, high = min(ticks), max(ticks)

    def across(x: float) -> float:
        share = math.log(x / xs[0]) / math.log(xs[-1] / xs[0]) if len(xs) > 1 else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - math.log(y / low) / math.log(high / low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in ticks:
        parts.append(
            f'<path d="M{LEFT} {down(tick):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{down(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for x in xs:
        parts.append(f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{x:g}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_title)}</text>'
        f'<text transform="translate(18 {middle:.1f}) rotate(-90)" text-anchor="middle">{escape(y_title)}</text>'
    )
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        path = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in line.points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3.5" fill="{colour}"/>' for x, y in line.points]
        parts.append(
            f'<text x="{LEFT + 14}" y="{TOP + 20 + 19 * number}" fill="{colour}" font-weight="bold">'
            f"{escape(line.name)}</text>"
        )
    return "\n".join([*parts, "</svg>\n"])


def _ticks(low: float, high: float) -> Iterator[float]:
    """1, 2 and 5 times powers of ten, from the last that is not above `low` to the first that is above `high`."""
    steps = [digit * 10.0**power for power in range(-9, 10) for digit in (1, 2, 5)]
    first = max(step for step in steps if step <= low)
    last = min(step for step in steps if step > high)
    yield from (step for step in steps if first <= step <= last)
