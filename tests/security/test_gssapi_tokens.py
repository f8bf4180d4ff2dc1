"""The client's side of GSSAPI, against servers that cheat and unusable tickets."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.definitions import ConfigError
from security.gssapi_exchange import gssapi_tokens
from security.kerberos_login import Acceptor, GssContext, Initiator, KerberosLogin
from security.sasl_exchange import ClientExchange, ServerError
from tests.kit.security.kerberos import REALM, Realm, realm_of_this_process
from tests.kit.waiting import eventually


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with realm_of_this_process(tmp_path_factory.mktemp("realm")) as made:
        made.keytab("kafka/localhost", "alice")
        yield made


def by_keytab(realm: Realm, principal: str = "alice", service: str = "kafka") -> Initiator:
    return Initiator(KerberosLogin("key", service, principal, realm.keytab(principal)), principal)


def by_tickets(cache: str | None, principal: str | None = None) -> Initiator:
    return Initiator(KerberosLogin("key", "kafka", principal, None, cache), "unused")


def answered(realm: Realm, tokens: ClientExchange) -> tuple[GssContext, bytes]:
    """A server that has authenticated the client, and its token for mutual authentication; the client has sent an empty
    one.
    """
    server = Acceptor(KerberosLogin("key", "kafka", "kafka/localhost", realm.keytab("kafka/localhost"))).context()
    answer = server.step(next(tokens))
    return server, answer


def test_all_tokens(realm: Realm) -> None:
    for initiator in (
        by_keytab(realm),
        by_tickets(realm.tickets("alice")),
        by_tickets(realm.tickets("alice"), "alice"),
    ):
        tokens = gssapi_tokens(initiator, "localhost")
        server, answer = answered(realm, tokens)
        assert tokens.send(answer) == b""
        # A server that offers security layers lets the client choose.
        assert server.unwrap(tokens.send(server.wrap(b"\7\0\xff\xff"))) == b"\1\0\0\0"
        assert server.initiator() == f"alice@{REALM}"
        with pytest.raises(StopIteration):
            tokens.send(b"")


@pytest.mark.parametrize("offer", [b"", b"\0\0\0\0", b"\2\0\xff\xff", b"\6\0\xff\xff"])
def test_a_server_that_wants_a_layer(offer: bytes, realm: Realm) -> None:
    tokens = gssapi_tokens(by_keytab(realm), "localhost")
    server, answer = answered(realm, tokens)
    tokens.send(answer)
    with pytest.raises(ServerError, match="the server wants a security layer"):
        tokens.send(server.wrap(offer))


@pytest.mark.parametrize("answer", [b"", b"nonsense", b"\1\0\0\0"])
def test_a_server_that_cannot_prove_who_it_is(answer: bytes, realm: Realm) -> None:
    tokens = gssapi_tokens(by_keytab(realm), "localhost")
    token = next(tokens)
    with pytest.raises(ServerError):
        tokens.send(answer)
    tokens = gssapi_tokens(by_keytab(realm), "localhost")
    next(tokens)
    other = Acceptor(KerberosLogin("key", "kafka", "kafka/localhost", realm.keytab("kafka/localhost"))).context()
    with pytest.raises(ServerError):
        tokens.send(other.step(token))
    tokens = gssapi_tokens(by_keytab(realm), "localhost")
    _, proof = answered(realm, tokens)
    tokens.send(proof)
    with pytest.raises(ServerError):
        tokens.send(answer)


def test_what_is_wrong_with_a_login(realm: Realm) -> None:
    def reason(initiator: Initiator, host: str = "localhost") -> str:
        with pytest.raises(ServerError) as caught:
            next(gssapi_tokens(initiator, host))
        return str(caught.value)

    assert "kafka/elsewhere" in reason(by_keytab(realm), "elsewhere")
    assert "mail/localhost" in reason(by_keytab(realm, service="mail"))
    assert re.search("No Kerberos credentials available|No credentials cache found", reason(by_tickets(None)))
    assert "does not match desired name" in reason(by_tickets(realm.tickets("alice"), "other"))
    gone = by_keytab(realm, "gone")
    realm.delete("gone")
    assert reason(gone) == f"Client 'gone@{REALM}' not found in Kerberos database"
    old = realm.keytab("changed")
    realm.change_key("changed")
    assert reason(Initiator(KerberosLogin("key", "kafka", "changed", old), "changed"))


def test_tickets_that_have_expired(tmp_path: Path) -> None:
    """Tickets from kinit stay expired; those from a keytab are renewed."""
    with realm_of_this_process(tmp_path, clock_skew_s=2) as realm:
        realm.keytab("kafka/localhost")
        realm.limit_life("short", 1)
        initiator = by_keytab(realm, "short")
        cache = realm.tickets("alice", life_s=1)
        next(gssapi_tokens(by_tickets(cache), "localhost"))
        next(gssapi_tokens(initiator, "localhost"))
        got_s = time.time()
        eventually("nobody overlooks it", time.time, lambda now_s: now_s > got_s + 4)
        with pytest.raises(ServerError, match=r"(?i)expired"):
            next(gssapi_tokens(by_tickets(cache), "localhost"))
        server, answer = answered(realm, gssapi_tokens(initiator, "localhost"))
        assert answer
        assert server.initiator() == f"short@{REALM}"


def test_no_key_distribution_centre(realm: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("KRB5_CONFIG", str(realm.write_config("lost.conf", port=port)))
    with pytest.raises(ServerError, match="Cannot contact any KDC"):
        next(
            gssapi_tokens(Initiator(KerberosLogin("key", "kafka", "alice", realm.keytab("alice")), "lost"), "localhost")
        )


def test_a_keytab_that_is_no_use(realm: Realm) -> None:
    with pytest.raises(ConfigError, match=r"for configuration key: the keytab /none cannot be read: No such file"):
        Initiator(KerberosLogin("key", "kafka", "alice", "/none"), "none")
    with pytest.raises(ConfigError, match=r"the keytab .*alice\.keytab cannot be used for nobody: No key table entry"):
        Initiator(KerberosLogin("key", "kafka", "nobody", realm.keytab("alice")), "none")
