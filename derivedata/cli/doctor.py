"""`derivedata doctor`: would a job with a model run here?"""

from __future__ import annotations

import json
import sys

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--end-servers", is_flag=True, help="End servers that a killed command has left over.")
def doctor(as_json: bool, end_servers: bool) -> None:
    """Look at Python, torch, vLLM, packages, cores, memory, GPUs, the model, disks and left-over servers.

    Each problem comes with its cure. Exits with 1 if something would stop a job with a model.
    """
    from derivedata.cli.render import printable
    from derivedata.generation.doctor import STOPS, examine

    if end_servers:
        from derivedata.generation.server import end_leftovers

        click.echo(f"ended {end_leftovers():,} processes of left-over servers", err=True)
    findings = examine()
    stopped = sum(finding.harm == STOPS for finding in findings)
    if as_json:
        click.echo(json.dumps({"stopped": stopped > 0, "findings": [one.to_dict() for one in findings]}, indent=1))
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            mark = {None: "ok", STOPS: "STOPS"}.get(finding.harm, "slows")
            click.echo(printable(f"{mark:<5}  {finding.what:<{width}}  {finding.told}"))
            if finding.cure:
                click.echo(printable(f"{'':<5}  {'':<{width}}  -> {finding.cure}"))
        click.echo(f"{stopped:,} of these would stop a job" if stopped else "a job with a model can run here")
    sys.exit(1 if stopped else 0)
