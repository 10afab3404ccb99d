"""Keeps a server alive while its owner lives, and ends everything the server started when the owner is gone.

    python supervisor.py --control FD --log FILE --pid-file FILE --restarts N --grace SECONDS -- COMMAND...

Runs as a process of its own between `server.VllmServer` and the server, with the standard library only, so that it
starts in milliseconds and costs a few megabytes. vLLM's engine and workers outlive the death of their parent; so the
server gets a session of its own, and orphans of it come to this process (a subreaper), which ends them all.

The owner holds the other end of the control pipe. It writes a line `ready` when the server answers (from then on a
death of the server is followed by a restart); when the pipe closes, for whatever reason, everything ends. Events go to
stdout, a line each: `started PID`, `restarted N EXITCODE`, `ended EXITCODE`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TICK_S = 0.25
# A server that ran so long before it died starts with a clean slate: the limit is for one that keeps dying.
_STABLE_S = 1800.0


def started_at(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the pid it names a process for good. None: no such."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold spaces and parentheses; what follows the last one is regular.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def boot_id() -> str:
    """Names this boot of the machine: pids and start times of another one mean nothing."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _table() -> dict[int, tuple[int, int]]:
    """Parent and session of each living process, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    found[int(name)] = (int(fields[1]), int(fields[3]))
    return found


def session_members(session: int) -> list[int]:
    """Living processes of a session."""
    return [pid for pid, (_, member_of) in _table().items() if member_of == session]


def descendants(ancestor: int) -> list[int]:
    """Living processes below `ancestor`, in any session."""
    table, found, generation = _table(), [], {ancestor}
    while generation:
        generation = {pid for pid, (parent, _) in table.items() if parent in generation}
        found.extend(generation)
    return found


def end(find, grace_s: float, reap=lambda: None) -> None:
    """SIGTERM to all that `find()` lists, SIGKILL after `grace_s` seconds, until it lists nothing.

    Args:
        find: gives the pids to end; asked again and again, since processes may still be starting others.
        grace_s: seconds between the two.
        reap: called in between, to bury children.
    """
    told: set[int] = set()
    deadline = time.monotonic() + grace_s
    while pids := find():
        late = time.monotonic() >= deadline
        for pid in pids:
            if late or pid not in told:
                told.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.05)
        reap()


class Supervisor:
    """One server command, kept running."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.control: int = options.control
        self.owner = os.getppid()
        self.owner_started = started_at(self.owner)
        self.ready = self.stopping = False
        self.child: subprocess.Popen | None = None
        self.child_since = 0.0
        self.restarts = 0

    def run(self) -> int:
        """Until the owner is gone (0), a signal comes (0), or the server has ended for good (1)."""
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # Slurm tells every process of a job that its end is near: who asks finishes, and the server (which inherits
        # this) has to answer.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        os.set_blocking(self.control, False)
        try:
            self._start()
            self._say(f"started {self.child.pid}")
            while not self.stopping and self._owner_lives():
                code = self.child.poll()
                self._bury()
                if code is not None and not self._again(code):
                    return 1
            return 0
        finally:
            self._end_all()
            with contextlib.suppress(OSError):
                os.unlink(self.options.pid_file)

    def _start(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)

        def before_exec() -> None:
            # If this process is killed outright the server's first process goes too; the owner ends the rest.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

        with open(self.options.log, "ab") as log:
            self.child = subprocess.Popen(
                self.options.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=before_exec,  # noqa: PLW1509 (this process has one thread)
            )
        self.child_since = time.monotonic()
        me = os.getpid()
        record = {
            "boot": boot_id(),
            "owner": self.owner,
            "supervisor": me,
            "supervisor_started": started_at(me),
            "server": self.child.pid,
            "server_started": started_at(self.child.pid),
        }
        partial = f"{self.options.pid_file}.partial"
        with open(partial, "w", encoding="ascii") as file:
            json.dump(record, file)
        os.replace(partial, self.options.pid_file)

    def _again(self, code: int) -> bool:
        """After a death: start the server again, unless it never came up or keeps dying."""
        self._end_all()
        if time.monotonic() - self.child_since > _STABLE_S:
            self.restarts = 0
        if not self.ready or self.restarts >= self.options.restarts:
            self._say(f"ended {code}")
            return False
        self.restarts += 1
        time.sleep(min(2.0**self.restarts, 10.0))
        self._start()
        self._say(f"restarted {self.restarts} {code}")
        return True

    def _owner_lives(self) -> bool:
        """Waits a moment for word from the owner. False when the pipe is closed or the owner is gone."""
        # The second test is for copies of the pipe in children the owner has forked: they would keep it open.
        readable, _, _ = select.select([self.control], [], [], _TICK_S)
        if readable:
            try:
                word = os.read(self.control, 4096)
            except BlockingIOError:
                word = b" "
            if not word:
                return False
            self.ready = self.ready or b"ready" in word
        return os.getppid() == self.owner and started_at(self.owner) == self.owner_started

    def _end_all(self) -> None:
        end(lambda: descendants(os.getpid()), self.options.grace, self._bury)

    def _bury(self) -> None:
        self.child.poll()  # keeps its exit code; waitpid below would take it away
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid == self.child.pid:
                    return
                os.waitpid(found.si_pid, os.WNOHANG)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    @staticmethod
    def _say(line: str) -> None:
        with contextlib.suppress(OSError):  # the owner may be gone already
            os.write(1, f"{line}\n".encode())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--pid-file", required=True)
    parser.add_argument("--restarts", type=int, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("command", nargs="+")
    return Supervisor(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
