"""kafka-configs with --zookeeper: users of SCRAM before the first broker starts (Kafka class `ConfigCommand`).

The tree belongs to the brokers, so a process of the server's code changes it. Passwords are salted here.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from config.broker_keys import SCRAM_KEYS
from tools.configurations.quotas import RefusedError
from tools.configurations.scram_users import salted_passwords
from tools.local_cluster.process_commands import server_module
from tools.support.options import Options


async def describe(options: Options, names: Sequence[str]) -> int:
    """Print the configurations of users, secrets included; returns the exit code."""
    return await _run(options, {"describe": list(names) or None})


async def alter(options: Options, user: str, added: Mapping[str, str], deleted: Sequence[str]) -> int:
    """Change the credentials of a user; returns the exit code. Raises RefusedError."""
    if any(key not in SCRAM_KEYS for key in (*added, *deleted)):
        raise RefusedError(
            "--bootstrap-server option must be specified to update users configs: "
            f"{{add: {', '.join(added)}, delete: {', '.join(deleted)}}}. "
            "User configuration updates using ZooKeeper are only supported for SCRAM credential updates."
        )
    if not user:
        raise RefusedError(f"Unknown Dynamic Configuration: {', '.join([*added, *deleted])}: it belongs to a user")
    credentials = {
        each.mechanism: [each.iterations, *(base64.b64encode(part).decode() for part in (each.salt, each.salted))]
        for each in salted_passwords(added)
    }
    return await _run(options, {"user": user, "set": credentials, "remove": list(deleted)})


async def _run(options: Options, wanted: Mapping[str, Any]) -> int:
    places = {
        "connect": options.text("zookeeper"),
        "tls_file": options.text("zk-tls-config-file"),
        "java_options": os.environ.get("KAFKA_OPTS", ""),
    }
    command = server_module("broker.security.user_bootstrap")
    process = await asyncio.create_subprocess_exec(
        *command.words, stdin=asyncio.subprocess.PIPE, env={**os.environ, **command.environment}
    )
    try:
        # Not as arguments, which other users of this machine can see.
        await process.communicate(json.dumps({**places, **wanted}).encode())
    finally:
        if process.returncode is None:
            process.kill()
    return await process.wait()
