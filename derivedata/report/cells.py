"""A map of cells: a number for each pair of names, in colour and in figures; what was not tried stays empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from derivedata.report.charts import Words
from derivedata.report.style import FAINT, INK, Picture, label, new_figure, shades, styled


def cells(
    words: Words,
    *,
    across: tuple[str, Sequence[str]],
    up: tuple[str, Sequence[str]],
    value: NDArray,
    write: Callable[[float], str],
    bar: str,
    mark: tuple[int, int] | None = None,
) -> Picture:
    """Cells in colour with their figures.

    Args:
        across, up: name of the axis and names of its columns, of its rows from the bottom.
        value: (rows, columns), NaN where there is nothing.
        write: how a value is written in its cell.
        bar: what the colours mean.
        mark: (row, column) to frame.
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    with styled():
        rows, columns = value.shape
        figure, axes = new_figure(height=max(2.2, min(4.6, 1.1 + 0.34 * rows)))
        steps = LinearSegmentedColormap.from_list("sequence", shades(6))
        seen = value[np.isfinite(value)]
        low, high = (float(seen.min()), float(seen.max())) if seen.size else (0.0, 1.0)
        mesh = axes.pcolormesh(
            np.arange(columns + 1), np.arange(rows + 1), np.ma.masked_invalid(value), cmap=steps,
            vmin=low, vmax=high if high > low else low + 1e-9, edgecolors="none", linewidth=0,
        )  # fmt: skip
        small = 8.5 if columns <= 8 else 7.0
        for r, c in np.argwhere(np.isfinite(value)):
            # Dark figures on the light end of the colours, light ones elsewhere.
            ground = (value[r, c] - low) / (high - low) if high > low else 0.0
            ink = "#10161e" if ground > 0.6 else "white"
            axes.text(c + 0.5, r + 0.5, write(float(value[r, c])), ha="center", va="center", fontsize=small, color=ink)
        if mark is not None:
            axes.add_patch(Rectangle((mark[1], mark[0]), 1, 1, fill=False, edgecolor=INK, linewidth=2.2, clip_on=False))
        axes.set_xticks(np.arange(columns) + 0.5, [label(name) for name in across[1]])
        axes.set_yticks(np.arange(rows) + 0.5, [label(name) for name in up[1]])
        axes.set_xlabel(label(across[0]))
        axes.set_ylabel(label(up[0]))
        axes.grid(False)
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_color(FAINT)
        colours = figure.colorbar(mesh, ax=axes, pad=0.02, fraction=0.05)
        colours.set_label(label(bar))
        colours.outline.set_visible(False)
    return Picture(name=words.name, title=words.title, caption=words.caption, figure=figure)
