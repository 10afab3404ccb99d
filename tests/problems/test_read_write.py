"""Problems in and out: files of every kind, the books, and the two forms that trainers read."""

from __future__ import annotations

import gzip
import json
from collections import Counter

import datasets
import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from derivedata.errors import UserError
from derivedata.problems.problem import count_problems
from derivedata.problems.read import find_sources, read_all, read_problems
from derivedata.problems.write import table_bytes, verl_table

ROWS = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(5)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def write_all_kinds(folder):
    (folder / "a.jsonl").write_bytes(LINES)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(LINES))
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress(LINES[:100]) + zstandard.compress(LINES[100:]))
    (folder / "d.json").write_text(json.dumps(ROWS))
    (folder / "e.json").write_text(json.dumps({"data": ROWS}))
    (folder / "f.json").write_bytes(LINES)
    (folder / "h.jsonl").write_bytes(b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n") + b"\r\n\n")
    (folder / "i.jsonl.gz").write_bytes(LINES)
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "g.parquet")
    (folder / "README.md").write_text("not problems")


def test_every_kind_of_file(tmp_path):
    write_all_kinds(tmp_path)
    problems = list(read_problems([str(tmp_path)]))
    names = ["a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.json", "e.json", "f.json", "g.parquet", "h.jsonl", "i.jsonl.gz"]
    assert Counter(problem.path for problem in problems) == dict.fromkeys(names, 5)
    assert {problem.golds for problem in problems} == {(str(i + 1),) for i in range(5)}
    assert len({problem.uid for problem in problems}) == len(problems)
    assert count_problems(problems)["repeated_texts"] == len(problems) - 5


def test_any_file_system_and_several_sources(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.jsonl").write_bytes(LINES)
    sources = find_sources([f"file://{tmp_path}/sub/b.jsonl", str(tmp_path / "*.jsonl")])
    assert [source.path for source in sources] == ["sub/b.jsonl", "a.jsonl"]


def test_the_uid_survives_compressing_and_moving(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "a.jsonl").write_bytes(LINES)
    (tmp_path / "there" / "a.jsonl.gz").write_bytes(gzip.compress(LINES))
    here, there = (list(read_problems([str(tmp_path / name)])) for name in ("here", "there"))
    assert [problem.uid for problem in here] == [problem.uid for problem in there]


def test_broken_rows_are_kept_with_their_text(tmp_path):
    broken = LINES + b'{"question": "half\n[1, 2]\n"text"\n{"question": "\\ud800?", "answer": "#### 1"}\n\xff\xfe\n'
    (tmp_path / "a.jsonl").write_bytes(broken)
    problems = list(read_problems([str(tmp_path / "a.jsonl")]))
    assert [problem.unscored for problem in problems] == [None] * 5 + ["unreadable_row"] * 3 + [None, "unreadable_row"]
    assert problems[5].extra_info["text"] == '{"question": "half'
    assert problems[8].question == "\ufffd?"
    table_bytes(verl_table(problems))


def test_a_cut_archive_gives_what_is_whole(tmp_path):
    rows = ({"question": f"What is {i * i * 7919} + 1?", "answer": f"#### {i * i * 7919 + 1}"} for i in range(10_000))
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for name, data in (("a.jsonl.gz", gzip.compress(lines)), ("b.jsonl.zst", zstandard.compress(lines))):
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        problems = list(read_problems([str(tmp_path / name)]))
        assert len(problems) > 500
        assert "cut off" in problems[-1].extra_info["error"]
        assert all(problem.unscored is None for problem in problems[:-2])


def test_nothing_found(tmp_path):
    with pytest.raises(UserError, match="no problems found"):
        list(read_problems([str(tmp_path)]))
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match="no readable Parquet"):
        list(read_problems([str(tmp_path)]))
    (tmp_path / "b.jsonl").write_text('{"text": "a document"}\n')
    with pytest.raises(UserError, match="none of the rows"):
        read_all([str(tmp_path / "b.jsonl")])


