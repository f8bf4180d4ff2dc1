"""A real file system of a few megabytes, to be filled: ext4 on a loop device, or tmpfs where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[Path]:
    """Mount a file system below `directory` for a block; gives where. Skips the test where nothing can be mounted."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    mounted_at = directory / "small-disk"
    mounted_at.mkdir(parents=True)
    image = directory / "image"
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    # Without blocks that only root may use: as root, the broker would never find the disk full.
    attempts = (
        (["mkfs.ext4", "-q", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(mounted_at)]),
        (["true"], ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(mounted_at)]),
    )
    refusals = []
    for commands in attempts:
        for command in commands:
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
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
                subprocess.run(["umount", str(mounted_at)], check=False, timeout=30)
                image.unlink()
            return
    pytest.skip(f"no small file system can be mounted here: {'; '.join(refusals)}")


def usable_bytes(path: Path) -> int:
    """What is left of the disk."""
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize


def fill(path: Path, leave_bytes: int = 0) -> None:
    """Write a file until only `leave_bytes` are left."""
    chunk = bytes(1 << 16)
    with path.open("wb", buffering=0) as file:
        try:
            while usable_bytes(path.parent) > leave_bytes:
                file.write(chunk[: max(min(len(chunk), usable_bytes(path.parent) - leave_bytes), 1)])
        except OSError:
            return
