"""One output belongs to one checkpoint.

A new checkpoint numbers its batches from 0 again: in an output that another one has filled, they would replace batches
of the same numbers, or pass for them. A new output of a checkpoint with batches behind it would lack their records.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from spark_jobs.checkpoints.checkpoint import Checkpoint
from spark_jobs.common.files import TableDirectory

MARKER = "_odradek_output.json"
"""In the output and in the checkpoint, the same text. Spark hides it from those who read the output."""

ONCE_WITHOUT = {"format": "parquet"}
"""Settings that older markers do not tell, and the values that they had then."""


def bind(
    spark: SparkSession,
    output: str,
    checkpoint: str,
    *,
    marker: str = MARKER,
    settings: Mapping[str, Sequence[str] | str | int] | None = None,
    from_first_batch: bool = True,
) -> None:
    """Tie `output` to `checkpoint`, or check that they belong together, and that `settings` are as they were then.

    Settings are named like their options, with `_` for `-`. `from_first_batch` is whether the output is to have every
    batch of the checkpoint. Raises ValueError that names the option or the directory.
    """
    theirs, ours = TableDirectory(spark, output), TableDirectory(spark, checkpoint)
    there, text = theirs.read_text(marker), ours.read_text(marker)
    if there is not None and there != text:
        raise ValueError(
            f"{output} belongs to another checkpoint than {checkpoint}: their batches would replace each other; "
            "use that checkpoint, or another output"
        )
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
