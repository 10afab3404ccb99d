"""One look for all figures: size, colours, ticks, and how they become PNG files, SVG files and inline SVG.

Figures are built without pyplot, so that nothing is global and nothing needs closing. Ink is one colour that inline SVG
replaces by the page's text colour, and data colours are readable on light and on dark ground.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from derivedata.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#20262e"
FAINT = "#8b929c"
COLOURS = ("#2e7bc4", "#dd7a26", "#2f9e6d", "#9a63c4", "#c94f6d", "#7d8a2e")
# Ends of viridis that vanish on dark or on light ground are left out.
SEQUENCE = ("#4666a8", "#2f7d97", "#21918c", "#28ae80", "#5ec962", "#b5c92f")
WIDTH, HEIGHT = 5.0, 3.6

_STYLE = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.22,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.7,
    "figure.dpi": 150,
    "svg.hashsalt": "derivedata",
    "svg.fonttype": "path",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A figure with what a reader needs beside it.

    Args:
        name: file name without suffix.
        title: a line above it.
        caption: what is to be seen, in sentences.
        figure: Matplotlib figure.
    """

    name: str
    title: str
    caption: str
    figure: Figure

    def inline_svg(self) -> str:
        """SVG for a page: scales with its column, ink is the page's text colour, ids are this picture's own."""
        buffer = io.StringIO()
        with styled():
            self.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        text = buffer.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
        text = text.replace(INK, "currentColor")
        prefix = re.sub(r"[^A-Za-z0-9]", "-", self.name)
        text = re.sub(r'id="([^"]+)"', rf'id="{prefix}-\1"', text)
        text = re.sub(r'(xlink:href|href)="#([^"]+)"', rf'\1="#{prefix}-\2"', text)
        text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
        return re.sub(
            r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
        )

    def save(self, folder: str | Path) -> list[str]:
        """Write PNG and SVG files, which carry the title; their paths."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError("no folder for figures", where=folder, value=error.strerror) from None
        written = []
        heading = self.figure.suptitle(label(self.title), fontsize=10.5, color=INK)
        for suffix in ("png", "svg"):
            path = folder / f"{self.name}.{suffix}"
            with styled():
                # PNG knows no Date; SVG would write the hour into a file that is otherwise the same each time.
                metadata = {"Date": None} if suffix == "svg" else None
                self.figure.savefig(path, facecolor="white", metadata=metadata)
            written.append(str(path))
        heading.remove()
        self.figure._suptitle = None
        return written


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib in the look of the house while the block runs."""
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; nobody needs a line a glyph about it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; use within `styled()`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def label(text: object, longest: int = 64) -> str:
    """Text from users as Matplotlib shows it: no mathematics, no control characters, not hidden from legends."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))
    shown = shown if len(shown) <= longest else shown[: longest - 1] + "…"
    shown = shown.replace("\\", "\\\\").replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def colour(index: int) -> str:
    """The colour of the index-th series."""
    return COLOURS[index % len(COLOURS)]


def shades(count: int) -> list[str]:
    """Colours of an ordered series, dark to light."""
    if count <= 1:
        return [SEQUENCE[2]][:count]
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    steps = LinearSegmentedColormap.from_list("sequence", SEQUENCE)
    return [to_hex(steps(i / (count - 1))) for i in range(count)]


def compact(value: float, _=None) -> str:
    """Tick labels: 14M, 1.2B, 0.5, 300, 10^20 as 1e20."""
    size = abs(value)
    if size >= 1e16:
        return f"{value:.0e}".replace("e+", "e")
    for suffix, unit in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= unit * 0.99999:
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.3g}"


def log_axis(axis, ticks: tuple[float, ...] = (1, 2, 5)) -> None:
    """A log axis whose ticks are few, labelled as `compact`, without minor labels that would collide."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    decades = abs(math.log10(high / low)) if low > 0 else 6
    subs = (
        (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
        if decades < 1.1
        else ticks
        if decades < 2.2
        else (1, 3)
        if decades < 4.5
        else (1,)
    )
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(compact))
    axis.set_minor_formatter(NullFormatter())
