"""The program of the verifier's processes: one parent that imports everything once and forks workers on request.

Started by derivedata.problems.workers as `python -m derivedata.problems.worker FD ...`; not for direct use.

The parent of the workers is spawned clean and stays single-threaded and idle, so that forking from it is safe and a
killed worker is replaced in milliseconds instead of the seconds that importing SymPy takes. It ends its workers and
itself when the other end of its control socket closes, which the kernel does whatever way the main process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable

HEADER = struct.Struct(">I")
_PR_SET_PDEATHSIG = 1
VERDICTS = ("correct", "wrong", "no_answer", "verifier_timeout", "verifier_error")


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends; end now if that has already happened."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def load_plugin(name: str) -> Callable[[str, str], object]:
    """The function that `module:function` names.

    Raises:
        ValueError: it can't be imported or is no function; the message says why.
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"{name!r} is not of the form module:function")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if not callable(function):
        raise ValueError(f"{name!r} is not a function")
    return function


def plugin_verdict(outcome: object) -> tuple[str, str | None]:
    """Read what a plug-in returned: a verdict's name, or true/false, or a reward of 1 or 0, or None for no answer."""
    if isinstance(outcome, str) and outcome in VERDICTS:
        return outcome, None
    if outcome is None:
        return "no_answer", None
    if outcome in (0, 1):
        return ("correct" if outcome else "wrong"), None
    return "verifier_error", f"the verifier returned {str(outcome)[:100]!r} instead of a verdict, true or false"


def judge(job: dict, plugin: Callable[[str, str], object] | None) -> tuple[str, str | None, str | None]:
    """One verdict: (verdict, the answer if it was found here, detail)."""
    from derivedata.problems import symbolic

    kind, golds, text = job["kind"], job["golds"], job["text"]
    try:
        if kind == "plugin":
            detail = None
            for gold in golds:
                verdict, detail = plugin_verdict(plugin(gold, text))
                if verdict != "wrong":
                    break
            return verdict, None, detail
        if kind == "answer":
            return ("correct" if any(symbolic.equivalent(gold, text) for gold in golds) else "wrong"), None, None
        found = None
        for gold in golds:
            verdict, found = symbolic.judge_text(gold, text)
            if verdict != "wrong":
                break
        return verdict, found, None
    except MemoryError:
        return "verifier_timeout", None, "memory limit"
    except Exception as error:
        # Whatever a plug-in or SymPy raises is this answer's outcome, recorded with its last line.
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"
        return "verifier_error", None, message[:300]


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def serve(connection: socket.socket, settings: dict, plugin: Callable | None) -> None:
    """Answer requests until the other end closes. The kernel ends us if a request outlives its limits."""
    deadline = settings["deadline"]
    while True:
        (size,) = HEADER.unpack(_receive(connection, HEADER.size))
        job = json.loads(_receive(connection, size))
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime + deadline) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
        # The main process keeps the deadline; this alarm is for the case that it is gone.
        signal.setitimer(signal.ITIMER_REAL, deadline + 2)
        verdict, answer, detail = judge(job, plugin)
        signal.setitimer(signal.ITIMER_REAL, 0)
        reply = json.dumps([job["id"], verdict, answer, detail]).encode()
        connection.sendall(HEADER.pack(len(reply)) + reply)
        if detail == "memory limit":
            os._exit(0)


def _mapped_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _fork(connection: socket.socket, control: socket.socket, settings: dict, plugin: Callable | None) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        control.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        die_with_parent(parent)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # On top of what is imported already: a plug-in with torch maps many gigabytes that it never touches.
        resource.setrlimit(resource.RLIMIT_AS, (_mapped_bytes() + settings["memory"], resource.RLIM_INFINITY))
        sys.setrecursionlimit(5_000)
        serve(connection, settings, plugin)
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        os._exit(1)


def main() -> None:
    """Import, say so, then fork, kill and reap workers as the control socket asks."""
    control = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(sys.argv[2])
    die_with_parent(settings["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Plug-ins print; nothing of that may reach the user's stdout.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    plugin = None
    try:
        if settings["plugin"]:
            # What the main process could import, and what lies where the user stands.
            sys.path[:] = dict.fromkeys([os.getcwd(), *settings["path"]])
            plugin = load_plugin(settings["plugin"])
        if settings["math_verify"]:
            from derivedata.problems import symbolic

            symbolic.prepare()
    except (ValueError, ImportError) as error:
        control.send(json.dumps({"failed": str(error)}).encode())
        return
    import gc

    gc.collect()
    gc.freeze()
    wake_in, wake_out = os.pipe()
    os.set_blocking(wake_out, False)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    control.send(json.dumps({"ready": True}).encode())
    pids: dict[int, int] = {}
    while True:
        readable, _, _ = select.select([control, wake_in], [], [])
        if wake_in in readable:
            os.read(wake_in, 4_096)
            _reap(pids, control)
        if control in readable:
            message, descriptors, _, _ = socket.recv_fds(control, 4_096, 1)
            if not message:
                break
            order = json.loads(message)
            if "kill" in order:
                with contextlib.suppress(StopIteration):
                    os.kill(next(pid for pid, number in pids.items() if number == order["kill"]), signal.SIGKILL)
            else:
                with socket.socket(fileno=descriptors[0]) as connection:
                    pids[_fork(connection, control, settings, plugin)] = order["fork"]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _reap(pids: dict[int, int], control: socket.socket) -> None:
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if pid in pids:
            control.send(json.dumps({"ended": pids.pop(pid), "status": os.waitstatus_to_exitcode(status)}).encode())


if __name__ == "__main__":
    main()
