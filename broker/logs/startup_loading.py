"""Loading of all logs at startup and closing them at shutdown, on num.recovery.threads.per.data.dir threads per
directory.

The log lines are those of Kafka's LogManager. If loading takes longer than a second, a line each second gives the
progress, the rate and the remaining time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from itertools import chain

from environment.contract import Clock, Executor
from storage.log.log_flush import FlushTask, run_together
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.recovery.directory_loading import DirectoryLoad, LoadProgress
from storage.recovery.log_directory_survey import LoadReport

logger = logging.getLogger("kafka.log.LogManager")

PROGRESS_INTERVAL_S = 1.0
FLUSH_THREADS = 8
_MEGABYTE = 1_000_000
_WORTH_A_RATE_BYTES = 10 * _MEGABYTE


async def load_logs(
    log_manager: LogManager,
    topic_configs: Mapping[str, LogConfig],
    clock: Clock,
    executor: Executor,
    threads_per_directory: int,
) -> LoadReport:
    """Load every log of every directory, and log what was or could not be repaired. Raises LogDirError."""
    began_s = clock.monotonic_s()
    loads = await executor.run(log_manager.begin_load, clock.now_ms(), topic_configs)
    for load in loads:
        _log_begin(load)
    workers = [
        asyncio.ensure_future(executor.run(load.work))
        for load in loads
        for _ in range(min(threads_per_directory, len(load.tasks)))
    ]
    pending = set(workers)
    while pending:
        _, pending = await asyncio.wait(pending, timeout=PROGRESS_INTERVAL_S)
        if pending:
            for load in loads:
                log_progress(load.progress(), clock.monotonic_s() - began_s)
    for worker in workers:
        worker.result()
    report = await executor.run(log_manager.complete_load, loads)
    _log_end(loads, report, clock.monotonic_s() - began_s)
    return report


async def close_logs(
    log_manager: LogManager, executor: Executor, threads_per_directory: int, broker_epoch: int
) -> None:
    """Close all logs cleanly, on at least FLUSH_THREADS threads: creating and fsyncing files mostly waits for the file
    system's journal, and several threads can wait together.
    """
    logs = log_manager.logs_to_close()
    threads = max(threads_per_directory * len(log_manager.directories), FLUSH_THREADS)
    shares = [logs[first::threads] for first in range(min(threads, len(logs)))]
    closed = await asyncio.gather(*(executor.run(_close, log_manager, share) for share in shares))
    tasks = list(chain.from_iterable(closed))
    await executor.run(log_manager.complete_close, tasks, broker_epoch)


def _close(log_manager: LogManager, logs: Sequence[UnifiedLog]) -> list[FlushTask]:
    tasks = log_manager.begin_close(logs)
    run_together(tasks)
    return tasks


def _log_begin(load: DirectoryLoad) -> None:
    path, count = load.directory.path, len(load.tasks)
    if count and load.is_clean:
        logger.info("Skipping recovery of %d logs from %s since clean shutdown file was found", count, path)
    elif count:
        logger.info("Recovering %d logs from %s since no clean shutdown file was found", count, path)


def log_progress(progress: LoadProgress, elapsed_s: float) -> None:
    """Log one directory's progress, unless it is done."""
    if progress.logs_done == progress.logs_total:
        return
    logged = f"Loading logs of {progress.directory}: {progress.logs_done} of {progress.logs_total} done"
    done, total = progress.recovered_bytes, progress.total_bytes
    if total:
        logged += f", {done // _MEGABYTE} of {total // _MEGABYTE} MB recovered"
    rate = f"{done / elapsed_s / _MEGABYTE:.0f} MB/s"
    if total < _WORTH_A_RATE_BYTES:  # so little data that the number of logs determines the time
        done, total = progress.logs_done, progress.logs_total
        rate = f"{done / elapsed_s:.0f} logs/s"
    if done:
        logged += f", {rate}, about {(total - done) / done * elapsed_s:.0f} s left"
    logger.info("%s", logged)


def _log_end(loads: list[DirectoryLoad], report: LoadReport, elapsed_s: float) -> None:
    for result in report.repaired:
        for path in result.split_segments:
            logger.info("Splitting overflowed segment %s", path)
        if not result.truncated_bytes and not result.lost_below_high_watermark:
            continue
        logger.warning(
            "Recovered %s: truncated %d bytes%s",
            result.log.topic_partition,
            result.truncated_bytes,
            ", some of them below the high watermark" if result.lost_below_high_watermark else "",
        )
    for topic_partition, reason in report.refused.items():
        logger.error("The log of %s cannot be used: %s", topic_partition, reason)
    progress = [load.progress() for load in loads]
    count = sum(each.logs_done for each in progress)
    if count:
        unclean = ", ".join(load.directory.path for load in loads if not load.is_clean)
        recovered = sum(each.recovered_bytes for each in progress) / _MEGABYTE
        logger.info(
            "Loaded %d logs in %.0fms (unclean log dirs = [%s], %.0f MB recovered)",
            count,
            elapsed_s * 1000,
            unclean,
            recovered,
        )
