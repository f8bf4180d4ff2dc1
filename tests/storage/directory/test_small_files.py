"""Checkpoints, identities and the clean shutdown marker."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from storage.directory.checkpoints import (
    CorruptCheckpointError,
    format_offset_checkpoint,
    parse_checkpoint,
    read_offset_checkpoint,
    write_atomically,
)
from storage.directory.log_directories import take_clean_shutdown, write_clean_shutdown
from storage.directory.meta_properties import (
    LogDirError,
    check_meta_properties,
    read_meta_properties,
    read_topic_id,
    write_meta_properties,
    write_topic_id,
)
from storage.io.file_system import FileSystem
from storage.io.os_file_system import OsFileSystem
from tests.kit.memory_file_system import MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.support import Countdown

NAMES = st.text("abcXYZ09._-", min_size=1, max_size=20)


def write_offsets(file_system: FileSystem, path: str, offsets: dict[TopicPartition, int]) -> None:
    write_atomically(file_system, path, format_offset_checkpoint(offsets))


def disk() -> MemoryFileSystem:
    file_system = MemoryFileSystem()
    file_system.make_dir("/d")
    file_system.sync_dir("/")
    return file_system


class TestCheckpoints:
    def test_is_kafkas_text(self) -> None:
        file_system = disk()
        write_offsets(file_system, "/d/c", {TopicPartition("a.b", 2): 77, TopicPartition("c", 0): 0})
        assert file_system.read_file("/d/c") == b"0\n2\na.b 2 77\nc 0 0\n"

    @given(st.dictionaries(st.builds(TopicPartition, NAMES, st.integers(0, 1000)), st.integers(0, 2**63 - 1)))
    def test_round_trip(self, offsets: dict[TopicPartition, int]) -> None:
        file_system = disk()
        write_offsets(file_system, "/d/c", offsets)
        assert read_offset_checkpoint(file_system, "/d/c") == offsets

    def test_missing_is_empty(self) -> None:
        assert read_offset_checkpoint(disk(), "/d/c") == {}

    @pytest.mark.parametrize(
        "content",
        [b"", b"0", b"0\n", b"0\n1\n", b"1\n0\n", b"0\n2\nt 0 5\n", b"0\n0\nt 0 5\n", b"0\n1\nt 0 5", b"0\n1\nt 0\n",
         b"0\n1\nt 0 x\n", b"0\n1\nt 0 5 6\n", b"\xff\xfe\n0\n", b"x\n0\n", b"0\n-1\n"],
    )  # fmt: skip
    def test_damage_names_the_file(self, content: bytes) -> None:
        file_system = disk()
        file_system.write_file("/d/c", content)
        with pytest.raises(CorruptCheckpointError, match="/d/c"):
            read_offset_checkpoint(file_system, "/d/c")

    @given(st.binary(max_size=60))
    def test_any_bytes(self, content: bytes) -> None:
        try:
            parse_checkpoint("/d/c", content)
        except CorruptCheckpointError:
            return

    @pytest.mark.parametrize("mode", PowerCut)
    @pytest.mark.parametrize("seed", range(12))
    def test_replaced_whole_or_not_at_all(self, mode: PowerCut, seed: int) -> None:
        for at in range(1, 6):
            file_system = disk()
            write_atomically(file_system, "/d/c", b"old" * 400)
            file_system.inject = Countdown(at)
            try:
                write_atomically(file_system, "/d/c", b"new" * 500)
                confirmed = True
            except SimulatedCrash:
                confirmed = False
            state = seed

            def choose(count: int) -> int:
                nonlocal state
                state = (state * 1103515245 + 12345) % 2**31
                return (state >> 8) % count

            file_system.cut_power(mode, choose)
            content = file_system.read_file("/d/c")
            assert content in ({b"new" * 500} if confirmed else {b"old" * 400, b"new" * 500})


class TestPartitionMetadata:
    def test_round_trip(self) -> None:
        file_system = disk()
        topic_id = Uuid(bytes(range(16)))
        write_topic_id(file_system, "/d", topic_id)
        assert file_system.read_file("/d/partition.metadata") == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
        assert read_topic_id(file_system, "/d") == topic_id

    def test_missing_or_empty_is_none(self) -> None:
        file_system = disk()
        assert read_topic_id(file_system, "/d") is None
        file_system.write_file("/d/partition.metadata", b"")
        assert read_topic_id(file_system, "/d") is None

    @pytest.mark.parametrize("content", [b"nonsense", b"version: 0\n", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw",
                                         b"version: 0\ntopic_id: short\n"])  # fmt: skip
    def test_damage_names_the_file(self, content: bytes) -> None:
        file_system = disk()
        file_system.write_file("/d/partition.metadata", content)
        with pytest.raises(ValueError, match=r"/d/partition\.metadata"):
            read_topic_id(file_system, "/d")


class TestMetaProperties:
    def test_what_kafka_writes_in_zookeeper_mode(self) -> None:
        file_system = disk()
        content = b"#\n#Sat Nov 21 13:00:00 UTC 2026\nbroker.id=4\nversion=0\ncluster.id=wH0_a-bCDefGHijkLMnopQ\n"
        file_system.write_file("/d/meta.properties", content)
        found = read_meta_properties(file_system, "/d")
        assert found is not None
        assert (found.version, found.broker_id, found.cluster_id) == (0, 4, "wH0_a-bCDefGHijkLMnopQ")

    def test_version_1_and_javas_syntax(self) -> None:
        file_system = disk()
        content = b"! comment\nversion = 1\n  node.id : 7\ncluster.id=a\\:b\\=c\ndirectory.id=x\n"
        file_system.write_file("/d/meta.properties", content)
        found = read_meta_properties(file_system, "/d")
        assert found is not None
        assert (found.version, found.broker_id, found.cluster_id) == (1, 7, "a:b=c")

    def test_ours_is_ours(self) -> None:
        file_system = disk()
        assert check_meta_properties(file_system, ["/d"], 1, "c") == ["/d"]
        write_meta_properties(file_system, "/d", 1, "c")
        assert check_meta_properties(file_system, ["/d"], 1, "c") == []
        assert check_meta_properties(file_system, ["/d"], 1, None) == []

    @pytest.mark.parametrize(
        ("broker_id", "cluster_id", "words"),
        [(2, "c", "Configured broker.id 2 doesn't match stored broker.id 1"), (1, "other", "The Cluster ID other")],
    )
    def test_foreign_directory_in_one_line(self, broker_id: int, cluster_id: str, words: str) -> None:
        file_system = disk()
        write_meta_properties(file_system, "/d", 1, "c")
        with pytest.raises(LogDirError, match=words) as caught:
            check_meta_properties(file_system, ["/d"], broker_id, cluster_id)
        assert "/d/meta.properties" in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "content", [b"", b"broker.id=1\n", b"version=2\nbroker.id=1\n", b"version=0\nbroker.id=x\n"]
    )
    def test_damage(self, content: bytes) -> None:
        file_system = disk()
        file_system.write_file("/d/meta.properties", content)
        with pytest.raises(LogDirError, match=r"/d/meta\.properties"):
            read_meta_properties(file_system, "/d")


class TestCleanShutdown:
    def test_is_gone_once_read(self) -> None:
        file_system = disk()
        assert take_clean_shutdown(file_system, "/d") is None
        write_clean_shutdown(file_system, "/d", 42)
        assert json.loads(file_system.read_file("/d/.kafka_cleanshutdown")) == {"version": 0, "brokerEpoch": 42}
        file_system.cut_power(PowerCut.LOSE, lambda count: 0)
        taken = take_clean_shutdown(file_system, "/d")
        assert taken is not None
        assert taken.broker_epoch == 42
        file_system.cut_power(PowerCut.LOSE, lambda count: 0)
        assert take_clean_shutdown(file_system, "/d") is None

    def test_of_older_brokers(self) -> None:
        file_system = disk()
        file_system.write_file("/d/.kafka_cleanshutdown", b"")
        taken = take_clean_shutdown(file_system, "/d")
        assert taken is not None
        assert taken.broker_epoch == -1


def test_on_a_real_disk(tmp_path) -> None:
    file_system = OsFileSystem()
    path = str(tmp_path / "c")
    write_offsets(file_system, path, {TopicPartition("t", 1): 5})
    assert read_offset_checkpoint(file_system, path) == {TopicPartition("t", 1): 5}
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
