"""The life of a server, with a fake in vLLM's place: however things end, no process is left."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from derivedata.errors import UserError
from derivedata.generation import hardware, launch, supervisor
from derivedata.generation import server as server_module
from derivedata.generation.launch import ServerSettings, resolve
from derivedata.generation.metrics import parse_metrics
from derivedata.generation.model import resolve_model
from derivedata.generation.server import VllmServer, end_leftovers

pytestmark = pytest.mark.faults

REPOSITORY = Path(__file__).parents[2]
FAKE = (sys.executable, "-m", "tests.fake_server")
# A child that ignores SIGTERM and lives in a session of its own: the worst a server's process can do.
STUBBORN = (
    "import os, signal, subprocess, sys, time;"
    "code = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)';"
    "subprocess.Popen([sys.executable, '-c', code], start_new_session=True);"
    "os.execv(sys.executable, [sys.executable, '-m', 'tests.fake_server', *sys.argv[1:]])"
)
OWNER = """
import sys, time
from pathlib import Path
from derivedata.generation.model import resolve_model
from derivedata.generation.server import VllmServer
server = VllmServer(resolve_model({model!r}), log=Path({log!r}), grace_s=0.5, program={program!r})
server.start()
print(server._process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _somewhere(cache, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


@pytest.fixture
def log(tmp_path):
    return tmp_path / "logs" / "vllm.log"


def start(model: Path, log: Path, *, program=FAKE, **settings) -> VllmServer:
    one_thread = ServerSettings(threads=1)  # else the machine is watched for a moment
    return VllmServer(resolve_model(str(model)), one_thread, log=log, program=program, grace_s=0.5, **settings)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if supervisor.started_at(pid) is not None]


def wait_until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def tree(pid: int) -> list[int]:
    return [pid, *supervisor.descendants(pid)]


def test_a_server_answers_and_is_gone_afterwards(tiny_model, log):
    with start(tiny_model, log) as server:
        processes = tree(server._process.pid)
        assert len(processes) >= 2
        assert server.metrics().running == 0
        assert server.endpoint.url.startswith("http://127.0.0.1:")
    assert alive(processes) == []
    assert list((server_module.cache_folder() / "servers").iterdir()) == []


def test_the_key_is_on_no_command_line_and_in_no_log(tiny_model, log):
    with start(tiny_model, log) as server:
        key = server.endpoint.api_key
        for pid in tree(server._process.pid):
            assert key not in Path(f"/proc/{pid}/cmdline").read_text()
    assert key not in log.read_text()


def test_it_listens_on_the_loopback_interface_alone_and_to_nobody_without_its_key(tiny_model, log):
    with start(tiny_model, log) as server, start(tiny_model, log) as other:
        port = int(server.endpoint.url.rpartition(":")[2])
        sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = [fields[1] for fields in sockets if fields[3] == "0A" and fields[1].endswith(f":{port:04X}")]
        assert listening == [f"0100007F:{port:04X}"]
        assert len(server.endpoint.api_key) >= 32 and server.endpoint.api_key != other.endpoint.api_key
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{server.endpoint.url}/v1/models")


def test_progress_is_told_while_it_starts(tiny_model, log):
    lines = []
    program = (*FAKE, "--start-seconds", "1.5")
    with start(tiny_model, log, program=program, progress=lines.append) as server:
        assert server.start_seconds > 1.4
    assert lines[0].startswith("starting vLLM with tiny, 1 s")


def test_a_server_that_cannot_start_shows_the_end_of_its_log(tiny_model, log):
    program = (sys.executable, "-c", "import sys; print('loading'); sys.exit('no such device')")
    with pytest.raises(UserError, match=r"ended while starting: .*no such device"):
        start(tiny_model, log, program=program).start()


def test_only_the_log_of_this_start_is_shown(tiny_model, log):
    log.parent.mkdir(parents=True)
    log.write_text("an error of last week\n")
    with pytest.raises(UserError, match="ended while starting") as caught:
        start(tiny_model, log, program=(sys.executable, "-c", "raise SystemExit('today')")).start()
    assert "last week" not in caught.value.line


def test_the_error_is_shown_and_not_the_call_stack(tiny_model, log):
    program = (sys.executable, "-c", "print('loading ' * 500); int('many')")
    with pytest.raises(UserError, match=r"starting: ValueError: invalid literal for int\(\) with base 10: 'many'\. "):
        start(tiny_model, log, program=program).start()


def test_a_start_has_a_limit(tiny_model, log):
    with pytest.raises(UserError, match="did not answer within 1 s"):
        start(tiny_model, log, program=(*FAKE, "--start-seconds", "600"), start_limit_s=1).start()


def test_a_server_that_dies_is_started_again_at_the_same_place(tiny_model, log):
    with start(tiny_model, log) as server:
        (child,) = supervisor.descendants(server._process.pid)
        endpoint = server.endpoint
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: server.restarted == 1)
        wait_until(server._answers)
        server.check()
        assert server.endpoint == endpoint


