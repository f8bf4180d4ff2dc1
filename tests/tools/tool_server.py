"""Run our command-line tools, each in a process forked from this one, which has already imported them.

The counterpart of ToolRunner.java: a line of JSON in ({"tool", "args", "stdin", "timeout_ms"}), a line of JSON out
({"code", "stdout", "stderr"}); "code" is null after a timeout.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from typing import Any

TOOLS = (
    "acls",
    "broker_api_versions",
    "cluster",
    "configs",
    "console_consumer",
    "console_producer",
    "consumer_groups",
    "consumer_perf_test",
    "delegation_tokens",
    "delete_records",
    "e2e_latency",
    "get_offsets",
    "leader_election",
    "log_dirs",
    "producer_perf_test",
    "reassign_partitions",
    "topics",
    "transactions",
    "verifiable_consumer",
    "verifiable_producer",
)
POLL_S = 0.005


def run_as_child(command: dict[str, Any], descriptors: tuple[int, int, int]) -> None:
    """Become the tool; does not return."""
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    code = 1
    try:
        module = importlib.import_module(f"tools.{command['tool']}")
        code = module.main(command["args"])
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  a traceback is what the tool would end with
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def run(command: dict[str, Any]) -> dict[str, Any]:
    """Run one tool from start to end."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(command["stdin"].encode())
        given.seek(0)
        child = os.fork()
        if child == 0:
            run_as_child(command, (given.fileno(), out.fileno(), err.fileno()))
        deadline = time.monotonic() + command["timeout_ms"] / 1000
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                code = None
                break
            time.sleep(POLL_S)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return {"code": code, "stdout": texts[0], "stderr": texts[1]}


def serve() -> None:
    """Answer commands until the input ends."""
    for name in TOOLS:
        importlib.import_module(f"tools.{name}")
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
