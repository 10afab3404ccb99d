"""Which kinds (styles) a hash in a unit's name stands for: manifest/kinds/<hash>.json, written before such a name."""

from __future__ import annotations

import contextlib
import json

from derivedata.errors import UserError
from derivedata.store.paths import Folder, Missing
from derivedata.store.tables import MANIFEST
from derivedata.store.units import Unit, kinds_hash

ROOM = f"{MANIFEST}/kinds"


class Kinds:
    """The sets of kinds of an output; reads each file once."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._known: dict[str, tuple[str, ...]] = {}
        self._units: dict[str, Unit] = {}  # a resume asks for each name several times

    def publish(self, unit: Unit) -> None:
        """Make the unit's name readable. Raises UserError when another set has the same hash."""
        key = kinds_hash(unit.kinds)
        if self._known.get(key) == unit.kinds:
            return
        path, data = f"{ROOM}/{key}.json", json.dumps(list(unit.kinds)).encode()
        if not self.folder.create(path, data) and self.folder.read(path) != data:
            raise UserError("two sets of styles have the same hash", where=self.folder.url_of(path), value=unit.kinds)
        self._known[key] = unit.kinds

    def unit(self, name: str) -> Unit:
        """The unit of a name. Raises UserError for a foreign name, or when the file of its kinds is lost."""
        if (unit := self._units.get(name)) is not None:
            return unit
        key = name.rpartition(".")[2]
        if key not in self._known:
            with contextlib.suppress(Missing, ValueError):  # Unit.parse says it
                self._known[key] = tuple(json.loads(self.folder.read(f"{ROOM}/{key}.json")))
        unit = self._units[name] = Unit.parse(name, self._known)
        return unit
