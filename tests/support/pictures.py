"""Measurements as pictures in SVG: what quantmill did in blue, others in grey. Standard library only."""
import html
import math

OURS, OTHERS, FAINT = "#2b6cb0", "#999999", "#cccccc"


def picture(height, title, parts):
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height}" font-family="sans-serif" font-size="13">',
                      f'<rect width="640" height="{height}" fill="#ffffff"/>', text(10, 22, title, size=15), *parts, "</svg>"]) + "\n"


def text(x, y, words, anchor="start", color="#000000", size=13):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size}">{html.escape(words)}</text>')


def color_of(name):
    return OURS if name.startswith(("quantmill", "mxfp4-")) else OTHERS


def decades(values, left, right, top, bottom, unit):
    """A logarithmic axis from left to right: the place of a value, and the lines of its decades from top to bottom."""
    least, most = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    place = lambda value: left + (right - left) * math.log(value / least) / math.log(most / least)  # noqa: E731
    parts, decade = [], least
    while decade <= most:
        at = place(decade)
        parts.append(f'<path d="M{at:.1f} {top}V{bottom}" stroke="{FAINT}"/>' + text(at, bottom + 16, f"{decade:g} {unit}", "middle", "#555555"))
        decade *= 10
    return place, parts


def linear(values, left, right, top, bottom):
    """An axis from 0 at the bottom: the height of a value, and the lines of its steps from left to right."""
    most = 1.05 * max(values)
    step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1, 2, 5) if most / step <= 8)
    height = lambda value: bottom - (bottom - top) * value / most  # noqa: E731
    return height, [f'<path d="M{left} {height(step * n):.1f}H{right}" stroke="{FAINT}"/>' +
                    text(left - 6, height(step * n) + 4, f"{step * n:.3g}", "end", "#555555") for n in range(int(most / step) + 1)]


def bars(title, values, unit):
    """[(name, value)], with a logarithmic axis."""
    left, right, line = 300, 560, 26
    height = 60 + line * len(values)
    place, parts = decades([value for _, value in values], left, right, 34, height - 22, unit)
    for number, (name, value) in enumerate(values):
        top = 38 + line * number
        parts.append(text(left - 8, top + 14, name, "end") +
                     f'<rect x="{left}" y="{top}" width="{place(value) - left:.1f}" height="{line - 8}" fill="{color_of(name)}"/>' +
                     text(place(value) + 5, top + 14, f"{value:.3g}"))
    return picture(height, title, parts)


def apart(wanted, distance):
    """Heights by name, as near to the wanted ones as they can be with no two nearer than the distance: runs that would overlap
    are put around their mean."""
    order, runs = sorted(wanted, key=wanted.get), []
    for number, name in enumerate(order):
        runs.append([wanted[name] - number * distance])
        while len(runs) > 1 and sum(runs[-2]) / len(runs[-2]) > sum(runs[-1]) / len(runs[-1]):
            runs[-2:] = [runs[-2] + runs[-1]]
    starts = [sum(run) / len(run) for run in runs for _ in run]
    return {name: start + number * distance for number, (name, start) in enumerate(zip(order, starts))}


def points(title, panels, across, unit):
    """Panels one below the other: (heading, [(name, x, y, larger x or None)], [(name, y)]), the last drawn as lines across. x has a
    logarithmic axis, y begins at 0; a larger x is drawn as a bar. Names stand on the right, each with a line to its point."""
    left, right, tall, listed = 50, 420, 300, 450
    parts = []
    for number, (heading, values, lines) in enumerate(panels):
        top = 66 + number * (tall + 70)
        bottom = top + tall
        place, drawn = decades([at for _, x, _, most in values for at in (x, most or x)], left, right, top, bottom, unit)
        height, grid = linear([y for _, _, y, _ in values] + [y for _, y in lines], left, right, top, bottom)
        drawn += grid
        for name, y in lines:
            drawn.append(f'<path d="M{left} {height(y):.1f}H{right}" stroke="#555555" stroke-dasharray="5 4"/>' +
                         text(left + 4, height(y) - 5, name, color="#555555", size=12))
        names = apart({name: height(y) for name, _, y, _ in values}, 15)
        lowered = max(0, top - min(names.values()))  # where the first would be above the panel
        for name, x, y, most in values:
            color, level = color_of(name), names[name] + lowered
            drawn.append(f'<path d="M{place(most or x):.1f} {height(y):.1f}L{listed - 18} {level:.1f}h14" stroke="{FAINT}" fill="none"/>' +
                         (f'<path d="M{place(x):.1f} {height(y):.1f}H{place(most):.1f}" stroke="{color}" stroke-width="2"/>' if most else "") +
                         f'<circle cx="{place(x):.1f}" cy="{height(y):.1f}" r="5" fill="{color}"/>' + text(listed, level + 4, name, color=color, size=12))
        parts += [text(left, top - 12, heading), *drawn]
    height = 66 + len(panels) * (tall + 70)
    return picture(height, title, [*parts, text(left, height - 26, across, color="#555555")])
