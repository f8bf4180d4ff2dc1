"""Deliberate bugs in TLS, SASL and the rules of principals: each must fail the fast tests listed with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.security.planted_bugs import Mutant, assert_caught
from tests.kit.due import due
from tests.kit.security.kerberos import require_kerberos

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SESSION, EXCHANGE = "broker/security/sasl_session.py", "security/sasl_exchange.py"
CLIENT, NETWORK = "security/sasl_exchange.py", "client/secured_network.py"
TLS, CONTEXT = "broker/network/tls_transport.py", "security/tls.py"
SSL_CONFIG, SSL_RULES = "security/tls.py", "security/principals.py"
KERBEROS_RULES, CHANGES = "security/principals.py", "cluster/security/scram_changes.py"
VALIDATOR, CLAIMS = "broker/security/token_validator.py", "security/bearer_exchange.py"
GSSAPI, TOKEN = "security/gssapi_exchange.py", "cluster/security/delegation_token.py"
CREDENTIALS = "broker/security/scram_credentials.py"
SUBJECTS, SECURED = "security/principals.py", "broker/network/secured_connection.py"

OF_SESSION = "tests/broker/security/test_sasl_session.py"
OF_AGAIN = "tests/broker/security/test_authenticating_again.py"
OF_CREDENTIALS = "tests/broker/security/test_scram_credentials.py"
OF_EXCHANGE = "tests/security/test_sasl_exchange.py"
OF_NONCES = "tests/broker/security/test_cves.py -k nonce"
OF_CLIENT = "tests/security/test_client_exchange.py"
OF_NETWORK = "tests/client/security/test_secured_network.py"
OF_TLS = "tests/broker/network/test_tls_transport.py"
OF_GSSAPI = "tests/security/test_gssapi_exchange.py"
OF_TOKENS = "tests/broker/security/test_delegation_tokens.py"
OF_VALIDATOR = "tests/broker/security/test_token_validator.py"
OF_SSL_RULES, OF_KERBEROS_RULES = "tests/security/test_principal_rules.py", "tests/security/test_short_names.py"

SESSIONS = {
    "another user may take over": Mutant(
        SESSION,
        "if self._principal is not None and principal != self._principal:",
        "if principal is None:",
        OF_AGAIN,
    ),
    "another mechanism may follow": Mutant(
        SESSION,
        "if self._principal is not None and request.mechanism != self._mechanism:",
        "if request.mechanism is None:",
        OF_AGAIN,
    ),
    "expired sessions are served": Mutant(
        SESSION,
        "if self._expires_s is not None and self._clock",
        "if self._expires_s == -1 and self._clock",
        OF_SESSION,
    ),
    "tokens do not end sessions": Mutant(
        SESSION,
        "if credential_expiry_ms is not None:\n            ends_ms",
        "if credential_expiry_ms is None and ends_ms:\n            ends_ms",
        OF_SESSION,
    ),
    "the later end counts": Mutant(SESSION, "max(min(ends_ms, default=0), 0)", "max(ends_ms, default=0)", OF_SESSION),
    "requests are served between two authentications": Mutant(
        SESSION,
        "        self._is_authenticated = False\n        self._await_auth",
        "        self._await_auth",
        OF_AGAIN,
    ),
    "clients may authenticate again all the time": Mutant(
        SESSION, "now_s - self._again_s < LEAST_BETWEEN_S", "now_s < self._again_s", OF_AGAIN
    ),
    "Metadata is served before": Mutant(
        SESSION,
        "if api_key == ApiKey.API_VERSIONS and self._exchange is None",
        "if api_key in (ApiKey.API_VERSIONS, ApiKey.METADATA) and self._exchange is None",
        OF_SESSION,
    ),
    "ApiVersions is served in the middle": Mutant(
        SESSION,
        "if api_key == ApiKey.API_VERSIONS and self._exchange is None and self._principal is None:",
        "if api_key == ApiKey.API_VERSIONS:",
        OF_AGAIN,
    ),
    "any mechanism will do": Mutant(
        SESSION, "request.mechanism in self._config.mechanisms", "bool(request.mechanism)", OF_SESSION
    ),
    "no deadline": Mutant(
        SESSION, "call_later(AUTHENTICATION_S, self._on_deadline)", "call_later(1e6, self._on_deadline)", OF_SESSION
    ),
    "a refused client may try again": Mutant(
        SESSION, "        loop.call_soon(loop.call_soon, connection.end)\n", "", OF_AGAIN
    ),
    "failures are told at once": Mutant(SESSION, "sleep(self._failure_delay_s)", "sleep(0)", OF_SESSION),
    "large frames before": Mutant(
        SESSION, "connection.limit_frames(self._config.max_receive_bytes)", "pass", OF_SESSION
    ),
    "served when the first token is there": Mutant(
        SESSION,
        "        if exchange.user is None:\n            return answer\n",
        "        if exchange.user is None:\n            self._is_authenticated = True\n            return answer\n",
        OF_SESSION,
    ),
    "a token's client counts as its owner": Mutant(
        SESSION, "has_token=exchange.has_token)", "has_token=False)", OF_SESSION
    ),
    "the principal is forgotten": Mutant(SECURED, "        self.principal = principal\n", "", OF_SESSION),
}

SCRAM_AND_PLAIN = {
    "nonce not compared": Mutant(
        EXCHANGE, 'not any(hmac.compare_digest(found["nonce"], each) for each in nonces):', "not nonces:", OF_NONCES
    ),
    "the end of the nonce compared": Mutant(
        EXCHANGE, 'hmac.compare_digest(found["nonce"], each)', 'found["nonce"].endswith(each)', OF_NONCES
    ),
    "the beginning of the nonce compared": Mutant(
        EXCHANGE, 'hmac.compare_digest(found["nonce"], each)', 'each.startswith(found["nonce"])', OF_NONCES
    ),
    "channel binding not compared": Mutant(EXCHANGE, 'if found["channel"] not in channels or', "if", OF_EXCHANGE),
    "channel binding may be asked for": Mutant(
        EXCHANGE, '"(?P<header>n,', '"(?P<header>(?:[ny]|p=[a-z-]+),', OF_EXCHANGE
    ),
    "proof not compared": Mutant(
        EXCHANGE,
        "if not hmac.compare_digest(stored_key, credential.stored_key):",
        "if not stored_key:",
        OF_EXCHANGE,
    ),
    "proof of any length": Mutant(EXCHANGE, "if len(proof) != len(signature) or", "if", OF_EXCHANGE),
    "proof in other letters": Mutant(
        EXCHANGE,
        'if len(proof) != len(signature) or base64.b64encode(proof).decode() != found["proof"]:',
        "if len(proof) != len(signature):",
        OF_EXCHANGE,
    ),
    "signed without the challenge": Mutant(
        EXCHANGE, "{self._bare},{self._challenge},{found['unproved']}", "{self._bare},,{found['unproved']}", OF_EXCHANGE
    ),
    "any authorization id": Mutant(
        EXCHANGE,
        'if found["authzid"] and _plain_name(found["authzid"], self._wrong) != self._asked:',
        "if not found:",
        OF_EXCHANGE,
    ),
    "every broker has a secret of its own": Mutant(
        CREDENTIALS, "await self._read_secret()", "self._random.uuid()", OF_CREDENTIALS
    ),
    "another salt for unknown users each time": Mutant(
        CREDENTIALS, "user, self._secret,", "user, self._random.uuid(),", OF_CREDENTIALS
    ),
    "unknown users have few iterations": Mutant(
        CREDENTIALS, "self._iterations[mechanism] or (MIN_ITERATIONS,)", "(MIN_ITERATIONS,)", OF_CREDENTIALS
    ),
    "a user's password for a token": Mutant(
        EXCHANGE,
        "            if token is None:\n                raise SaslAuthenticationError(self._wrong)\n",
        "            if token is None:\n                found = await self._find(self._asked, self._mechanism)\n"
        "                token = TokenCredential(self._asked, 0, found)  # type: ignore[arg-type]\n",
        OF_EXCHANGE,
    ),
    "a token's id is its owner": Mutant(
        EXCHANGE, "            self._asked, self.", "            _, self.", OF_EXCHANGE
    ),
    "an exchange goes on": Mutant(
        EXCHANGE,
        "        if self.user is not None:\n            raise SaslAuthenticationError(self._wrong)\n        return",
        "        return",
        OF_EXCHANGE,
    ),
    "few iterations are kept": Mutant(
        CHANGES,
        "if change.iterations < MIN_ITERATIONS:",
        "if change.iterations < 1:",
        "tests/cluster/security/test_scram_changes.py",
    ),
    "any password": Mutant(EXCHANGE, "if known is None or not matches:", "if known is None:", OF_EXCHANGE),
    "the beginning of a password": Mutant(
        EXCHANGE,
        "hmac.compare_digest(self._digest(password), self",
        'hmac.compare_digest(self._digest(password[: len(known or "")]), self',
        OF_EXCHANGE,
    ),
    "no password": Mutant(
        EXCHANGE,
        "        if not password:\n",
        "        if not password and user in self._users:\n            self.user = user\n        if not password:\n",
        OF_EXCHANGE,
    ),
    "any authorization id in PLAIN": Mutant(EXCHANGE, "if authzid and authzid != user:", "if not user:", OF_EXCHANGE),
    "an authorization id is the user": Mutant(
        EXCHANGE,
        "        if authzid and authzid != user:",
        "        user = authzid or user\n        if authzid and authzid != user:",
        OF_EXCHANGE,
    ),
    "the server's nonce is not looked at": Mutant(
        CLIENT, "not nonce.startswith(own_nonce) or nonce == own_nonce", "not nonce", OF_CLIENT
    ),
    "a server without a nonce": Mutant(CLIENT, "(own_nonce) or nonce == own_nonce:", "(own_nonce):", OF_CLIENT),
    "a server that asks for few iterations": Mutant(
        CLIENT, "if not MIN_ITERATIONS <= iterations", "if not 1 <= iterations", OF_CLIENT
    ),
    "a server that asks for many iterations": Mutant(CLIENT, "iterations <= MAX_ITERATIONS:", "iterations:", OF_CLIENT),
    "the server's signature is not compared": Mutant(
        CLIENT,
        'if not last.startswith("v=") or not hmac.compare_digest(_decoded(last[2:].partition(",")[0]), expected):',
        'if not last.startswith("v="):',
        OF_CLIENT,
    ),
}

TLS_AND_NAMES = {
    "required is requested": Mutant(
        CONTEXT, '"required": ssl.CERT_REQUIRED', '"required": ssl.CERT_OPTIONAL', f"{OF_TLS} -k let_in"
    ),
    "requested is none": Mutant(
        CONTEXT, '"requested": ssl.CERT_OPTIONAL', '"requested": ssl.CERT_NONE', f"{OF_TLS} -k names_the_principal"
    ),
    "requested is required": Mutant(
        CONTEXT, '"requested": ssl.CERT_OPTIONAL', '"requested": ssl.CERT_REQUIRED', f"{OF_TLS} -k names_the_principal"
    ),
    "certificates without a rule": Mutant(
        TLS, "if certificate is not None and user is None:", "if certificate is None and user:", f"{OF_TLS} -k let_in"
    ),
    "a server of any name": Mutant(
        CONTEXT, "context.check_hostname = config.checks_host_name", "context.check_hostname = False", OF_NETWORK
    ),
    "the name of the connection is not given": Mutant(
        NETWORK,
        "name = None if self._context is None else host",
        'name = None if self._context is None else "localhost"',
        OF_NETWORK,
    ),
    "host names are not checked by default": Mutant(
        SSL_CONFIG, "bool(algorithm), allowed_changes(own))", "False, allowed_changes(own))", OF_NETWORK
    ),
    "a broker of any authority": Mutant(
        CONTEXT,
        "    else:\n        _load_trusted(context, config.trust_store)\n    return context",
        "    else:\n        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE\n    return context",
        OF_NETWORK,
    ),
    "the listener's certificate for clients of SASL": Mutant(
        SSL_CONFIG,
        'if is_sasl and own.name("ssl.client.auth") == "ssl.client.auth":',
        "if is_sasl:",
        "tests/security/test_ssl_config.py",
    ),
    "the last rule counts": Mutant(
        SSL_RULES, "for rule in self.rules if", "for rule in self.rules[::-1] if", OF_SSL_RULES
    ),
    "a rule for part of the subject": Mutant(
        SSL_RULES, "self.pattern.fullmatch(", "self.pattern.search(", OF_SSL_RULES
    ),
    "subjects without a rule stay": Mutant(
        SSL_RULES,
        "rule.apply(subject)) is not None), None)",
        "rule.apply(subject)) is not None), subject)",
        OF_SSL_RULES,
    ),
    "letters change before": Mutant(
        SSL_RULES, "return self.change(self.pattern.sub(", "return (self.pattern.sub(", OF_SSL_RULES
    ),
    "the last rule of Kerberos counts": Mutant(
        KERBEROS_RULES,
        "for rule in self.rules:",
        "for rule in self.rules[::-1]:",
        f"{OF_KERBEROS_RULES} -k not(kafka)",
    ),
    "DEFAULT in every realm": Mutant(
        KERBEROS_RULES,
        "parts[1] if parts[0] == default_realm else None",
        "parts[1]",
        f"{OF_KERBEROS_RULES} -k not(kafka)",
    ),
    "any number of components": Mutant(
        KERBEROS_RULES,
        "if len(parts) - 1 != self.components:",
        "if len(parts) <= self.components:",
        f"{OF_KERBEROS_RULES} -k not(kafka)",
    ),
    "names with realms": Mutant(
        KERBEROS_RULES, 'if "/" in found or "@" in found:', 'if "/" in found:', f"{OF_KERBEROS_RULES} -k not(kafka)"
    ),
    "commas in names are not told": Mutant(
        SUBJECTS,
        "if letter in _ESCAPED or not begin",
        "if not begin",
        "tests/security/test_distinguished_name.py",
    ),
    "the least specific part first": Mutant(
        SUBJECTS,
        "for each in reversed(_elements(subject.content))",
        "for each in _elements(subject.content)",
        "tests/security/test_distinguished_name.py",
    ),
}

SIGNED_TOKENS = {
    "signatures are not checked": Mutant(
        VALIDATOR,
        "decode_complete(token, key, algorithms=[algorithm])",
        'decode_complete(token, key, algorithms=[algorithm], options={"verify_signature": False})',
        OF_VALIDATOR,
    ),
    "tokens of any issuer": Mutant(
        VALIDATOR, 'if rules.issuer is not None and claims.get("iss") != rules.issuer:', "if not claims:", OF_VALIDATOR
    ),
    "tokens for others": Mutant(VALIDATOR, "        check_audience(claims, rules.audiences)\n", "", OF_VALIDATOR),
    "tokens that have expired": Mutant(
        CLAIMS, "if now_ms - skew_ms >= expires_ms:", "if expires_ms <= 0:", OF_VALIDATOR
    ),
    "tokens that have not begun": Mutant(
        CLAIMS, "if time_ms is not None and time_ms > now_ms + skew_ms:", "if time_ms == -1:", OF_VALIDATOR
    ),
    "the first of several keys": Mutant(
        "broker/security/issuer_keys.py", "if len(fitting) == 1 else None", "if fitting else None", OF_VALIDATOR
    ),
    "signed tokens where none are": Mutant(
        CLAIMS,
        'if decoded_object(header, "header").get("alg") != "none" or signature:',
        "if not header:",
        "tests/security/test_bearer_exchange.py",
    ),
    "a claim that is there twice": Mutant(
        CLAIMS, "    if len(found) < len(pairs):\n", "    if not pairs and found:\n", OF_VALIDATOR
    ),
    "any authorization id of a token": Mutant(
        "security/bearer_exchange.py",
        "if message.authzid and message.authzid != valid.user:",
        "if not valid.user:",
        "tests/security/test_bearer_exchange.py",
    ),
}

TICKETS = {
    "any layer": Mutant(
        GSSAPI, "if len(message) < len(_OFFER) or not message[0] & _NO_LAYER:", "if not message:", OF_GSSAPI
    ),
    "a token after the last": Mutant(
        GSSAPI,
        '            if token:\n                raise GssError("a token came after the last one")\n',
        "            pass\n",
        OF_GSSAPI,
    ),
    "an empty name": Mutant(GSSAPI, "        if not user:\n", "        if user is None:\n", OF_GSSAPI),
    "tokens of any size": Mutant(GSSAPI, "if len(token) > MAX_TOKEN_BYTES:", "if not self._names:", OF_GSSAPI),
}

DELEGATION = {
    "anybody renews": Mutant(
        TOKEN, "if principal != self.owner and principal not in self.renewers:", "if not principal.name:", OF_TOKENS
    ),
    "tokens that have ended are renewed": Mutant(
        TOKEN, "        if self.has_expired(now_ms):\n", "        if now_ms < 0:\n", OF_TOKENS
    ),
    "renewed beyond the longest life": Mutant(
        TOKEN, "expiry_ms=min(self.max_ms, now_ms + period_ms)", "expiry_ms=now_ms + period_ms", OF_TOKENS
    ),
    "tokens for other users": Mutant(
        "broker/handlers/security/delegation_tokens.py",
        "if owner != context.principal:",
        "if not owner.name:",
        OF_TOKENS,
    ),
    "tokens of owners who are no users": Mutant(
        "broker/security/delegation_token_manager.py",
        'if found is None or found[0].owner.kind != "User":',
        "if found is None:",
        OF_TOKENS,
    ),
}

MUTANTS = {**SESSIONS, **SCRAM_AND_PLAIN, **TLS_AND_NAMES, **SIGNED_TOKENS, **TICKETS, **DELEGATION}


@pytest.mark.parametrize("name", due(MUTANTS))
def test_bugs_are_caught(name: str, tmp_path: Path) -> None:
    if name in TICKETS:
        require_kerberos()
    assert_caught(name, MUTANTS[name], tmp_path)
