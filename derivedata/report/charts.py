"""The kinds of figure the reports are made of: curves with bands and points, fields over two axes, parity, dots.

Each takes plain arrays and words and returns a `Picture`; what is drawn is the caller's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from derivedata.report.style import FAINT, INK, Picture, colour, compact, label, log_axis, new_figure, shades, styled


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A line, with a band when `low` and `high` are given, dashed when it is an extrapolation or a reference."""

    name: str
    x: NDArray
    y: NDArray
    low: NDArray | None = None
    high: NDArray | None = None
    dashed: bool = False
    colour: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """Measured points; `name` "" leaves them out of the legend. `hollow` marks points a fit left out."""

    name: str
    x: NDArray
    y: NDArray
    error: NDArray | None = None
    colour: str | None = None
    hollow: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """What an axis shows: its label, whether it is logarithmic, its limits (None: what the data need)."""

    label: str
    log: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """Name of the file, title and caption of a picture."""

    name: str
    title: str
    caption: str


def lines(
    words: Words,
    x: Axis,
    y: Axis,
    *,
    curves: Sequence[Curve] = (),
    points: Sequence[Points] = (),
    levels: Sequence[tuple[float, str]] = (),
    ordered: bool = False,
    legend_title: str = "",
) -> Picture:
    """Curves with bands, points with errors, and horizontal levels with their names.

    Args:
        ordered: colours go from dark to light in the order of the curves, for a series of one quantity.
        levels: (y, name) of horizontal lines.
    """
    with styled():
        figure, axes = new_figure()
        palette = shades(len(curves)) if ordered else [colour(i) for i in range(len(curves))]
        for curve, own in zip(curves, palette, strict=True):
            own = curve.colour or own
            if curve.low is not None:
                axes.fill_between(curve.x, curve.low, curve.high, color=own, alpha=0.16, linewidth=0)
            axes.plot(curve.x, curve.y, color=own, linestyle="--" if curve.dashed else "-", label=label(curve.name))
        for i, group in enumerate(points):
            own = group.colour or (palette[i] if i < len(palette) else colour(i))
            if group.error is not None:
                axes.errorbar(
                    group.x, group.y, yerr=group.error, fmt="none", ecolor=own, elinewidth=0.8, alpha=0.35, zorder=2
                )
            axes.scatter(
                group.x,
                group.y,
                s=15,
                facecolors="none" if group.hollow else own,
                edgecolors=own if group.hollow else "none",
                linewidths=0.9,
                alpha=0.75,
                label=label(group.name) if group.name else None,
                zorder=3,
            )
        _finish(axes, x, y)
        for value, name in _apart(levels, axes.get_ylim()):
            axes.annotate(
                label(name), (0, value), xycoords=("axes fraction", "data"), xytext=(3, 2), fontsize=8.5,
                textcoords="offset points", ha="left", va="bottom", color=INK,
            )  # fmt: skip
        for value, _ in levels:
            axes.axhline(value, color=FAINT, linewidth=1.0, linestyle=":")
        _legend(axes, legend_title)
    return Picture(name=words.name, title=words.title, caption=words.caption, figure=figure)


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """The range of the data, outlined on a field."""

    x: tuple[float, float]
    y: tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """Where another quantity of the same shape passes a level."""

    value: NDArray
    level: float
    name: str


