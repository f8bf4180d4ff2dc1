"""An identity provider for a test: keys, signed tokens, and a server for both."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.kit.security.certificates import Authority

ISSUER, AUDIENCE = "https://issuer.example", "kafka"
CLIENT, SECRET = "alice", "alice's secret"


class SigningKey:
    """A private key; it signs with `algorithm` by default."""

    def __init__(self, algorithm: str = "RS256", kid: str | None = "first", bits: int = 2048) -> None:
        self.algorithm = algorithm
        self.kid = kid
        self.private: Any
        if algorithm.startswith("ES"):
            curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
            self.private = ec.generate_private_key(curves[algorithm])
        else:
            self.private = rsa.generate_private_key(65537, bits)

    def jwk(self, **others: Any) -> dict[str, Any]:
        """The public key."""
        kind: Any = ECAlgorithm if self.algorithm.startswith("ES") else RSAAlgorithm
        found: dict[str, Any] = kind.to_jwk(self.private.public_key(), as_dict=True)
        kid = {} if self.kid is None else {"kid": self.kid}
        return {**found, "use": "sig", **kid, **others}

    def token(self, *, algorithm: str | None = None, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token for alice, valid for an hour, with other headers and claims. Pass None to remove one."""
        given = {"kid": self.kid, **(headers or {})}
        named = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(claims_of(**claims), self.private, algorithm or self.algorithm, headers=named)


def claims_of(**others: Any) -> dict[str, Any]:
    """The claims of a valid token with the given changes. Pass None to remove a claim."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 3600, "scope": "kafka"}
    return {name: value for name, value in {**good, **others}.items() if value is not None}


def unsigned(claims: dict[str, Any], header: dict[str, Any] | None = None) -> str:
    """A token without a signature."""
    parts = [json.dumps(each).encode() for each in ({"alg": "none"} if header is None else header, claims)]
    return ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts) + "."


def first_message(token: str, pairs: str = "", authzid: str = "") -> bytes:
    """The message of a client (RFC 7628)."""
    return f"n,{authzid},\x01auth=Bearer {token}{pairs}\x01\x01".encode()


class IdentityProvider:
    """Serves `/keys` and `/token` on loopback, with TLS if an `authority` is given."""

    def __init__(self, authority: Authority | None = None, directory: Path | None = None) -> None:
        self.key = SigningKey()
        self.jwks: Any = {"keys": [self.key.jwk()]}
        self.claims: dict[str, Any] = {}
        """Claims of the tokens that `/token` issues."""
        self.life_s = 3600
        """Theirs."""
        self.status = 200
        self.asked: list[str] = []
        """Paths, in the order of the requests."""
        self.forms: list[dict[str, list[str]]] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 30

            def do_GET(self) -> None:
                provider.asked.append(self.path)
                self._answer(provider.status, provider.jwks)

            def do_POST(self) -> None:
                provider.asked.append(self.path)
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                provider.forms.append(form)
                credentials = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
                if self.headers["Authorization"] != f"Basic {credentials}":
                    self._answer(401, {"error": "invalid_client"})
                else:
                    ends = claims_of()["iat"] + provider.life_s
                    token = provider.key.token(**{"exp": ends, **provider.claims})
                    self._answer(provider.status, {"access_token": token})

            def _answer(self, status: int, content: Any) -> None:
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._scheme = "http"
        if authority is not None and directory is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(authority.issue("issuer").write_pem(directory / "issuer.pem"))
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def url(self, path: str) -> str:
        """The address of `keys` or `token`."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}/{path}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def identity_provider(authority: Authority | None = None, directory: Path | None = None) -> Iterator[IdentityProvider]:
    """Run an identity provider for the duration of a block."""
    provider = IdentityProvider(authority, directory)
    try:
        yield provider
    finally:
        provider.close()
