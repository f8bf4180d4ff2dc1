"""Every call of the storage layer to the disk fails once, in every way; then the machine restarts and its state is
checked.

A case is a scenario, the failing call, the kind of failure, and the fate of the machine: its process dies, or its power
is cut, which unfsynced data survives in one of three ways. A case with a crash may continue with another crash during
recovery. Cases are deterministic: the id describes a case completely.
"""

from __future__ import annotations

import errno
import functools
import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from storage.directory.meta_properties import LogDirError
from storage.segment.segment_files import SNAPSHOT_SUFFIX
from tests.faults import steps
from tests.faults.history import Observation, Violation
from tests.faults.scenarios import SCENARIOS
from tests.faults.trial import Trial, check_indexes, observe
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.support import TP


class FaultKind(Enum):
    """How a call fails; "short" writes only a part of the data."""

    EIO = "eio"
    EIO_FOR_EVER = "eio-for-ever"
    ENOSPC = "enospc"
    ENOSPC_FOR_EVER = "enospc-for-ever"
    SHORT_EIO = "short-eio"
    SHORT_ENOSPC = "short-enospc"
    EIO_IN_READ = "eio-in-read"
    CRASH_BEFORE = "crash-before"
    CRASH_AMID = "crash-amid"
    CRASH_AFTER = "crash-after"

    def fault(self, call: int) -> Fault:
        """The fault for call number `call`."""
        part = call * 37 % 151
        if "crash" in self.value:
            kind = self.value.replace("-", "_")
            return Fault(**{kind: True, "written_bytes": part})  # type: ignore[arg-type]
        number = errno.ENOSPC if "enospc" in self.value else errno.EIO
        return Fault(number, written_bytes=part if "short" in self.value else 0)

    @property
    def lasts(self) -> bool:
        return "for-ever" in self.value

    @property
    def is_crash(self) -> bool:
        return "crash" in self.value

    @property
    def concerns_writes(self) -> bool:
        """Whether it differs from other kinds only in calls that write."""
        return "short" in self.value or self is FaultKind.CRASH_AMID


WRITES = frozenset({"append", "write_file"})
DEATH = "death"
ENDS = (DEATH, *(mode.value for mode in PowerCut))


class Ending(NamedTuple):
    """The end of the machine: "death" of the process, or the kind of power cut, drawn with `seed`."""

    how: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.how}.{self.seed}"


class Point(NamedTuple):
    """A fault in call number `call`, and the end after it."""

    kind: FaultKind
    call: int
    ending: Ending

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.call}/{self.ending}"


class Case(NamedTuple):
    """`again`: a crash in the recovery from the first one."""

    scenario: str
    first: Point
    again: Point | None = None

    def __str__(self) -> str:
        return f"{self.scenario}/{self.first}" + (f"/{self.again}" if self.again else "")

    @property
    def category(self) -> str:
        """The row of the table that counts the case."""
        if self.again is not None:
            return "crash in the recovery from a crash"
        how = self.first.ending.how
        return f"{self.first.kind.value}, {'process death' if how == DEATH else f'power cut: {how}'}"


def parse_case(text: str) -> Case:
    """The case with this id. Raises ValueError."""
    scenario, *parts = text.split("/")
    if scenario not in SCENARIOS or len(parts) not in {3, 6}:
        raise ValueError(f"'{text}' is not the id of a case")
    points = []
    for at in range(0, len(parts), 3):
        kind, call, ending = parts[at : at + 3]
        how, seed = ending.split(".")
        if how not in ENDS:
            raise ValueError(f"'{how}' in '{text}' is not one of {', '.join(ENDS)}")
        points.append(Point(FaultKind(kind), int(call), Ending(how, int(seed))))
    return Case(scenario, points[0], points[1] if len(points) == 2 else None)


# -- living -----------------------------------------------------------------------------------------------------------


class Disk:
    """Counts the calls of a trial and makes one of them fail."""

    def __init__(self, kind: FaultKind | None = None, call: int = 0) -> None:
        self.calls: list[str] = []
        self.kind = kind
        self.call = call
        self.failed: list[tuple[str, str]] = []

    def inject(self, operation: str, path: str) -> Fault | None:
        self.calls.append(operation)
        at = len(self.calls)
        if self.kind is None or at < self.call or (at > self.call and not self.kind.lasts):
            return None
        self.failed.append((operation, path))
        return self.kind.fault(self.call)


