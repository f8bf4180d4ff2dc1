"""Small files next to a table, on whatever file system Spark writes to (local, HDFS, S3)."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.common.session import java_class


def beside(path: str, what: str) -> str:
    """A hidden directory next to the table at `path`, on the same file system: readers of the table never list it."""
    parent, slash, name = path.rstrip("/").rpartition("/")
    # The root of a file system has no parent directory.
    return f"{path}/.{what}" if slash and parent.endswith((":", ":/")) else f"{parent}{slash}.{name}-{what}"


class TableDirectory:
    """A directory in Spark's Hadoop file system, by URI or local path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._spark = spark
        self._configuration = java_class(spark, "org.apache.spark.deploy.SparkHadoopUtil").get().conf()
        self._path_class = java_class(spark, "org.apache.hadoop.fs.Path")
        self._directory = self._path_class(path)
        self._file_system = self._directory.getFileSystem(self._configuration)

    def _child(self, name: str) -> Any:
        return self._path_class(self._directory, name)

    def read_text(self, name: str) -> str | None:
        """The file's text, or None if the file does not exist."""
        path = self._child(name)
        if not self._file_system.exists(path):
            return None
        stream = self._file_system.open(path)
        try:
            text: str = java_class(self._spark, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def names(self) -> list[str]:
        """Names of the direct children; empty if the directory does not exist."""
        if not self._file_system.exists(self._directory):
            return []
        return [status.getPath().getName() for status in self._file_system.listStatus(self._directory)]

    def partitions(self, depth: int) -> list[str]:
        """Relative paths of the partition directories (`name=value`) at `depth` levels below; "" for depth 0."""
        found = [""]
        for _ in range(depth):
            found = [
                f"{path}/{name}".lstrip("/")
                for path in found
                for name in TableDirectory(self._spark, f"{self.path}/{path}").names()
                if "=" in name and name[0] != "."
            ]
        return found

    def uri(self) -> str:
        """The full URI of the directory, file system included."""
        return str(self._file_system.makeQualified(self._directory).toString())

    def has(self, name: str) -> bool:
        """Whether this relative path exists, as a file or a directory."""
        return bool(self._file_system.exists(self._child(name)))

    def files(self) -> list[tuple[str, int]]:
        """All files below, at any depth: their relative paths and their sizes in bytes."""
        if not self._file_system.exists(self._directory):
            return []
        root = self._file_system.resolvePath(self._directory).toUri().getPath()
        found, files = [], self._file_system.listFiles(self._directory, True)
        while files.hasNext():
            status = files.next()
            found.append((status.getPath().toUri().getPath().removeprefix(root).lstrip("/"), int(status.getLen())))
        return found

    def move(self, name: str, to: str) -> None:
        """Rename a child, file or directory. Raises FileExistsError when the rename fails."""
        target = self._child(to)
        if self._file_system.exists(target) or not self._file_system.rename(self._child(name), target):
            raise FileExistsError(f"{self.path}/{name} could not be renamed to {to}")

    def replace(self, name: str, by: TableDirectory) -> None:
        """Replace the child `name` by the child of that name in `by`, which must be on the same file system.

        Raises FileExistsError when the rename fails.
        """
        target = self._child(name)
        self._file_system.delete(target, True)
        self._file_system.mkdirs(target.getParent())
        if not self._file_system.rename(by._child(name), target):
            raise FileExistsError(f"{by.path}/{name} could not be renamed to {self.path}/{name}")

    def remove(self, name: str) -> None:
        """Remove a child and everything below it, if it exists."""
        self._file_system.delete(self._child(name), True)

    def write_text(self, name: str, text: str) -> None:
        """Write a new file atomically, by renaming a temporary one; the file must not exist yet."""
        temporary = self._child(f".{name}.tmp")
        stream = self._file_system.create(temporary, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if not self._file_system.rename(temporary, self._child(name)):
            raise FileExistsError(f"{self.path}/{name} appeared while it was being written")

    def replace_text(self, name: str, text: str) -> None:
        """Overwrite the file, not atomically: only for directories that nothing else reads meanwhile."""
        self._file_system.delete(self._child(name), False)
        self.write_text(name, text)

    def remove_all(self) -> None:
        """Remove the directory and everything below it, if it exists."""
        self._file_system.delete(self._directory, True)

    def remove_children(self, prefix: str) -> int:
        """Remove the direct children whose names begin with `prefix`; returns how many there were."""
        if not self._file_system.exists(self._directory):
            return 0
        doomed = [
            status.getPath()
            for status in self._file_system.listStatus(self._directory)
            if status.getPath().getName().startswith(prefix)
        ]
        for path in doomed:
            self._file_system.delete(path, True)
        return len(doomed)

    def copy_to(self, path: str) -> TableDirectory:
        """Copy the whole directory; returns the copy. Raises FileExistsError when `path` exists."""
        made = TableDirectory(self._spark, path)
        if made._file_system.exists(made._directory):
            raise FileExistsError(f"{path} exists already")
        java_class(self._spark, "org.apache.hadoop.fs.FileUtil").copy(
            self._file_system, self._directory, made._file_system, made._directory, False, self._configuration
        )
        return made
