"""Renders a model's chat template, a Jinja program that comes with the model, in a sandbox and without transformers."""

from __future__ import annotations

import datetime
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from derivedata.errors import UserError

# Some templates print today's date. A run resumed tomorrow must send the same prompts, so the day never changes.
_TODAY = datetime.datetime(2025, 1, 1)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class ChatTemplate:
    """A chat template, compiled.

    Args:
        source: the Jinja text.
        special_tokens: what the template may name, such as bos_token and eos_token.

    Raises:
        UserError: the template is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]):
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _TODAY.strftime
        self.source, self._special_tokens = source, special_tokens
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise UserError(f"the model's chat template is not valid: {error}") from None

    def render(self, messages: list[dict[str, str]], **variables: object) -> str:
        """The conversation as text, up to where the assistant begins to answer.

        Raises:
            jinja2.TemplateError: the template refuses these messages, for example a system message.
        """
        return self._template.render(
            messages=messages,
            add_generation_prompt=True,
            tools=None,
            documents=None,
            **self._special_tokens,
            **variables,
        )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    # Jinja's own filter escapes HTML characters.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
