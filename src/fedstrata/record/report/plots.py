"""Figures as inline SVG that take their colours from the page they are on.

Artists are drawn in placeholder colours, and each placeholder is then replaced with a CSS variable, so one
figure serves a light page, a dark page and paper. Text stays text, in the page's font. The same numbers give
the same bytes.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fedstrata.record.words import score, visible

COLOURS = 7
"""Number of series colours the style sheet defines, as `--series-1` and on."""
SHOWN = 40
"""Rows of a figure at most; of more clients the lowest and the highest are shown."""

_NAMED = {"--ink": "#010101", "--muted": "#010102", "--rule": "#010103", "--page": "#010104"}
_SERIES = [f"#0102{number:02x}" for number in range(1, COLOURS + 1)]
_VARIABLES = {colour: name for name, colour in _NAMED.items()} | {
    colour: f"--series-{number}" for number, colour in enumerate(_SERIES, start=1)
}
_INK, _MUTED, _RULE, _PAGE = _NAMED.values()
_MARKERS = "osD^vPX*"
_LINES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 1.5, 1.5, 1.5)))
_STYLE = mpl.rc_params_from_file(Path(__file__).with_name("figures.mplstyle"), use_default_template=False)
_STEPS = (1, 2, 2.5, 5, 10)  # between the numbers of an axis, times a power of ten
_WIDTH, _HEIGHT = 420.0, 250.0  # points; one point is one unit of the viewBox
_ROW = 23.0
_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"


class NotebookFigure(Figure):
    """A figure that a notebook shows as it is: pyplot, which would, does not know of it."""

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=120)
        return image.getvalue()


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a figure.

    Attributes:
        style: Which colour, marker and kind of line, counted from 0.
        x: Positions.
        y: Values; as many.
        low: Lower edge of a band around the line, if there is one.
        high: Upper edge.
    """

    style: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def series_of(
    style: int,
    rows: Sequence[Mapping[str, Any]],
    axis: str,
    value: str,
    unit: float = 1.0,
    *,
    band: bool = False,
) -> list[Series]:
    """Returns the line of those rows, as `history.round_rows` gives them, that have a value; none if none do.

    Args:
        style: As for `Series`.
        rows: The rounds.
        axis: What of a row is the position.
        value: What of it is the value.
        unit: What positions are counted in.
        band: Whether there is a band around it, from the lowest to the highest client.
    """
    points = [row for row in rows if row[value] is not None]
    low, high = ([point[edge] for point in points] if band else () for edge in ("low", "high"))
    x, y = [point[axis] / unit for point in points], [point[value] for point in points]
    return [Series(style, x, y, low, high)] if points else []


@mpl.rc_context(_STYLE)
def curves(
    key: str,
    title: str,
    series: Sequence[Series],
    x_label: str,
    *,
    whole: bool = False,
    ends: tuple[float, float | None] | None = None,
) -> Markup:
    """Draws lines.

    Args:
        key: Unique within the page; goes into the figure's ids.
        title: What a screen reader says.
        series: The lines.
        x_label: What the positions, or the values of rows, are.
        whole: Whether positions are whole numbers.
        ends: Where values begin and, unless the highest is to say so, end; as the values are if none.
    """
    return _markup(curves_figure(series, x_label, whole=whole, ends=ends), key, title)


@mpl.rc_context(_STYLE)
def curves_figure(
    series: Sequence[Series],
    x_label: str,
    *,
    whole: bool = False,
    ends: tuple[float, float | None] | None = None,
) -> Figure:
    """Returns lines as a figure; the arguments are those of `curves`."""
    figure, axes = _axes(_HEIGHT)
    for line in series:
        colour = _SERIES[line.style % COLOURS]
        if len(line.low) == 1:  # a band of no width would not be seen
            axes.vlines(line.x, line.low, line.high, color=colour, alpha=0.16, linewidth=9.0)
        elif line.low:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, linewidth=0)
        axes.plot(line.x, line.y, markevery=max(1, len(line.x) // 15), clip_on=False, **_look(line.style))
    axes.grid(axis="y")
    axes.margins(x=0.03)
    if all(value >= 0 for line in series for value in [*line.y, *line.low]):
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))  # there is nothing below nothing
    if ends is not None:
        axes.set_ylim(*ends)
    if not whole:  # what adds up is seen from nothing on
        axes.set_xlim(left=0.0)
    axes.set_xlabel(x_label)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=_STEPS, integer=whole, min_n_ticks=1 if whole else 2))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    return figure


def on_white(figure: Figure) -> Figure:
    """Returns a figure after its placeholders have become the colours of the light page."""
    sheet = Path(__file__).with_name("templates") / "style.css"
    page = dict(re.findall(r"(--[\w-]+): (#\w+)", sheet.read_text().partition("@media")[0]))
    colours = {to_rgba(colour): page[name] for colour, name in _VARIABLES.items()}
    figure.set_facecolor(page["--page"])
    for artist in figure.findobj():
        for what in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            if (read := getattr(artist, f"get_{what}", None)) is None:
                continue
            (red, green, blue, alpha), *others = to_rgba_array(read()).tolist() or [[0.0, 0.0, 0.0, 0.0]]
            if not others and (colour := colours.get((red, green, blue, 1.0))) is not None:
                getattr(artist, f"set_{what}")(to_rgba(colour, alpha))
    return figure


