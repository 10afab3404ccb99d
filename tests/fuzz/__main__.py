"""Fuzz the targets with Atheris, which follows the branches an input reaches: `python -m tests.fuzz --seconds 600`.

Each target runs in a process of its own for its share of the time. An input that fails is written to
tests/fuzz/cases/TARGET/, where the test suite runs it ever after.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import atheris

from tests.fuzz.inputs import CASES, inputs

SLOWEST_S = 20  # an input that takes longer is a finding too


def run(target: str, seconds: int) -> None:
    """Fuzz one target in this process; ends it."""
    with atheris.instrument_imports(include=["derivedata"]):
        from tests.fuzz.targets import TARGETS
    with tempfile.TemporaryDirectory(prefix="derivedata-seeds-") as corpus:
        for number, data in enumerate(inputs(target)):
            (Path(corpus) / f"seed-{number}").write_bytes(data)
        (CASES / target).mkdir(parents=True, exist_ok=True)
        options = [f"-max_total_time={seconds}", f"-timeout={SLOWEST_S}", f"-artifact_prefix={CASES / target}/"]
        atheris.Setup(
            [sys.argv[0], *options, "-max_len=4096", "-verbosity=0", "-print_final_stats=1", corpus], TARGETS[target]
        )
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=["reader", "style", "answer", "query"])
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        run(options.targets[0], options.seconds)
    share, failed = max(1, options.seconds // len(options.targets)), []
    for target in options.targets:
        print(f"{target}: {share} s", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz", target, "--seconds", str(share), "--here"], check=False
        )
        if done.returncode:
            failed.append(target)
    if failed:
        sys.exit(f"found something: {', '.join(failed)}; the inputs stand in {CASES}")


if __name__ == "__main__":
    main()
