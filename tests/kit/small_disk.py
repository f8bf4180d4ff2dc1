"""A real file system of a few megabytes, to be filled: ext4 on a loop device, or else tmpfs."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.waiting import eventually

PATIENCE_S = 60.0
_EXT4_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN of Linux."""
_FLUSHING, _WITHOUT_FLUSHING_THE_LOG = 0, 2


@contextmanager
def small_disk(directory: Path, megabytes: int, *, ext4_only: bool = False) -> Iterator[Path]:
    """Mount a file system below `directory` for the duration of a block; yields its path. Skips the test if mounting is
    impossible.
    """
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    mounted_at = directory / "small-disk"
    mounted_at.mkdir(parents=True)
    image = directory / "image"
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    # Without blocks reserved for root: as root, the broker would never find the disk full.
    attempts = (
        (["mkfs.ext4", "-q", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(mounted_at)]),
        (["true"], ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(mounted_at)]),
    )
    refusals = []
    for commands in attempts[: 1 if ext4_only else None]:
        for command in commands:
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            except OSError as error:
                refusals.append(str(error))
                break
            if done.returncode:
                refusals.append(f"{command[0]}: {done.stderr.strip()}")
                break
        else:
            try:
                yield mounted_at
            finally:
                unmount(mounted_at)
                image.unlink()
            return
    pytest.skip(f"no small file system can be mounted here: {'; '.join(refusals)}")


def shut_down(mounted_at: Path, *, cuts_power: bool = False) -> None:
    """Make every access to the ext4 mounted there fail until `mount_again`. The data written so far is on the disk;
    with `cuts_power` only the fsynced data. Skips where not allowed.
    """
    how = _WITHOUT_FLUSHING_THE_LOG if cuts_power else _FLUSHING
    descriptor = os.open(mounted_at, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _EXT4_SHUTDOWN, struct.pack("I", how))
    except OSError as error:
        pytest.skip(f"ext4 cannot be shut down here: {error}")
    finally:
        os.close(descriptor)


def mount_again(mounted_at: Path) -> None:
    """Repair the disk. It must not be in use."""
    image = mounted_at.parent / "image"
    unmount(mounted_at)
    subprocess.run(["mount", "-o", "loop", str(image), str(mounted_at)], check=True, timeout=PATIENCE_S)


def unmount(mounted_at: Path) -> None:
    """Unmount the disk. Waits for short-lived users, such as a scan of all disks; no one may keep a file open there."""
    eventually(
        "unmounting",
        lambda: subprocess.run(["umount", str(mounted_at)], capture_output=True, text=True, check=False),
        lambda done: done.returncode == 0,
    )


def usable_bytes(path: Path) -> int:
    """The bytes left on the disk."""
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize


def fill(path: Path, leave_bytes: int = 0) -> None:
    """Write a file until only `leave_bytes` are free."""
    chunk = bytes(1 << 16)
    with path.open("wb", buffering=0) as file:
        try:
            while usable_bytes(path.parent) > leave_bytes:
                file.write(chunk[: max(min(len(chunk), usable_bytes(path.parent) - leave_bytes), 1)])
        except OSError:
            return
