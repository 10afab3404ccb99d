"""A measurement of difficulty whose server is the fake one over real HTTP.

python -m tests.pipelines.measuring '{"problems": ["p.jsonl"], "output": "out", ...}' URL      runs one in this process
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from derivedata.cli import main
from derivedata.pipelines.difficulty_options import DifficultyOptions
from derivedata.pipelines.difficulty_run import measure_difficulty
from tests.pipelines.fakes import serve_at


def measurement(problems: Path, output: Path, model: Path, **options) -> DifficultyOptions:
    """A measurement with the tiny model, in small chunks so that there are many commits."""
    settings = {"chunk_problems": 8, "max_tokens": 64, "verify_workers": 1} | options
    return DifficultyOptions(problems=(str(problems),), output=str(output), model=str(model), **settings)


def measure(server, *args, **options):
    return measure_difficulty(measurement(*args, **options), serve=serve_at(server.endpoint.url))


if __name__ == "__main__":
    settings, url = json.loads(sys.argv[1]), sys.argv[2]

    @click.command()
    def work() -> None:
        measure_difficulty(DifficultyOptions(**settings), serve=serve_at(url))

    main([], work)
