"""`derivedata rl check RUN...`: is a run healthy, and what does it do to single problems?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words

if TYPE_CHECKING:
    from derivedata.scaling.rl.health import Health
    from derivedata.scaling.rl.interference import Change, Interference


@click.command()
@click.argument("places", metavar="RUN...", nargs=-1, required=True)
@click.option("--plots", metavar="DIR", help="Also draw the histograms of pass rates there, as PNG and SVG.")
@words.json_option
def check(*, places, plots, as_json) -> None:
    """Test runs for entropy collapse or explosion, growing length, truncation, KL and a train-validation gap.

    RUN is the folder of a run or a folder of runs. Interference: pass rates of single problems over time, problems that
    fell to 0, and whether training sharpens or covers.

    \b
    derivedata rl check runs
    """
    from derivedata.cli.rl.logs import find_runs, read_log

    logs = [read_log(folder) for place in places for folder in find_runs(place)]
    results = [(log, log.health(), log.interference(), log.change()) for log in logs]
    if as_json:
        words.print_json(
            [
                {
                    "run": log.name,
                    "healthy": h.is_healthy,
                    "findings": h.findings,
                    "interference": _listed(i),
                    "change": c,
                }
                for log, h, i, c in results
            ]
        )
    else:
        for i, (_, health, found, change) in enumerate(results):
            if i:
                words.say("")
            for line in lines(health, found, change):
                words.say(line)
    if plots:
        from derivedata.cli.eta.drawings import save_all
        from derivedata.cli.rl.drawings import histogram_picture

        pictures = [histogram_picture(log.name, found) for log, _, found, _ in results if found is not None]
        click.echo(f"figures: {', '.join(save_all(pictures, plots))}", err=True)


def _listed(found: Interference | None) -> dict | None:
    """Arrays as lists, for JSON."""
    if found is None:
        return None
    values = {name: getattr(found, name) for name in found.__dataclass_fields__}
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}


def lines(health: Health, found: Interference | None, change: Change | None) -> list[str]:
    """What one run shows."""
    verdict = "healthy" if health.is_healthy else f"unhealthy: {', '.join(health.failed)}"
    said = [f"{health.run}: {verdict}"]
    for one in health.findings:
        mark = "?" if one.failed is None else "FAIL" if one.failed else "ok"
        said.append(f"  {mark:<5}{one.test}: {one.words}")
    said += [f"  {line}" for line in interference_lines(found, change)]
    return said


def interference_lines(found: Interference | None, change: Change | None) -> list[str]:
    """Interference, and sharpening or coverage, in words."""
    said = []
    if found is None:
        said.append("interference: no groups logged")
    elif not found.compared:
        said.append("interference: no problem was met both in the first and in the last sixth of the steps")
    else:
        risen = "" if math.isnan(found.risen) else f"; {found.risen:.0%} of those never solved at first were solved"
        said.append(
            f"interference: of {found.compared} problems solved in the first sixth {found.fallen:.1%} fell to 0 in the"
            f" last ({found.by_chance:.1%} by chance alone){risen}"
        )
        rows = histogram_rows(found)
        said += words.table(rows).split("\n")
    if change is not None:
        best, worst = change.best, change.worst
        said.append(f"best@k {best[0]:.3f} -> {best[1]:.3f}, worst@k {worst[0]:.3f} -> {worst[1]:.3f}: {change.kind}")
    return said


def histogram_rows(found: Interference) -> list[dict]:
    """Share of problems by pass rate, a line a window."""
    from derivedata.scaling.rl.interference import LABELS

    rows = []
    for i, shares in enumerate(found.histogram):
        first, last = found.steps[i], max(found.steps[i + 1] - 1, found.steps[i])
        row = {"steps": f"{first:.0f}-{last:.0f}", "problems": int(found.seen[i])}
        rows.append(row | {label: f"{value:.0%}" for label, value in zip(LABELS, shares, strict=True)})
    return rows
