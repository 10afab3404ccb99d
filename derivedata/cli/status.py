"""`derivedata status`: how far is a job, who works on it, what went wrong?"""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

import click


@click.command()
@click.argument("output")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--watch", type=click.FloatRange(min=0.2), metavar="SECONDS", help="Look again and again until it ends.")
def status(output: str, as_json: bool, watch: float | None) -> None:
    """Say how far the job that writes OUTPUT is, from the files there alone.

    It may be running (here or elsewhere), dead, or finished. Exits with 1 when it was killed or has failed.
    """
    from derivedata.pipelines.status import RUNNING, read_status

    while True:
        seen = read_status(output)
        click.echo(json.dumps(seen.to_dict()) if as_json else "\n".join(lines(seen)))
        if watch is None or seen.state != RUNNING:
            break
        time.sleep(watch)
        if not as_json:
            click.echo("")
    sys.exit(1 if seen.state in ("killed", "failed") else 0)


def lines(seen) -> list[str]:
    """A status as people read it."""
    from derivedata.cli.progress import clock
    from derivedata.cli.render import printable

    told = [f"{seen.output}: {seen.job}" + (f" by {seen.model}" if seen.model else "") + f", {seen.state}"]
    if seen.writers:
        told.append(f"  at work    {', '.join(seen.writers)}")
    times = f"since {seen.started}" if seen.ended is None else f"{seen.started} to {seen.ended}"
    told.append(f"  run        {seen.run_id}, {times}")
    if seen.chunks is not None:
        told.append(f"  chunks     {seen.chunks_done:,} of {seen.chunks:,} done, {seen.chunks_begun:,} begun")
    if seen.wanted:
        share = min(1.0, (seen.planned + seen.waiting) / seen.wanted)
        waiting = f" and {seen.waiting:,} in journals" if seen.waiting else ""
        told.append(f"  requests   {seen.planned:,} committed{waiting} of about {seen.wanted:,} ({share:.0%})")
    tokens = "" if seen.tokens is None else f", {seen.tokens:,} tokens"
    wanted = "" if seen.tokens_wanted is None else f" of {seen.tokens_wanted:,} wanted"
    told.append(f"  documents  {seen.documents:,}{tokens}{wanted}")
    if seen.rate is not None:
        left = "" if seen.left is None else f", about {clock(seen.left)} left"
        told.append(f"  pace       {seen.rate:,.0f} new tokens/s{left}")
    told += [f"  {one.trouble:<9}  {_rank(one, clock)}" for one in seen.ranks if one.trouble]
    for failure in seen.failures:
        told.append(f"  failed     task {failure['rank']} of {failure['step']}: {failure['error']}")
    if seen.state in ("killed", "failed", "stopped"):
        told.append(f"  go on      {_again(seen.command)}")
    return [printable(line) for line in told]


def _again(command: list[str]) -> str:
    """The command that goes on, as a person types it."""
    if command and Path(command[0]).name in ("derivedata", "__main__.py"):
        return shlex.join(["derivedata", *command[1:]])
    return "run the same command again"


def _rank(one, clock) -> str:
    return f"task {one.rank}: {one.done:,} outcomes, {one.pace:.2f} a second, last heard of {clock(one.silent)} ago"
