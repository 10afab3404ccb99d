"""Runs the benches one after the other: `python -m tests.bench [PART ...]`; each also runs alone."""

from __future__ import annotations

import subprocess
import sys

PARTS: dict[str, list[str]] = {
    "engine": ["tests.bench.engine", "full", "--pairs", "5"],
    "order": ["tests.bench.engine", "order", "--pairs", "3"],
    "settings": ["tests.bench.engine", "settings"],
    "balance": ["tests.bench.endpoints", "balance"],
    "peers": ["tests.bench.endpoints", "peers", "--rounds", "3"],
    "reader-writer": ["tests.bench.reader_writer"],
    "ingest": ["tests.bench.ingest"],
    "repeat": ["tests.bench.repeat"],
    "loading": ["tests.bench.loading"],
    "manifest": ["tests.bench.manifest_scale"],
    "scale": ["tests.bench.scale"],
    "object-store": ["tests.bench.object_store"],
    "resume": ["tests.bench.resume", "--s3"],
    "eta": ["tests.bench.eta"],
    "rl": ["tests.bench.rl"],
    "rl-overhead": ["tests.bench.rl_overhead"],
    "stopping": ["tests.bench.stopping"],
    "trainer": ["tests.bench.trainer"],
    "verifier": ["tests.bench.verifier"],
}


def main(names: list[str]) -> int:
    """Run the named parts, or all; the number of parts that failed."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 1
    failed = 0
    for name in names or PARTS:
        print(f"== {name}", flush=True)
        failed += subprocess.run([sys.executable, "-m", *PARTS[name]], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