def run_trial(scenario: str, disk: Disk, *, in_reads: bool = False) -> Trial:
    """Run a scenario up to the first crash, or to its end. Raises Violation."""
    plan = SCENARIOS[scenario]
    file_system = MemoryFileSystem()
    file_system.inject = disk.inject
    file_system.faults_in_reads = in_reads
    trial = Trial(file_system, plan.config, plan.directories)
    trial.disk_stays_full = disk.kind is FaultKind.ENOSPC_FOR_EVER
    try:
        for step in plan.steps:
            seen = len(disk.failed)
            step(trial)
            trial.claim()
            if disk.failed:
                trial.check_live()
                if trial.log is not None and trial.is_online():
                    with trial.in_peace():
                        check_indexes(trial.log)
                _check_offline(trial, disk, seen)
    except SimulatedCrash:
        trial.manager = trial.log = None
    return trial


def _check_offline(trial: Trial, disk: Disk, seen: int) -> None:
    """A directory must go offline after a failure that may have lost data."""
    assert disk.kind is not None
    if "eio" not in disk.kind.value:
        return
    for operation, path in disk.failed[seen:]:
        # A start lists each directory twice, the first time only for the progress report.
        if operation != "list_dir" and trial.may_go_on_after(path):
            raise Violation(f"{operation} {path} failed, and its directory is online")


@functools.lru_cache(maxsize=4)
def calls_of(scenario: str, *, in_reads: bool = False) -> tuple[str, ...]:
    """The calls of a trial without faults."""
    disk = Disk()
    run_trial(scenario, disk, in_reads=in_reads)
    return tuple(disk.calls)


@functools.lru_cache(maxsize=2)
def _tried(scenario: str, kind: FaultKind, call: int) -> Trial:
    return run_trial(scenario, Disk(kind, call), in_reads=kind is FaultKind.EIO_IN_READ)


def forget() -> None:
    """Clear the caches: the code is about to change."""
    calls_of.cache_clear()
    _tried.cache_clear()


# -- ending -----------------------------------------------------------------------------------------------------------


