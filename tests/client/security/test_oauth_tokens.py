"""Tokens of clients: requested from an endpoint, read from a file or made locally, and renewed in time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client import oauth_tokens
from client.oauth_tokens import TokenHolder, unsecured_text
from security.oauth import EndpointSource, FileSource, Refresh, TokenLogin, UnsecuredSource
from security.sasl_exchange import ServerError
from tests.kit.security.identity_provider import CLIENT, SECRET, IdentityProvider, SigningKey, identity_provider

REFRESH = Refresh(0.8, 0.0, 0, 0)


def holder(provider: IdentityProvider, secret: str = SECRET, scope: str | None = None) -> TokenHolder:
    source = EndpointSource(provider.url("token"), CLIENT, secret, scope, False, None, 5.0, 5.0, 1, 5)
    return TokenHolder(TokenLogin(source, {}, REFRESH))


def test_a_token_is_asked_for_once_and_again_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with identity_provider() as provider:
        held = holder(provider, scope="kafka all")
        now_s = oauth_tokens.wall_clock_s()
        first = held.token()
        assert held.token() == first
        assert provider.forms == [{"grant_type": ["client_credentials"], "scope": ["kafka all"]}]
        monkeypatch.setattr(oauth_tokens, "wall_clock_s", lambda: now_s + 0.79 * 3600)
        assert held.token() == first
        monkeypatch.setattr(oauth_tokens, "wall_clock_s", lambda: now_s + 0.81 * 3600)
        provider.claims = {"jti": "second"}
        assert held.token() != first
        assert len(provider.asked) == 2


def test_a_token_counts_while_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with identity_provider() as provider:
        held = holder(provider)
        now_s = oauth_tokens.wall_clock_s()
        first = held.token()
        provider.status = 503
        monkeypatch.setattr(oauth_tokens, "wall_clock_s", lambda: now_s + 3500)
        assert held.token() == first
        # It tried more than once.
        assert len(provider.asked) > 2
        monkeypatch.setattr(oauth_tokens, "wall_clock_s", lambda: now_s + 3700)
        with pytest.raises(ServerError, match=r"no token: http://.*/token answers with HTTP status 503"):
            held.token()


def test_wrong_credentials_are_tried_once() -> None:
    with identity_provider() as provider:
        with pytest.raises(ServerError, match="HTTP status 401") as caught:
            holder(provider, secret="hidden").token()
        assert len(provider.asked) == 1
        assert "hidden" not in str(caught.value)


def test_a_server_that_is_not_there() -> None:
    with identity_provider() as provider:
        held = holder(provider)
    with pytest.raises(ServerError, match="cannot be asked"):
        held.token()


def test_a_token_has_to_have_an_end(tmp_path: Path) -> None:
    file, key = tmp_path / "token", SigningKey()
    held = TokenHolder(TokenLogin(FileSource(f"file:{file}"), {}, REFRESH))
    with pytest.raises(ServerError, match="cannot be read"):
        held.token()
    for text in ("", "a.b.c", key.token(exp=None), key.token() + "\x01auth=Bearer x", key.token().replace(".", "..")):
        file.write_text(text)
        with pytest.raises(ServerError, match="did not return a JWT with an exp claim"):
            held.token()
    file.write_text(key.token(exp=1))
    with pytest.raises(ServerError, match="has expired already"):
        held.token()
    file.write_text(f"{key.token()}\n")
    assert held.token() == file.read_text().strip()


def test_a_short_life_ignores_what_does_not_fit_into_it() -> None:
    for refresh, after_s in (
        (Refresh(0.8, 0.0, 60, 300), 48),
        (Refresh(0.8, 0.0, 10, 20), 40),
        (Refresh(0.5, 0.0, 35, 0), 35),
    ):
        held = TokenHolder(TokenLogin(UnsecuredSource({"sub": "alice"}, 60), {}, refresh))._hold(
            unsecured_text(UnsecuredSource({"sub": "alice"}, 60), 1000.0), 1000.0
        )
        assert (held.ends_s, held.refresh_s) == (1060.0, pytest.approx(1000 + after_s))


def test_the_messages_of_a_client() -> None:
    source = UnsecuredSource({"sub": "alice", "scope": ("a", "b")}, 60)
    held = TokenHolder(TokenLogin(source, {"traceId": "1 2"}, REFRESH))
    tokens = held.exchange()
    first = next(tokens).decode()
    assert first == f"n,,\x01auth=Bearer {held.token()}\x01traceId=1 2\x01\x01"
    assert tokens.send(json.dumps({"status": "invalid_token"}).encode()) == b"\x01"
    accepted = held.exchange()
    next(accepted)
    with pytest.raises(StopIteration):
        accepted.send(b"")
