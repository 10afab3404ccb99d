"""The life of a vLLM server: start, wait until it answers, restart when it dies, and leave nothing behind.

    with VllmServer(resolve_model(), ServerSettings(), log=Path("vllm.log"), progress=print) as server:
        ... Client(server.endpoint, alive=server.check) ...

The server listens on the loopback interface only, at a port and with an API key of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from derivedata.errors import UserError
from derivedata.generation import supervisor
from derivedata.generation.embedded import cache_folder
from derivedata.generation.launch import VLLM, Launch, ServerSettings, log_tail, resolve
from derivedata.generation.metrics import ServerMetrics, parse_metrics
from derivedata.generation.model import ModelFolder
from derivedata.generation.request import Endpoint

_PORT_TAKEN = re.compile(r"address already in use|errno 98", re.IGNORECASE)


class VllmServer:
    """A vLLM server of our own; a context manager. Blocking: in async code, start and stop it in a thread.

    Args:
        model: what it serves.
        settings: how; what they leave open is decided for this machine.
        log: file for everything the server prints; appended to.
        progress: called every few seconds with a line for people while the server starts.
        start_limit_s: seconds a start may take (25 on an idle machine, over 200 on a busy one).
        restarts: how often a server that died is started again.
        grace_s: seconds the server has to end by itself before it is killed.
        program: what is started instead of vLLM's server, with the same arguments.

    Attributes:
        endpoint: where it answers, once started.
        launch: what was decided.
        start_seconds: how long the start took.
    """

    def __init__(
        self,
        model: ModelFolder,
        settings: ServerSettings | None = None,
        *,
        log: Path,
        progress: Callable[[str], None] | None = None,
        start_limit_s: float = 600.0,
        restarts: int = 3,
        grace_s: float = 10.0,
        program: tuple[str, ...] = VLLM,
    ):
        self.model, self.log = model, Path(log)
        self.launch: Launch = resolve(model, settings or ServerSettings())
        self.start_limit_s, self.grace_s = start_limit_s, grace_s
        self.start_seconds: float | None = None
        self._progress, self._restarts, self._program = progress, restarts, program
        self._endpoint: Endpoint | None = None
        self._process: subprocess.Popen | None = None
        self._control: int | None = None
        self._log_began = 0
        self._events: list[str] = []

    @property
    def endpoint(self) -> Endpoint:
        if self._endpoint is None:
            raise RuntimeError("the server is not started")
        return self._endpoint

    @property
    def restarted(self) -> int:
        """How often the server has died and was started again."""
        return sum(event.startswith("restarted") for event in self._events)

    def __enter__(self) -> VllmServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            UserError: it ended, or did not answer within `start_limit_s`; with the end of its log.
        """
        ended = end_leftovers()
        if ended and self._progress:
            self._progress(f"ended {ended} processes that an earlier server had left behind")
        for attempt in range(3):
            self._launch()
            try:
                return self._wait()
            except BaseException as error:
                self.stop()
                # Between our asking for a free port and the server's taking it, another process can have taken it.
                if isinstance(error, UserError) and attempt < 2 and _PORT_TAKEN.search(error.line):
                    continue
                raise

    def stop(self) -> None:
        """End the server and all its processes; harmless when it isn't running."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            os.close(self._control)
        try:
            self._process.wait(self.grace_s + 30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end_leftovers()  # what a supervisor that was killed could not end
        self._process.stdout.close()
        self._process = self._control = None

    def check(self) -> None:
        """Raise a UserError if the server has ended for good; for `Client(alive=...)`. Costs microseconds."""
        if self._process is not None and self._process.poll() is not None:
            raise UserError(f"the vLLM server has ended; its last words: {self._tail()}", where=self.log)

    def metrics(self) -> ServerMetrics:
        """What the server counts, now."""
        return read_metrics(self.endpoint)

    def _launch(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        self._log_began = self.log.stat().st_size
        self._events = []
        key, port = secrets.token_urlsafe(32), _free_port()
        self._endpoint = Endpoint(url=f"http://127.0.0.1:{port}", model=self.model.name, api_key=key)
        read, self._control = os.pipe()
        pid_file = _pid_folder() / f"{secrets.token_hex(8)}.json"
        command = [
            *(sys.executable, "-S", "-E", supervisor.__file__),
            *("--control", str(read), "--log", str(self.log.resolve()), "--pid-file", str(pid_file)),
            *("--restarts", str(self._restarts), "--grace", str(self.grace_s), "--"),
            *(*self._program, *self.launch.arguments, "--host", "127.0.0.1", "--port", str(port)),
        ]
        # The key goes by the environment: a command line can be read by every user of the machine, and is logged.
        environment = os.environ | self.launch.environment | {"VLLM_API_KEY": key}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[read],
                start_new_session=True,  # Ctrl-C in a terminal reaches us, and we end the server in good order
            )
        os.close(read)
        threading.Thread(target=self._listen, args=(self._process.stdout, self._events), daemon=True).start()

    @staticmethod
    def _listen(stream, events: list[str]) -> None:
        with contextlib.suppress(ValueError, OSError):  # closed by stop()
            events.extend(line.decode("ascii", "replace").strip() for line in stream)

    def _wait(self) -> None:
        began = said = time.monotonic()
        while True:
            elapsed = time.monotonic() - began
            if self._process.poll() is not None:
                raise UserError(
                    f"the vLLM server ended while starting: {self._tail()}",
                    where=self.log,
                    remedy="the whole reason is in that log",
                )
            if self._answers():
                break
            if elapsed > self.start_limit_s:
                raise UserError(
                    f"the vLLM server did not answer within {self.start_limit_s:.0f} s: {self._tail()}", where=self.log
                )
            if self._progress and time.monotonic() - said >= 1:
                said = time.monotonic()
                self._progress(f"starting vLLM with {self.model.name}, {elapsed:.0f} s")
            time.sleep(0.1 if elapsed < 5 else 0.5)
        self.start_seconds = time.monotonic() - began
        os.write(self._control, b"ready\n")

    def _answers(self) -> bool:
        """Whether it is up, and ours: another program on the port would know neither the key nor the model."""
        try:
            self._get("/health")
            listed = json.loads(self._get("/v1/models"))
            return self.model.name in [entry["id"] for entry in listed["data"]]
        except (OSError, ValueError, LookupError, TypeError):
            return False

    def _get(self, path: str) -> bytes:
        return _get(self.endpoint, path)

    def _tail(self) -> str:
        return log_tail(self.log, begin=self._log_began) or "(nothing)"


def read_metrics(endpoint: Endpoint) -> ServerMetrics:
    """What a vLLM server on this machine counts, now. Raises OSError when it doesn't answer."""
    return parse_metrics(_get(endpoint, "/metrics").decode())


