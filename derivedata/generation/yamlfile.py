"""A YAML file written by a user, read as plain data: mappings, lists, strings, numbers, true/false and null.

What else YAML can do is refused by name, since a style is data that people pass on to each other: tags (they name
types to construct), anchors and aliases (a few lines can expand to gigabytes), several documents, duplicate keys
(one of the two would silently lose), and files above 64 KiB. Words that YAML 1.1 turns into something else
(`no`, `on`, `12:30`, `2024-01-01`, `1_000`) stay the text they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from derivedata.errors import UserError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 64 << 10
MAX_DEPTH = 8

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})\Z")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]{1,3})?\Z")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "~": None, "": None}


@dataclass(kw_only=True, slots=True)
class YamlFile:
    """The content of a file and where each field of it stands."""

    path: str
    content: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)  # dotted field -> line, 1-based

    def where(self, name: str) -> str:
        """`file:line: field` of a field; of the nearest field above it when it isn't in the file."""
        at = name
        while at and at not in self.lines:
            at = at.rpartition(".")[0]
        line = f":{self.lines[at]}" if at in self.lines else ""
        return f"{self.path}{line}: {name}" if name else f"{self.path}{line}"


def read_yaml(path: str | Path) -> YamlFile:
    """Read a file whose top level is a mapping.

    Raises:
        UserError: it can't be read, is no UTF-8 or no YAML, or uses what this module's first lines refuse.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"can't be read: {error.strerror}", where=path) from None
    if len(data) > MAX_BYTES:
        raise UserError(f"is larger than {MAX_BYTES >> 10} KiB", where=path, remedy="a style is a page of text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 (byte {error.start})", where=path, remedy="save it as UTF-8") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, path: str) -> YamlFile:
    """Like `read_yaml`, of text that is already here; `path` is the name errors give."""
    import yaml

    try:
        _refuse_exotic(text, path)
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else path
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"is not valid YAML: {problem}", where=where) from None
    if not isinstance(node, yaml.MappingNode):
        raise UserError("has no mapping of fields at its top level", where=path, remedy="write `name: ...` and so on")
    read = YamlFile(path=path, content={})
    read.content = _plain(node, "", read)
    return read


def _refuse_exotic(text: str, path: str) -> None:
    import yaml

    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        where = f"{path}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UserError("uses an anchor or alias", where=where, value=event.anchor, remedy="write the value out")
        if getattr(event, "tag", None):
            raise UserError("uses a tag", where=where, value=event.tag, remedy="leave the tag out")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise UserError("holds a second YAML document", where=where, remedy="one style a file")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise UserError(f"is nested deeper than {MAX_DEPTH} levels", where=where)


def _plain(node: yaml.Node, name: str, read: YamlFile) -> Any:
    import yaml

    read.lines[name] = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style else _scalar(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, f"{name}[{index}]", read) for index, item in enumerate(node.value)]
    found: dict[str, Any] = {}
    for key, value in node.value:
        where = f"{read.path}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise UserError("has a key that is not a word", where=where)
        if key.value in found:
            raise UserError("gives a field twice", where=where, value=key.value, remedy="keep one of the two")
        inner = f"{name}.{key.value}" if name else key.value
        found[key.value] = _plain(value, inner, read)
        read.lines[inner] = key.start_mark.line + 1
    return found


def _scalar(text: str) -> Any:
    """A plain (unquoted) scalar: null, true/false, integer, float; anything else is text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return text
