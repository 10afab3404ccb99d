"""The client against a real HTTP server that misbehaves on demand: nothing lost, nothing sent for ever."""

import asyncio
import itertools
import threading
import time

import pytest

from derivedata.errors import UserError
from derivedata.generation.client import Client, Completion, Endpoint, Failure, Request, Sampling, ahead, generate
from derivedata.generation.prompt import PromptBuilder
from tests.fake_server import FakeServer, fake_server_process

pytestmark = pytest.mark.faults

SAMPLING = Sampling(max_tokens=200)


def requests(tokenizer, count: int, **sampling) -> list[Request]:
    builder = PromptBuilder(tokenizer)
    chosen = Sampling(max_tokens=200, **sampling)
    return [
        Request(str(number), builder.build(f"Document {number // 4}.", f"Question {number % 4}?"), chosen, seed=number)
        for number in range(count)
    ]


def run(server, todo, *, window=16, **settings) -> list[tuple[Request, Completion | Failure]]:
    outcomes = []

    async def work():
        async with Client(server.endpoint, window=window, pause_s=0.01, **settings) as client:
            await generate(client, todo, lambda request, outcome: outcomes.append((request, outcome)))

    asyncio.run(work())
    return outcomes


def test_every_request_comes_back_once(tokenizer, tiny_model):
    todo = requests(tokenizer, 100)
    with FakeServer(tokenizer=tiny_model, api_key="secret") as server:
        outcomes = run(server, todo)
    assert sorted(int(request.key) for request, _ in outcomes) == list(range(100))
    assert all(isinstance(outcome, Completion) for _, outcome in outcomes)
    assert set(server.received.values()) == {1}


def test_requests_are_sent_in_the_order_of_iteration(tokenizer, tiny_model):
    todo = requests(tokenizer, 60)
    sent = []

    class Recorder(Client):
        async def complete(self, request):
            sent.append(request)
            return await super().complete(request)

    async def work(server):
        async with Recorder(server.endpoint, window=16) as client:
            await generate(client, todo, lambda *_: None)

    with FakeServer(tokenizer=tiny_model, max_num_seqs=4, tokens_per_second=20000) as server:
        asyncio.run(work(server))
    assert sent == todo


def test_the_window_is_kept_full_and_never_exceeded(tokenizer, tiny_model):
    with FakeServer(tokenizer=tiny_model, tokens_per_second=2000) as server:
        run(server, requests(tokenizer, 60), window=12)
    assert server.most_running == 12


def test_a_completion_says_what_the_server_said(tokenizer, tiny_model):
    todo = requests(tokenizer, 1)
    with FakeServer(tokenizer=tiny_model) as server:
        ((_, first),) = run(server, todo)
        ((_, second),) = run(server, todo)
    assert first.text == second.text
    assert (first.finish_reason, first.prompt_tokens) == ("length", len(todo[0].prompt))
    assert first.completion_tokens == 200
    assert first.cached_tokens == 0 < second.cached_tokens


@pytest.mark.parametrize(
    "fault", ["429", "500", "503", "garbage", "half", "reset", "empty", "two", "abort", "missing", "hang", "trickle"]
)
def test_what_may_pass_is_tried_again(tokenizer, tiny_model, fault):
    todo = requests(tokenizer, 12)
    with FakeServer(tokenizer=tiny_model, faults={fault: 1.0}, fail_first=1) as server:
        outcomes = run(server, todo, deadline_s=0.5 if fault in ("hang", "trickle") else 30)
    assert all(isinstance(outcome, Completion) for _, outcome in outcomes)
    assert set(server.received.values()) == {2}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("500", "server_error"), ("reset", "server_error"), ("garbage", "bad_response"), ("hang", "timeout")],
)
def test_what_does_not_pass_becomes_a_failure_with_its_reason(tokenizer, tiny_model, fault, reason):
    with FakeServer(tokenizer=tiny_model, faults={fault: 1.0}) as server:
        outcomes = run(server, requests(tokenizer, 3), attempts=3, deadline_s=0.3 if fault == "hang" else 30)
    for _, outcome in outcomes:
        assert isinstance(outcome, Failure)
        assert outcome.reason == reason
        assert outcome.retryable
    assert set(server.received.values()) == {3}


@pytest.mark.parametrize("fault", ["429", "503"])
def test_being_told_to_wait_uses_up_no_attempt(tokenizer, tiny_model, fault):
    with FakeServer(tokenizer=tiny_model, faults={fault: 1.0}, fail_first=8) as server:
        outcomes = run(server, requests(tokenizer, 4), attempts=2)
    assert all(isinstance(outcome, Completion) for _, outcome in outcomes)


