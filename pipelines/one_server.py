"""One vLLM server for several jobs in a row: what `derivedata demo` has, since a start takes half a minute.

with one_server() as serve:
    paraphrase_corpus(..., serve=serve)
    measure_difficulty(..., serve=serve)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from derivedata.pipelines.serving import ENDPOINT, Serve, Serving, own_server
from derivedata.store.private import private_folder


@contextlib.contextmanager
def one_server() -> Iterator[Serve]:
    """Gives a `serve` that starts a server for the first job that needs one, as that job wants it, and keeps it."""
    with contextlib.ExitStack() as stack, private_folder() as private:
        kept: list[int] = []

        @contextlib.contextmanager
        def serve(serving: Serving) -> Iterator[int]:
            if not kept:
                kept.append(stack.enter_context(own_server(replace(serving, private=Path(private)))))
            # Links, so that a job also sees when the server is gone for good.
            for suffix in ("", ".failed"):
                os.symlink(Path(private) / f"{ENDPOINT}{suffix}", serving.private / f"{ENDPOINT}{suffix}")
            yield kept[0]

        try:
            yield serve
        finally:
            stack.close()  # before the folder goes
