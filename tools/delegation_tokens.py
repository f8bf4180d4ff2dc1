"""kafka-delegation-tokens: create, renew, expire and show delegation tokens (Kafka class `DelegationTokenCommand`).

The output contains the HMAC, which is the token's password. --create needs a client with a password or certificate: a
token cannot create another one.
"""

from __future__ import annotations

import base64
import binascii
import sys
import time
from collections.abc import Iterable

from client.security_admin import Token, TokenPrincipal, create_token, describe_tokens, expire_token, renew_token
from protocol.errors import ApiError
from tools.support.common import BOOTSTRAP_SERVER, ToolError, admin_client, reason, run_tool
from tools.support.error_texts import exception_text
from tools.support.options import Option, OptionParser, Options, UsageError

ACTIONS = ("create", "renew", "expire", "describe")
PARSER = OptionParser(
    "This tool helps to create, renew, expire, or describe delegation tokens.",
    [
        BOOTSTRAP_SERVER,
        Option("command-config", "Required: a file with properties for the client.", "property file"),
        Option("create", "Make a token, for --owner-principal or oneself."),
        Option("renew", "Have the token of --hmac end later."),
        Option("expire", "Have the token of --hmac end earlier, or at once."),
        Option("describe", "Show the tokens that --owner-principal owns, has made or may renew."),
        Option("owner-principal", "The owner of a token, as User:name.", "", argument_optional=True),
        Option("renewer-principal", "Who may renew the token, too, as User:name.", "", argument_optional=True),
        Option(
            "max-life-time-period",
            "With --create: milliseconds that the token lives at most; -1 for delegation.token.max.lifetime.ms.",
            "",
            "Long",
            argument_optional=True,
        ),
        Option(
            "renew-time-period",
            "With --renew: milliseconds that it lives from now on; -1 for delegation.token.expiry.time.ms.",
            "",
            "Long",
            argument_optional=True,
        ),
        Option(
            "expiry-time-period",
            "With --expire: milliseconds that it lives from now on; -1 for none.",
            "",
            "Long",
            argument_optional=True,
        ),
        Option("hmac", "The token's HMAC, in Base64.", "", argument_optional=True),
    ],
)
_ROW = "{:<15} {:<30} {:<15} {:<15} {:<25} {:<15} {:<15} {:<15}"
_HEAD = ("TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE")


def check(options: Options) -> None:
    """Raise UsageError for missing options and invalid combinations."""
    if sum(map(options.has, ACTIONS)) != 1:
        raise UsageError("Command must include exactly one action: --create, --renew, --expire or --describe")
    options.require("bootstrap-server", "command-config")
    needed = {
        "create": ("max-life-time-period",),
        "renew": ("hmac", "renew-time-period"),
        "expire": ("hmac", "expiry-time-period"),
    }
    for action, names in needed.items():
        if options.has(action):
            options.require(*names)
    options.forbid("create", "hmac", "renew-time-period", "expiry-time-period")
    options.forbid("renew", "renewer-principal", "max-life-time-period", "expiry-time-period", "owner-principal")
    options.forbid("expire", "max-life-time-period", "renew-time-period", "owner-principal")
    options.forbid("describe", "renew-time-period", "max-life-time-period", "hmac", "expiry-time-period")


async def work(options: Options) -> int:
    """Run the requested action."""
    if options.has("create"):
        await _create(options)
    elif options.has("renew"):
        period_ms = options.required_number("renew-time-period")
        hmac = _hmac(options, f"renew-time-period :{period_ms}", "renew")
        async with admin_client(options) as client:
            end_ms = await renew_token(client, hmac, period_ms)
        print(f"Completed renew operation. New expiry date : {_date(end_ms)}", end="")
    elif options.has("expire"):
        period_ms = options.required_number("expiry-time-period")
        hmac = _hmac(options, f"expire-time-period :{period_ms}", "expire")
        async with admin_client(options) as client:
            end_ms = await expire_token(client, hmac, period_ms)
        print(f"Completed expire operation. New expiry date : {_date(end_ms)}", end="")
    else:
        await _describe(options)
    return 0


async def _create(options: Options) -> None:
    renewers = _principals(options, "renewer-principal")
    lifetime_ms = options.required_number("max-life-time-period")
    print(
        f"Calling create token operation with renewers :{_listed(renewers)} , max-life-time-period :{lifetime_ms}",
        flush=True,
    )
    owners = _principals(options, "owner-principal")
    async with admin_client(options) as client:
        token = await create_token(client, renewers, lifetime_ms, owners[0] if owners else None)
    print(f"Created delegation token with tokenId : {token.token_id}")
    _print([token])


async def _describe(options: Options) -> None:
    owners = _principals(options, "owner-principal")
    asked = f"owners: {_listed(owners)}" if owners else "current user."
    print(f"Calling describe token operation for {asked}", flush=True)
    async with admin_client(options) as client:
        tokens = await describe_tokens(client, owners)
    print(f"Total number of tokens : {len(tokens)}", end="")
    _print(tokens)


def _hmac(options: Options, period: str, action: str) -> bytes:
    """The HMAC option. Raises ToolError."""
    text = options.required_text("hmac")
    print(f"Calling {action} token operation with hmac :{text} , {period}", flush=True)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ToolError(f"Illegal base64 in --hmac: {error}") from error


def _print(tokens: Iterable[Token]) -> None:
    print(f"\n{_ROW.format(*_HEAD)}")
    for each in tokens:
        row = (
            each.token_id,
            base64.b64encode(each.hmac).decode(),
            str(each.owner),
            str(each.requester),
            _listed(each.renewers),
            _date(each.issue_ms),
            _date(each.expiry_ms),
            _date(each.max_ms),
        )
        print(f"\n{_ROW.format(*row)}")


def _listed(principals: Iterable[TokenPrincipal]) -> str:
    return f"[{', '.join(map(str, principals))}]"


def _date(time_ms: int) -> str:
    """A time in the local time zone."""
    return time.strftime("%Y-%m-%dT%H:%M", time.localtime(time_ms / 1000))


def _principals(options: Options, option: str) -> list[TokenPrincipal]:
    """The principals of an option. Raises ToolError."""
    principals = []
    for text in options.texts(option):
        kind, colon, name = text.strip().partition(":")
        if not colon:
            raise ToolError(f"expected a string in format principalType:principalName but got {text.strip()}")
        principals.append(TokenPrincipal(kind, name))
    return principals


def fail(error: BaseException) -> None:
    """Print a failure on standard error, as Kafka's tool does."""
    print(exception_text(error) if isinstance(error, ApiError) else reason(error), file=sys.stderr)


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, check, work, fail=fail)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
