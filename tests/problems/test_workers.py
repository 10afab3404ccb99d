"""Worker processes: deadlines, limits, plug-ins, and that nothing of them is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from derivedata.errors import UserError
from derivedata.problems import Verifier, WorkerLimits, verify

pytestmark = pytest.mark.faults

HOSTILE = [
    "9^{9^{9^{9}}}",
    "10^{10^{10}}",
    "\\binom{10^9}{5\\cdot10^8}",
    "(x+y+z+1)^{4000}",
]


def odd(**limits) -> Verifier:
    return Verifier(plugin="tests.problems.plugins:odd", limits=WorkerLimits(workers=2, memory=256 << 20, **limits))


def test_a_hostile_answer_changes_no_other_verdict(impatient):
    honest = [("x+2", f"\\boxed{{{i}+x}}") for i in range(1, 31)]
    hostile = [("5", f"\\boxed{{{text}}}") for text in HOSTILE]
    mixed = [pair for i, pair in enumerate(honest) for pair in ([pair, hostile[i // 8]] if i % 8 == 0 else [pair])]
    killed = impatient.pool.killed
    by_pair = dict(zip(mixed, impatient.verify_many(mixed), strict=True))
    assert [by_pair[pair].verdict for pair in honest] == ["wrong", "correct"] + ["wrong"] * 28
    assert {by_pair[pair].verdict for pair in hostile} == {"verifier_timeout"}
    assert impatient.pool.killed == killed + len(hostile)


def test_a_ten_megabyte_answer_is_an_answer(impatient):
    assert impatient.verify("5", "word " * 2_000_000 + "\\boxed{5}").correct
    assert impatient.verify("5", "\\boxed{" + "1" * 10_000_000 + "}").verdict in ("wrong", "no_answer")
    # Its box lies out of reach; math-verify may need longer than it has for the sum before it.
    assert impatient.verify("5", "\\boxed{" + "1+" * 5_000_000 + "1}").verdict in ("wrong", "verifier_timeout")


def test_outcomes_of_a_plugin():
    with odd(deadline=1.0) as verifier:
        words = ["5", "6", "none", "nonsense", "raise"]
        verdicts = list(verifier.verify_many(("5", word) for word in words))
    assert [v.verdict for v in verdicts] == ["correct", "wrong", "no_answer", "verifier_error", "verifier_error"]
    assert "KeyError" in verdicts[4].detail
    assert verdicts[0].by == "tests.problems.plugins:odd"


def test_one_of_several_golds_is_enough_for_a_plugin():
    with odd() as verifier:
        assert [verifier.verify(golds, "5").verdict for golds in (["5", "6"], ["6", "5"], ["6", "7"])] == [
            "correct",
            "correct",
            "wrong",
        ]


def test_a_plugin_that_sleeps_or_spins_is_killed_and_replaced():
    # Enough answers that some wait behind the bad ones in the same worker.
    words = [["sleep", "spin", "sleep"][i % 3] if i in (3, 4, 50) else "5" for i in range(100)]
    with odd(deadline=0.5) as verifier:
        verdicts = [v.verdict for v in verifier.verify_many(("5", word) for word in words)]
    assert verdicts == ["correct" if word == "5" else "verifier_timeout" for word in words]


def test_a_worker_that_dies_is_asked_again_and_then_given_up():
    with odd() as verifier:
        verdicts = list(verifier.verify_many(("5", word) for word in ["die", "5"]))
    assert [v.verdict for v in verdicts] == ["verifier_error", "correct"]
    assert "exit code 3" in verdicts[0].detail


def test_the_memory_limit_ends_an_answer_and_not_the_machine():
    with odd(deadline=20) as verifier:
        verdicts = list(verifier.verify_many(("5", word) for word in ["eat", "5"]))
    assert [(v.verdict, v.detail) for v in verdicts] == [("verifier_timeout", "memory limit"), ("correct", None)]


def test_the_kernel_ends_an_answer_where_nobody_else_can():
    with odd(deadline=3) as verifier:
        (verdict,) = verifier.verify_many([("5", "limits")])
    assert verdict.verdict == "correct"


def test_a_plugin_may_print(capfd):
    with Verifier(plugin="tests.problems.plugins:same_length", limits=WorkerLimits(workers=1)) as verifier:
        assert verifier.verify("abc", "xyz").correct
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("name", ["no.such.module:f", "tests.problems.plugins:missing", "tests.problems.plugins"])
def test_a_plugin_that_cannot_be_loaded(name):
    with Verifier(plugin=name) as verifier, pytest.raises(UserError, match="can't be loaded"):
        for _ in range(2):
            verifier.verify("5", "5")


def test_workers_are_reused():
    with odd() as verifier:
        list(verifier.verify_many(("5", "5") for _ in range(200)))
        assert len(psutil.Process(verifier.pool._forker.pid).children()) == 2
    assert verifier.pool.killed == 0


def test_the_forker_may_die_too():
    with odd() as verifier:
        assert verifier.verify("5", "5").correct
        workers = psutil.Process(verifier.pool._forker.pid).children()
        os.kill(verifier.pool._forker.pid, signal.SIGKILL)
        assert [v.correct for v in verifier.verify_many(("5", "5") for _ in range(20))] == [True] * 20
        # The kernel ends the workers with it.
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert not [worker for worker in alive if worker.status() != psutil.STATUS_ZOMBIE]


def test_from_asyncio_the_loop_goes_on():
    async def run() -> tuple[list[str], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        with odd(deadline=0.5) as verifier:
            ticker = asyncio.create_task(tick())
            words = ["5", "sleep", "6"]
            verdicts = await asyncio.gather(*(verifier.verify_async("5", word) for word in words))
            ticker.cancel()
        return [verdict.verdict for verdict in verdicts], ticks

    verdicts, ticks = asyncio.run(run())
    assert verdicts == ["correct", "verifier_timeout", "wrong"]
    assert ticks > 10


def test_the_plain_function():
    assert verify("\\frac{1}{2}", "So it is \\boxed{0.5}.").correct


def test_after_closing_nothing_is_checked():
    verifier = odd()
    verifier.close()
    with pytest.raises(UserError, match="closed"):
        verifier.verify("5", "5")


def test_nothing_is_left_when_the_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
        import psutil
        from derivedata.problems import Verifier, WorkerLimits

        verifier = Verifier(plugin="tests.problems.plugins:odd", limits=WorkerLimits(workers=2, deadline=100))
        verifier.submit("5", "spin"), verifier.submit("5", "sleep")
        print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
        input()
        """)
    )
    parent = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert pids
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=10)
    alive = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    assert not alive
