"""Servers that are not vLLM, over real HTTP: what others leave out, refuse, or call by another name.

with Hosted(tokenizer=folder, api_key="secret") as server: ...      chat alone, a key, unknown fields refused
"""

from __future__ import annotations

import datetime
import json
import ssl
from pathlib import Path

from aiohttp import web

from tests.fake_server import FakeServer

HOSTED_FIELDS = {"model", "messages", "max_completion_tokens", "temperature", "top_p", "seed", "frequency_penalty"}


class Strict(FakeServer):
    """Looks at each request before it is answered; keeps what was asked."""

    prefix = "/v1"
    listed: dict = {}  # noqa: RUF012 (what its list of models says beside the name)

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.asked: list[dict] = []

    def refuse(self, body: dict) -> str | None:
        """Why it doesn't take a request."""
        return None

    def said(self, document: dict) -> dict:
        """What becomes of an answer on its way out."""
        return document

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self._allowed(request) and (why := self.refuse(body)):
            return web.json_response({"error": {"message": why}}, status=400)
        self.asked.append(dict(body))
        return await super()._complete(request)

    async def _body(self, request: web.Request) -> dict:
        # The fake it stands on knows the limit by its usual name.
        body = await request.json()
        return {"max_tokens": body.get("max_completion_tokens"), **body}

    async def _models(self, request: web.Request) -> web.Response:
        if not self._allowed(request):
            return await super()._models(request)
        entry = {"id": self.behaviour.model, "object": "model", **self.listed}
        return web.json_response({"object": "list", "data": [entry]})

    async def _send(self, request, key, fault, payload):
        document = self.said(json.loads(payload))
        return await super()._send(request, key, fault, json.dumps(document).encode())


class LlamaCpp(Strict):
    """Like llama.cpp's server behind a proxy: no token ids, no n; takes every field, says its context elsewhere."""

    listed = {"meta": {"n_ctx_train": 2048}}  # noqa: RUF012

    def refuse(self, body: dict) -> str | None:
        if isinstance(body.get("prompt"), list):
            return "prompt must be a string"
        return "n is not supported" if "n" in body else None


class Hosted(Strict):
    """A hosted server: chat alone, a limit by another name, unknown fields refused, a dated name in its answers."""

    def refuse(self, body: dict) -> str | None:
        if "messages" not in body:
            return "this model is only supported in v1/chat/completions"
        if "max_tokens" in body:
            return "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        unknown = sorted(set(body) - HOSTED_FIELDS)
        return f"Unknown parameter: {unknown[0]!r}" if unknown else None

    def said(self, document: dict) -> dict:
        return document | {"model": f"{document['model']}-2026-11-01"}


class Silent(Strict):
    """Says nothing of what it used, and takes no seed to heart."""

    def said(self, document: dict) -> dict:
        return {name: value for name, value in document.items() if name != "usage"}


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS with a certificate that nobody knows, and the file that makes it known."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    plain = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, folder / "cert.pem"
