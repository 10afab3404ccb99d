"""`derivedata rl`: compute-performance curves and rollouts. One module a command, imported when it is asked for."""

from __future__ import annotations

import click

from derivedata.cli.lazy import LazyGroup

COMMANDS: dict[str, str] = {
    "check": "derivedata.cli.rl.check:check",
    "design": "derivedata.cli.rl.design:design",
    "fit": "derivedata.cli.rl.fit:fit",
    "import": "derivedata.cli.rl.import_logs:import_logs",
    "plan": "derivedata.cli.rl.plan:plan",
    "report": "derivedata.cli.rl.report:report",
    "simulate": "derivedata.cli.rl.simulate:simulate",
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def rl() -> None:
    """Fit what RL buys for its compute, and plan the number of rollouts.

    C counts rollouts, problems a batch x rollouts a problem x iterations, unless a table counts something else.
    """
