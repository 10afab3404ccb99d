"""A paraphrase job whose server is the fake one over real HTTP; everything else is the real thing.

python -m tests.pipelines.fakes '{"corpus": ["in"], "output": "out", ...}' URL      runs a job against a fake server
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from derivedata.cli import main
from derivedata.generation.endpoint import write_endpoints
from derivedata.generation.request import Endpoint
from derivedata.pipelines.run import ParaphraseOptions, paraphrase_corpus
from derivedata.pipelines.serving import ENDPOINT, Serving

MODEL = "fake"


def serve_at(url: str):
    """A `serve` for a server that runs already."""

    @contextlib.contextmanager
    def serve(serving: Serving) -> Iterator[int]:
        write_endpoints(serving.private / ENDPOINT, Endpoint(url=url, model=MODEL))
        yield 32

    return serve


def job(corpus: Path, output: Path, model: Path, **options) -> ParaphraseOptions:
    """A job on the tiny model, in small chunks so that there are many commits."""
    settings = {"chunk_bytes": 4_000} | options
    return ParaphraseOptions(corpus=(str(corpus),), output=str(output), model=str(model), **settings)


if __name__ == "__main__":
    settings, url = json.loads(sys.argv[1]), sys.argv[2]

    @click.command()
    def work() -> None:
        paraphrase_corpus(ParaphraseOptions(**settings), serve=serve_at(url))

    main([], work)
