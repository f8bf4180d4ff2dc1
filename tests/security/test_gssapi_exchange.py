"""The server's side of GSSAPI, with tickets of a real Kerberos."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config.definitions import ConfigError
from security.gssapi_exchange import MAX_TOKEN_BYTES, GssapiExchange
from security.kerberos_login import Acceptor, GssContext, GssError, Initiator, KerberosLogin
from security.principals import ShortNames
from security.sasl_exchange import SaslAuthenticationError
from tests.kit.security.kerberos import REALM, Realm, realm_of_this_process
from tests.kit.waiting import eventually

WRONG = "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI"
BROKER = "kafka/localhost"


class Site:
    """A broker's credentials, and clients."""

    def __init__(self, realm: Realm) -> None:
        self.realm = realm
        self.keytab = realm.keytab(BROKER, "http/localhost")
        self.acceptor = Acceptor(KerberosLogin("key", "kafka", f"{BROKER}@{REALM}", self.keytab))
        self._initiators: dict[tuple[str, str], Initiator] = {}

    def client(self, principal: str = "alice", service: str = "kafka") -> GssContext:
        """A client's side before its first token."""
        if (principal, service) not in self._initiators:
            login = KerberosLogin("key", service, f"{principal}@{REALM}", self.realm.keytab(principal))
            self._initiators[principal, service] = Initiator(login, f"{principal} {service}")
        return self._initiators[principal, service].context("localhost")

    def server(self, rules: str = "DEFAULT", acceptor: Acceptor | None = None) -> Server:
        """A server's side before its first token."""
        acceptor = acceptor or self.acceptor
        names = ShortNames.parse("rules", rules.split(","))
        return Server(GssapiExchange(acceptor.context(), names, acceptor.default_realm, at_once))


async def at_once(function: Callable[[bytes], bytes], token: bytes) -> bytes:
    return function(token)


class Server:
    """An exchange without an event loop."""

    def __init__(self, exchange: GssapiExchange) -> None:
        self._exchange = exchange

    @property
    def user(self) -> str | None:
        return self._exchange.user

    def respond(self, token: bytes) -> bytes:
        return asyncio.run(self._exchange.respond(token))

    def refuses(self, token: bytes) -> str:
        """The reason in the log. The client always gets the same error, and is not authenticated."""
        with pytest.raises(SaslAuthenticationError) as caught:
            self.respond(token)
        assert str(caught.value) == WRONG
        assert self.user is None
        return caught.value.reason.removeprefix(f"{WRONG}: ")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with realm_of_this_process(tmp_path_factory.mktemp("realm")) as realm:
        yield Site(realm)


def greeted(client: GssContext, server: Server) -> bytes:
    """Complete mutual authentication; returns the offer of security layers."""
    assert client.step(server.respond(client.step(b""))) == b""
    offer = server.respond(b"")
    assert server.user is None
    return offer


@pytest.mark.parametrize(
    ("principal", "rules", "user"),
    [
        ("alice", "DEFAULT", "alice"),
        ("alice/admin", "DEFAULT", "alice"),
        ("alice/admin", "RULE:[2:$2-$1@$0](admin-.*)s/@.*//U,DEFAULT", "ADMIN-ALICE"),
    ],
)
def test_a_ticket_and_no_layer(principal: str, rules: str, user: str, site: Site) -> None:
    client, server = site.client(principal), site.server(rules)
    offer = greeted(client, server)
    assert client.unwrap(offer) == b"\1\0\0\0"
    assert server.respond(client.wrap(b"\1\0\0\0")) == b""
    assert server.user == user


def foreign_client(site: Site, **options: Any) -> Any:
    """A client's side without Odradek's code."""
    import gssapi

    name = gssapi.Name("kafka@localhost", gssapi.NameType.hostbased_service)
    tickets = gssapi.Credentials(usage="initiate", store={"ccache": site.realm.tickets("bob")})
    return gssapi.SecurityContext(name=name, creds=tickets, usage="initiate", **options)


def test_the_offer_comes_at_once_for_a_client_that_trusts_the_server(site: Site) -> None:
    import gssapi

    client = foreign_client(site, mech=gssapi.MechType.kerberos, flags=[gssapi.RequirementFlag.integrity])
    server = site.server()
    offer = server.respond(client.step())
    assert client.unwrap(offer).message == b"\1\0\0\0"
    server.respond(client.wrap(b"\1\0\0\0", False).message)
    assert server.user == "bob"


def test_a_client_with_a_token_more(site: Site) -> None:
    import gssapi

    client = foreign_client(site, mech=gssapi.MechType.kerberos, flags=[gssapi.RequirementFlag.dce_style])
    server = site.server()
    third = client.step(server.respond(client.step()))
    assert server.user is None
    assert client.unwrap(server.respond(third)).message == b"\1\0\0\0"
    server.respond(client.wrap(b"\1\0\0\0", False).message)
    assert server.user == "bob"


def test_whom_a_client_wants_to_be_does_not_count(site: Site) -> None:
    client, server = site.client(), site.server()
    greeted(client, server)
    server.respond(client.wrap(b"\1\0\0\0" + f"root@{REALM}".encode()))
    assert server.user == "alice"


