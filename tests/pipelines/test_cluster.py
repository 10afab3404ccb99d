"""Tasks as jobs of a cluster: what is refused in one line, what is tried again, and that the output is the same."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from datatrove.pipeline.base import PipelineStep

from derivedata.cli.paraphrase import paraphrase
from derivedata.errors import UserError
from derivedata.generation.endpoint import read_endpoints
from derivedata.generation.launch import ServerSettings
from derivedata.generation.request import Endpoint
from derivedata.pipelines import cluster_ray, cluster_run, cluster_slurm, job_serving
from derivedata.pipelines.cluster import Cluster, read_cluster
from derivedata.pipelines.cluster_job import JobStep
from derivedata.pipelines.executor import execute, read_failures
from derivedata.pipelines.job_serving import JobServing
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.serving import ENDPOINT
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL, job, serve_at
from tests.pipelines.test_kill import start
from tests.pipelines.test_source import write_corpus

pytestmark = pytest.mark.faults


class Stumbling(PipelineStep):
    """Fails in some tasks, a number of times."""

    name, type = "Stumbling", "TEST"

    def __init__(self, place: Path, times: dict[int, int], error: Exception):
        super().__init__()
        self.place, self.times, self.error = place, times, error

    def run(self, data=None, rank=0, world_size=1):
        with open(self.place / f"{rank}", "a") as file:
            file.write(f"{world_size}\n")
        if len((self.place / f"{rank}").read_text().split()) <= self.times.get(rank, 0):
            raise self.error
        yield from ()


@pytest.fixture
def at_once(monkeypatch):
    """A cluster that runs each job here, at once."""

    def launch(step: JobStep, cluster: Cluster, place: str, at_once: int) -> None:
        for number in range(step.jobs):
            list(step.run(rank=number, world_size=step.jobs))

    monkeypatch.setattr(cluster_run, "_launch", launch)
    monkeypatch.setattr(cluster_run, "SETTLE_S", 0.0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield Cluster(executor="slurm")
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_task_that_fails_is_tried_again_alone(at_once, tmp_path):
    step = Stumbling(tmp_path, {1: 1, 2: 2}, RuntimeError("no luck"))
    execute([step], tasks=4, workers=4, logging_dir=str(tmp_path / "logs/run/step"), cluster=at_once)
    tries = [len((tmp_path / str(rank)).read_text().split()) for rank in range(4)]
    assert tries == [1, 2, 3, 1]
    assert set((tmp_path / "2").read_text().split()) == {"4"}  # it is still one of four
    assert read_failures(Folder(tmp_path / "logs"), "run") == []


def test_in_the_end_it_is_said_which_task_failed_why_and_how_to_go_on(at_once, tmp_path):
    step = Stumbling(tmp_path, {1: 9}, RuntimeError("no luck"))
    with pytest.raises(UserError, match=r"1 of 3 tasks did not finish: task 1: RuntimeError: no luck\. .*run the same"):
        execute([step], tasks=3, workers=3, logging_dir=str(tmp_path / "logs/run/step"), cluster=at_once)
    assert len((tmp_path / "1").read_text().split()) == cluster_run.TRIES
    (failure,) = read_failures(Folder(tmp_path / "logs"), "run")
    assert (failure["step"], failure["rank"], failure["expected"]) == ("step", 1, False)


def test_what_will_say_the_same_again_is_tried_only_twice(at_once, tmp_path):
    step = Stumbling(tmp_path, {0: 9}, UserError("the disk is full", remedy="make room"))
    with pytest.raises(UserError, match=r"task 0: the disk is full\. Make room"):
        execute([step], tasks=1, workers=1, logging_dir=str(tmp_path / "logs"), cluster=at_once)
    assert len((tmp_path / "0").read_text().split()) == cluster_run.TRIES_OF_EXPECTED


def test_a_job_that_dies_without_a_word_is_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster_run, "_launch", lambda *args: None)
    monkeypatch.setattr(cluster_run, "SETTLE_S", 0.0)
    with pytest.raises(UserError, match="2 of 2 tasks did not finish: task 0: its job ended without a word"):
        execute([], tasks=2, workers=2, logging_dir=str(tmp_path), cluster=Cluster(executor="ray"))


@pytest.mark.parametrize("tasks_per_job", [1, 2])
def test_jobs_make_what_one_process_makes(at_once, server, corpus, tiny_model, tmp_path, tasks_per_job):
    paraphrase_corpus(job(corpus, tmp_path / "one", tiny_model, styles=("faq",)), serve=serve_at(server.endpoint.url))
    cluster = Cluster(executor="slurm", tasks_per_job=tasks_per_job)
    options = job(
        corpus,
        tmp_path / "jobs",
        MODEL,
        styles=("faq",),
        endpoints=(server.endpoint.url,),
        tokenizer=str(tiny_model),
        tasks=3,
        cluster=cluster,
    )
    paraphrase_corpus(options)
    one, jobs = (sorted(Manifest(tmp_path / name).documents()["text_sha256"]) for name in ("one", "jobs"))
    assert one == jobs
    assert verify_corpus(str(tmp_path / "jobs")).problems == []


def test_each_job_has_a_server_of_its_own(at_once, server, corpus, tiny_model, tmp_path, monkeypatch):
    started = []

    @contextlib.contextmanager
    def own_server(serving):
        started.append(serving.private)
        with serve_at(server.endpoint.url)(serving) as window:
            yield window

    monkeypatch.setattr(job_serving, "own_server", own_server)
    options = job(corpus, tmp_path / "out", tiny_model, styles=("faq",), tasks=3, cluster=at_once)
    outcome = paraphrase_corpus(options)
    assert len(set(started)) == 3 and not any(private.exists() for private in started)
    assert outcome.summary.books["generation"].planned == 24


def test_no_key_is_written_for_a_job(monkeypatch, tmp_path):
    endpoint = Endpoint(url="http://127.0.0.1:9", model="m", api_key="sk-secret")
    serving = JobServing.of(None, ServerSettings(), [endpoint], 8)
    assert "sk-secret" not in repr(serving)
    monkeypatch.setenv("DERIVEDATA_API_KEY", "sk-secret")
    with serving.open(tmp_path, tmp_path / "log") as in_flight:
        assert in_flight == 8
        assert [one.api_key for one in read_endpoints(tmp_path / ENDPOINT)] == ["sk-secret"]


def test_told_to_leave_a_run_finishes_what_is_in_flight(tiny_model, tmp_path):
    corpus, out = write_corpus(tmp_path / "in", shards=2, documents=25), tmp_path / "out"
    with FakeServer(tokenizer=tiny_model, model=MODEL, tokens_per_second=400) as server:
        for number in (signal.SIGUSR1, signal.SIGTERM):
            process = start(job(corpus, out, tiny_model), server.endpoint.url)
            wanted = sum(server.answered.values()) + 20
            while sum(server.answered.values()) < wanted and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 130 and errors.strip().endswith("derivedata: stopped"), errors
        process = start(job(corpus, out, tiny_model), server.endpoint.url)
        process.communicate(timeout=300)
        assert process.returncode == 0
        # Nothing was in flight when the run left, and everything finished was kept: nothing is asked for twice.
        assert max(server.received.values()) == 1
    assert verify_corpus(str(out)).problems == []


# What a cluster can't do is said in one line.


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Programs with the names of Slurm's that answer as told."""

    def programs(**scripts: str) -> None:
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(cluster_slurm, "POLL_S", 0.01)
    programs(sinfo="echo 'main*\nbig'", scontrol="echo 'MaxArraySize = 4'", squeue="true", scancel="true")
    return programs


