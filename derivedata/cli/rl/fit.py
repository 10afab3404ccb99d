"""`derivedata rl fit CURVES -o FIT.json`: ScaleRL's sigmoid for every run, and what the points cannot say."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.quantity import Quantity, shorten
from derivedata.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from derivedata.scaling.rl.compare import Common, Seeds
    from derivedata.scaling.rl.fit import CurveFit

metric_option = click.option(
    "--metric", type=click.Choice(["avg", "best", "worst"]), default="avg", show_default=True, help="Which column."
)


@click.command()
@click.argument("places", metavar="CURVES...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FIT.json", help="Write the fits there, with the draws of the bootstrap.")
@metric_option
@click.option(
    "--hold-out-after", type=Quantity(), metavar="C", help="Forecast what lies beyond C instead of fitting it."
)
@click.option("--skip-below", type=float, metavar="C", help="Leave out early compute.  [default: 5% of the largest C]")
@click.option("--start-reward", type=float, metavar="R_0", help="Reward before training.  [default: fitted]")
@click.option("--method", type=click.Choice(["joint", "grid"]), default="joint", show_default=True,
              help="grid: ScaleRL's A = .450....800 by .005 and 100 values of C_mid.")  # fmt: skip
@click.option("--bootstrap", type=click.IntRange(min=0), default=0, show_default=True, help="Refits, kept in FIT.json.")
@click.option("--seed", type=int, default=0, help="Of the bootstrap.")
@click.option("--plots", metavar="DIR", help="Also draw the curves there, as PNG and SVG.")
@words.json_option
def fit(
    *, places, output, metric, hold_out_after, skip_below, start_reward, method, bootstrap, seed, plots, as_json
) -> None:  # fmt: skip
    """Fit R_C = R_0 + (A - R_0)/(1 + (C_mid/C)^B) to the evaluations of each run, and extrapolate to twice the compute.

    CURVES are tables (CSV, JSONL, Parquet) with columns run, C, reward and, where known, n, B_p, recipe; or folders of
    runs. Runs of one recipe are its seeds; recipes are compared at a common asymptote.

    \b
    derivedata rl fit curves.csv -o FIT.json
    derivedata rl fit RUN --hold-out-after 200k
    """
    from derivedata.cli.eta.inputs import write_json
    from derivedata.cli.rl.curves import curves_of, read_frame_of, without
    from derivedata.scaling.rl.compare import over_seeds
    from derivedata.scaling.rl.fit import fit_curve

    frame, notes = read_frame_of(places)
    if skip_below is not None and skip_below < 0:
        raise UserError("compute to skip is zero or more", where="--skip-below", value=skip_below)
    fits, refused = [], {}
    curves = curves_of(frame, metric)
    notes += [f"{name}: no values of {metric}" for name in without(frame, metric, curves)]
    for curve in curves:
        try:
            fits.append(
                fit_curve(curve, r0=start_reward, skip_below=skip_below, hold_out_after=hold_out_after, method=method,
                       bootstrap=bootstrap, seed=seed)
            )  # fmt: skip
        except UserError as error:
            refused[curve.run] = error
    if not fits:
        raise next(iter(refused.values()))
    notes += [f"not fitted: {error.line}" for error in refused.values()]
    seeds, common = over_seeds(fits), common_of(fits)
    data = to_dict(fits, seeds, common, metric, notes)
    if output:
        write_json(output, words.plain(data))
    if as_json:
        words.print_json({**data, "fits": [{k: v for k, v in one.items() if k != "draws"} for one in data["fits"]]})
    else:
        for line in report(fits, seeds, common, metric, notes):
            words.say(line)
        if output:
            words.say(f"written to {output}")
    if plots:
        from derivedata.cli.eta.drawings import save_all
        from derivedata.cli.rl.drawings import curve_pictures

        click.echo(f"figures: {', '.join(save_all(curve_pictures(fits, metric), plots))}", err=True)


def common_of(fits: Sequence[CurveFit]) -> Common | None:
    """Curves at one asymptote, where there are several that have one."""
    from derivedata.scaling.rl.compare import at_common_asymptote

    fit = [one for one in fits if one.asymptote is not None]
    return at_common_asymptote(fit) if len(fit) > 1 else None


def to_dict(
    fits: Sequence[CurveFit], seeds: Sequence[Seeds], common: Common | None, metric: str, notes: Sequence[str]
) -> dict:
    """What FIT.json holds."""
    found = []
    for one in fits:
        row = {name: getattr(one, name) for name in one.__dataclass_fields__ if name not in ("curve", "draws")}
        curve = one.curve
        found.append(
            {"run": curve.run, "recipe": curve.recipe, "n": curve.n, "B_p": curve.problems, **row}
            | {"asymptote": one.asymptote, "points": {"C": curve.C.tolist(), "reward": curve.reward.tolist()}}
            | {"draws": one.draws.tolist()}
        )
    return {
        "kind": "rl-curves",
        "form": "R_C = R_0 + (A - R_0)/(1 + (C_mid/C)^B)",
        "metric": metric,
        "intervals": "95% profile likelihood",
        "fits": found,
        "seeds": list(seeds),
        "common": common,
        "notes": list(notes),
    }


def report(
    fits: Sequence[CurveFit], seeds: Sequence[Seeds], common: Common | None, metric: str, notes: Sequence[str]
) -> list[str]:
    """What fits say, as lines for people."""
    lines = [
        f"R_C = R_0 + (A - R_0)/(1 + (C_mid/C)^B) of {metric}; intervals: 95% profile likelihood",
        words.table([fit_row(one) for one in fits]),
        "",
        "forecast at twice the largest C, and the power law A - D/C^b beside it",
        words.table([forecast_row(one) for one in fits]),
    ]
    held = [one for one in fits if one.held_out is not None]
    if held:
        lines += ["", "held out", words.table([held_out_row(one) for one in held])]
    flagged = [f"{one.curve.run}: {flag}" for one in fits for flag in one.flags]
    if flagged:
        lines += ["", *(f"flag: {line}" for line in flagged)]
    if seeds:
        lines += ["", "recipes over their seeds (95% t intervals)", words.table([seed_row(one) for one in seeds])]
    if common is not None:
        lines += ["", *common_lines(common)]
    lines += ["", *(skipped_line(one) for one in fits if one.skipped), *words.footnotes((), notes)]
    return lines if lines[-1] else lines[:-1]


def share(value: float) -> str:
    """A reward: three digits after the point."""
    return f"{value:.3f}" if math.isfinite(value) else words.figure(value)


def fit_row(one: CurveFit) -> dict:
    """A line of constants."""
    asymptote = one.asymptote
    return {
        "run": one.curve.run,
        "points": one.used,
        "R_0": words.interval(one.R0, share),
        "A": "none" if asymptote is None else words.interval(asymptote, share),
        "C_mid": words.counts(one.C_mid),
        "B": words.interval(one.B),
        "rmse": f"{one.rmse:.4f}",
    }


def forecast_row(one: CurveFit) -> dict:
    """A line of forecasts."""
    return {
        "run": one.curve.run,
        "C": shorten(one.forecast_C),
        "sigmoid": words.interval(one.forecast, share),
        "power law": share(one.power_forecast),
        "rmse sigmoid": f"{one.rmse:.4f}",
        "rmse power law": f"{one.power_rmse:.4f}",
    }


def held_out_row(one: CurveFit) -> dict:
    """A line of what was forecast and came."""
    held = one.held_out
    return {
        "run": one.curve.run,
        "after": shorten(held.after),
        "points": held.count,
        "rmse": f"{held.rmse:.4f}",
        "bias": f"{held.bias:+.4f}",
        "rmse power law": f"{held.power_rmse:.4f}",
        "last C": shorten(held.last_C),
        "reward there": share(held.last),
        "forecast": words.interval(held.forecast, share),
    }


def seed_row(one: Seeds) -> dict:
    """A line of a recipe."""
    return {
        "recipe": one.recipe,
        "seeds": one.seeds,
        "A": words.interval(one.A, share),
        "sd of A": share(one.sd_A),
        "C_mid": words.counts(one.C_mid),
        "B": words.interval(one.B),
    }


def common_lines(common: Common) -> list[str]:
    """Speed at one asymptote, or why that is the wrong question."""
    if not common.is_tenable:
        return [
            f"a common asymptote does not fit (F test p = {common.p:.2g}): the runs differ in A; compare A, not speed"
        ]
    rows = [
        {
            "run": run,
            "C_mid": shorten(law.C_mid),
            "B": words.figure(law.B),
            "compute to half": f"x {common.relative[run]:.2f}",
        }
        for run, law in common.laws.items()
    ]
    return [f"at a common asymptote A = {common.A:.3f} (F test p = {common.p:.2g})", words.table(rows)]


def skipped_line(one: CurveFit) -> str:
    """What was left out as early."""
    below = shorten(one.skipped_below)
    return f"note: {one.curve.run}: {one.skipped} evaluations below C = {below} skipped as early compute"