def heat(
    words: Words,
    x: Axis,
    y: Axis,
    *,
    at_x: NDArray,
    at_y: NDArray,
    value: NDArray,
    levels: Sequence[float],
    bar: str,
    box: Box | None = None,
    dots: tuple[NDArray, NDArray] | None = None,
    curves: Sequence[Curve] = (),
    edge: Edge | None = None,
) -> Picture:
    """A field over two logarithmic axes in colour, with labelled contours, the range of the data outlined.

    Args:
        at_x, at_y: (columns,), (rows,) coordinates; value: (rows, columns).
        levels: contours to draw and label; colours run between the least and the greatest.
        bar: what the colours mean.
        box, dots: range and places of the data.
        edge: a contour of another quantity, dashed.
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

    with styled():
        figure, axes = new_figure(height=3.8)
        steps = LinearSegmentedColormap.from_list("sequence", shades(6))
        spread = np.log10(max(levels) / min(levels)) if min(levels) > 0 else 0
        norm = (LogNorm if spread > 1 else Normalize)(min(levels), max(levels), clip=True)
        # The scales first: contour labels are placed and turned for the axes as they are.
        axes.set_xlim(at_x.min(), at_x.max())
        axes.set_ylim(at_y.min(), at_y.max())
        _finish(axes, x, y)
        axes.grid(False)
        mesh = axes.pcolormesh(at_x, at_y, value, cmap=steps, norm=norm, rasterized=True, shading="gouraud")
        drawn = axes.contour(at_x, at_y, value, levels=sorted(levels), colors="white", linewidths=0.9)
        for text in axes.clabel(drawn, fmt=compact, fontsize=8.5, inline=True, inline_spacing=4):
            text.set_fontweight("bold")
            across, up = axes.transAxes.inverted().transform(axes.transData.transform(text.get_position()))
            # A label that the frame would cut in half says nothing.
            text.set_visible(0.05 < across < 0.95 and 0.04 < up < 0.96)
        if edge is not None:
            axes.contour(at_x, at_y, edge.value, levels=[edge.level], colors="white", linewidths=2, linestyles="--")
            axes.plot([], [], color="white", linewidth=2, linestyle="--", label=label(edge.name))
        if box is not None:
            axes.plot(
                [box.x[0], box.x[1], box.x[1], box.x[0], box.x[0]],
                [box.y[0], box.y[0], box.y[1], box.y[1], box.y[0]],
                color="white", linewidth=2.0, linestyle=(0, (4, 2)),
            )  # fmt: skip
        if dots is not None:
            axes.scatter(*dots, s=9, color="white", alpha=0.9, linewidths=0)
        for curve in curves:
            axes.plot(
                curve.x, curve.y, color=curve.colour or "white", linewidth=2.0,
                linestyle="--" if curve.dashed else "-", label=label(curve.name),
            )  # fmt: skip
        colours = figure.colorbar(mesh, ax=axes, pad=0.02, fraction=0.05)
        colours.set_label(label(bar))
        colours.outline.set_visible(False)
        colours.set_ticks(sorted(levels), labels=[compact(level) for level in sorted(levels)])
        colours.minorticks_off()
        if curves or edge is not None:
            legend = axes.legend(loc="upper left", facecolor="#00000066", frameon=True, edgecolor="none")
            for text in legend.get_texts():
                text.set_color("white")
    return Picture(name=words.name, title=words.title, caption=words.caption, figure=figure)


def scatter_by_group(
    words: Words,
    x: Axis,
    y: Axis,
    *,
    groups: Sequence[Points],
    diagonal: bool = False,
    zero: bool = False,
) -> Picture:
    """Points in groups, with the diagonal (parity) or the zero line (residuals)."""
    with styled():
        figure, axes = new_figure()
        if diagonal:
            every = np.concatenate([np.concatenate([group.x, group.y]) for group in groups])
            ends = float(every.min()), float(every.max())
            axes.plot(ends, ends, color=FAINT, linewidth=1.0)
        if zero:
            axes.axhline(0, color=FAINT, linewidth=1.0)
        for i, group in enumerate(groups):
            own = group.colour or colour(i)
            axes.scatter(
                group.x, group.y, s=14, alpha=0.7, label=label(group.name), linewidths=0.9,
                facecolors="none" if group.hollow else own, edgecolors=own if group.hollow else "none",
            )  # fmt: skip
        _finish(axes, x, y)
        _legend(axes, "")
    return Picture(name=words.name, title=words.title, caption=words.caption, figure=figure)


def dots(
    words: Words, x: Axis, *, rows: Sequence[tuple[str, float, str]], reference: tuple[float, str] | None
) -> Picture:
    """One named value a row, with a remark beside it; `reference` is a vertical line with a name."""
    with styled():
        figure, axes = new_figure(height=0.9 + 0.34 * max(len(rows), 3))
        values = np.array([value for _, value, _ in rows])
        places = np.arange(len(rows))[::-1]
        if reference is not None:
            axes.axvline(reference[0], color=FAINT, linestyle=":", linewidth=1.2)
            axes.annotate(
                label(reference[1]), (reference[0], 1), xycoords=("data", "axes fraction"), xytext=(3, 2), fontsize=8.5,
                textcoords="offset points", va="bottom", ha="left",
            )  # fmt: skip
        axes.hlines(places, 0, values, color=colour(0), alpha=0.35, linewidth=1.4)
        axes.scatter(values, places, s=32, color=colour(0), zorder=3)
        for place, (_, value, remark) in zip(places, rows, strict=True):
            if remark:
                axes.annotate(
                    label(remark), (value, place), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8.5
                )
        axes.set_yticks(places, [label(name) for name, _, _ in rows])
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(label(x.label))
        # Room for the remarks right of the last dot.
        finite = values[np.isfinite(values)]
        top = max(float(finite.max(initial=0)), reference[0] if reference else 0.0)
        axes.set_xlim(0, x.limits[1] if x.limits else top * 1.7 + 1e-12)
    return Picture(name=words.name, title=words.title, caption=words.caption, figure=figure)


def _finish(axes, x: Axis, y: Axis) -> None:
    for axis, given, limit in ((axes.xaxis, x, axes.set_xlim), (axes.yaxis, y, axes.set_ylim)):
        axis.set_label_text(label(given.label))
        if given.limits:
            limit(*given.limits)
        if given.log:
            log_axis(axis)


def _apart(levels: Sequence[tuple[float, str]], limits: tuple[float, float]) -> list[tuple[float, str]]:
    """Names of levels too close for a line of text each share one, at the highest of them."""
    groups: list[list[tuple[float, str]]] = []
    for level in sorted(levels):
        if groups and level[0] - groups[-1][-1][0] < 0.06 * abs(limits[1] - limits[0]):
            groups[-1].append(level)
        else:
            groups.append([level])
    found = []
    for group in groups:
        names = [name for _, name in reversed(group)]
        shown = " / ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more"
        found.append((group[-1][0], shown))
    return found


def _legend(axes, title: str) -> None:
    handles, names = axes.get_legend_handles_labels()
    if len(names) > 1 or title:
        axes.legend(handles, names, title=label(title) if title else None, title_fontsize=8.5, loc="best")
