"""`derivedata rl plan RUNS --budget C`: rollouts a problem, problems a batch and iterations for a budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.quantity import Quantity, shorten
from derivedata.cli.rl.fit import metric_option, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from derivedata.scaling.rl.plan import Plan


@click.command()
@click.argument("places", metavar="[RUNS...]", nargs=-1)
@click.option("--budget", type=Quantity(), required=True, help="C: rollouts to spend (1e6).")
@metric_option
@click.option("--batch", type=click.IntRange(2), help="Hold B = B_p x n; only runs of that B are compared.")
@click.option("--points", type=click.Choice(["all", "record"]), default="all", show_default=True,
              help="Fit every evaluation, or the paper's record-breaking points (which lie high).")  # fmt: skip
@click.option("--unhealthy", is_flag=True, help="Plan from runs that fail `rl check`, too.")
@click.option("--plots", metavar="DIR", help="Also draw the figures there, as PNG and SVG.")
@words.json_option
def plan(*, places, budget, metric, batch, points, unhealthy, plots, as_json) -> None:
    """Say how to spend C rollouts: n a problem, B_p problems a batch, M iterations, C = B_p x n x M.

    RUNS are tables with columns run, C, reward, n, B_p, or folders of runs trained with different n. Without RUNS the
    paper's figures are shown as an example.

    \b
    derivedata rl plan runs --budget 1e6
    derivedata rl plan curves.csv --budget 1e6 --batch 8192 --metric worst
    """
    if not places:
        for line in example_lines(budget):
            words.say(line)
        return
    advice, notes = make(places, budget=budget, metric=metric, batch=batch, points=points, unhealthy=unhealthy)
    if as_json:
        words.print_json(to_dict(advice, notes))
    else:
        for line in lines(advice, notes):
            words.say(line)
    if plots:
        from derivedata.cli.eta.drawings import save_all
        from derivedata.cli.rl.drawings import plan_pictures

        click.echo(f"figures: {', '.join(save_all(plan_pictures(advice), plots))}", err=True)


def make(
    places: Sequence[str],
    *,
    budget: float,
    metric: str,
    batch: int | None,
    points: str = "all",
    unhealthy: bool = False,
) -> tuple[Plan, list[str]]:
    """The plan of some places, runs that fail the healthy-recipe test left out."""
    from derivedata.cli.rl.curves import curves_of, read_frame_of, without
    from derivedata.scaling.rl.plan import plan as make_plan

    frame, notes = read_frame_of(places)
    curves = curves_of(frame, metric)
    left_out = {} if unhealthy else unhealthy_runs(places)
    left_out |= dict.fromkeys(without(frame, metric, curves), f"no values of {metric}")
    advice = make_plan(curves, budget=budget, metric=metric, batch=batch, left_out=left_out, points=points)
    return advice, notes


def unhealthy_runs(places: Sequence[str]) -> dict[str, str]:
    """Run -> the tests that it failed; tables have no log to test."""
    from pathlib import Path

    from derivedata.cli.rl.logs import find_runs, read_log

    found = {}
    for place in places:
        if Path(place).is_dir():
            for folder in find_runs(place):
                health = read_log(folder).health()
                if not health.is_healthy:
                    found[health.run] = "unhealthy: " + "; ".join(
                        f"{one.test}, {one.words}" for one in health.findings if one.failed
                    )
    return found


def lines(advice: Plan, notes: Sequence[str]) -> list[str]:
    """The advice as text, the numbers behind it below."""
    found = [headline(advice), why(advice), "", f"reward ({advice.metric}) at C = {shorten(advice.read_at)} by n"]
    found.append(words.table(n_rows(advice)))
    if advice.cells and len({cell.problems for cell in advice.cells}) > 1:
        found += ["", f"by (B_p, n) at C = {shorten(advice.read_at)}", words.table(cell_rows(advice))]
    found += ["", best_n_line(advice)]
    found += [f"flag: {flag}" for flag in advice.flags]
    found += left_out_lines(advice)
    return found + words.footnotes((), [*advice.notes, *notes])


def left_out_lines(advice: Plan) -> list[str]:
    """Runs that take no part, by name; those of another batch in one line."""
    other = [run for run, reason in advice.left_out.items() if reason.startswith("batch of")]
    said = [f"left out: {run}: {reason}" for run, reason in advice.left_out.items() if run not in other]
    if other:
        names = ", ".join(other[:6]) + (f" and {len(other) - 6} more" if len(other) > 6 else "")
        said.append(f"left out: not B = {advice.batch}: {names}")
    return said


def headline(advice: Plan) -> str:
    """The advice in one line."""
    n = advice.n
    span = "" if n.low == n.high else f" ({n.low:g} to {n.high:g} are possible)"
    text = f"for {shorten(advice.budget)} rollouts: n = {n.value:g} rollouts a problem{span}"
    if advice.problems is None:
        return f"{text}; B_p unknown: the runs do not say theirs"
    return f"{text}, B_p = {advice.problems} problems a batch, {shorten(advice.iterations)} iterations"


def why(advice: Plan) -> str:
    """What the advice rests on, in words."""
    n = int(advice.n.value)
    here = {group.n: float(group.at(advice.read_at)) for group in advice.groups}
    chance = advice.chance.get(n, 0.0)
    others = {k: v for k, v in here.items() if k != n and math.isfinite(v)}
    text = f"n = {n} is nearest to the peak in {chance:.0%} of the draws"
    if others:
        next_best = max(others, key=others.__getitem__)
        text += f"; {share(here[n])} against {share(others[next_best])} with n = {next_best}"
    level = [k for k in advice.level if k != n]
    if level:
        text += f"; not told apart from n = {', '.join(map(str, level))}"
    if advice.batch is not None:
        text += f"; at B = {advice.batch} more rollouts mean fewer problems"
    return text


def n_rows(advice: Plan) -> list[dict]:
    """A line for each n."""
    import numpy as np

    rows = []
    for group in advice.groups:
        value = float(group.at(advice.read_at))
        spread = group.spread(advice.read_at)[:, 0]
        known = math.isfinite(value)
        low, high = np.quantile(spread, [0.025, 0.975]) if known else (np.nan, np.nan)
        best = group.best_member(advice.read_at)
        rows.append(
            {
                "n": group.n,
                "runs": len(group.runs),
                "best B_p": None if best is None else best.problems,
                "C": f"{shorten(group.low)} to {shorten(group.high)}",
                "reward": f"{share(value)} [{share(low)}, {share(high)}]" if known else "no run that far",
                "peak in": f"{advice.chance[group.n]:.0%}" if group.n in advice.chance else "-",
                "A": share(best.law.A) if best is not None and best.law.C_mid < best.high else "none",
            }
        )
    return rows


def cell_rows(advice: Plan) -> list[dict]:
    """A line for each (B_p, n)."""
    return [
        {
            "B_p": cell.problems,
            "n": cell.n,
            "B": cell.problems * cell.n,
            "iterations": shorten(cell.iterations),
            "reward": words.interval(cell.reward, share),
        }
        for cell in advice.cells
    ]


def best_n_line(advice: Plan) -> str:
    """n*(C) in words."""
    law = advice.best_n
    if law is None:
        return "n*(C): no curve"
    sign = "-" if law.b < 0 else "+"
    return (
        f"n*(C): log2 n* = {law.L:.2f}/(1 + exp(-{law.k:.2f} (log10 C - {law.c0:.2f}))) {sign} {abs(law.b):.2f}, kept"
        f" within n = {law.low_n} to {law.high_n}; n* = {float(law.n(advice.budget)):.3g} at {shorten(advice.budget)}"
    )


def example_lines(budget: float) -> list[str]:
    """The paper's n* as an example."""
    from derivedata.scaling.rl.frontier import NOT_TRANSFERABLE, PAPER

    rows = [
        {"setting": name, f"n* at {shorten(budget)}": f"{float(law.n(budget)):.0f}",
         "note": f"{', '.join(law.bounds)} at its bound" if law.bounds else ""}
        for name, law in PAPER.items()
    ]  # fmt: skip
    return [
        f"IsoCompute Playbook (arXiv 2603.12151): {NOT_TRANSFERABLE}",
        words.table(rows),
        "give RUNS of your own; `derivedata rl design` proposes which to train",
    ]


def to_dict(advice: Plan, notes: Sequence[str]) -> dict:
    """The plan as JSON."""
    skip = ("groups", "frontier", "cells")
    return {name: getattr(advice, name) for name in advice.__dataclass_fields__ if name not in skip} | {
        "by_n": n_rows(advice),
        "by_cell": cell_rows(advice),
        "frontier": {
            "C": advice.frontier.C.tolist(),
            "reward": advice.frontier.reward.tolist(),
            "n": advice.frontier.n.tolist(),
        },
        "notes": [*advice.notes, *notes],
    }
