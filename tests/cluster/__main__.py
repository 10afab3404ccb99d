"""Runs the same job on this machine and as jobs of a cluster, and compares what comes out.

    python -m tests.cluster slurm|ray|s3 [--documents N] [--keep FOLDER]

The model is the tests' fake server behind real HTTP, whose answers are a function of prompt and seed, so texts can be
compared. Slurm must be up (tests/cluster/slurm.sh start); Ray and the S3 server are started here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from tests.cluster.s3 import s3_server
from tests.fake_server import fake_server_process
from tests.pipelines.test_source import write_corpus
from tests.tiny_model import write_tiny_model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("where", choices=("slurm", "ray", "s3"))
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--tasks", type=int, nargs="+", default=[2, 3], help="how many tasks (default: 2, then 3)")
    parser.add_argument("--keep", help="folder for the outputs (default: one that is removed)")
    told = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = Path(told.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="derivedata-cluster-")))
        model = write_tiny_model(place / "tiny")
        corpus = write_corpus(place / "corpus", shards=4, documents=told.documents // 4)
        url = stack.enter_context(fake_server_process("--tokenizer", str(model), "--model", "fake"))
        job = Job(model, url)
        job.run(corpus, place / "local-1", 1)
        print(f"local, 1 task: {len(job.first)} documents of {told.documents}")
        if told.where == "s3":
            bucket = stack.enter_context(s3_server())
            subprocess.run([sys.executable, "-c", _UPLOAD, str(corpus), f"{bucket}/corpus"], check=True, env=os.environ)
            job.run(f"{bucket}/corpus", f"{bucket}/out", 2)
        else:
            for tasks in told.tasks:
                job.run(corpus, place / f"local-{tasks}", tasks)
                job.run(corpus, place / f"{told.where}-{tasks}", tasks, "--executor", told.where)
    print(f"the same keys and texts everywhere; {told.where} works")
    return 0


_UPLOAD = """
import sys
from pathlib import Path
from derivedata.store.paths import Folder
source, target = Path(sys.argv[1]), Folder(sys.argv[2])
for path in sorted(source.rglob("*.gz")):
    target.create(str(path.relative_to(source)), path.read_bytes())
"""


class Job:
    """One paraphrase, run in several ways."""

    def __init__(self, model: Path, url: str):
        self.model, self.url = model, url
        self.first: dict[str, str] = {}

    def run(self, corpus: object, output: object, tasks: int, *options: str) -> None:
        """Run it, and compare it with the first run."""
        command = [
            *(sys.executable, "-m", "derivedata", "paraphrase", str(corpus), "-o", str(output)),
            *("--endpoint", self.url, "--model", "fake", "--tokenizer", str(self.model)),
            *("--style", "faq", "--style", "table", "--chunk-size", "4000", "--tasks", str(tasks), *options),
        ]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        problems = verify_corpus(str(output)).problems
        there = {row.id: row.text for file in corpus_files([str(output)]) for row in read_rows(file)}
        books = Manifest(str(output)).books()["generation"]
        print(
            f"{' '.join(options) or 'local'}, {tasks} tasks: {books.planned} requests, {len(there)} documents, "
            f"{len(problems)} problems, {time.monotonic() - began:.0f} s"
        )
        self.first = self.first or there
        if there != self.first or problems:
            sys.exit(f"{output} differs from the first run, or has problems: {problems[:3]}")


if __name__ == "__main__":
    sys.exit(main())
