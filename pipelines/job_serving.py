"""How a job of a cluster comes to a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from derivedata.generation import embedded
from derivedata.generation.connect import key_for
from derivedata.generation.endpoint import write_endpoints
from derivedata.generation.launch import ServerSettings
from derivedata.generation.model import resolve_model
from derivedata.generation.request import Endpoint
from derivedata.pipelines.serving import ENDPOINT, Serving, Silence, own_server


@dataclass(frozen=True, kw_only=True, slots=True)
class JobServing:
    """How a job comes to a model: a server of its own, or those that run already (their key comes by the environment).

    in_flight: requests at the running servers, of all jobs together.
    """

    model: Any
    settings: ServerSettings
    endpoints: tuple[Endpoint, ...] = ()
    in_flight: int = 0

    @classmethod
    def of(cls, model: Any, settings: ServerSettings, endpoints: Sequence[Endpoint] = (), in_flight: int = 0):
        """The same without keys: this is written to a file."""
        bare = tuple(replace(endpoint, api_key=None) for endpoint in endpoints)
        return cls(model=model, settings=settings, endpoints=bare, in_flight=in_flight)

    @contextlib.contextmanager
    def open(self, private: Path, log: Path) -> Iterator[int]:
        """Write the endpoint file into `private`; gives the requests that may be in flight."""
        if self.endpoints:
            keyed = (replace(endpoint, api_key=key_for(endpoint.url)) for endpoint in self.endpoints)
            write_endpoints(private / ENDPOINT, *keyed)
            yield self.in_flight
            return
        model = resolve_model(embedded.NAME) if getattr(self.model, "is_embedded", False) else self.model
        serving = Serving(model=model, settings=self.settings, private=private, log=log, listener=Silence())
        with own_server(serving) as window:
            yield window
