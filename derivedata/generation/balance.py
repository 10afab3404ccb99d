"""Which of several servers gets the next request: the one with the least in flight, a sick one left out for a while.

All requests of a group (the styles of a document, the samples of a problem) go to one server, whose prefix cache then
holds what they share. Every server is thus kept as full as the others, whatever its speed; the fast ones simply come
back for more. No measured speed takes part: one that is guessed too low would never be found out again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from derivedata.generation.request import Endpoint

SICK_AFTER = 3  # failures in a row
REST_S, LONGEST_REST_S = 1.0, 30.0  # how long a sick server is left out; doubled each time it is sick still
SLACK = 8  # requests that a server may have more than the least busy one before its groups go elsewhere
GROUPS = 1 << 14  # that are remembered


@dataclass(slots=True, eq=False)
class Place:
    """A server as the balancer sees it."""

    endpoint: Endpoint
    in_flight: int = 0
    failures: int = 0  # in a row
    rests: int = 0  # in a row
    resting_until: float = 0.0
    on_trial: bool = False  # a sick one that has been given one request again
    given: int = 0  # requests in all


class Balancer:
    """Spreads requests over servers.

    Args:
        endpoints: the servers; with one alone it gets everything, well or sick.
        clock: gives seconds.
    """

    def __init__(self, endpoints: Sequence[Endpoint], *, clock: Callable[[], float] = time.monotonic):
        self.places = [Place(endpoint) for endpoint in endpoints]
        self._clock = clock
        self._groups: OrderedDict[str, Place] = OrderedDict()

    def take(self, group: str = "", *, avoid: Place | None = None) -> Place | None:
        """A server for a request, which counts as in flight there until `leave`; None: all are resting.

        Args:
            group: what the request shares its beginning with.
            avoid: where it has just failed: another one is taken if one is well.
        """
        ready = self.places if len(self.places) == 1 else [place for place in self.places if self._ready(place)]
        if not ready:
            return None
        ready = [place for place in ready if place is not avoid] or ready
        place = min(ready, key=lambda place: (place.in_flight, place.given))
        usual = self._groups.get(group) if group else None
        if usual in ready and usual.in_flight - place.in_flight <= SLACK:
            place = usual
        if group:
            self._groups[group] = place
            self._groups.move_to_end(group)
            if len(self._groups) > GROUPS:
                self._groups.popitem(last=False)
        place.in_flight += 1
        place.given += 1
        place.on_trial = place.rests > 0
        return place

    def _ready(self, place: Place) -> bool:
        # After its rest a sick server gets one request; what becomes of that decides.
        return self._clock() >= place.resting_until and not (place.on_trial and place.in_flight)

    def leave(self, place: Place) -> None:
        """A request is no longer in flight."""
        place.in_flight -= 1

    def succeeded(self, place: Place) -> None:
        """A server has answered."""
        place.failures = place.rests = 0
        place.on_trial = False

    def failed(self, place: Place, *, unreachable: bool = False, pause: float | None = None) -> None:
        """A server has not answered, or has asked for a pause.

        Args:
            place: which.
            unreachable: nobody listens there: no second look is needed.
            pause: seconds that it asked for.
        """
        now = self._clock()
        place.failures += 1
        if pause is not None:
            place.resting_until = max(place.resting_until, now + pause)
        # Of the many requests that fail when a server goes, one begins its rest.
        if now >= place.resting_until and (unreachable or place.failures >= SICK_AFTER or place.rests):
            place.resting_until = now + min(REST_S * 2**place.rests, LONGEST_REST_S)
            place.rests += 1
        place.on_trial = False

    def rest_s(self) -> float:
        """Seconds until a resting server may be tried again; 0 when one may be now."""
        now = self._clock()
        return max(0.0, min(place.resting_until - now for place in self.places))

    def others_ready(self, place: Place) -> bool:
        """Whether another server could take over at once."""
        return any(other is not place and self._ready(other) for other in self.places) and len(self.places) > 1