def test_a_request_the_server_cannot_take_fails_with_the_servers_words(tokenizer, tiny_model):
    todo = requests(tokenizer, 4)
    todo[2].prompt = todo[2].prompt * 400
    with FakeServer(tokenizer=tiny_model, context=1000) as server:
        outcomes = {request.key: outcome for request, outcome in run(server, todo)}
    failure = outcomes.pop("2")
    assert (failure.reason, failure.retryable) == ("bad_request", False)
    assert "maximum context length is 1000" in failure.detail
    assert all(isinstance(outcome, Completion) for outcome in outcomes.values())
    assert set(server.received.values()) == {1}


def test_a_wrong_key_ends_at_once(tokenizer, tiny_model):
    with FakeServer(tokenizer=tiny_model, api_key="right") as server:
        server.behaviour.api_key, endpoint = "right", server.endpoint
        wrong = Endpoint(url=endpoint.url, model=endpoint.model, api_key="wrong")
        with pytest.raises(UserError, match="refused the API key"):
            run(type("Server", (), {"endpoint": wrong}), requests(tokenizer, 3))


def test_a_model_the_server_does_not_have_ends_at_once(tokenizer, tiny_model):
    with FakeServer(tokenizer=tiny_model) as server:
        wrong = Endpoint(url=server.endpoint.url, model="other")
        with pytest.raises(UserError, match="no model 'other'"):
            run(type("Server", (), {"endpoint": wrong}), requests(tokenizer, 3))


def test_an_answer_of_another_model_is_not_taken(tokenizer, tiny_model):
    with (
        FakeServer(tokenizer=tiny_model, faults={"model": 1.0}) as server,
        pytest.raises(UserError, match="answered with model 'another-model'"),
    ):
        run(server, requests(tokenizer, 3))


def test_patience_ends_when_nobody_answers(tokenizer):
    with FakeServer() as gone:
        pass
    began = time.monotonic()
    with pytest.raises(UserError, match="no request succeeded for"):
        run(gone, requests(tokenizer, 3), patience_s=0.3)
    assert time.monotonic() - began < 20


def test_the_server_may_come_back_within_the_patience(tokenizer, tiny_model):
    with FakeServer() as gone:
        pass
    again = FakeServer(tokenizer=tiny_model, port=gone.port)
    timer = threading.Timer(0.5, again.__enter__)
    timer.start()
    try:
        outcomes = run(gone, requests(tokenizer, 3), patience_s=60)
    finally:
        timer.join()
        again.__exit__()
    assert all(isinstance(outcome, Completion) for _, outcome in outcomes)


def test_a_server_known_to_be_dead_ends_the_wait(tokenizer):
    with FakeServer() as gone:
        pass

    def alive():
        raise UserError("the server has ended")

    with pytest.raises(UserError, match="the server has ended"):
        run(gone, requests(tokenizer, 3), alive=alive)


def test_all_sampling_parameters_are_sent(tokenizer, tiny_model):
    seen = []

    class Spy(FakeServer):
        async def _complete(self, request):
            seen.append(await request.json())
            return await super()._complete(request)

    chosen = {"max_tokens": 9, "temperature": 0.6, "top_p": 0.9, "top_k": 40, "frequency_penalty": 0.5, "min_tokens": 3}
    sampling = Sampling(**chosen, stop=("END",))
    with Spy(tokenizer=tiny_model) as server:
        run(server, [Request("a", [5, 6, 7], sampling, seed=2**63 - 1)])
    sent = seen[0]
    expected = chosen | {"stop": ["END"]}
    neutral = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
    rest = {"seed": 2**63 - 1, "prompt": [5, 6, 7], "model": "fake"}
    assert sent == expected | neutral | rest


def test_chat_messages_are_sent_where_the_prompt_is_messages(tokenizer, tiny_model):
    messages = PromptBuilder(tokenizer).messages("Document.", "Make a table.")
    with FakeServer(tokenizer=tiny_model) as server:
        ((_, outcome),) = run(server, [Request("a", messages, SAMPLING, seed=1)])
    assert outcome.text.startswith("| ")


def test_an_error_in_what_is_done_with_results_ends_everything(tokenizer, tiny_model):
    def on_done(request, outcome):
        raise OSError("disk full")

    async def work(server):
        async with Client(server.endpoint, window=8) as client:
            await generate(client, requests(tokenizer, 50), on_done)

    with FakeServer(tokenizer=tiny_model, tokens_per_second=1000) as server, pytest.raises(OSError, match="disk full"):
        asyncio.run(work(server))


