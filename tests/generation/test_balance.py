"""Which server gets the next request, with a clock of the test's own."""

from __future__ import annotations

from collections import Counter

import pytest

from derivedata.generation.balance import LONGEST_REST_S, REST_S, SICK_AFTER, SLACK, Balancer
from derivedata.generation.request import Endpoint

pytestmark = pytest.mark.faults

URLS = ("http://a", "http://b", "http://c")


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def balancer(clock):
    return Balancer([Endpoint(url=url, model="m") for url in URLS], clock=lambda: clock[0])


def test_the_next_request_goes_where_the_least_is_in_flight(balancer):
    places = [balancer.take() for _ in range(6)]
    assert Counter(place.endpoint.url for place in places) == dict.fromkeys(URLS, 2)
    balancer.leave(places[1])
    assert balancer.take() is places[1]


def test_a_fast_server_gets_more_because_it_comes_back_sooner(balancer):
    flying = [balancer.take() for _ in range(30)]
    given = Counter()
    for step in range(600):
        # a answers with each step, b with every second, c with every third.
        for number, url in enumerate(URLS, 1):
            if step % number == 0:
                done = next(place for place in flying if place.endpoint.url == url)
                flying.remove(done)
                balancer.leave(done)
                flying.append(balancer.take())
                given[flying[-1].endpoint.url] += 1
    assert given["http://a"] / given["http://c"] == pytest.approx(3, rel=0.1)
    assert Counter(place.endpoint.url for place in flying) == dict.fromkeys(URLS, 10)


def test_a_group_stays_with_its_server(balancer):
    first = balancer.take("document")
    others = [balancer.take() for _ in range(2)]
    assert first not in others
    assert all(balancer.take("document") is first for _ in range(3))


def test_a_group_too_large_for_one_server_is_shared(balancer):
    places = [balancer.take("problem") for _ in range(3 * SLACK + 6)]
    assert {place.endpoint.url for place in places} == set(URLS)


def test_a_server_that_fails_again_and_again_is_left_out_and_tried_again_with_one_request(balancer, clock):
    sick = balancer.take()
    for _ in range(SICK_AFTER):
        balancer.failed(sick)
    balancer.leave(sick)
    assert sick not in [balancer.take() for _ in range(8)]
    clock[0] += REST_S
    assert [balancer.take() for _ in range(8)].count(sick) == 1
    balancer.failed(sick)
    balancer.leave(sick)
    clock[0] += REST_S
    assert sick not in [balancer.take() for _ in range(8)]  # it rests for longer each time
    clock[0] += REST_S
    assert sick in [balancer.take() for _ in range(8)]
    balancer.succeeded(sick)
    assert [balancer.take() for _ in range(12)].count(sick) > 1


def test_nobody_listening_is_believed_at_once(balancer):
    gone = balancer.take()
    balancer.failed(gone, unreachable=True)
    balancer.leave(gone)
    assert gone not in [balancer.take() for _ in range(8)]


def test_what_failed_at_a_server_is_asked_elsewhere(balancer):
    first = balancer.take("document")
    balancer.failed(first)
    balancer.leave(first)
    second = balancer.take("document", avoid=first)
    assert second is not first
    assert balancer.take("document") is second  # and what belongs to it follows


def test_a_server_that_asks_for_a_pause_gets_it(balancer, clock):
    busy = balancer.take()
    balancer.failed(busy, pause=20)
    balancer.leave(busy)
    clock[0] += 19
    assert busy not in [balancer.take() for _ in range(8)]
    clock[0] += 1
    assert busy in [balancer.take() for _ in range(3)]


def test_when_all_rest_it_says_for_how_long(balancer):
    for _ in range(3):
        place = balancer.take()
        balancer.failed(place, unreachable=True)
        balancer.leave(place)
    assert balancer.take() is None
    assert 0 < balancer.rest_s() <= LONGEST_REST_S


def test_a_server_alone_gets_everything_sick_or_well(clock):
    alone = Balancer([Endpoint(url="http://a", model="m")], clock=lambda: clock[0])
    for _ in range(9):
        alone.failed(alone.take(), unreachable=True)
    assert alone.take() is not None
    assert not alone.others_ready(alone.places[0])
