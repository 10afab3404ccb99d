"""`derivedata eta`: what a derived token is worth. One module a command, imported when it is asked for."""

from __future__ import annotations

import click

from derivedata.cli.lazy import LazyGroup

COMMANDS: dict[str, str] = {
    "calibrate": "derivedata.cli.eta.calibrate:calibrate",
    "check": "derivedata.cli.eta.check:check",
    "design": "derivedata.cli.eta.design:design",
    "fit": "derivedata.cli.eta.fit:fit",
    "frontier": "derivedata.cli.eta.frontier:frontier",
    "plan": "derivedata.cli.eta.plan:plan",
    "report": "derivedata.cli.eta.report:report",
    "runs": "derivedata.cli.eta.runs:runs",
    "sufficiency": "derivedata.cli.eta.sufficiency:sufficiency",
    "tokens": "derivedata.cli.eta.tokens:tokens",
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def eta() -> None:
    """Fit Compute-Data scaling laws and read advice from them.

    L(N, D, D') = E + A/N^alpha + B/(D + eta D')^beta: N parameters, D fresh tokens, D' derived tokens, eta the mean
    value of a derived token against a fresh one.
    """
