"""Keeps one vLLM server for several commands: what `derivedata serve` does.

with keep_serving(ModelOptions(model="smollm2-135m"), listener) as kept:
    kept.wait()
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from derivedata.generation.embedded import cache_folder
from derivedata.generation.launch import VLLM
from derivedata.generation.model import resolve_model
from derivedata.generation.served import Served, all_served, announce
from derivedata.generation.server import VllmServer
from derivedata.pipelines.job import ModelOptions
from derivedata.pipelines.paraphrase_options import CONTEXT
from derivedata.pipelines.serving import Listener

LOOK_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A server that is being kept."""

    served: Served
    server: VllmServer
    log: Path

    def wait(self) -> None:
        """Until an interrupt ends it. Raises UserError when the server has ended for good."""
        while True:
            self.server.check()
            time.sleep(LOOK_S)


@contextlib.contextmanager
def keep_serving(
    options: ModelOptions, listener: Listener, *, log: str | None = None, program: tuple[str, ...] = VLLM
) -> Iterator[Kept]:
    """A server that other commands of this user find, for as long as the block runs; nothing of it is left afterwards.

    Args:
        options: the model and how it is served.
        listener: hears about the start, and about servers that an earlier command has left.
        log: file for what the server prints.
        program: what is started, see `VllmServer`.
    """
    running, gone = all_served()
    for url in gone:
        listener.say(f"the command that kept {url} was killed; its server is ended")
    for served in running:
        listener.say(f"{served.model.name} is being served already at {served.endpoint.url} (process {served.owner})")
    model = resolve_model(options.model, progress=listener.say)
    context = options.context_for(model, CONTEXT)
    path = Path(log) if log else cache_folder() / "served" / "vllm.log"
    server = VllmServer(model, options.server_settings(context), log=path, program=program)
    with listener.track(f"starting vLLM with {model.name}", lambda: None):
        server.start()
    state = None
    try:
        state = announce(server.endpoint, model, context=context, window=server.launch.window)
        served = next(one for one in all_served()[0] if one.endpoint == server.endpoint)
        yield Kept(served=served, server=server, log=path)
    finally:
        if state is not None:
            state.unlink(missing_ok=True)
        server.stop()
