"""One output belongs to one checkpoint.

A new checkpoint numbers its batches from 0 again. In an output that another checkpoint has filled, they would replace
batches with the same numbers, or be taken for them. A new output of an old checkpoint would lack the records of earlier
batches.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from spark_jobs.checkpoints.checkpoint import Checkpoint
from spark_jobs.common.files import TableDirectory

MARKER = "_odradek_output.json"
"""File with the same text in the output and in the checkpoint. Spark hides it from readers of the output."""

LOCK = "_odradek_in_use"
"""Lock file in a checkpoint on a local file system. The job that uses the checkpoint locks it and writes its pid."""

ONCE_WITHOUT = {"format": "parquet"}
"""Settings missing from older markers, with the values that applied then."""


@contextmanager
def in_use(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Lock `checkpoint` for this job; raises ValueError when another job uses it.

    Without the lock, Spark notices only when both jobs have planned a batch, and may stop either. The kernel releases
    the lock when the process ends. Checkpoints that are not on a local file system are not locked.
    """
    address = urlsplit(TableDirectory(spark, checkpoint).uri())
    if address.scheme != "file":
        yield
        return
    directory = Path(unquote(address.path))
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ValueError(
                f"--checkpoint {checkpoint} is in use by process {lock.read().strip()}: stop that job first, or take "
                "another checkpoint and output"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def check_owner(
    spark: SparkSession, output: str, checkpoint: str, marker: str = MARKER
) -> tuple[str | None, str | None]:
    """The markers of `output` and `checkpoint`, None for a missing one. Raises ValueError when they do not match."""
    there, text = (TableDirectory(spark, path).read_text(marker) for path in (output, checkpoint))
    if there is not None and there != text:
        raise ValueError(
            f"{output} belongs to another checkpoint than {checkpoint}: their batches would replace each other; "
            "use that checkpoint, or another output"
        )
    return there, text


def bind(
    spark: SparkSession,
    output: str,
    checkpoint: str,
    *,
    marker: str = MARKER,
    settings: Mapping[str, Sequence[str] | str | int] | None = None,
    from_first_batch: bool = True,
) -> None:
    """Tie `output` to `checkpoint`, or check that they belong together and that `settings` are unchanged.

    Settings are named like their options, with `_` for `-`. `from_first_batch` says whether the output must contain
    every batch of the checkpoint. Raises ValueError naming the option or the directory.
    """
    theirs, ours = TableDirectory(spark, output), TableDirectory(spark, checkpoint)
    there, text = check_owner(spark, output, checkpoint, marker)
    done = Checkpoint(spark, checkpoint).committed_batch() if there is None and from_first_batch else None
    if done is not None:
        raise ValueError(
            f"{checkpoint} has done batches 0 to {done}, which {output} does not have: it would hold later records "
            "only; use the output of that checkpoint, or a new checkpoint"
        )
    settings = settings or {}
    if text is None:
        text = json.dumps({"output": str(uuid.uuid4()), **settings})
        ours.write_text(marker, text)
    kept = json.loads(text)
    for name, wanted in settings.items():
        begun = _shown(kept.get(name, ONCE_WITHOUT.get(name, "")))
        if begun != _shown(wanted):
            raise ValueError(f"--{name.replace('_', '-')}: {output} was begun with {begun or 'none'}")
    if there is None:
        theirs.write_text(marker, text)


def _shown(setting: Sequence[str] | str | int) -> str:
    return str(setting) if isinstance(setting, (str, int)) else ",".join(setting)
