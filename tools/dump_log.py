"""kafka-dump-log: show the contents of a log's files (Kafka's `kafka.tools.DumpLogSegments`).

An unreadable file ends the tool with one line on standard error and exit code 1, where Kafka's prints a stack trace.
Not supported: message formats before v2, and the decoders for KRaft's metadata log and for tiered storage, which this
broker does not write.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from crc32c import crc32c

from protocol.errors import ApiError
from protocol.records.batch import NO_SEQUENCE, Record, RecordBatch, TimestampType, increment_sequence
from protocol.records.control_records import ControlRecordType, control_type, decode_end_txn_marker
from protocol.records.record_format import ATTRIBUTES_AT, HEADER_BYTES
from storage.log.producer_state import BatchMetadata, CorruptSnapshotError, ProducerStateEntry, decode_snapshot
from storage.segment.indexes import OffsetIndex, TimeIndex
from tools.support.common import ToolError, run_tool
from tools.support.dumped_files import IndexEntry, IndexFile, LogFile, check_index, check_time_index
from tools.support.options import Option, OptionParser, Options
from tools.support.record_decoders import (
    RecordDecoder,
    UndecodableError,
    decode_group_record,
    decode_transaction_record,
    find_decoder,
    plain_decoder,
)
from tools.support.terminal import Progress


def boolean(truth: bool) -> str:
    return "true" if truth else "false"


def optional_long(number: int | None) -> str:
    return "OptionalLong.empty" if number is None else f"OptionalLong[{number}]"


def has_valid_crc(batch: RecordBatch) -> bool:
    """Whether the CRC matches; Kafka checks nothing else here."""
    return batch.size_in_bytes >= HEADER_BYTES and crc32c(batch.buffer[ATTRIBUTES_AT:]) == batch.crc


def timestamp_name(batch: RecordBatch) -> str:
    return "LogAppendTime" if batch.timestamp_type is TimestampType.LOG_APPEND_TIME else "CreateTime"


def metadata_of(record: Record, batch: RecordBatch) -> str:
    sequence = batch.base_sequence
    if sequence >= 0:
        sequence = increment_sequence(sequence, record.offset - batch.base_offset)
    else:
        sequence = NO_SEQUENCE
    return (
        f"| offset: {record.offset} {timestamp_name(batch)}: {record.timestamp} "
        f"keySize: {-1 if record.key is None else len(record.key)} "
        f"valueSize: {-1 if record.value is None else len(record.value)} sequence: {sequence} "
        f"headerKeys: [{','.join(key for key, _ in record.headers)}]"
    )


def control_text(record: Record) -> str:
    kind = control_type(record)
    if kind in {ControlRecordType.ABORT, ControlRecordType.COMMIT}:
        marker = decode_end_txn_marker(record)
        return f" endTxnMarker: {marker.control_type.name} coordinatorEpoch: {marker.coordinator_epoch}"
    number = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
    return f" controlType: {kind.name}({number})"


_EVERYTHING: Final = 2**31 - 1
_STRING_DECODER: Final = "org.apache.kafka.tools.api.StringDecoder"
_DECODER_OPTIONS: Final = ("offsets-decoder", "transaction-log-decoder", "value-decoder-class", "key-decoder-class")
_MISSING_DECODERS: Final = {
    "cluster-metadata-decoder": "the records of KRaft's metadata log",
    "remote-log-metadata-decoder": "the records of tiered storage",
}
_ABORTED_TXN: Final = struct.Struct(">bxqqqq")
"""Kafka writes a 16-bit version and shows its first byte (`AbortedTxn`)."""
_KRAFT_SNAPSHOT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")

PARSER: Final = OptionParser(
    "Shows what is in the files of a log, to find out what is wrong with a segment.",
    [
        Option("files", "Required: the files, data and index, to show.", "file1, file2, ..."),
        Option("print-data-log", "Show the records, and what is in them. Implied by every decoder."),
        Option("deep-iteration", "Show the records, not only the batches. Implied by print-data-log."),
        Option("skip-record-metadata", "Show keys and values of records only."),
        Option("offsets-decoder", "Read records as those of __consumer_offsets."),
        Option("transaction-log-decoder", "Read records as those of __transaction_state."),
        Option("cluster-metadata-decoder", "Not supported: records of KRaft's metadata log."),
        Option("remote-log-metadata-decoder", "Not supported: records of tiered storage."),
        Option(
            "value-decoder-class",
            "How to show values: StringDecoder, IntegerDecoder, LongDecoder or DefaultDecoder (digits), in the "
            "package org.apache.kafka.tools.api.",
            "",
            default=_STRING_DECODER,
            argument_optional=True,
        ),
        Option(
            "key-decoder-class",
            "How to show keys: as value-decoder-class.",
            "",
            default=_STRING_DECODER,
            argument_optional=True,
        ),
        Option("index-sanity-check", "Only check indexes as a starting broker does."),
        Option("verify-index-only", "Only compare indexes with their log, without showing them."),
        Option("max-bytes", "How much of a log to read, in batches.", "size", "Integer", str(_EVERYTHING)),
        Option("max-message-size", "Size of the largest message.", "size", "Integer", str(5 * 1024 * 1024)),
    ],
)


class _Findings:
    """Contradictions between files, printed at the end: file -> pairs of numbers that should be equal."""

    def __init__(self) -> None:
        self.index_mismatches: dict[str, list[tuple[int, int]]] = {}
        self.time_mismatches: dict[str, list[tuple[int, int]]] = {}
        self.out_of_order_times: dict[str, list[tuple[int, int]]] = {}
        self.missing_offsets: dict[str, list[tuple[int, int]]] = {}
        self.gaps: dict[str, list[tuple[int, int]]] = {}

    def tell(self) -> None:
        """Print all findings to standard error; gaps and wrong positions latest first, as Kafka does."""
        chapters = (
            (self.index_mismatches, "Mismatches in :{}", "  Index offset: {}, log offset: {}", -1),
            (self.time_mismatches, "Found timestamp mismatch in :{}", "  Index timestamp: {}, log timestamp: {}", 1),
            (
                self.out_of_order_times,
                "Found out of order timestamp in :{}",
                "  Index timestamp: {}, Previously indexed timestamp: {}",
                1,
            ),
            (
                self.missing_offsets,
                "The following indexed offsets are not found in the log.",
                "Indexed offset: {}, found log offset: {}",
                1,
            ),
            (self.gaps, "Non-consecutive offsets in {}", "  {} is followed by {}", -1),
        )
        for findings, title, line, order in chapters:
            for path, pairs in sorted(findings.items()):
                print(title.format(path), file=sys.stderr)
                for pair in pairs[::order]:
                    print(line.format(*pair), file=sys.stderr)


class _Dump:
    """One run of the tool."""

    def __init__(self, options: Options, progress: Progress) -> None:
        """`progress` counts bytes of logs and indexes."""
        self.options = options
        self.findings = _Findings()
        self._progress = progress
        self._with_contents = any(map(options.has, ("print-data-log", *_DECODER_OPTIONS)))
        self._with_records = self._with_contents or options.has("deep-iteration")
        self._with_metadata = not options.has("skip-record-metadata")
        self._write = sys.stdout.write

    def show(self, path: str) -> None:
        """Show one file. Raises ToolError, OptionError and OSError."""
        print(f"Dumping {path}")
        name = os.path.basename(path)
        stem, dot, suffix = name.rpartition(".")
        if not dot:
            raise ToolError(f"The file name {name!r} has no suffix, such as .log or .index, that names its kind")
        kinds: dict[str, Callable[[str, str], None]] = {
            "log": self._show_log,
            "checkpoint": self._show_log,
            "index": self._show_index,
            "timeindex": self._show_time_index,
            "snapshot": self._show_producer_snapshot,
            "txnindex": self._show_aborted_transactions,
        }
        if suffix in kinds:
            kinds[suffix](path, stem)
        else:
            print(f"Ignoring unknown file {path}", file=sys.stderr)

    # -- logs ----------------------------------------------------------------------------------------------------------

    def _show_log(self, path: str, stem: str) -> None:
        decoder = self._make_decoder()
        max_bytes = self.options.required_number("max-bytes")
        if path.endswith(".log"):
            print(f"Log starting offset: {_base_offset(stem)}")
        else:
            print(_kraft_snapshot_title(os.path.basename(path)))
        if max_bytes < 0:
            raise ToolError(f"Invalid size: {max_bytes} in read from {path}")
        shown_bytes = 0
        last_offset = -1
        with LogFile(path) as log:
            for position, batch in log.batches(0, max_bytes):
                self._show_batch(position, batch)
                if self._with_records:
                    last_offset = self._show_records(path, batch, last_offset, decoder)
                shown_bytes = position + batch.size_in_bytes
                self._progress.advance(batch.size_in_bytes)
            if log.size > shown_bytes and max_bytes == _EVERYTHING:
                print(f"Found {log.size - shown_bytes} invalid bytes at the end of {os.path.basename(path)}")

    def _make_decoder(self) -> RecordDecoder:
        options = self.options
        if options.has("offsets-decoder"):
            return decode_group_record
        if options.has("transaction-log-decoder"):
            return decode_transaction_record
        names = [options.text(name) for name in ("value-decoder-class", "key-decoder-class")]
        for_values, for_keys = (find_decoder(_STRING_DECODER if name is None else name, print) for name in names)
        return plain_decoder(for_keys, for_values)

    def _show_batch(self, position: int, batch: RecordBatch) -> None:
        horizon = batch.delete_horizon_ms
        self._write(
            f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} count: {batch.count} "
            f"baseSequence: {batch.base_sequence} lastSequence: {batch.last_sequence} "
            f"producerId: {batch.producer_id} producerEpoch: {batch.producer_epoch} "
            f"partitionLeaderEpoch: {batch.partition_leader_epoch} isTransactional: {boolean(batch.is_transactional)} "
            f"isControl: {boolean(batch.is_control)} deleteHorizonMs: {optional_long(horizon)}"
        )
        try:
            codec = batch.compression.name.lower()
        except ApiError as error:
            raise ToolError(error.message) from error
        self._write(
            f" position: {position} {timestamp_name(batch)}: {batch.max_timestamp} size: {batch.size_in_bytes} "
            f"magic: {batch.magic} compresscodec: {codec} crc: {batch.crc} isvalid: {boolean(has_valid_crc(batch))}\n"
        )

    def _show_records(self, path: str, batch: RecordBatch, last_offset: int, decoder: RecordDecoder) -> int:
        """Show the records of `batch`; returns the offset of the last record seen in the log, or `last_offset`."""
        try:
            # Like Kafka, show all or nothing of a compressed batch
            records = list(batch.records()) if batch.compression else batch.records()
            for record in records:
                if last_offset not in {-1, record.offset - 1}:
                    self.findings.gaps.setdefault(os.path.abspath(path), []).append((last_offset, record.offset))
                last_offset = record.offset
                separator = "|"
                if self._with_metadata:
                    self._write(metadata_of(record, batch))
                    if batch.is_control:
                        self._write(control_text(record))
                    separator = ""
                if self._with_contents and not batch.is_control:
                    decoded = decoder(record)
                    if decoded.key is not None:
                        self._write(f"{separator} key: {decoded.key}")
                    if decoded.payload is not None:
                        self._write(f" payload: {decoded.payload}")
                self._write("\n")
        except (ApiError, UndecodableError) as error:
            raise ToolError(error.message if isinstance(error, ApiError) else str(error)) from error
        return last_offset

    # -- indexes -------------------------------------------------------------------------------------------------------

    def _show_index(self, path: str, stem: str) -> None:
        base_offset = _base_offset(stem)
        with LogFile(_sibling(path, stem, ".log")) as log:
            index = IndexFile(path, base_offset, OffsetIndex)
            if not index.all_entries:
                print(f"{path} is empty.")
                return
            if self.options.has("index-sanity-check"):
                check_index(index)
                print(f"{path} passed sanity check.")
                return
            max_bytes = self.options.required_number("max-message-size")
            for entry in index.entries:
                _, batch = next(log.batches(entry.value, max_bytes), (0, None))
                if batch is None:
                    raise ToolError(f"{log.path} has no whole batch at position {entry.value}")
                if batch.last_offset != entry.offset:
                    mismatches = self.findings.index_mismatches.setdefault(os.path.abspath(path), [])
                    mismatches.append((entry.offset, batch.last_offset))
                self._progress.advance(index.entry_size)
                if not self.options.has("verify-index-only"):
                    print(f"offset: {entry.offset} position: {entry.value}")

    def _show_time_index(self, path: str, stem: str) -> None:
        base_offset = _base_offset(stem)
        with LogFile(_sibling(path, stem, ".log")) as log:
            positions = IndexFile(_sibling(path, stem, ".index"), base_offset, OffsetIndex)
            index = IndexFile(path, base_offset, TimeIndex)
            if self.options.has("index-sanity-check"):
                check_time_index(index)
                print(f"{path} passed sanity check.")
                return
            previous = -1
            for entry in index.entries:
                self._verify_time(path, entry, previous, log, positions.position_of(entry.offset))
                self._progress.advance(index.entry_size)
                if not self.options.has("verify-index-only"):
                    print(f"timestamp: {entry.value} offset: {entry.offset}")
                previous = entry.value

    def _verify_time(self, path: str, entry: IndexEntry, previous: int, log: LogFile, position: int) -> None:
        path = os.path.abspath(path)
        found = (batch for _, batch in log.batches(position, _EVERYTHING) if batch.last_offset >= entry.offset)
        batch = next(found, None)
        if batch is None or batch.last_offset != entry.offset:
            last_offset = -1 if batch is None else batch.last_offset
            self.findings.missing_offsets.setdefault(path, []).append((entry.offset, last_offset))
            return
        try:
            latest = max((record.timestamp for record in batch.records()), default=-1)
        except ApiError as error:
            raise ToolError(error.message) from error
        if max(latest, -1) != entry.value:
            self.findings.time_mismatches.setdefault(path, []).append((entry.value, max(latest, -1)))
        if previous >= entry.value:
            self.findings.out_of_order_times.setdefault(path, []).append((entry.value, previous))

    # -- producers -----------------------------------------------------------------------------------------------------

    def _show_producer_snapshot(self, path: str, _stem: str) -> None:
        try:
            entries = decode_snapshot(path, Path(path).read_bytes())
        except CorruptSnapshotError as error:
            print(error, file=sys.stderr)
            return
        for producer_id, entry in entries.items():
            for batch in entry.batches or (None,):
                self._show_producer_batch(producer_id, entry, batch)

    @staticmethod
    def _show_producer_batch(producer_id: int, entry: ProducerStateEntry, batch: BatchMetadata | None) -> None:
        first_offset = entry.current_txn_first_offset
        line = (
            f"producerId: {producer_id} producerEpoch: {entry.producer_epoch} "
            f"coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {optional_long(None if first_offset < 0 else first_offset)} "
            f"lastTimestamp: {entry.last_timestamp} "
        )
        if batch is not None:
            line += (
                f"firstSequence: {batch.first_sequence} lastSequence: {batch.last_sequence} "
                f"lastOffset: {batch.last_offset} offsetDelta: {batch.offset_delta} timestamp: {batch.timestamp}"
            )
        print(line)

    def _show_aborted_transactions(self, path: str, _stem: str) -> None:
        file = Path(path)
        data = file.read_bytes() if file.exists() else b""
        for entry in _ABORTED_TXN.iter_unpack(data[: len(data) // _ABORTED_TXN.size * _ABORTED_TXN.size]):
            version, producer_id, first_offset, last_offset, last_stable_offset = entry
            if version > 0:
                raise ToolError(f"Unexpected aborted transaction version {version} in {path}")
            print(
                f"version: {version} producerId: {producer_id} firstOffset: {first_offset} lastOffset: {last_offset} "
                f"lastStableOffset: {last_stable_offset}"
            )


def _base_offset(stem: str) -> int:
    digits = stem.partition(".")[0]
    if not re.fullmatch(r"[+-]?[0-9]+", digits):
        raise ToolError(f"The file name should begin with an offset, but it begins with {digits!r}")
    return int(digits)


def _kraft_snapshot_title(name: str) -> str:
    if name == "bootstrap.checkpoint":
        return "KRaft bootstrap snapshot"
    found = _KRAFT_SNAPSHOT.fullmatch(name)
    if found is None:
        raise ToolError(f"{name} is not the name of a snapshot")
    return f"Snapshot end offset: {int(found[1])}, epoch: {int(found[2])}"


def _sibling(path: str, stem: str, suffix: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(path)), stem.partition(".")[0] + suffix)


def _files(options: Options) -> list[str]:
    """The files to show, with their paths as Java would write them."""
    text = options.required_text("files")
    paths = text.split(",")
    while len(paths) > 1 and not paths[-1]:
        paths.pop()
    return [re.sub(r"(?<=.)/$", "", re.sub(r"//+", "/", path)) for path in paths]


def _size_of(paths: Sequence[str]) -> int:
    return sum(os.path.getsize(path) for path in paths if os.path.isfile(path))


def _check(options: Options) -> None:
    options.require("files")
    for name, what in _MISSING_DECODERS.items():
        if options.has(name):
            raise ToolError(f"--{name} is not supported: this broker does not write {what}")


async def _work(options: Options) -> int:
    paths = _files(options)
    with Progress("Reading", "bytes", _size_of(paths), prints=True) as progress:
        dump = _Dump(options, progress)
        for path in paths:
            dump.show(path)
    dump.findings.tell()
    return 0


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, _check, _work)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
