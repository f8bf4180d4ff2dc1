"""odradek health: ask a broker for its API versions; the exit code is 0 when it answers."""

from __future__ import annotations

import asyncio
import sys

from client.errors import ClientTimeoutError
from tools.support.common import BOOTSTRAP_SERVER, COMMAND_CONFIG, admin_client, run_tool
from tools.support.options import Option, OptionParser, Options

PARSER = OptionParser(
    "Ask a broker for its API versions; exit code 0 when it answers.",
    [
        BOOTSTRAP_SERVER,
        COMMAND_CONFIG,
        Option("timeout", "How long to wait for the answer.", "timeout (ms)", "Integer", default="4000"),
    ],
)


async def work(options: Options) -> int:
    """Connect, which requests the API versions, and print the result."""
    timeout_ms = options.required_number("timeout")
    async with admin_client(options, client_id="health") as client:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await client.any_connection()
        except TimeoutError:
            servers = options.required_text("bootstrap-server")
            raise ClientTimeoutError(f"{servers} did not answer within {timeout_ms} ms") from None
        print(f"{connection.address} serves {len(connection.versions)} APIs")
    return 0


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, lambda options: options.require("bootstrap-server"), work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
