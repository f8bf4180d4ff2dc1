"""The broker's environment on a real machine: the real adapter of each interface."""

from __future__ import annotations

from collections.abc import Callable

from broker.environment.contract import Ensemble, Environment
from broker.environment.system import (
    SystemClock,
    SystemRandom,
    TcpNetwork,
    ThreadExecutor,
    kafka_options,
    memory_of_this_process,
    read_text,
    room_for_connections,
)
from broker.logs.cleaner_worker import ProcessWorker
from broker.zookeeper.embedded_ensemble import open_embedded
from config.broker_config import BrokerConfig
from storage.io.os_file_system import OsFileSystem


def environment_of_this_machine(config: BrokerConfig) -> Environment:
    """Real clocks, disks, threads and sockets."""
    file_system = OsFileSystem()
    return Environment(
        clock=SystemClock(),
        random=SystemRandom(),
        executor=ThreadExecutor(
            max(config.num_io_threads, config.num_recovery_threads_per_data_dir * len(config.log_dirs))
        ),
        network=TcpNetwork(config.socket_listen_backlog_size),
        file_system=file_system,
        open_ensemble=open_ensemble,
        new_cleaner_worker=ProcessWorker,
        memory_bytes=memory_of_this_process(),
        most_connections=room_for_connections(file_system.max_open_files),
    )


async def open_ensemble(
    environment: Environment, config: BrokerConfig, on_failure: Callable[[OSError], None]
) -> Ensemble:
    """The environment's OpenEnsemble: ZooKeeper when `zookeeper.connect` names one, else a tree of the broker's own."""
    if config.zookeeper_address is None:
        return await open_embedded(environment, config, on_failure)
    # A broker of its own needs none of it, and starts faster without.
    from broker.zookeeper.kazoo_session import KazooEnsemble
    from security.jaas import system_properties, zookeeper_login

    login = zookeeper_login(system_properties(kafka_options()), read_text)
    return KazooEnsemble(config.zookeeper_address, config, login)