@mpl.rc_context(_STYLE)
def points(
    key: str,
    title: str,
    places: Sequence[tuple[float, float, int]],
    levels: Sequence[tuple[float, int]],
    x_label: str,
) -> Markup:
    """Draws a point for each place, on a logarithmic axis from left to right, and a line across for a level.

    A place is a position above 0, a value and a style, a level a value and a style; the rest is as for
    `curves`.
    """
    figure, axes = _axes(_HEIGHT)
    for value, style in levels:
        axes.axhline(value, color=_look(style)["color"], linestyle=_look(style)["linestyle"], linewidth=1.4)
    for x, value, style in places:
        look = _look(style) | {"linestyle": "none", "markersize": 7.0}
        axes.plot([x], [value], clip_on=False, **look)
    axes.set_xscale("log")
    axes.grid(axis="y")
    axes.margins(x=0.08)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xlabel(x_label)
    lowest, highest = min(x for x, *_ in places), max(x for x, *_ in places)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if highest < 100 * lowest else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    return _markup(figure, key, title)


@mpl.rc_context(_STYLE)
def bars(key: str, title: str, rows: Sequence[tuple[str, float, float]], x_label: str) -> Markup:
    """Draws a bar for each row in front of a wider, paler one.

    A row is a label, the value in front and the value behind it; the rest is as for `curves`.
    """
    figure, axes = _rows([label for label, _, _ in rows])
    for place, (_, front, behind) in enumerate(rows):
        axes.barh(place, behind, height=0.62, color=_RULE)
        axes.barh(place, front, height=0.62, color=_SERIES[0])
    axes.set_xlabel(x_label)
    axes.set_xlim(0, max((max(front, behind) for _, front, behind in rows), default=0.0) * 1.02 or 1.0)
    return _markup(figure, key, title)


@mpl.rc_context(_STYLE)
def dots(key: str, title: str, rows: Sequence[tuple[str, float, int]], x_label: str) -> Markup:
    """Draws a dot for each row on a line from 0, or from the lowest value where that is negative.

    A row is a label, a value and the style of the dot; the rest is as for `curves`.
    """
    figure, axes = _rows([label for label, _, _ in rows])
    for place, (_, value, style) in enumerate(rows):
        look = _look(style) | {"linestyle": "none", "markersize": 7.0}
        axes.plot([0, value], [place, place], color=_RULE, linewidth=1.4)
        axes.plot([value], [place], clip_on=False, **look)
        axes.annotate(
            score(value), (value, place), (9, 0), textcoords="offset points", va="center", color=_INK
        )
    axes.set_xlabel(x_label)
    axes.margins(x=0.16)
    axes.set_xlim(left=min(0.0, *(value for _, value, _ in rows)))
    return _markup(figure, key, title)


@mpl.rc_context(_STYLE)
def ranges(
    key: str, title: str, rows: Sequence[tuple[str, float, float, float, int]], x_label: str
) -> Markup:
    """Draws a line from a low to a high value for each row, and a marker between.

    A row is a label, the low value, the value marked, the high value and the style; the rest is as for
    `curves`.
    """
    figure, axes = _rows([label for label, *_ in rows])
    for place, (_, low, middle, high, style) in enumerate(rows):
        look = _look(style)
        axes.plot([low, high], [place, place], color=look["color"], linewidth=2.4, solid_capstyle="butt")
        for end in (low, high):
            axes.plot([end, end], [place - 0.2, place + 0.2], color=look["color"], linewidth=1.6)
        axes.plot([middle], [place], clip_on=False, **look | {"linestyle": "none", "markersize": 7.0})
    axes.set_xlabel(x_label)
    axes.margins(x=0.06)
    return _markup(figure, key, title)


@mpl.rc_context(_STYLE)
def stacks(rows: Sequence[tuple[str, Sequence[float]]]) -> Markup:
    """Draws the seconds of each row, a label and the parts that they went to, as one bar that is cut."""
    figure, axes = _rows([label for label, _ in rows])
    for place, (_, parts) in enumerate(rows):
        left = 0.0
        for number, part in enumerate(parts):
            axes.barh(
                place, part, left=left, height=0.62, color=_SERIES[number], edgecolor=_PAGE, linewidth=1.0
            )
            left += part
    axes.set_xlabel("seconds")
    axes.set_xlim(0, max((sum(parts) for _, parts in rows), default=0.0) * 1.02 or 1.0)
    return _markup(figure, "time", "seconds by what they were spent on")


