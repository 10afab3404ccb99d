"""`derivedata eta plan`: regime, epochs, rewrites, and repeat or paraphrase, for a model and its fresh tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.quantity import Quantity, shorten
from derivedata.errors import UserError

if TYPE_CHECKING:
    from derivedata.scaling.choice import Choice
    from derivedata.scaling.ensemble import Ensemble, Estimate
    from derivedata.scaling.plan import Milestone, Plan, StrategyPlan
    from derivedata.scaling.targets import Target


@click.command()
@words.params_option
@click.option("--fresh-tokens", type=Quantity(), help="D: unique tokens there are (30B).")
@click.option("--flops", type=Quantity(), help="Budget for training and generation (1e22).")
@words.generator_option
@words.law_option
@click.option("--strategy", "strategies", multiple=True, help="Only this strategy of the law. Repeatable.")
@click.option(
    "--tokens-per-rewrite",
    "rates",
    multiple=True,
    metavar="[STRATEGY=]R",
    help="Derived tokens of one rewrite per fresh token, as measured. Default for paraphrase: the published 0.32.",
)
@click.option(
    "--solve-for",
    type=click.Choice(["params", "fresh-tokens", "epochs", "rewrites"]),
    help="Find what reaches --target-loss (params: also the best N of --flops).",
)
@click.option("--target-loss", type=Quantity(), help="Loss to reach, nats a token.")
@click.option("--x", type=float, default=None, help="D'/D held while solving for params or fresh-tokens.  [default: 0]")
@click.option("--plots", metavar="DIR", help="Also draw the figures there, as PNG and SVG.")
@words.json_option
def plan(
    *, params, fresh_tokens, flops, generator_params, law, strategies, rates, solve_for, target_loss, x, plots, as_json
) -> None:  # fmt: skip
    """Say how many epochs or rewrites a model is worth giving, and in which regime that puts it.

    \b
    derivedata eta plan --params 1.2B --fresh-tokens 30B --flops 1e22 --generator-params 1.7B
    derivedata eta plan --params 190M --fresh-tokens 3.8B --solve-for epochs --target-loss 3.0
    """
    from derivedata.cli.eta.inputs import read_ensemble

    ensemble = read_ensemble(law)
    per_rewrite = _rates(rates, tuple(strategies) or tuple(ensemble.law.strategies))
    if x is not None and not 0 <= x < 1e9:
        raise UserError("x = D'/D is zero or more", where="--x", value=x)
    if solve_for:
        _solve(
            ensemble, solve_for, strategies, per_rewrite,
            params=params, fresh_tokens=fresh_tokens, flops=flops, loss=target_loss, x=x,
            generator_params=generator_params, as_json=as_json,
        )  # fmt: skip
        return
    if target_loss is not None or x is not None:
        raise UserError("--target-loss and --x go with --solve-for")
    for name, value in (("--params", params), ("--fresh-tokens", fresh_tokens)):
        if value is None:
            raise UserError(f"{name} is needed", remedy="give for example --params 1.2B --fresh-tokens 30B")
    from derivedata.scaling.choice import choose
    from derivedata.scaling.plan import plan as make_plan

    advice = make_plan(
        ensemble,
        params=params,
        fresh_tokens=fresh_tokens,
        flops=flops,
        generator_params=generator_params,
        per_rewrite=per_rewrite,
        strategies=strategies or None,
    )
    choices = [
        choose(
            ensemble, params=params, fresh_tokens=fresh_tokens, first=first, second=second, flops=flops,
            generator_params=generator_params,
        )
        for first, second in pairs(advice.strategies)
    ]  # fmt: skip
    if as_json:
        words.print_json({"plan": advice, "choices": choices})
    else:
        print_plan(advice, choices, ensemble)
    if plots:
        from derivedata.cli.eta.drawings import field_pictures, regime_picture, save_all

        pictures = field_pictures(ensemble)
        pictures.append(
            regime_picture(ensemble, params=params, fresh_tokens=fresh_tokens, generator_params=generator_params)
        )
        click.echo(f"figures: {', '.join(save_all(pictures, plots))}", err=True)


def _rates(given: tuple[str, ...], strategies: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e6:
            raise UserError(
                "no tokens per rewrite", where="--tokens-per-rewrite", value=text, remedy="write paraphrase=0.32"
            )
        if name and name not in strategies:
            raise UserError(
                "no such strategy", where="--tokens-per-rewrite", value=name, remedy=f"known: {', '.join(strategies)}"
            )
        for strategy in [name] if name else [s for s in strategies if s != "repeat"]:
            found[strategy] = value
    return found


def pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """Each strategy against repeats, which cost nothing to make; against the first one where there are none."""
    ordered = sorted(names, key=lambda name: name != "repeat")
    return [(ordered[0], other) for other in ordered[1:]]


def print_plan(advice: Plan, choices: list[Choice], ensemble: Ensemble) -> None:
    """The plan as text."""

    N, D = advice.params, advice.fresh_tokens
    words.say(f"{shorten(N)} parameters, {shorten(D)} fresh tokens ({words.figure(D / N)} tokens per parameter)")
    for line in words.standing(ensemble):
        words.say(line)
    words.say(
        f"\nloss after one epoch {words.interval(advice.one_epoch_loss, words.nats)},"
        f" with endless fresh data {words.interval(advice.model_limit, words.nats)} nats a token"
    )
    where = "after one epoch" if advice.flops is None else f"at the end of {shorten(advice.flops)} FLOPs"
    words.say(f"\nRegime {where} (gaps in nats: what derived tokens, fresh tokens, parameters can still win)")
    rows = [regime_row(one) for one in advice.strategies.values()]
    words.say(words.table(rows))
    for one in advice.strategies.values():
        words.say(
            f"\n{one.strategy}: R* = {words.interval(one.r_star)},"
            f" loss with endless tokens {words.interval(one.data_limit, words.nats)}"
        )
        rows = [milestone_row(stop, one, advice.generator_params) for stop in one.milestones]
        words.say(words.table(rows))
        stop = one.recommended
        count = f"{words.interval(stop.count)} {one.unit}" if stop.count else f"x = {words.interval(stop.x)}"
        words.say(
            words.starred(f"recommended: {count}; the next token is then worth a tenth of a fresh one", stop.outside)
        )
    for choice in choices:
        words.say(f"\n{choice.first} or {choice.second}")
        for line in choice_lines(choice, advice):
            words.say(f"  {line}")
    beyond = [o for one in advice.strategies.values() for stop in (*one.milestones, one.now) for o in stop.outside]
    beyond += [o for choice in choices for o in choice.outside]
    words.say("")
    for line in words.footnotes(beyond, advice.notes, law=ensemble.law):
        words.say(line)


def regime_row(one: StrategyPlan) -> dict:
    """Where the budget ends with one strategy."""
    now = one.now
    return {
        "strategy": one.strategy,
        "fresh": shorten(now.fresh_seen),
        "derived": shorten(now.derived_tokens),
        "x": words.figure(now.x),
        "loss": words.starred(words.interval(now.loss, words.nats), now.outside),
        "compute gap": words.interval(now.gaps.compute, words.nats),
        "data gap": words.interval(now.gaps.data, words.nats),
        "model gap": words.interval(now.gaps.model, words.nats),
        "next token": words.figure(now.marginal.value),
        "regime": now.regime,
    }


def milestone_row(stop: Milestone, one: StrategyPlan, generator_params: float) -> dict:
    """What 50, 75 or 90% of the limit takes."""
    row = {"of the limit": f"{stop.share:.0%}"}
    if stop.count is not None:
        row[one.unit] = words.interval(stop.count)
    row |= {
        "x": words.interval(stop.x),
        "derived tokens": words.counts(stop.derived_tokens),
        "loss": words.starred(words.interval(stop.loss, words.nats), stop.outside),
        "training FLOPs": f"{stop.training_flops:.2e}",
    }
    if generator_params and one.strategy != "repeat":
        row["generation FLOPs"] = f"{stop.generation_flops:.2e}"
    return row


def choice_lines(choice: Choice, advice: Plan) -> list[str]:
    """Repeat, paraphrase or both, a sentence each."""
    first, second = choice.first, choice.second
    tpp = words.figure(advice.fresh_tokens / advice.params)
    ratio = f"R* of {second} / R* of {first} = {words.interval(choice.r_ratio)}"
    lines = [f"in tokens: {choice.more_in_tokens} is worth more ({ratio})"]
    lines += _equal("N", choice.crossover_params, choice.below_params, f"at {tpp} tokens per parameter")
    lines += _equal("D", choice.crossover_fresh_tokens, choice.below_fresh_tokens, f"at N = {shorten(advice.params)}")
    counted = "generation counted" if advice.generator_params else "generation free (--generator-params counts it)"
    if choice.overtakes is None:
        lines.append(f"in FLOPs, {counted}: {choice.always} whatever the budget")
    else:
        other = first if choice.overtakes == second else second
        lines.append(
            f"in FLOPs, {counted}: {other} at first, {choice.overtakes} from"
            f" {words.interval(choice.crossover_flops, shorten)} FLOPs"
        )
    losses = ", ".join(f"{name} {words.interval(loss, words.nats)}" for name, loss in choice.losses.items())
    lines.append(words.starred(f"expected loss at {shorten(choice.flops)} FLOPs: {losses}", choice.outside))
    used = {name: x for name, x in choice.mixture.x.items() if x > 1e-3}
    if not used:
        lines.append("both: this budget does not pass one epoch, so nothing is derived")
        return lines
    if len(used) < 2:
        (alone,) = used
        lines.append(f"both: nothing to gain from mixing at this budget, {alone} alone buys more per FLOP (untested)")
        return lines
    both = " and ".join(f"x = {words.figure(x)} of {name}" for name, x in used.items())
    lines.append(
        f"both (untested: no run behind the law mixes them): {both}"
        f" give {words.interval(choice.mixture.loss, words.nats)}"
    )
    return lines


def _equal(what: str, crossover: Estimate, below: str | None, where: str) -> list[str]:
    if below is None:
        return []
    if crossover.has_interval and not crossover.high < 1e4 * crossover.low:
        return [f"  from which {what} on both are worth the same {where} is not identified"]
    return [f"  both are worth the same at {what} = {words.counts(crossover)} {where}; below it {below} is worth more"]


def _solve(
    ensemble, unknown, strategies, per_rewrite, *, params, fresh_tokens, flops, loss, x, generator_params, as_json
):
    from derivedata.scaling.frontier import frontier
    from derivedata.scaling.plan import PUBLISHED_PER_REWRITE
    from derivedata.scaling.targets import solve_for

    if len(strategies) > 1:
        raise UserError("--solve-for takes one strategy", value=", ".join(strategies))
    default = (
        "repeat" if unknown != "rewrites" else next((s for s in ensemble.law.strategies if s != "repeat"), "paraphrase")
    )
    strategy = strategies[0] if strategies else default
    if loss is None and unknown == "params" and flops and fresh_tokens:
        (best,) = frontier(
            ensemble, flops=[flops], fresh_tokens=[fresh_tokens], strategies=[strategy],
            generator_params=generator_params,
        )  # fmt: skip
        if as_json:
            words.print_json(best)
            return
        words.say(
            words.starred(
                f"best N for {shorten(flops)} FLOPs and {shorten(fresh_tokens)} fresh tokens:"
                f" {words.counts(best.params)}, x = {words.figure(best.x)} of {strategy},"
                f" loss {words.interval(best.loss, words.nats)} ({best.regime})",
                best.outside,
            )
        )
        for line in [*words.standing(ensemble), *words.footnotes(best.outside, law=ensemble.law)]:
            words.say(line)
        return
    if loss is None:
        raise UserError(
            "--solve-for needs a loss to reach", remedy="give --target-loss, or --flops to find the best params"
        )
    rate = {**PUBLISHED_PER_REWRITE, **per_rewrite}.get(strategy)
    target = solve_for(
        unknown, ensemble, loss=loss, strategy=strategy, params=params, fresh_tokens=fresh_tokens, x=x or 0.0,
        per_rewrite=rate, generator_params=generator_params,
    )  # fmt: skip
    if as_json:
        words.print_json(target)
        return
    words.say(_target_line(target, strategy))
    notes = []
    if unknown == "rewrites" and strategy not in per_rewrite:
        notes.append(f"{strategy}: {rate:g} derived tokens per fresh token and rewrite (published, not measured)")
    for line in [*words.standing(ensemble), *words.footnotes(target.outside, notes, law=ensemble.law)]:
        words.say(line)


def _target_line(target: Target, strategy: str) -> str:
    if not target.is_reached:
        given = " of " + strategy if target.unknown in ("epochs", "rewrites") else ""
        return (
            f"no number of {target.unknown.replace('-', ' ')}{given} reaches a loss of {target.loss:g}:"
            f" the limit is {target.limit:.3f}"
        )
    write = words.interval if target.unknown in ("epochs", "rewrites") else words.counts
    return words.starred(
        f"{target.unknown.replace('-', ' ')} for a loss of {target.loss:g}: {write(target.answer)}"
        f" (N {shorten(target.params)}, D {shorten(target.fresh_tokens)}, x {words.figure(target.x)} of {strategy},"
        f" {shorten(target.flops)} FLOPs)",
        target.outside,
    )
