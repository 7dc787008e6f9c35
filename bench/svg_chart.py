"""Draws small charts as SVG text, with the standard library only. They are light or dark like the reader's system."""

import math
from xml.sax.saxutils import escape

WIDTH = 932
STYLE = """
text { font: 12px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 }
.card { fill: #ffffff; stroke: #d0d7de }
.grid { stroke: #d8dee4 }
.a { fill: #0969da; stroke: #0969da }
.b { fill: #bc4c00; stroke: #bc4c00 }
.other { fill: #8c959f }
.mark { stroke: #57606a; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #d5d9e5 }
  .card { fill: #1a1b26; stroke: #343a52 }
  .grid { stroke: #343a52 }
  .a { fill: #6cb6ff; stroke: #6cb6ff }
  .b { fill: #f0883e; stroke: #f0883e }
  .other { fill: #6e7aa5 }
  .mark { stroke: #9aa5ce }
}
"""


def format_value(value):
    """Formats a value with about three significant digits and without an exponent."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def linear_ticks(top, count=3):
    """From 0 to at least `top` in about `count` round steps."""
    if top <= 0:
        return [0, 1]
    step = 10 ** math.floor(math.log10(top / count))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= top / count)
    return [i * step for i in range(math.ceil(top / step - 1e-9) + 1)]


def log_ticks(low, high):
    """The powers of ten around values from `low` to `high`; both above 0."""
    first = math.floor(math.log10(low))
    last = max(math.ceil(math.log10(high)), first + 1)
    return [10.0**power for power in range(first, last + 1)]


def _text(x, y, text, anchor="start", css=None, rotate=False):
    attributes = f' text-anchor="{anchor}"' if anchor != "start" else ""
    attributes += f' class="{css}"' if css else ""
    attributes += f' transform="rotate(-90 {x:g} {y:g})"' if rotate else ""
    return f'<text x="{x:g}" y="{y:g}"{attributes}>{escape(text)}</text>'


def _line(x1, y1, x2, y2, css):
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{css}"/>'


def _document(height, title, parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
        f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        _text(16, 26, title, css="title"), *parts, "</svg>"]) + "\n"


def bar_chart(title, names, groups, highlighted):
    """Draws groups of horizontal bars, three groups in a row. Each name has a bar; that of `highlighted` has another colour.

    `groups`: (axis label with its unit, {name: value}) for each. Every group has its own scale; a missing value is a dash."""
    bar, gap, top, left, columns = 14, 5, 44, 206, 3
    body = len(names) * (bar + gap)
    row_height = body + 58
    column_width = (WIDTH - left - 16) / columns
    parts = []
    for index, (label, values) in enumerate(groups):
        row, column = divmod(index, columns)
        y0 = top + row * row_height
        x0 = left + column * column_width
        ticks = linear_ticks(max((value for value in values.values() if value is not None), default=0))
        scale = (column_width - 56) / ticks[-1]
        for tick in ticks:
            x = x0 + tick * scale
            parts += [_line(x, y0, x, y0 + body, "grid"), _text(x, y0 + body + 14, f"{tick:,g}", "middle")]
        parts.append(_text(x0, y0 + body + 32, label))
        for line, name in enumerate(names):
            y = y0 + line * (bar + gap) + gap / 2
            value = values.get(name)
            if column == 0:
                parts.append(_text(left - 10, y + bar - 3, name, "end"))
            if value is None:
                parts.append(_text(x0 + 4, y + bar - 3, "–"))
                continue
            css = "a" if name == highlighted else "other"
            parts.append(f'<rect class="{css}" x="{x0:g}" y="{y:g}" width="{value * scale:.1f}" height="{bar}"/>')
            parts.append(_text(round(x0 + value * scale + 4, 1), y + bar - 3, format_value(value)))
    rows = math.ceil(len(groups) / columns)
    return _document(top + rows * row_height, title, parts)


def time_line(title, x_label, y_label, points, marks=(), mark_name=""):
    """Draws a line through points (x, y); both axes begin at 0. `marks`: the x of dashed vertical lines; `mark_name`: their label."""
    height, left, right, top, bottom = 320, 76, 20, 62, 52
    if not points:
        raise ValueError("a chart needs at least one point")
    x_ticks = linear_ticks(max(x for x, _ in points), 8)
    y_ticks = linear_ticks(max(y for _, y in points), 5)

    def place_x(x):
        return round(left + x / x_ticks[-1] * (WIDTH - left - right), 1)

    def place_y(y):
        return round(height - bottom - y / y_ticks[-1] * (height - top - bottom), 1)

    parts = []
    for tick in y_ticks:
        parts += [_line(left, place_y(tick), WIDTH - right, place_y(tick), "grid"), _text(left - 8, place_y(tick) + 4, f"{tick:,g}", "end")]
    parts += [_text(place_x(tick), height - bottom + 18, f"{tick:,g}", "middle") for tick in x_ticks]
    parts += [_text((left + WIDTH - right) / 2, height - 12, x_label, "middle"),
              _text(22, (top + height - bottom) / 2, y_label, "middle", rotate=True)]
    parts += [_line(place_x(x), top - 8, place_x(x), height - bottom, "mark") for x in marks]
    if marks:
        parts.append(_text(place_x(marks[0]) + 6, top - 4, mark_name))
    line = " ".join(f"{place_x(x):g},{place_y(y):g}" for x, y in points)
    parts.append(f'<polyline class="a" style="fill: none" stroke-width="1.5" points="{line}"/>')
    return _document(height, title, parts)


def log_points(title, x_label, y_label, series, mark=None):
    """Draws the points (x, y) of one or two named series, y on a logarithmic scale (only y > 0 is drawn). `mark`: (x, text)
    of a vertical line."""
    height, left, right, top, bottom = 380, 76, 20, 62, 52
    points = {name: [(x, y) for x, y in values if y > 0] for name, values in series.items()}
    everything = [point for values in points.values() for point in values]
    if not everything:
        raise ValueError("a chart needs at least one point")
    x_low = min(x for x, _ in everything)
    x_ticks = linear_ticks(max(x for x, _ in everything), 8)
    if x_low < 0:
        step = x_ticks[1]
        x_ticks = [-i * step for i in range(math.ceil(-x_low / step), 0, -1)] + x_ticks
    y_ticks = log_ticks(min(y for _, y in everything), max(y for _, y in everything))

    def place_x(x):
        return left + (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (WIDTH - left - right)

    def place_y(y):
        share = math.log(y / y_ticks[0]) / math.log(y_ticks[-1] / y_ticks[0])
        return height - bottom - share * (height - top - bottom)

    parts = []
    for tick in y_ticks:
        parts += [_line(left, round(place_y(tick), 1), WIDTH - right, round(place_y(tick), 1), "grid"),
                  _text(left - 8, round(place_y(tick) + 4, 1), f"{tick:,g}", "end")]
    for tick in x_ticks:
        parts.append(_text(round(place_x(tick), 1), height - bottom + 18, f"{tick:,g}", "middle"))
    parts += [_text((left + WIDTH - right) / 2, height - 12, x_label, "middle"),
              _text(22, (top + height - bottom) / 2, y_label, "middle", rotate=True)]
    if mark:
        x = round(place_x(mark[0]), 1)
        parts += [_line(x, top - 8, x, height - bottom, "mark"), _text(x + 6, top - 4, mark[1])]
    legend_x = WIDTH - right
    for css, (name, values) in reversed(list(zip(("a", "b"), points.items(), strict=False))):
        dots = "".join(f"M{place_x(x):.1f} {place_y(y):.1f}h0" for x, y in values)
        parts.append(f'<path class="{css}" stroke-width="4" stroke-linecap="round" d="{dots}"/>')
        legend_x -= 8 * len(name) + 30
        parts += [f'<circle class="{css}" cx="{legend_x:g}" cy="22" r="5"/>', _text(legend_x + 10, 26, name)]
    return _document(height, title, parts)