def test_a_slip_in_a_path_is_not_asked_of_the_hub(tmp_path, monkeypatch):
    (tmp_path / "measured").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"measured/split: no problems found.*hf:OWNER/NAME"):
        list(read_problems(["measured/split"]))


def test_a_data_set_by_name(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "train.parquet")
    problems = list(read_problems([f"hf:{folder}"]))
    assert [problem.golds for problem in problems] == [(str(i + 1),) for i in range(5)]
    assert problems[0].path == f"hf:{folder}"


def test_rows_of_several_layouts_in_one_file(reference_data):
    problems = list(read_problems([str(reference_data / "shards/nasty/23-problems.jsonl")]))
    books = count_problems(problems)
    assert (books["rows"], books["scorable"]) == (15, 13)
    assert books["unscored"] == {"no_answer": 1, "empty_question": 1}
    assert books["layouts"] == {"verl": 13, "gsm8k": 1, "math": 1}
    assert len({problem.uid for problem in problems}) == 15
    assert problems[4].golds == ("2", "-2")
    assert problems[5].golds == ("2.5",)
    assert problems[3].extra_info["index"] == "1"


def test_guru_comes_back_in_verls_schema(reference_data, tmp_path):
    source = reference_data / "problems/guru-math-512.parquet"
    original = pq.read_table(source).to_pylist()
    problems = list(read_problems([str(source)]))
    assert len({problem.uid for problem in problems}) == 512
    assert sum(problem.repaired for problem in problems) == 54
    assert not any("\\\\" in problem.ground_truth for problem in problems)
    out = tmp_path / "out.parquet"
    out.write_bytes(table_bytes(verl_table(problems)))
    written = pq.read_table(out).to_pylist()
    for before, after in zip(original, written, strict=True):
        for column in ("data_source", "ability"):
            assert after[column] == before[column]
        assert after["prompt"] == [{"role": m["role"], "content": m["content"]} for m in before["prompt"]]
        assert (
            after["reward_model"]["ground_truth"]
            == before["reward_model"]["ground_truth"].replace("\\\\", "\\").strip()
        )
        assert after["extra_info"]["index"] == before["extra_info"]["index"]
        rates = {pair["name"]: pair["rate"] for pair in after["carried_pass_rates"]}
        assert set(rates) == {"qwen2.5_7b_pass_rate", "qwen3_30b_pass_rate"}
        known = before["extra_info"]["qwen2.5_7b_pass_rate"]
        assert rates["qwen2.5_7b_pass_rate"] == known


def test_datasets_polars_and_duckdb_read_alike(reference_data, tmp_path):
    sources = ("problems/guru-math-512.parquet", "shards/nasty/23-problems.jsonl", "problems/math500.jsonl")
    for number, source in enumerate(sources):
        problems = list(read_problems([str(reference_data / source)]))
        (tmp_path / f"{number}.parquet").write_bytes(table_bytes(verl_table(problems)))
    pattern = str(tmp_path / "*.parquet")
    by_polars = polars.read_parquet(pattern).to_dicts()
    by_datasets = datasets.load_dataset("parquet", data_files=pattern, split="train", cache_dir=str(tmp_path / "cache"))
    with duckdb.connect() as connection:
        by_duckdb = connection.sql(f"SELECT * FROM '{pattern}' ORDER BY filename, extra_info.row").to_arrow_table()
    assert len(by_polars) == 512 + 15 + 500
    assert list(by_datasets) == by_polars
    assert by_duckdb.drop_columns([c for c in by_duckdb.column_names if c == "filename"]).to_pylist() == by_polars


def test_further_columns_stand_beside_verls(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    problems = list(read_problems([str(tmp_path / "a.jsonl")]))
    table = verl_table(problems, {"avg_at_k": [0.5] * 5})
    assert table.column("avg_at_k").to_pylist() == [0.5] * 5
    with pytest.raises(UserError, match="verl's schema"):
        verl_table(problems, {"prompt": [1] * 5})
