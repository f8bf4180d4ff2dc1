"""Make a virtual environment hold what a hashed lock file says; the slow path of `bin/odradek-run` and `bin/test`.

Usage: `python bin/prepare_venv.py VENV LOCK`. Runs on a bare interpreter (standard library only).

Guarantees: when it returns 0 the environment is complete and its stamp (`odradek.stamp` inside it) describes the
lock and the interpreter; the stamp is written last, so an interrupted run is repeated. Two runs at once: the second
waits for the first (an `flock` on `VENV.lock`, which the kernel drops with its holder) and finds the work done.

The stamp is the interpreter's inode and size in bytes, a newline, and the lock file's own text. The shell scripts
compare them without starting Python: a changed lock or an upgraded interpreter makes the environment stale.

A stale environment is emptied and made anew, but not through a symbolic link: others may be using it.

The checkout's own modules are compiled, too: where PYTHONDONTWRITEBYTECODE is set, no start keeps what it compiles.
`odradek.compiled` in the environment tells when; the shell scripts call `prepare_venv.py --compile VENV` again when a
module is newer.
"""

from __future__ import annotations

import compileall
import fcntl
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("broker", "client", "cluster", "config", "environment", "odradek", "protocol", "security", "storage", "tools"),
    "zookeeper",
)
STAMP = "odradek.stamp"
COMPILED = "odradek.compiled"
MINIMUM = (3, 11)


def expected_stamp(venv: Path, lock: Path) -> str:
    """The stamp of a fresh environment. Raises FileNotFoundError while the environment has no interpreter."""
    interpreter = (venv / "bin" / "python").stat()
    return f"{interpreter.st_ino} {interpreter.st_size}\n{lock.read_text()}"


def is_fresh(venv: Path, lock: Path) -> bool:
    """Whether `venv` was completed from exactly this lock by exactly its present interpreter."""
    try:
        return (venv / STAMP).read_text() == expected_stamp(venv, lock)
    except FileNotFoundError:
        return False


def install(venv: Path, lock: Path) -> None:
    """Make the environment anew; raises subprocess.CalledProcessError (its output is on stderr) when a step fails."""
    print(f"preparing {venv} from {lock.name} (only when it is missing or stale)", file=sys.stderr)
    (venv / STAMP).unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True, stdout=sys.stderr)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    # An editable or extra package would make two checkouts differ: nothing but the lock, and only with its hashes.
    subprocess.run([*pip, "install", "--require-hashes", "-r", str(lock)], check=True, stdout=sys.stderr)
    compile_checkout(venv)
    (venv / STAMP).write_text(expected_stamp(venv, lock))


def compile_checkout(venv: Path) -> None:
    """Compile what changed in this checkout. Where that cannot be written, starts take longer."""
    try:
        (venv / COMPILED).touch()  # first: what changes meanwhile is compiled the next time
    except OSError:
        return
    for package in PACKAGES:
        compileall.compile_dir(ROOT / package, quiet=2)


def main(argv: list[str]) -> int:
    """Prepare `argv[0]` from the lock `argv[1]`; 0 when it is ready, 1 with one line on stderr when it cannot be."""
    if argv[0] == "--compile":
        compile_checkout(Path(argv[1]))
        return 0
    venv, lock = Path(argv[0]), Path(argv[1])
    if sys.version_info < MINIMUM:
        print(f"Python {MINIMUM[0]}.{MINIMUM[1]} or newer is needed, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    with Path(f"{venv}.lock").open("w") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        if is_fresh(venv, lock):
            return 0
        if venv.is_symlink():
            place = f"{venv}, a link to {venv.readlink()}, is not what {lock.name} says"
            print(f"{place}: remove the link; an environment of others is not emptied", file=sys.stderr)
            return 1
        try:
            install(venv, lock)
        except subprocess.CalledProcessError as failure:
            command = " ".join(failure.cmd[1:4])
            hint = "; on Debian and Ubuntu: apt-get install python3-venv" if "venv" in failure.cmd else ""
            print(f"could not prepare {venv}: '{command} ...' exited {failure.returncode}{hint}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
