"""How figures of advice are written: values with intervals, stars on extrapolations, and what they stand on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from derivedata.cli.quantity import Quantity, shorten

if TYPE_CHECKING:
    from derivedata.scaling.ensemble import Ensemble, Estimate
    from derivedata.scaling.law import Law

PARAMS_HELP = "N: all parameters except the input embedding, LM head counted (1.2B, 190M)."
STAR = "*"

law_option = click.option(
    "--law", default="qin2026-n370", show_default=True, metavar="NAME|FIT.json", help="Published law or fit file."
)
params_option = click.option("--params", type=Quantity(), help=PARAMS_HELP)
generator_option = click.option(
    "--generator-params",
    type=Quantity(),
    default=0.0,
    help="Parameters of the model that rewrites; its 2 FLOPs each and generated token are then counted.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


def figure(value: float | None) -> str:
    """A small number for people: 7.9, 0.031, 123."""
    if value is None:
        return "unknown"
    if math.isinf(value):
        return "unbounded"
    if math.isnan(value):
        return "none"
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def nats(value: float) -> str:
    """A loss, nats."""
    return f"{value:.3f}"


def interval(estimate: Estimate | None, write: Callable[[float], str] = figure) -> str:
    """`7.9 [6.1, 10.2]`, without brackets where no interval is known."""
    if estimate is None:
        return "unknown"
    if math.isnan(estimate.value) or not estimate.has_interval:
        return write(estimate.value)
    return f"{write(estimate.value)} [{write(estimate.low)}, {write(estimate.high)}]"


def counts(estimate: Estimate | None) -> str:
    """A number of tokens or parameters with its interval, shortened: `30.1B [24B, 41B]`."""
    return interval(estimate, shorten)


def starred(text: str, outside: Sequence[str]) -> str:
    """The text, with a star when the law is extrapolated."""
    return f"{text} {STAR}" if outside else text


def footnotes(outside: Iterable[str], notes: Iterable[str] = (), *, law: Law | None = None) -> list[str]:
    """Notes, and what the stars mean: the range of the runs behind the law."""
    lines = [f"note: {note}" for note in dict.fromkeys(notes)]
    beyond = list(dict.fromkeys(outside))
    if beyond and (law is None or law.support is None):
        lines.append(f"{STAR} extrapolated: {'; '.join(beyond)}")
    elif beyond:
        N, tpp = law.support.N, law.support.tpp
        reach = "".join(f", x up to {x:.3g} of {name}" for name, x in law.support.x.items())
        lines.append(
            f"{STAR} extrapolated: the runs behind the law have N {shorten(N[0])} to {shorten(N[1])},"
            f" {tpp[0]:.3g} to {tpp[1]:.3g} tokens per parameter{reach}"
        )
    return lines


def standing(ensemble: Ensemble) -> list[str]:
    """What the figures stand on: law, intervals, and the definition of N."""
    return [
        f"law: {ensemble.law.name or 'unnamed'}; intervals: {ensemble.interval}",
        f"N: {ensemble.law.n_definition}",
    ]


def table(rows: Sequence[Mapping]) -> str:
    """Rows of equal keys as aligned text."""
    from derivedata.cli.render import text_table

    return text_table(rows, list(rows[0]), widest=90)


def say(text: str) -> None:
    """Lines on stdout. Names come from tables and manifests: nothing in them may steer the terminal."""
    from derivedata.cli.render import printable

    for line in text.split("\n"):
        click.echo(printable(line))


def plain(value):
    """Dataclasses, estimates and arrays as JSON values; infinities and NaN as strings and null."""
    from dataclasses import asdict, is_dataclass

    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def print_json(value) -> None:
    """JSON on stdout."""
    import json

    click.echo(json.dumps(plain(value), indent=1, ensure_ascii=False))
