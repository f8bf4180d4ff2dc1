"""Opening all logs of a directory on several threads (Kafka's `LogManager.loadLogs`).

The owner of the logs creates a `DirectoryLoad` for each directory, any number of threads call `work`, and the owner
completes it. The threads share and change only two queues: each log is loaded as if it were alone in its directory, and
reports to the directory are made at the end, in the order of the logs. So the result does not depend on the number or
the timing of the threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from protocol.value import Value
from storage.directory.log_directory import LogDirectory
from storage.io.file_system import FileInfo, FileSystem
from storage.log_config import LogConfig
from storage.recovery.load_options import LoadOptions, LoadResult, bytes_to_recover
from storage.recovery.log_loader import LogLoader


class LoadProgress(Value):
    """The progress of a directory. The byte counts cover the reads that repair logs after an unclean stop: done, and
    the total as far as known.
    """

    directory: str
    logs_done: int
    logs_total: int
    recovered_bytes: int
    total_bytes: int


class LoadTask:
    """One log to open. Any thread may call `run`, which uses no shared state. It sets `result`, `refusal` (unusable
    files) or `failure` (the disk failed).
    """

    __slots__ = (
        "_config",
        "_file_system",
        "_files",
        "directory",
        "failure",
        "is_done",
        "options",
        "recovered_bytes",
        "refusal",
        "result",
        "topic_partition",
        "total_bytes",
    )

    def __init__(
        self,
        file_system: FileSystem,
        path: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        options: LoadOptions,
    ) -> None:
        """`path` of the log directory."""
        self._file_system = file_system
        self._config = config
        self.options = options
        self._files: list[FileInfo] | None = None
        self.topic_partition = topic_partition
        self.directory = LogDirectory(path, lambda _path, _reason: None)
        """Stands in for the log directory while this log is loaded, because the real one belongs to the owner of the
        logs.
        """
        self.total_bytes = 0
        self.recovered_bytes = 0
        self.is_done = False
        self.result: LoadResult | None = None
        self.refusal: str | None = None
        self.failure: str | None = None

    def survey(self) -> None:
        """Compute how much `run` will read. An error is left for `run` to raise."""
        try:
            name = self.options.name or self.topic_partition
            self._files = self._file_system.list_dir(f"{self.directory.path}/{name}")
        except OSError:
            return
        self.total_bytes = bytes_to_recover(self._files, self.options.recovery_point)

    def run(self) -> None:
        """Open the log."""
        try:
            loader = LogLoader(
                self._file_system, self.directory, self.topic_partition, self._config, self.options, self._count
            )
            self.result = loader.load(self._files)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._file_system.exists(self.directory.path):
                self.refusal = str(error)
            else:
                self.failure = f"Error while loading log dir {self.directory.path}: {error}"
        except (ValueError, ApiError) as error:
            self.failure = self.directory.failure
            if self.failure is None:
                self.refusal = getattr(error, "message", "") or str(error)
        self._files = None
        self.total_bytes = self.recovered_bytes
        self.is_done = True

    def _count(self, size: int) -> None:
        self.recovered_bytes += size
        self.total_bytes = max(self.total_bytes, self.recovered_bytes)


class DirectoryLoad:
    """The logs of one directory, in the order of discovery."""

    def __init__(self, directory: LogDirectory, tasks: Sequence[LoadTask], *, is_clean: bool) -> None:
        """`is_clean`: the directory had a clean shutdown, so its logs need not be repaired."""
        self.directory = directory
        self.tasks = tasks
        self.is_clean = is_clean
        self._to_survey = deque(() if is_clean else tasks)
        self._to_run = deque(tasks)

    def work(self) -> None:
        """Load logs until all are loaded or the disk fails. Any number of threads may call it concurrently."""
        while (task := _next_of(self._to_survey)) is not None:
            task.survey()
        while (task := _next_of(self._to_run)) is not None:
            task.run()
            if task.failure is not None:
                self._to_run.clear()

    def progress(self) -> LoadProgress:
        """May be called on any thread at any time."""
        done = recovered_bytes = total_bytes = 0
        for task in self.tasks:
            done += task.is_done
            recovered_bytes += task.recovered_bytes
            total_bytes += task.total_bytes
        return LoadProgress(self.directory.path, done, len(self.tasks), recovered_bytes, total_bytes)


def _next_of(tasks: deque[LoadTask]) -> LoadTask | None:
    try:
        return tasks.popleft()
    except IndexError:
        return None