def step_of(tasks: int, place: Path) -> JobStep:
    return JobStep(
        steps=[],
        tasks=tasks,
        ranks=range(tasks),
        tasks_per_job=1,
        logging_dir=str(place),
        serving=None,
        jobs_at_once=tasks,
        grace=1.0,
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("invalid partition specified: x", "has no such partition"),
        ("Invalid qos specification", "no such quality of service .*[Ll]eave --slurm-qos out"),
        ("Requested node configuration is not available", "no node of the partition has what a job asks for"),
        ("Invalid generic resource (gres) specification", "have no GPUs"),
        ("Unable to contact slurm controller", "the Slurm controller does not answer"),
        ("sbatch: unrecognized option '--foo'", "Slurm refused .*--foo"),
    ],
)
def test_what_slurm_refuses_is_one_line(slurm, tmp_path, said, words):
    slurm(sbatch=f'echo "sbatch: error: {said}" >&2; exit 1')
    with pytest.raises(UserError, match=words):
        cluster_slurm.run_on_slurm(step_of(2, tmp_path / "logs"), Cluster(executor="slurm", qos="x"), str(tmp_path), 2)


def test_an_unknown_partition_is_named_with_those_there_are(slurm, tmp_path):
    with pytest.raises(UserError, match=r"no such partition \(got tiny\). There are big, main"):
        cluster = Cluster(executor="slurm", partition="tiny")
        cluster_slurm.run_on_slurm(step_of(1, tmp_path), cluster, str(tmp_path), 1)