@mpl.rc_context(_STYLE)
def heat_map(
    key: str,
    title: str,
    columns: Sequence[int],
    values: Sequence[Sequence[float]],
    marks: Sequence[Sequence[int]],
) -> Markup:
    """Draws a cell for each row and column, darker for a higher value, with a dot in those that are marked.

    Args:
        key: Unique within the page; goes into the figure's ids.
        title: What a screen reader says.
        columns: The number of each column, rising; where one is missing a gap is left.
        values: The values of each column, one a row, the first at the bottom; an empty column is left blank.
        marks: The rows of each column that are marked.
    """
    rows = max(
        [len(column) for column in values] + [row + 1 for marked in marks for row in marked], default=1
    )
    everything = np.array([value for column in values for value in column] or [0.0])
    # One value that stands out must not bleach all others.
    low, high = everything.min(), np.quantile(everything, 0.98)
    figure, axes = _axes(58 + _ROW * rows, 2 * _WIDTH)
    for place, column, marked in zip(columns, values, marks, strict=True):
        places, count = np.array(marked), len(column)
        strength = np.clip((np.array(column) - low) / (high - low), 0.0, 1.0) if high > low else 0.5
        shades = np.broadcast_to(0.08 + 0.82 * strength, count)
        colours = [to_rgba(_SERIES[0], shade) for shade in shades]
        axes.bar([place] * count, 0.9, 0.9, np.arange(count) - 0.45, color=colours, linewidth=0)
        axes.plot([place] * len(places), places, "o", color=_INK, markersize=4.0, markeredgecolor=_PAGE)
    axes.set_xlim(min(columns, default=1) - 0.6, max(columns, default=1) + 0.6)
    axes.set_ylim(-0.6, rows - 0.4)
    axes.set_yticks(range(rows), [f"block {row}" for row in range(rows)])
    axes.xaxis.set_major_locator(MaxNLocator(12, steps=_STEPS, integer=True))
    axes.set_xlabel("round")
    return _markup(figure, key, title)


@mpl.rc_context(_STYLE)
def swatch(key: str, style: int) -> Markup:
    """Draws a piece of a line, for a legend."""
    figure = Figure(figsize=(34 / 72, 12 / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.plot([0.05, 0.5, 0.95], [0.5] * 3, markevery=[1], **_look(style))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_axis_off()
    return _markup(figure, key, "")


def shorten(label: str, length: int = 20) -> str:
    """Returns a label that fits beside a figure."""
    return label if len(label) <= length else f"{label[: length - 1]}…"


def _look(style: int) -> dict[str, Any]:
    """Returns colour, marker and kind of line: series differ in all three."""
    return {
        "color": _SERIES[style % COLOURS],
        "marker": _MARKERS[style % len(_MARKERS)],
        "linestyle": _LINES[style % len(_LINES)],
        "markeredgecolor": _PAGE,
        "markeredgewidth": 0.8,
    }


def _axes(height: float, width: float = _WIDTH) -> tuple[Figure, Axes]:
    layout = ConstrainedLayoutEngine(w_pad=3 / 72, h_pad=3 / 72)
    figure = NotebookFigure(figsize=(width / 72, height / 72), layout=layout)
    return figure, figure.add_subplot()


def _rows(labels: Sequence[str]) -> tuple[Figure, Axes]:
    """Makes a figure with one row for each label, the first on top."""
    figure, axes = _axes(58 + _ROW * max(1, len(labels)))
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(max(1, len(labels)) - 0.5, -0.5)
    axes.tick_params(axis="y", labelcolor=_INK)
    axes.grid(axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure, axes


def _markup(figure: Figure, key: str, title: str) -> Markup:
    """Returns a figure as an `svg` element: coloured by variables, ids of its own, no size of its own."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(visible(file.getvalue()))  # noqa: S314 - matplotlib's own output
    for name in ("metadata", "style"):  # its style sheet would hold for the whole page
        for parent in root.findall(f".//{{{_SVG}}}{name}/.."):
            for child in parent.findall(f"{{{_SVG}}}{name}"):
                parent.remove(child)
    for name in ("width", "height", "version"):
        del root.attrib[name]
    if title:
        root.set("role", "img")
        root.set("aria-label", title)
        heading = ElementTree.Element(f"{{{_SVG}}}title")
        heading.text = title
        root.insert(0, heading)
    else:
        root.set("aria-hidden", "true")
    for element in root.iter():
        _localise(element, key)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704 - ElementTree escapes


def _localise(element: ElementTree.Element, key: str) -> None:
    """Makes an element's ids the figure's own, its colours and its font the page's."""
    name = element.attrib.pop("id", None)
    if name is not None and element.tag != f"{{{_SVG}}}g":  # nothing refers to a group
        element.set("id", f"{key}-{name}")
    link = element.attrib.pop(_LINK, None)
    if link is not None:
        element.set("href", link.replace("#", f"#{key}-"))
    if "clip-path" in element.attrib:
        element.set("clip-path", element.attrib["clip-path"].replace("#", f"#{key}-"))
    style = element.attrib.get("style", "")
    if style:
        style = re.sub(r"#[0-9a-f]{6}", lambda found: f"var({_VARIABLES[found[0]]})", style)
        style = re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", style)
        element.set("style", re.sub(r"font-family: [^;]*;? ?", "", style))