def test_restarts_are_bounded(tiny_model, log):
    with start(tiny_model, log, restarts=0) as server:
        (child,) = supervisor.descendants(server._process.pid)
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: server._process.poll() is not None)
        with pytest.raises(UserError, match="the vLLM server has ended"):
            server.check()


def test_processes_that_want_to_stay_are_killed(tiny_model, log):
    with start(tiny_model, log, program=(sys.executable, "-c", STUBBORN)) as server:
        processes = tree(server._process.pid)
        assert len(processes) == 3
    assert alive(processes) == []


def _owner(model: Path, log: Path, program=FAKE) -> tuple[subprocess.Popen, list[int]]:
    code = OWNER.format(model=str(model), log=str(log), program=program)
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    return owner, tree(int(owner.stdout.readline()))


def _killed(owner: subprocess.Popen) -> None:
    owner.kill()
    owner.wait()
    owner.stdout.close()


@pytest.mark.parametrize("program", [FAKE, (sys.executable, "-c", STUBBORN)], ids=["plain", "stubborn"])
def test_killing_the_owner_leaves_nothing(tiny_model, log, program):
    owner, processes = _owner(tiny_model, log, program)
    assert len(processes) >= 2
    _killed(owner)
    wait_until(lambda: alive(processes) == [])


def test_killing_the_supervisor_leaves_nothing(tiny_model, log):
    owner, (guard, *rest) = _owner(tiny_model, log)
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: alive(rest) == [])  # its first process has a death signal
    _killed(owner)


def test_what_is_left_when_owner_and_supervisor_are_killed_is_ended_by_the_next_start(tiny_model, log):
    # The server's first process goes with the supervisor; a child of it in the same session stays.
    program = (sys.executable, "-c", STUBBORN.replace("start_new_session=True", "start_new_session=False"))
    owner, (guard, *rest) = _owner(tiny_model, log, program)
    os.kill(guard, signal.SIGSTOP)  # it must not notice the owner's death in between
    _killed(owner)
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: len(alive(rest)) == 1)
    assert end_leftovers() == 1
    assert alive(rest) == []
    assert end_leftovers() == 0


def test_a_server_that_is_looked_after_is_no_leftover(tiny_model, log):
    with start(tiny_model, log) as server:
        assert end_leftovers() == 0
        assert server._answers()


def test_a_stranger_with_a_reused_pid_is_left_alone(tiny_model, log):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        wait_until(lambda: supervisor.session_members(stranger.pid) == [stranger.pid])
        record = {
            "boot": supervisor.boot_id(),
            "supervisor": 2**22 + 1,
            "supervisor_started": 1,
            "server": stranger.pid,
            "server_started": supervisor.started_at(stranger.pid) - 1,
        }
        file = server_module._pid_folder() / "old.json"
        file.write_text(json.dumps(record))
        assert end_leftovers() == 0
        assert alive([stranger.pid]) == [stranger.pid]
        assert not file.exists()
    finally:
        stranger.kill()
        stranger.wait()


def test_another_port_is_tried_when_the_port_was_taken_meanwhile(tiny_model, log, monkeypatch):
    with start(tiny_model, log) as first:
        ports = [int(first.endpoint.url.rpartition(":")[2]), server_module._free_port()]
        monkeypatch.setattr(server_module, "_free_port", lambda: ports.pop(0))
        with start(tiny_model, log) as second:
            assert second.endpoint.url != first.endpoint.url
    assert ports == []


