"""What all jobs with a model at work share: options, the model and its servers, how a run opens and is executed."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from derivedata.errors import UserError, refuse_below_one
from derivedata.generation.connect import Connection, ServedModel, connect
from derivedata.generation.endpoint import write_endpoints
from derivedata.generation.launch import ServerSettings
from derivedata.generation.model import ModelFolder, resolve_model
from derivedata.generation.request import Sampling
from derivedata.pipelines.cluster import Cluster
from derivedata.pipelines.executor import execute
from derivedata.pipelines.job_serving import JobServing
from derivedata.pipelines.pace import Pace
from derivedata.pipelines.serving import (
    ENDPOINT,
    Listener,
    Serve,
    Serving,
    generated_tokens,
    own_server,
    recorded,
    start_over,
)
from derivedata.store.fingerprint import RunConfig
from derivedata.store.lease import Lease
from derivedata.store.paths import Folder
from derivedata.store.private import private_folder
from derivedata.store.runs import new_run_id

Model = ModelFolder | ServedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """What every command with a model at work takes; see their --help."""

    model: str | None = None
    endpoints: Sequence[str] = ()  # servers that run already; none: one is started
    concurrency: int | None = None  # requests in flight at each of them
    tokenizer: str | None = None
    context: int | None = None
    tensor_parallel: int = 1
    data_parallel: int | None = None
    max_num_seqs: int | None = None
    vllm_args: Sequence[tuple[str, str]] = ()
    trust_remote_code: bool = False
    seed: int = 0
    tasks: int = 1
    workers: int | None = None
    cluster: Cluster | None = None  # where the tasks run; None: here
    restart: bool = False

    def __post_init__(self) -> None:
        refuse_below_one(self, "tasks", "workers", "context", "concurrency")
        if not self.endpoints:
            if self.concurrency:
                raise UserError("is for servers that run already", where="--concurrency", remedy="add --endpoint")
            return
        started = {
            "--tensor-parallel": self.tensor_parallel != 1,
            "--data-parallel": self.data_parallel,
            "--max-num-seqs": self.max_num_seqs,
            "--vllm-arg": self.vllm_args,
            "--trust-remote-code": self.trust_remote_code,
        }
        if given := [name for name, value in started.items() if value]:
            raise UserError(
                "is for a server that is started here", where=given[0], remedy="leave it out beside --endpoint"
            )

    def server_settings(self, context: int) -> ServerSettings:
        """How a server is to be started."""
        return ServerSettings(
            context=context,
            max_num_seqs=self.max_num_seqs,
            tensor_parallel=self.tensor_parallel,
            data_parallel=self.data_parallel,
            trust_remote_code=self.trust_remote_code,
            extra=tuple(self.vllm_args),
        )

    def context_for(self, model: Model, usual: int) -> int:
        """Tokens of prompt and answer: as asked for, else `usual` or what the model has."""
        return self.context or min(model.context or usual, usual)


def find_model(
    options: ModelOptions,
    samplings: Sequence[Sampling],
    *,
    plain: bool | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[Model, Connection | None]:
    """The model that options name, and what is known of the servers where they name those.

    Args:
        options: the job's.
        samplings: of the requests it will make.
        plain: whether it asks without a chat template; None: as the tokenizer has one.
        say: hears lines for people.
    """
    if not options.endpoints:
        return resolve_model(options.model, progress=say), None
    connection = connect(
        options.endpoints,
        model=options.model,
        tokenizer=options.tokenizer,
        samplings=samplings,
        plain=plain,
        in_flight=options.concurrency,
    )
    for line in connection.lines if say else ():
        say(line)
    return connection.model, connection


def rate_name(model: Model, connection: Connection | None) -> str:
    """Under what a measured rate is remembered: the model's, or that of these servers with it."""
    if connection is None or connection.ours:
        return model.name
    return f"{model.name} at {', '.join(sorted(endpoint.url for endpoint in connection.endpoints))}"


def check_context(context: int, connection: Connection | None) -> None:
    """Refuse a context that the servers don't have."""
    if connection is not None and connection.context is not None and context > connection.context:
        raise UserError(
            f"the server takes {connection.context:,} tokens of prompt and answer",
            where=connection.endpoints[0].url,
            value=context,
            remedy="lower --context or --max-tokens, or start the server with more",
        )


def at_endpoints(connection: Connection) -> Serve:
    """A `serve` for servers that run already."""

    @contextlib.contextmanager
    def serve(serving: Serving) -> Iterator[int]:
        write_endpoints(serving.private / ENDPOINT, *connection.endpoints)
        if connection.ours and serving.generated:
            serving.generated(lambda: generated_tokens(connection.endpoints[0]))
        yield connection.in_flight

    return serve