def _get(endpoint: Endpoint, path: str) -> bytes:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    request = urllib.request.Request(endpoint.url + path, headers=headers)
    # No proxy from the environment for a loopback address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as response:
        return response.read()


def end_leftovers() -> int:
    """End servers of ours whose owner and supervisor are both gone (killed at once, say).

    Returns:
        How many processes there were.
    """
    ended = 0
    for file in _pid_folder().glob("*.json"):
        try:
            record = json.loads(file.read_text("ascii"))
            same_boot = record["boot"] == supervisor.boot_id()
            if same_boot and supervisor.started_at(record["supervisor"]) == record["supervisor_started"]:
                continue  # it looks after its server
            session, began = record["server"], record["server_started"]
        except (OSError, ValueError, LookupError, TypeError):
            continue  # vanished, or being written
        # A leader with another start time is a stranger with a reused pid. Without a leader the session is still ours:
        # a pid is not given out again while it names a session.
        if same_boot and supervisor.started_at(session) in (None, began):
            members = supervisor.session_members(session)
            ended += len(members)
            supervisor.end(lambda session=session: supervisor.session_members(session), 2.0)
        file.unlink(missing_ok=True)
    return ended


def _pid_folder() -> Path:
    folder = cache_folder() / "servers"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=folder, remedy="set DERIVEDATA_CACHE") from None
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