@pytest.mark.parametrize("choice", [b"", b"\1", b"\1\0\0", b"\0\0\0\0", b"\2\0\xff\xff", b"\4\0\xff\xff", b"\6\0\0\0"])
def test_a_client_that_chooses_another_layer(choice: bytes, site: Site) -> None:
    client, server = site.client(), site.server()
    greeted(client, server)
    assert server.refuses(client.wrap(choice)) == "the client does not agree to have no security layer"


def test_a_choice_that_is_not_the_clients(site: Site) -> None:
    other = site.client("bob")
    greeted(other, site.server())
    for kind in ("plain", "empty", "reflected", "of another session", "changed"):
        client, server = site.client(), site.server()
        offer = greeted(client, server)
        good = client.wrap(b"\1\0\0\0")
        server.refuses(
            {
                "plain": b"\1\0\0\0",
                "empty": b"",
                "reflected": offer,
                "of another session": other.wrap(b"\1\0\0\0"),
                "changed": good[:-1] + bytes([good[-1] ^ 1]),
            }[kind]
        )


def test_tokens_out_of_order(site: Site) -> None:
    assert site.server().refuses(b"") == "an empty token came"
    client, server = site.client(), site.server()
    answer = server.respond(client.step(b""))
    client.step(answer)
    assert server.refuses(client.wrap(b"\1\0\0\0")) == "a token came after the last one"
    assert site.server().refuses(b"a" * (MAX_TOKEN_BYTES + 1)) == "a token has 65537 bytes"


def test_a_token_counts_once(site: Site) -> None:
    token = site.client().step(b"")
    assert site.server().respond(token)
    assert site.server().refuses(token) == "Request is a replay"


def test_a_ticket_for_another_service_of_the_same_keytab(site: Site) -> None:
    assert "ticket for http/localhost" in site.server().refuses(site.client(service="http").step(b""))


def test_a_ticket_that_the_keytab_is_too_old_for(site: Site) -> None:
    acceptor = Acceptor(KerberosLogin("key", "old", "old/localhost", site.realm.keytab("old/localhost")))
    site.realm.change_key("old/localhost")
    assert "old/localhost" in site.server(acceptor=acceptor).refuses(site.client(service="old").step(b""))


def test_other_mechanisms_of_the_library(site: Site) -> None:
    import gssapi

    negotiation = gssapi.OID.from_int_seq("1.3.6.1.5.5.2")
    site.server().refuses(foreign_client(site, mech=negotiation).step())


def test_names_that_no_rule_is_for(site: Site) -> None:
    client, server = site.client("bob"), site.server("RULE:[1:$1](alice)")
    greeted(client, server)
    assert server.refuses(client.wrap(b"\1\0\0\0")).startswith(
        f"no rule of sasl.kerberos.principal.to.local.rules is for bob@{REALM}"
    )
    for principal, rules, reason in (
        (r"a\@b", "DEFAULT", rf"the principal a\@b@{REALM} has signs in it that no rule can read"),
        ("bob", "RULE:[1:$1]s/.*//g", f"the rules make an empty name of bob@{REALM}"),
    ):
        client, server = site.client(principal), site.server(rules)
        greeted(client, server)
        assert server.refuses(client.wrap(b"\1\0\0\0")) == reason


def test_a_token_that_is_too_old(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CONFIG", str(site.realm.write_config("strict.conf", clock_skew_s=1)))
    made_s = time.time()
    token = site.client().step(b"")
    eventually("the token is old", time.time, lambda now_s: now_s > made_s + 2)
    assert site.server().refuses(token) == "Clock skew too great"


@given(noise=st.binary(max_size=300), at=st.integers(0, 699), bit=st.integers(0, 7), length=st.integers(0, 699))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
def test_nonsense(noise: bytes, at: int, bit: int, length: int, site: Site) -> None:
    token = bytearray(site.client().step(b""))
    token[at % len(token)] ^= 1 << bit
    for bad in (noise, bytes(token), bytes(token[:length])):
        try:
            site.server().respond(bad)
        except SaslAuthenticationError as error:
            assert str(error) == WRONG


def test_what_stops_a_broker(site: Site, tmp_path: Any) -> None:
    def refusal(principal: str, keytab: str) -> str:
        with pytest.raises(ConfigError) as caught:
            Acceptor(KerberosLogin("the.key", "kafka", principal, keytab))
        return str(caught.value)

    begin = "Invalid value [hidden] for configuration the.key: the keytab"
    missing = tmp_path / "missing"
    assert refusal(BROKER, str(missing)) == f"{begin} {missing} cannot be read: No such file or directory"
    assert refusal("kafka/elsewhere", site.keytab).startswith(
        f"{begin} {site.keytab} cannot be used for kafka/elsewhere: "
    )
    missing.write_text("no keytab")
    assert refusal(BROKER, str(missing)).startswith(f"{begin} {missing} cannot be used for {BROKER}: ")


def test_a_keytab_that_is_taken_away(site: Site, tmp_path: Any) -> None:
    keytab = tmp_path / "keytab"
    with open(site.keytab, "rb") as file:
        keytab.write_bytes(file.read())
    acceptor = Acceptor(KerberosLogin("key", "kafka", BROKER, str(keytab)))
    keytab.unlink()
    site.server(acceptor=acceptor).refuses(site.client().step(b""))
    with pytest.raises(GssError):
        Initiator(KerberosLogin("key", "nothing", "alice", site.realm.keytab("alice")), "x").context("localhost").step(
            b""
        )
