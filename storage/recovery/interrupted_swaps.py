"""Segments that were taking the place of others when the process died."""

from __future__ import annotations

import contextlib
import re

from protocol.errors import ApiError
from protocol.records.batch import HEADER_BYTES, RecordBatch
from storage.io.file_system import FileInfo, FileSystem
from storage.segment.batch_reader import BASE_OFFSET, HEADERS, LAST_OFFSET_DELTA, BatchReader
from storage.segment.log_files import CLEANED_SUFFIX, DELETED_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, SWAP_SUFFIX

_SEGMENT_FILE = re.compile(r"(\d{20})(\.[a-z]+)")
_LOG_FILE = re.compile(r"\d{20}\.log")


def finish_interrupted_swaps(file_system: FileSystem, path: str, files: dict[str, FileInfo]) -> dict[str, FileInfo]:
    """Leave no `.deleted`, `.cleaned` and `.swap` files in the directory of a log at `path`, which holds `files`; gives
    what it holds then.

    `.cleaned`: compaction had not finished, drop. `.swap`: it had, the new segments replace those in their
    range of offsets. A `.swap` at or above a `.cleaned` belongs to a split that was not finished (KAFKA-6264),
    drop.
    """
    leftovers = [name for name in files if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX))]
    if not leftovers:
        return files
    cleaned = [int(name[:20]) for name in leftovers if name.endswith(CLEANED_SUFFIX)]
    first_cleaned = min(cleaned, default=2**63 - 1)
    for name in leftovers:
        if not name.endswith(SWAP_SUFFIX) or int(name[:20]) >= first_cleaned:
            file_system.remove(f"{path}/{name}")
            del files[name]
    swaps = sorted(name for name in files if name.endswith(LOG_SUFFIX + SWAP_SUFFIX))
    if swaps:
        first, end = int(swaps[0][:20]), int(swaps[-1][:20]) + 1
        for name in swaps:
            file = file_system.attach(f"{path}/{name}", files[name].size)
            # The split segment may be damaged. Then its pieces replace only the segment that they were copied from.
            with contextlib.suppress(ApiError):
                for *_, fields in BatchReader(file.path, file.pread, file.size, HEADERS).batches(0):
                    end = max(end, fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1)
        first = _first_replaced(file_system, path, files, first)
        for name in list(files):
            match = _SEGMENT_FILE.fullmatch(name)
            if match and match[2] != SNAPSHOT_SUFFIX and first <= int(match[1]) < end:
                file_system.remove(f"{path}/{name}")
    # The `.log` first, as compaction does it: without it, the `.swap` files beside it belong to what it became.
    for name in swaps + [name for name in files if name.endswith(SWAP_SUFFIX) and name not in swaps]:
        file_system.rename(f"{path}/{name}", f"{path}/{name.removesuffix(SWAP_SUFFIX)}")
    file_system.sync_dir(path)
    return {info.name: info for info in file_system.list_dir(path) if not info.is_dir}


def _first_replaced(file_system: FileSystem, path: str, files: dict[str, FileInfo], first: int) -> int:
    """The base of the first segment that gives way to `.swap` segments from offset `first` on. One that was split
    may have a lower base: its first piece is named by its first batch.
    """
    below = max((name for name in files if _LOG_FILE.fullmatch(name) and int(name[:20]) < first), default=None)
    if below is not None:
        file = file_system.attach(f"{path}/{below}", files[below].size)
        header = file.pread(0, HEADER_BYTES)
        file.close()
        if len(header) == HEADER_BYTES and RecordBatch(memoryview(header)).base_offset == first:
            return int(below[:20])
    return first