class Job:
    """One run of a job on its output. A subclass says what the job is."""

    name: str  # as the run record has it
    rooms: Sequence[str]  # folders of the output
    model: Model
    connection: Connection | None = None

    def __init__(self, options: ModelOptions, output: str, listener: Listener, serve: Serve | None):
        self.options, self.listener, self._serve = options, listener, serve
        self.folder = Folder(output)
        self.run_id = new_run_id()
        self.workers = min(options.workers or options.tasks, options.tasks)
        self.job_serving: JobServing | None = None  # how a cluster's jobs come to a model
        self.inline = False  # run steps in this thread, without an executor of our own (inside another's task)

    def run_config(self) -> RunConfig:
        """The configuration, once the model is known."""
        raise NotImplementedError

    def find_model(self, samplings: Sequence[Sampling], *, plain: bool | None = None) -> None:
        """Settle the model, and the servers where some are named."""
        self.model, self.connection = find_model(self.options, samplings, plain=plain, say=self.listener.say)

    @property
    def connection_identity(self) -> dict[str, Any]:
        """What determines texts when others serve the model: nothing of where they are."""
        return dict(self.connection.identity) if self.connection else {}

    def execution(self, **more: Any) -> dict[str, Any]:
        """How the run is done, for its record; no key is in it."""
        options = self.options
        served = {} if self.connection is None else {"endpoints": list(options.endpoints)}
        if self.connection is not None and self.connection.found:
            served["endpoints_found"] = list(self.connection.found)
        return {
            "model_folder": str(self.model.path),
            "tasks": options.tasks,
            "workers": self.workers,
            "tensor_parallel": options.tensor_parallel,
            "data_parallel": options.data_parallel,
            "max_num_seqs": options.max_num_seqs,
            "vllm_args": [list(pair) for pair in options.vllm_args],
            **({"executor": options.cluster.executor, "logging_dir": self.logs} if options.cluster else {}),
            **served,
            **more,
        }

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """The output is this run's alone, emptied if asked for, and the run is recorded."""
        with Lease(self.folder, self.run_id):
            if self.options.restart:
                start_over(self.folder, self.rooms)
            config = self.run_config()
            with recorded(self.folder, config, self.run_id):
                yield

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """A private folder, and from the first `share()` on a server, for as long as the block runs."""
        with private_folder() as private, contextlib.ExitStack() as self._stack:
            self.private, self._window, self.pace = Path(private), 0, Pace()
            self.job_serving = None
            yield

    @property
    def endpoint_file(self) -> str:
        """Where the tasks find the servers."""
        return str(self.private / ENDPOINT)

    def share(self, context: int) -> int:
        """Requests that each worker has in flight. The first call starts the server, with this context; on a cluster
        each job starts its own, or comes to those that run already."""
        if self.options.cluster and not self.options.cluster.is_local:
            connection = self.connection
            self.job_serving = JobServing.of(
                self.model,
                self.options.server_settings(context),
                connection.endpoints if connection else (),
                connection.in_flight if connection else 0,
            )
            return 1
        if not self._window:
            serving = Serving(
                model=self.model,
                settings=self.options.server_settings(context),
                private=self.private,
                log=Path(self.folder.url_of(f"logs/{self.run_id}") if self.folder.is_local else self.private)
                / "vllm.log",
                listener=self.listener,
                generated=self.pace.hear,
            )
            serve = self._serve or (at_endpoints(self.connection) if self.connection else own_server)
            self._window = self._stack.enter_context(serve(serving))
        return max(2, self._window // self.workers)

    def execute(self, steps: Sequence[Any], name: str) -> None:
        """Run Datatrove steps one after the other, in as many tasks as wanted."""
        if self.inline:
            data = None
            for step in steps:
                data = step.run(data, 0, 1)
            deque(data, maxlen=0)
            return
        execute(
            steps,
            tasks=self.options.tasks,
            workers=self.workers,
            logging_dir=f"{self.logs}/{self.run_id}/{name}",
            cluster=self.options.cluster,
            serving=self.job_serving,
        )

    @property
    def logs(self) -> str:
        """Folder or URL of the logs of all runs."""
        place = self.options.cluster.logging_dir if self.options.cluster else None
        if place is None:
            return self.folder.url_of("logs")
        return place if "://" in place else os.path.abspath(place)