def test_jobs_that_can_never_start_are_cancelled(slurm, tmp_path):
    slurm(sbatch="echo 7", squeue="echo 'PENDING|PartitionTimeLimit'", scancel=f"echo $@ >> {tmp_path}/cancelled")
    with pytest.raises(UserError, match="job 7: Slurm says that these jobs can't start: PartitionTimeLimit"):
        cluster_slurm.run_on_slurm(step_of(1, tmp_path / "logs"), Cluster(executor="slurm"), str(tmp_path), 1)
    assert (tmp_path / "cancelled").read_text() == "7\n"


def test_more_jobs_than_an_array_holds_are_several_arrays(slurm, tmp_path):
    slurm(sbatch=f"echo $@ >> {tmp_path}/sent; cat >> {tmp_path}/script; echo $$")
    cluster = Cluster(executor="slurm", sbatch={"account": "team"}, time="1:00:00", gpus=1)
    cluster_slurm.run_on_slurm(step_of(10, tmp_path / "logs"), cluster, str(tmp_path), 10)
    sent = (tmp_path / "sent").read_text().splitlines()
    assert len(sent) == 3 and "RUN_OFFSET=2" in sent[2] and "--dependency=afterany:" in sent[2]
    script = (tmp_path / "script").read_text()
    for line in ("array=0-3", "account=team", "time=1:00:00", "gpus=1", "signal=USR1@60"):
        assert f"#SBATCH --{line}" in script
    assert "qos" not in script and "mem-per-cpu" not in script


def test_without_slurm_here_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"there is no sinfo here\. Run this on a machine"):
        cluster_slurm.run_on_slurm(step_of(1, tmp_path), Cluster(executor="slurm"), str(tmp_path), 1)


def test_ray_is_not_asked_for_what_no_node_has():
    class OneNode:
        @staticmethod
        def nodes():
            return [{"Alive": True, "Resources": {"CPU": 2.0, "memory": 4e9}}]

    cluster_ray._check_resources(OneNode, Cluster(executor="ray", cpus=2))
    for wanted in ({"cpus": 3}, {"gpus": 1}, {"memory_gb": 64.0}):
        with pytest.raises(UserError, match=r"no node of this Ray has .*it would wait for ever"):
            cluster_ray._check_resources(OneNode, Cluster(executor="ray", **wanted))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partitoin: gpu", r"no such setting \(got partitoin\). There are executor"),
        ("gpus: many", "gpus must be a whole number"),
        ("time: 3600", "time must be text"),
        ("[1, 2]", "is a list of `key: value` lines"),
        ("a: [", r"profile.yaml:\d+: is no YAML"),
        ("executor: cloud", "no such executor"),
        ("executor: ray\npartition: gpu", "--slurm-partition: is for --executor slurm"),
    ],
)
def test_a_wrong_profile_is_one_line(tmp_path, text, words):
    (tmp_path / "profile.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        read_cluster(str(tmp_path / "profile.yaml"), {})


def test_the_command_line_wins_over_the_profile(tmp_path):
    (tmp_path / "p.yaml").write_text("executor: slurm\npartition: gpu\ntime: '4:00:00'\nsbatch:\n  account: a\n")
    found = read_cluster(str(tmp_path / "p.yaml"), {"partition": "big", "qos": None}, [("--mail_user", "me")])
    assert (found.partition, found.time, found.qos) == ("big", "4:00:00", None)
    assert found.sbatch == {"account": "a", "mail-user": "me"}


def test_options_of_another_executor_are_refused(tmp_path):
    result = CliRunner().invoke(paraphrase, ["in", "-o", str(tmp_path), "--slurm-qos", "high"])
    assert isinstance(result.exception, UserError) and "add --executor slurm" in result.exception.line.lower()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["slurm", "ray"])
def test_a_real_cluster_gives_the_same_keys_and_texts(where):
    command = [sys.executable, "-m", "tests.cluster", where, "--documents", "40"]
    if where == "slurm":
        # A test installs nothing on the machine: `just cluster-slurm` does, and runs the same.
        if os.geteuid() or not shutil.which("slurmctld") or not shutil.which("munged"):
            pytest.skip("needs root, slurm-wlm and munge: see just cluster-slurm")
        command = [str(Path(__file__).parents[1] / "cluster" / "slurm.sh"), "with", *command]
    else:
        pytest.importorskip("ray", reason="needs the extra ray: see just cluster-ray")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"the same keys and texts everywhere; {where} works" in done.stdout


def test_finished_and_failed_tasks_leave_their_files(tmp_path):
    with pytest.raises(RuntimeError):
        step = Stumbling(tmp_path, {1: 1}, RuntimeError("no luck"))
        execute([step], tasks=2, workers=1, logging_dir=str(tmp_path / "logs"))
    assert (tmp_path / "logs/finished/00000").exists()
    assert json.loads((tmp_path / "logs/failed/00001.json").read_text())["error"] == "RuntimeError: no luck"