def chooser(seed: int) -> Callable[[int], int]:
    """Numbers below the given one, reproducible for a seed."""
    state = seed * 2654435761 + 1

    def choose(count: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % count

    return choose


def end(trial: Trial, ending: Ending, salt: int) -> None:
    """Kill the process, or cut the power."""
    if ending.how == DEATH:
        trial.file_system.kill_process()
    else:
        trial.file_system.cut_power(PowerCut(ending.how), chooser(ending.seed * 100_003 + salt))
        trial.lost_power = True
    trial.manager = trial.log = None


def recovery_calls(trial: Trial) -> int:
    """The number of calls of the next start."""
    twin = trial.file_system.copy()
    disk = Disk()
    twin.inject = disk.inject
    trial.load(twin)
    return len(disk.calls)


def crash_in_recovery(trial: Trial, point: Point) -> None:
    """The next process dies during its start."""
    disk = Disk(point.kind, point.call)
    trial.file_system.inject = disk.inject
    try:
        trial.load(trial.file_system)
    except SimulatedCrash:
        end(trial, point.ending, point.call)
        return
    raise ValueError(f"the recovery has no call {point.call}")


def run_case(case: Case) -> None:
    """Run, end, restart, and check. Raises Violation, or unexpected errors of storage."""
    trial = _tried(case.scenario, case.first.kind, case.first.call).fork()
    trial.file_system.faults_in_reads = False
    end(trial, case.first.ending, case.first.call)
    if case.again is not None:
        crash_in_recovery(trial, case.again)
    judge(trial, case.first.call)


# -- judging ----------------------------------------------------------------------------------------------------------


def judge(trial: Trial, salt: int) -> None:
    """After the machine's restart: the content is allowed, stays so, and the log continues to work. Raises
    Violation.
    """
    first = _look(trial, trial.file_system)
    end(trial, Ending("lose") if trial.lost_power else Ending(DEATH), salt)
    second = _look(trial, trial.file_system)
    if second != first:
        raise Violation(f"the second start finds something else than the first: {first}")
    end(trial, Ending(DEATH), salt)
    if salt % 4 == 0:
        _look_without_snapshots(trial.fork())
    _start(trial)
    trial.epoch += 1
    for step in (steps.append(size=100), steps.append(producer_id=5), steps.append(producer_id=7, size=500)):
        step(trial)
    assert trial.log is not None
    trial.check_live()
    check_indexes(trial.log)
    if salt % 2:
        end(trial, Ending("reorder", 1), salt)
        _start(trial)
    steps.append()(trial)
    steps.stop(trial)
    end(trial, Ending("lose"), salt)
    _start(trial, must_be_clean=True)
    trial.check_live()


def _look(trial: Trial, file_system: MemoryFileSystem) -> Observation | None:
    manager, report = trial.load(file_system)
    trial.check_report(manager, report)
    trial.believe(manager)
    trial.may_be_clean = False
    log = manager.get(TP)
    return None if log is None else observe(log, manager.checkpoints.high_watermarks.get(TP, 0))


def _look_without_snapshots(trial: Trial) -> None:
    """The batches alone must be enough to restore the producers, too."""
    files = trial.file_system
    for directory in trial.directories:
        path = f"{directory}/{TP}"
        for info in files.list_dir(path) if files.exists(path) else []:
            if info.name.endswith(SNAPSHOT_SUFFIX):
                files.remove(f"{path}/{info.name}")
    _look(trial, files)


def _start(trial: Trial, *, must_be_clean: bool = False) -> None:
    try:
        trial.manager, report = trial.load(trial.file_system)
    except LogDirError as error:
        raise Violation(str(error)) from None
    trial.check_report(trial.manager, report)
    if must_be_clean and not report.clean:
        raise Violation("an orderly stop is not believed")
    trial.believe(trial.manager)
    trial.may_be_clean = trial.lost_power = False
    steps.take_role(trial)


# -- all cases --------------------------------------------------------------------------------------------------------

_SEEDS = {"lose": 1, "tear": 3, "reorder": 4, DEATH: 1}
_READS_PER_GROUP = 10


class Group(NamedTuple):
    """The cases of one call of a scenario, or of some reads from that one on; they share the steps before it."""

    scenario: str
    call: int
    is_read: bool = False


def all_groups() -> list[Group]:
    """In a fixed but arbitrary order: any part of them is a sample."""
    groups = []
    for scenario in SCENARIOS:
        groups += [Group(scenario, call) for call in range(1, len(calls_of(scenario)) + 1)]
        reads = range(1, len(calls_of(scenario, in_reads=True)) + 1, _READS_PER_GROUP)
        groups += [Group(scenario, call, is_read=True) for call in reads]
    return sorted(groups, key=lambda group: zlib.crc32(repr(group).encode()))


def cases_of(group: Group) -> Iterator[Case]:
    """All cases of a group. Those with a second crash depend on the result of the first."""
    scenario, call, is_read = group
    if is_read:
        end = len(calls_of(scenario, in_reads=True)) + 1
        for at in range(call, min(call + _READS_PER_GROUP, end)):
            yield Case(scenario, Point(FaultKind.EIO_IN_READ, at, Ending(ENDS[at % 2])))
        return
    writes = calls_of(scenario)[call - 1] in WRITES
    for kind in FaultKind:
        if kind is not FaultKind.EIO_IN_READ and (writes or not kind.concerns_writes):
            for ending in _endings(kind):
                yield Case(scenario, Point(kind, call, ending))
    yield from _double_cases(scenario, call)


def _endings(kind: FaultKind) -> Iterator[Ending]:
    for how in ENDS:
        for seed in range(_SEEDS[how] if kind is FaultKind.CRASH_BEFORE else 1):
            yield Ending(how, seed)


def _double_cases(scenario: str, call: int) -> Iterator[Case]:
    """Crashes in the recovery from a crash before call `call`, at every third of its calls."""
    endings = [Ending(how, seed) for how in ENDS for seed in range(_SEEDS[how])]
    first = Point(FaultKind.CRASH_BEFORE, call, endings[call % len(endings)])
    trial = _tried(scenario, first.kind, call).fork()
    end(trial, first.ending, call)
    for again in range(1 + call % 3, recovery_calls(trial) + 1, 3):
        kind = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AMID, FaultKind.CRASH_AFTER)[again // 3 % 3]
        yield Case(scenario, first, Point(kind, again, endings[zlib.crc32(b"%d %d" % (call, again)) % len(endings)]))
