"""The command line of `odradek cluster start|status|stop|kill|pause|resume|add|logs`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from tools.local_cluster.cluster_directory import (
    DEFAULT_DIRECTORY,
    MECHANISMS,
    ZOOKEEPER,
    ClusterDirectory,
    ClusterSecurity,
    ClusterState,
)
from tools.local_cluster.cluster_lifecycle import ClusterLifecycle
from tools.local_cluster.cluster_processes import Condition, ProcessId, observe, send_signal, wait_for_end
from tools.local_cluster.cluster_secrets import client_files
from tools.local_cluster.cluster_status import STYLES, gather_status, render
from tools.local_cluster.process_commands import SESSION_TIMEOUT_MS
from tools.local_cluster.server_logs import NamedLog, show_logs
from tools.support.common import ToolError, parse_pairs, run_work
from tools.support.options import CommandParser
from tools.support.terminal import show

DEFAULT_BROKERS = 3
DEFAULT_BASE_PORT = 9092
EMBEDDED = "embedded"
PER_BROKER = {"advertised.listeners", "broker.id", "listeners", "log.dir", "log.dirs", "zookeeper.connect"}
_WATCH_S = 1.0
_HOME_AND_CLEAR = "\x1b[H\x1b[J"

Action = Callable[[argparse.Namespace, ClusterDirectory], Awaitable[int | None]]
"""Does the action and returns its exit code; None is 0."""


def add_to(actions: argparse._SubParsersAction[CommandParser]) -> None:
    """Add the parser of each action."""

    def action(name: str, what: str) -> CommandParser:
        added = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", allow_abbrev=False)
        added.add_argument(
            "--dir", default=DEFAULT_DIRECTORY, metavar="DIR", help=f"its directory (default: ./{DEFAULT_DIRECTORY})"
        )
        return added

    start = action("start", "create and start a cluster, or start its dead processes")
    start.add_argument("--brokers", type=_count, metavar="N", help=f"number of brokers (default: {DEFAULT_BROKERS})")
    start.add_argument(
        "--base-port", type=_port, metavar="PORT", help=f"port of broker 1 (default: {DEFAULT_BASE_PORT})"
    )
    service = start.add_mutually_exclusive_group()
    service.add_argument(
        "--coordination",
        choices=(EMBEDDED, ZOOKEEPER),
        help=f"start the embedded tree, or a real ZooKeeper, which needs Java (default: {EMBEDDED})",
    )
    service.add_argument(
        "--zookeeper", type=_connect, metavar="HOST:PORT[/CHROOT]", help="use a ZooKeeper that already runs"
    )
    start.add_argument("--tls", action="store_true", help="encrypt; creates an authority and certificates")
    start.add_argument(
        "--sasl", choices=MECHANISMS, metavar="MECHANISM", help=f"make users log in: {', '.join(MECHANISMS)}"
    )
    start.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="set a key of all brokers"
    )
    action("status", "show brokers, controller, partitions and memory").add_argument(
        "--watch", action="store_true", help="refresh every second, until Ctrl-C"
    )
    action("stop", "stop all brokers in order, then their coordination")
    for name, what in (
        ("kill", "kill a process, as a crash would (SIGKILL)"),
        ("pause", "suspend a process (SIGSTOP)"),
        ("resume", "resume a paused process (SIGCONT)"),
    ):
        action(name, what).add_argument("process", type=_process, metavar="N|zookeeper", help="the broker's id")
    action("add", "start one more broker")
    logs = action("logs", "show the logs of the brokers and their coordination")
    logs.add_argument("process", type=_process, nargs="?", metavar="N|zookeeper", help="the log of one (default: all)")
    logs.add_argument("-f", "--follow", action="store_true", help="show new lines, too, until Ctrl-C")
    logs.add_argument("-n", "--lines", type=_count, default=20, metavar="N", help="lines of each log (default: 20)")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port")
    return int(text)


def _connect(text: str) -> str:
    for server in text.partition("/")[0].split(","):
        host, colon, port = server.strip().rpartition(":")
        if not colon or not host or not port.isdecimal():
            raise argparse.ArgumentTypeError(f"'{server}' is not HOST:PORT")
    return text


def _process(text: str) -> int | str:
    if text == ZOOKEEPER or text.isdecimal():
        return text if text == ZOOKEEPER else int(text)
    raise argparse.ArgumentTypeError(f"'{text}' is neither the id of a broker nor {ZOOKEEPER}")


def tell(line: str) -> None:
    """Print a line and flush it."""
    print(line, flush=True)


# -- actions -----------------------------------------------------------------------------------------------------------


async def start(arguments: argparse.Namespace, directory: ClusterDirectory) -> None:
    """Create the cluster if it does not exist, start it, and print how to use it."""
    directory.path.mkdir(parents=True, exist_ok=True)
    with directory.locked():
        if directory.exists:
            lifecycle = ClusterLifecycle(directory, tell)
            _refuse_changes(arguments, lifecycle.state, directory)
            await lifecycle.start()
        else:
            lifecycle = ClusterLifecycle.make(
                directory,
                tell,
                brokers=arguments.brokers or DEFAULT_BROKERS,
                base_port=arguments.base_port or DEFAULT_BASE_PORT,
                zookeeper=arguments.zookeeper,
                is_embedded=arguments.coordination != ZOOKEEPER,
                settings=_settings(arguments),
                security=ClusterSecurity(arguments.tls, arguments.sasl),
            )
            try:
                await lifecycle.start()
            except BaseException:
                await lifecycle.stop()
                directory.forget()
                raise
    _say_what_next(directory, lifecycle.state)


def _settings(arguments: argparse.Namespace) -> dict[str, str]:
    """The keys of `--set`. Raises ToolError for keys that must differ between brokers."""
    settings = parse_pairs(arguments.settings, accept_missing_value=False)
    for key in PER_BROKER & settings.keys():
        raise ToolError(f"--set {key}: each broker has its own, which the command chooses")
    return settings


def _refuse_changes(arguments: argparse.Namespace, state: ClusterState, directory: ClusterDirectory) -> None:
    """Raise ToolError for options that cannot change in an existing cluster."""
    brokers = len(state.brokers)
    if arguments.brokers not in {None, brokers}:
        raise ToolError(f"the cluster in {directory.path} has {brokers} brokers; `{directory.command('add')}` adds one")
    if arguments.zookeeper not in {None, state.zookeeper.connect}:
        raise ToolError(f"the cluster in {directory.path} is on the ZooKeeper {state.zookeeper.connect}")
    own = EMBEDDED if state.zookeeper.is_embedded else ZOOKEEPER
    if arguments.coordination not in {None, own} or (arguments.coordination and state.zookeeper.port is None):
        raise ToolError(f"the cluster in {directory.path} is on {state.zookeeper.title} at {state.zookeeper.connect}")
    if arguments.base_port not in {None, state.brokers[0].port}:
        raise ToolError(f"broker 1 of the cluster in {directory.path} has port {state.brokers[0].port}")
    if arguments.tls > state.security.has_tls or arguments.sasl not in {None, state.security.mechanism}:
        raise ToolError(
            f"the cluster in {directory.path} was made with {state.security.title}, and that cannot change; "
            f"`{directory.command('start')}` starts it as it is, and another --dir makes another cluster"
        )
    if arguments.settings:
        raise ToolError(
            f"the cluster in {directory.path} exists; change {directory.path}/broker-*/server.properties instead"
        )


def _say_what_next(directory: ClusterDirectory, state: ClusterState) -> None:
    topics = f"odradek topics --bootstrap-server {state.brokers[0].address}"
    if state.security.is_on:
        files = client_files(directory, state)
        topics += f" --command-config {shlex.quote(str(files[0].path))}"
        for file in files:
            tell(f"\n# {file.title}: {file.path}\n{file.text.rstrip()}")
    else:
        tell(f"\nbootstrap.servers={state.bootstrap_servers}")
    commands = {
        f"{topics} --create --topic flights --partitions {len(state.brokers)}": "",
        directory.command("status --watch"): "leaders, ISR and memory",
        directory.command(f"kill {state.brokers[-1].broker_id}"): "kill -9; `start` starts it again",
        directory.command("stop"): "",
    }
    tell("\nNext:")
    for command, what in commands.items():
        tell(f"  {command}{f'   # {what}' if what else ''}")


async def status(arguments: argparse.Namespace, directory: ClusterDirectory) -> int:
    """Show the status once, or refresh it until the task is cancelled; the exit code is 1 if no broker answers."""
    is_terminal = sys.stdout.isatty()
    while True:
        gathered = await gather_status(directory)
        if arguments.watch and is_terminal:
            print(end=_HOME_AND_CLEAR)
        show(render(gathered), STYLES)
        if not arguments.watch:
            return 1 if gathered.metadata is None else 0
        if not is_terminal:
            tell("")
        await asyncio.sleep(_WATCH_S)


async def stop(_: argparse.Namespace, directory: ClusterDirectory) -> None:
    """Stop everything in order."""
    with _changing(directory) as lifecycle:
        await lifecycle.stop()
    tell(f"stopped; `{directory.command('start')}` starts it again with its data")


async def add(_: argparse.Namespace, directory: ClusterDirectory) -> None:
    """Start one more broker."""
    with _changing(directory) as lifecycle:
        broker = await lifecycle.add()
    tell(f"broker {broker.broker_id} serves at {broker.address}; new topics use it, existing partitions do not move")


async def kill(arguments: argparse.Namespace, directory: ClusterDirectory) -> None:
    """SIGKILL, and wait until the process is gone."""
    state = directory.load()
    what, process = _named(arguments, state)
    if not send_signal(process, signal.SIGKILL):
        raise ToolError(f"{what} does not run")
    await wait_for_end(process)
    tell(f"killed {what}; `{directory.command('start')}` starts it again")
    if arguments.process != ZOOKEEPER:
        timeout_ms = state.settings.get("zookeeper.session.timeout.ms", SESSION_TIMEOUT_MS)
        tell(f"other brokers take over its partitions when its ZooKeeper session ends, within {timeout_ms} ms")


async def pause(arguments: argparse.Namespace, directory: ClusterDirectory) -> None:
    """SIGSTOP."""
    what, process = _named(arguments, directory.load())
    _require(what, process, Condition.RUNNING)
    send_signal(process, signal.SIGSTOP)
    tell(f"paused {what}; `{directory.command(f'resume {arguments.process}')}` resumes it")


async def resume(arguments: argparse.Namespace, directory: ClusterDirectory) -> None:
    """SIGCONT."""
    what, process = _named(arguments, directory.load())
    _require(what, process, Condition.PAUSED)
    send_signal(process, signal.SIGCONT)
    tell(f"resumed {what}")


async def logs(arguments: argparse.Namespace, directory: ClusterDirectory) -> None:
    """Show the logs of one process or of all."""
    state = directory.load()
    names: Sequence[int | str] = [arguments.process]
    if arguments.process is None:
        own_zookeeper = [ZOOKEEPER] if state.zookeeper.port is not None else []
        names = [*own_zookeeper, *(broker.broker_id for broker in state.brokers)]
    else:
        _named(arguments, state)
    found = [NamedLog(str(name), directory.log_file(name)) for name in names]
    await show_logs(found, lines=arguments.lines, follow=arguments.follow, tell=tell)


ACTIONS: dict[str, Action] = {
    "start": start,
    "status": status,
    "stop": stop,
    "kill": kill,
    "pause": pause,
    "resume": resume,
    "add": add,
    "logs": logs,
}


@contextmanager
def _changing(directory: ClusterDirectory) -> Iterator[ClusterLifecycle]:
    """An existing cluster, locked against changes by other commands. Raises ToolError."""
    directory.load()
    with directory.locked():
        yield ClusterLifecycle(directory, tell)


def _named(arguments: argparse.Namespace, state: ClusterState) -> tuple[str, ProcessId | None]:
    """The process that the command line names. Raises ToolError for an unknown name."""
    if arguments.process != ZOOKEEPER:
        broker = state.broker(arguments.process)
        return f"broker {broker.broker_id}", broker.process
    if state.zookeeper.port is None:
        raise ToolError(f"the ZooKeeper at {state.zookeeper.connect} was not started by this cluster")
    return state.zookeeper.title, state.zookeeper.process


def _require(what: str, process: ProcessId | None, wanted: Condition) -> None:
    found = observe(process).condition
    if found is not wanted:
        raise ToolError(f"{what} is {found.value}, not {wanted.value}")


def run(arguments: argparse.Namespace) -> int:
    """Run one action; returns the exit code."""
    # Failed connections belong to the status: do not log them.
    logging.basicConfig(level=logging.ERROR)
    directory = ClusterDirectory(arguments.dir)

    async def work() -> int:
        return await ACTIONS[arguments.command](arguments, directory) or 0

    return run_work(work)