def test_cancelling_drops_what_is_in_flight(tokenizer, tiny_model):
    async def work(server):
        async with Client(server.endpoint, window=8) as client:
            task = asyncio.ensure_future(generate(client, itertools.cycle(requests(tokenizer, 8)), lambda *_: None))
            while server.running < 8:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while server.running:
                await asyncio.sleep(0.01)  # the server notices that nobody waits any more

    with FakeServer(tokenizer=tiny_model, tokens_per_second=1) as server:
        asyncio.run(asyncio.wait_for(work(server), 30))


def test_requests_are_taken_only_as_places_get_free(tokenizer, tiny_model):
    taken = 0

    def counted():
        nonlocal taken
        for request in requests(tokenizer, 100):
            taken += 1
            yield request

    most = 0

    def on_done(request, outcome):
        nonlocal done, most
        done += 1
        most = max(most, taken - done)

    done = 0

    async def work(server):
        async with Client(server.endpoint, window=5) as client:
            await generate(client, counted(), on_done)

    with FakeServer(tokenizer=tiny_model) as server:
        asyncio.run(work(server))
    assert done == 100
    assert most <= 5


def test_a_thread_may_prepare_requests_ahead(tokenizer, tiny_model):
    todo = requests(tokenizer, 80)
    threads = set()

    def slow():
        for request in todo:
            threads.add(threading.get_ident())
            yield request

    outcomes = []

    async def work(server):
        async with Client(server.endpoint, window=1) as client:
            await generate(client, ahead(slow(), size=10), lambda request, _: outcomes.append(request))

    with FakeServer(tokenizer=tiny_model) as server:
        asyncio.run(work(server))
    assert outcomes == todo
    assert threading.get_ident() not in threads


def test_an_error_while_preparing_ahead_reaches_the_caller(tokenizer, tiny_model):
    def failing():
        yield from requests(tokenizer, 3)
        raise UserError("the shard is broken")

    async def work(server):
        async with Client(server.endpoint, window=2) as client:
            await generate(client, ahead(failing()), lambda *_: None)

    with FakeServer(tokenizer=tiny_model) as server, pytest.raises(UserError, match="the shard is broken"):
        asyncio.run(work(server))


def test_stopping_early_stops_the_preparing_thread(tokenizer, tiny_model):
    def endless():
        while True:
            yield from requests(tokenizer, 8)

    def on_done(request, outcome):
        raise UserError("enough")

    async def work(server):
        async with Client(server.endpoint, window=2) as client:
            await generate(client, ahead(endless(), size=4), on_done)

    before = threading.active_count()
    with FakeServer(tokenizer=tiny_model) as server, pytest.raises(UserError, match="enough"):
        asyncio.run(asyncio.wait_for(work(server), 30))
    assert threading.active_count() <= before


def test_a_server_that_dies_and_is_back_loses_nothing(tokenizer, tiny_model):
    # Two processes one after the other on one port, as the supervisor does it.
    todo = requests(tokenizer, 40)
    outcomes = []

    async def work(url):
        async with Client(Endpoint(url=url, model="fake"), window=8, pause_s=0.05, patience_s=60) as client:

            def on_done(request, outcome):
                outcomes.append(outcome)
                if len(outcomes) == 10:
                    second.start()

            await generate(client, todo, on_done)

    def replace():
        exits.__exit__(None, None, None)
        again.__enter__()

    with FakeServer() as probe:
        pass
    again = FakeServer(tokenizer=tiny_model, port=probe.port)
    second = threading.Thread(target=replace)
    exits = fake_server_process(
        "--tokenizer", str(tiny_model), "--port", str(probe.port), "--tokens-per-second", "4000"
    )
    url = exits.__enter__()
    try:
        asyncio.run(asyncio.wait_for(work(url), 60))
    finally:
        second.join()
        again.__exit__()
    assert len(outcomes) == 40
    assert all(isinstance(outcome, Completion) for outcome in outcomes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": 5, "temperature": -1},
        {"max_tokens": 5, "temperature": float("nan")},
        {"max_tokens": 5, "top_p": 0},
        {"max_tokens": 5, "top_k": 0},
        {"max_tokens": 5, "min_tokens": 6},
    ],
)
def test_sampling_outside_its_range_is_refused(wrong):
    with pytest.raises(UserError):
        Sampling(**wrong)


def test_the_key_is_in_no_representation():
    assert "secret" not in repr(Endpoint(url="http://localhost", model="m", api_key="secret"))