def test_prompts_fit_into_one_batch_on_cpu(tiny_model):
    # Otherwise a request with a seed brings the CPU engine down.
    arguments = resolve(resolve_model(str(tiny_model)), ServerSettings(context=6000)).arguments
    assert "--no-enable-chunked-prefill" in arguments
    assert int(arguments[arguments.index("--max-num-batched-tokens") + 1]) >= 6000


def test_no_code_of_the_model_is_run_unless_asked(tiny_model):
    model = resolve_model(str(tiny_model))
    assert "--trust-remote-code" not in resolve(model, ServerSettings()).arguments
    assert "--trust-remote-code" in resolve(model, ServerSettings(trust_remote_code=True)).arguments


def test_options_of_vllm_go_through(tiny_model):
    settings = ServerSettings(extra=(("--max_num_batched_tokens", "9000"), ("enable-log-requests", "")))
    arguments = resolve(resolve_model(str(tiny_model)), settings).arguments
    assert arguments[arguments.index("--max-num-batched-tokens") + 1] == "9000"
    assert "--enable-log-requests" in arguments


@pytest.mark.parametrize("pair", [("host", "0.0.0.0"), ("--api-key", "x"), ("served_model_name", "y"), ("port", "1")])
def test_options_that_are_ours_are_refused(pair):
    with pytest.raises(UserError, match="sets this option"):
        ServerSettings(extra=(pair,))


@pytest.mark.parametrize("wrong", [{"context": 0}, {"threads": -1}, {"kv_cache_gib": 0.5}, {"block_size": 0}])
def test_settings_outside_their_range_are_refused(wrong):
    with pytest.raises(UserError):
        ServerSettings(**wrong)


def test_a_context_longer_than_the_models_is_refused(tiny_model):
    with pytest.raises(UserError, match="longer than the model's"):
        resolve(resolve_model(str(tiny_model)), ServerSettings(context=100_000))


def test_a_single_thread_gets_the_core_that_is_idle(monkeypatch):
    ticks = {0: itertools.repeat(7), 1: itertools.count(7), 2: itertools.count(7, 5)}  # how long each was idle so far
    monkeypatch.setattr(hardware, "usable_cores", lambda: [0, 1, 2])
    monkeypatch.setattr(hardware, "_idle_ticks", lambda cores: sum(next(ticks[core]) for core in cores))
    assert hardware.idlest_cores(1, 0) == [2]
    assert hardware.idlest_cores(2, 0) == [1, 2]
    assert hardware.idlest_cores(3, 0) == [0, 1, 2]


def test_threads_are_taken_for_idle_cores_only(monkeypatch):
    chosen = {}
    for cores, idle in ((1, 1.0), (2, 1.9), (2, 1.2), (2, 0.0), (16, 15.8), (16, 4.2), (16, 0.3)):
        monkeypatch.setattr(hardware, "usable_cores", lambda cores=cores: list(range(cores)))
        monkeypatch.setattr(hardware, "idle_cores", lambda idle=idle: idle)
        chosen[cores, idle] = launch._threads()
    assert chosen == {(1, 1.0): 1, (2, 1.9): 2, (2, 1.2): 1, (2, 0.0): 1, (16, 15.8): 15, (16, 4.2): 3, (16, 0.3): 1}


def test_a_busy_core_is_not_idle():
    before = hardware.idle_cores(0.3)
    code = "import time; end = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in hardware.usable_cores()]
    try:
        wait_until(lambda: hardware.idle_cores(0.3) < 0.5)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert 0 <= before <= len(hardware.usable_cores())


def test_metrics_are_summed_over_engines():
    page = (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="a"} 3.0\n'
        'vllm:num_requests_running{engine="1",model_name="a"} 4.0\n'
        'vllm:prefix_cache_hits_total{engine="0",model_name="a b"} 1.6e+03\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0\n'
    )
    metrics = parse_metrics(page)
    assert (metrics.running, metrics.waiting, metrics.prefix_hits) == (7, 0, 1600)
