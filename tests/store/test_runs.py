"""Run records, what may change between two runs, and that no secret is kept."""

from __future__ import annotations

import json

import pytest

from derivedata.errors import UserError
from derivedata.store.books import Books
from derivedata.store.fingerprint import RunConfig, compare, refuse
from derivedata.store.masking import mask, mask_command
from derivedata.store.paths import Folder
from derivedata.store.runs import all_runs, current_run, new_run, new_run_id, open_run, save_run

IDENTITY = {
    "model": "smollm2-135m",
    "sampling": {"temperature": 1.0, "top_p": 0.95},
    "seed": 0,
    "styles": {"faq": {"sha256": "a" * 64}, "math": {"sha256": "b" * 64}},
}


def config(extent=None, execution=None, **changes) -> RunConfig:
    return RunConfig(identity=IDENTITY | changes, extent=extent or {}, execution=execution or {})


def test_extent_and_execution_may_change():
    old = config(extent={"rewrites": 1}, execution={"tasks": 1})
    assert compare(old, config(extent={"rewrites": 3}, execution={"tasks": 8})) == []


def test_a_change_is_said_in_words():
    new = config(sampling={"temperature": 0.7, "top_p": 0.95}, seed=1)
    assert compare(config(), new) == ["sampling.temperature was 1.0, is 0.7", "seed was 0, is 1"]
    assert compare(config(), config(top_k=5)) == ["top_k was not set, is 5"]


def test_refusal_says_what_to_do():
    with pytest.raises(UserError) as caught:
        refuse(config(), config(seed=1), output="out")
    assert caught.value.line == (
        "out: the output was made with another configuration: seed was 0, is 1. "
        "Add --restart to start over, or name another output"
    )


def test_styles_may_come_and_go_but_not_change():
    faq, math = IDENTITY["styles"]["faq"], IDENTITY["styles"]["math"]
    assert compare(config(), config(styles={"faq": faq, "table": {"sha256": "c" * 64}})) == []
    assert compare(config(), config(styles={"faq": faq | {"sha256": "d" * 64}, "math": math})) == [
        f"styles.faq.sha256 was {'a' * 12}, is {'d' * 12}"
    ]


def test_a_style_left_out_for_a_while_is_remembered(tmp_path):
    folder = Folder(tmp_path)
    open_run(folder, new_run(config()))
    open_run(folder, new_run(config(styles={"faq": IDENTITY["styles"]["faq"]})))
    with pytest.raises(UserError, match=r"styles.math.sha256 was bbbbbbbbbbbb, is eeeeeeeeeeee"):
        open_run(folder, new_run(config(styles={"math": {"sha256": "e" * 64}})))


def test_the_fingerprint_is_of_the_identity_alone():
    assert config(execution={"tasks": 9}).fingerprint == config().fingerprint != config(seed=5).fingerprint


def test_tuples_and_lists_are_the_same():
    assert compare(RunConfig(identity={"a": (1, 2)}), RunConfig(identity={"a": [1, 2]})) == []


def test_a_run_from_start_to_end(tmp_path):
    folder = Folder(tmp_path)
    assert current_run(folder) is None
    record = open_run(folder, new_run(config(), run_id="r1", command=["derivedata", "paraphrase"]))
    assert current_run(folder) == record and record.status == "running" and record.versions["python"]
    done = record.finished("done", books={"generation": Books(planned=2, accepted=2)})
    save_run(folder, done)
    assert current_run(folder) == done and done.ended >= done.started
    assert current_run(folder).books["generation"]["planned"] == 2


def test_the_history_keeps_every_run(tmp_path):
    folder = Folder(tmp_path)
    for number in range(3):
        open_run(folder, new_run(config(), run_id=f"r{number}"))
    assert {run.run_id for run in all_runs(folder)} == {"r0", "r1", "r2"}
    assert current_run(folder).run_id == "r2"


def test_run_ids_differ():
    assert new_run_id() != new_run_id()


def test_a_damaged_record_is_named(tmp_path):
    folder = Folder(tmp_path)
    folder.create("run.json", b"[]")
    with pytest.raises(UserError, match=r"run.json: not a run record"):
        current_run(folder)


SECRETS = {
    "api_key": "abc123",
    "HF_TOKEN": "xyz",
    "aws_secret_access_key": "s3cr3t",
    "password": "hunter2",
    "nested": [{"authorization": "Bearer q"}],
    "endpoint": "http://me:pw@host/v1?api_key=zzz&n=1",
    "note": "uses hf_abcdefghijklmnopqrstuv",
    "vllm_args": [["api-key", "pair-secret"], ["dtype", "bfloat16"]],
    "extra": ["api-key=joined-secret", "seed=1"],
}
PUBLIC = {"tokens": "500M", "max_tokens": 64, "tokenizer": "gpt2", "token_budget": "2B", "eos_token": "<|im_end|>"}


def test_secrets_are_masked_and_counts_are_not():
    shown = json.dumps(mask(SECRETS | PUBLIC))
    for secret in (
        "abc123",
        "xyz",
        "s3cr3t",
        "hunter2",
        "Bearer q",
        "me:pw",
        "zzz",
        "hf_abc",
        "pair-secret",
        "joined-secret",
    ):
        assert secret not in shown
    assert {name: mask(SECRETS | PUBLIC)[name] for name in PUBLIC} == PUBLIC
    for public in ("***@host/v1", "n=1", "bfloat16", "seed=1"):
        assert public in shown


def test_secrets_of_the_command_line_are_masked():
    given = ["derivedata", "paraphrase", "s3://u:p@b/c", "--api-key", "abc", "--hf-token=xyz", "--tokens", "500M"]
    given += ["--vllm-arg", "api-key=qqq", "--max-tokens", "64"]
    shown = mask_command(given)
    assert shown == [
        *["derivedata", "paraphrase", "s3://***@b/c", "--api-key", "***", "--hf-token=***", "--tokens", "500M"],
        *["--vllm-arg", "api-key=***", "--max-tokens", "64"],
    ]


def test_secrets_reach_no_file(tmp_path):
    folder = Folder(tmp_path)
    record = new_run(RunConfig(identity={"api_key": "abc123"}), command=["x", "--api-key", "abc123"])
    open_run(folder, record)
    open_run(folder, record)  # a masked identity is compared as masked
    for name in folder.names():
        assert b"abc123" not in folder.read(name)
