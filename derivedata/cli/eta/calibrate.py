"""`derivedata eta calibrate RUNS`: a new strategy's eta from 3 to 8 runs, with a published law as the prior."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.quantity import Quantity, shorten

if TYPE_CHECKING:
    from derivedata.scaling.calibrate import Calibration, NextRun
    from derivedata.scaling.runs import Runs


@click.command()
@click.argument("runs_file", metavar="RUNS")
@words.law_option
@click.option("--strategy", help="Which strategy of RUNS, when there are several.")
@click.option("--params", type=Quantity(), help="N to answer for.  [default: the middle of the runs]")
@click.option("--fresh-tokens", type=Quantity(), help="D to answer for.  [default: the middle of the runs]")
@click.option(
    "--like", metavar="STRATEGY", help="Strategy of the law whose rho and sigma are the prior.  [default: all]"
)
@click.option(
    "--run-noise", type=float, help="Standard deviation of ln loss of a run around the law.  [default: 0.025]"
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the sampling.")
@click.option("-o", "--output", metavar="FIT.json", help="Write the calibrated law there, for --law of the others.")
@words.json_option
def calibrate(
    *, runs_file, law, strategy, params, fresh_tokens, like, run_noise, seed, output, as_json
) -> None:  # fmt: skip
    """Fit K of a strategy from a few runs, and say how much of the answer is prior and which run to train next.

    RUNS is a table with columns n_params, fresh_tokens, derived_tokens, strategy, loss; runs with derived_tokens = 0 of
    the same sizes help.

    \b
    derivedata eta calibrate runs.csv --params 190M --fresh-tokens 3.8B -o FIT.json
    derivedata eta plan --law FIT.json --params 190M --fresh-tokens 3.8B
    """
    from derivedata.cli.eta.inputs import read_ensemble, read_runs, write_json
    from derivedata.errors import UserError
    from derivedata.scaling.calibrate import calibrate as make_calibration
    from derivedata.scaling.calibrated import calibration_to_dict
    from derivedata.scaling.posterior import Noise

    if run_noise is not None and not 0 < run_noise < 1:
        raise UserError("the noise of ln loss is a small positive number", where="--run-noise", value=run_noise)
    prior = read_ensemble(law)
    runs, notes = read_runs(runs_file)
    found = make_calibration(
        prior,
        runs,
        strategy=strategy,
        params=params,
        fresh_tokens=fresh_tokens,
        like=like,
        noise=None if run_noise is None else Noise(run=run_noise, cell=0.8 * run_noise),
        seed=seed,
    )
    data = calibration_to_dict(found, runs={"given": len(runs), "sha256": runs.sha256()})
    if output:
        write_json(output, data)
    if as_json:
        words.print_json({key: value for key, value in data.items() if key != "draws"})
        return
    _print(found, runs, notes, output)


def _print(found: Calibration, runs: Runs, notes: list[str], output: str | None) -> None:

    own, one_epoch = int(runs.of(found.strategy).sum()), int((runs.Dp == 0).sum())
    tpp = words.figure(found.fresh_tokens / found.params)
    at = f"{shorten(found.params)} parameters, {shorten(found.fresh_tokens)} fresh tokens ({tpp} per parameter)"
    words.say(f"{found.strategy} from {own} runs and {one_epoch} without derived tokens, at {at}")
    for line in words.standing(found.ensemble):
        words.say(line)
    words.say("")
    rows = [
        {"": "before the runs", "R*": words.interval(found.r_star_prior), "sd of ln R*": words.figure(found.sd_prior)},
        {"": "after", "R*": words.interval(found.r_star), "sd of ln R*": words.figure(found.sd)},
    ]
    words.say(words.table(rows))
    share = found.data_share
    words.say(f"of the answer {share:.0%} is data and {1 - share:.0%} is prior (share of the variance of ln R*)")
    saturation = found.ensemble.law.strategies[found.strategy]
    three = {
        name: found.ensemble.estimate(lambda law, n=name: getattr(law.strategies[found.strategy], n))
        for name in ("rho", "sigma")
    }
    words.say(
        f"ln K = {saturation.lnK:.4g}, rho = {words.interval(three['rho'])}, sigma = {words.interval(three['sigma'])}"
    )
    words.say("")
    if found.next_best is None:
        words.say("next run: none of these sizes would narrow R* here by more than a percent; train a larger one")
    else:
        words.say(f"next run that narrows most: {_run(found.next_best, found)}")
        if found.next_cheapest != found.next_best:
            words.say(f"most for its FLOPs: {_run(found.next_cheapest, found)}")
    for line in words.footnotes((), [*found.warnings, *notes]):
        words.say(line)
    if output:
        words.say(f"written to {output}")


def _run(run: NextRun, found: Calibration) -> str:
    return (
        f"N {shorten(run.params)}, D {shorten(run.fresh_tokens)}, x {run.x:g} ({run.flops:.2g} FLOPs):"
        f" sd of ln R* {words.figure(found.sd)} -> {words.figure(run.sd_after)}"
    )
