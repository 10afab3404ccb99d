"""`derivedata eta frontier`: the best model, epochs or rewrites and loss over FLOPs and fresh tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.quantity import Quantities, shorten

if TYPE_CHECKING:
    from derivedata.scaling.frontier import FrontierPoint


@click.command()
@click.option("--flops", type=Quantities(), required=True, metavar="C,C,...", help="Budgets (1e19,1e20,1e21).")
@click.option("--fresh-tokens", type=Quantities(), required=True, metavar="D,D,...", help="Stocks of unique tokens.")
@words.generator_option
@words.law_option
@click.option("--strategy", "strategies", multiple=True, help="Only this strategy of the law. Repeatable.")
@click.option("--best", is_flag=True, help="Only the best strategy of each budget and stock.")
@click.option("--plots", metavar="DIR", help="Also draw the frontier there, as PNG and SVG.")
@words.json_option
def frontier(*, flops, fresh_tokens, generator_params, law, strategies, best, plots, as_json) -> None:
    """Tabulate the compute-data frontier: N, D, x by strategy, loss and regime for each budget and stock.

    \b
    derivedata eta frontier --flops 1e19,1e20,1e21 --fresh-tokens 1B,10B,100B --generator-params 1.7B
    """
    from derivedata.cli.eta.inputs import read_ensemble
    from derivedata.scaling.frontier import frontier as make_frontier

    ensemble = read_ensemble(law)
    points = make_frontier(
        ensemble,
        flops=sorted(flops),
        fresh_tokens=sorted(fresh_tokens),
        strategies=strategies or None,
        generator_params=generator_params,
    )
    if best:
        # Where the budget ends before the fresh tokens do, no strategy is used and all are equally good.
        points = tuple({(p.flops, p.fresh_tokens): p for p in reversed(points) if p.is_best}.values())[::-1]
    if as_json:
        words.print_json(points)
    else:
        rows = [frontier_row(point) for point in points]
        words.say(words.table(rows))
        words.say("")
        beyond = [one for point in points for one in point.outside]
        for line in [*words.standing(ensemble), *words.footnotes(beyond, law=ensemble.law)]:
            words.say(line)
        words.say("frontier: nothing with as little compute and as little data has a lower loss, and all data is used")
    if plots:
        from derivedata.cli.eta.drawings import frontier_picture, save_all

        picture = frontier_picture(
            ensemble,
            flops=_range(flops),
            fresh_tokens=_range(fresh_tokens),
            strategies=strategies or None,
            generator_params=generator_params,
        )
        click.echo(f"figures: {', '.join(save_all([picture], plots))}", err=True)


def frontier_row(point: FrontierPoint) -> dict:
    """One point as a row of a table."""
    return {
        "FLOPs": shorten(point.flops),
        "fresh tokens": shorten(point.fresh_tokens),
        "strategy": point.strategy if point.x > 0 else "none",
        "N": words.counts(point.params),
        "used": shorten(point.fresh_seen),
        "x": words.figure(point.x),
        "loss": words.starred(words.interval(point.loss, words.nats), point.outside),
        "regime": point.regime,
        "best": "best" if point.is_best else "",
        "frontier": "yes" if point.is_on_frontier else "",
    }


def _range(values: tuple[float, ...]) -> tuple[float, float]:
    """Two decades at least: a map needs room around what was asked."""
    low, high = min(values), max(values)
    spare = max(1.0, (100 * low / high) ** 0.5)
    return low / spare, high * spare
