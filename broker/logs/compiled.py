"""Compaction's record code, compiled with mypyc: optional, built by `bin/build-fast` (installed: `odradek build-fast`).

The cleaner processes use it if it exists; everything else, and a broker without it, runs the same source interpreted.
Compiled modules are stored under the hash of their source and the interpreter's ABI, so they are never loaded for
another version of either. ODRADEK_COMPILED=0 disables them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "protocol/records/compaction.py"
_KEPT_IN = ".compiled"


def directory(root: Path = ROOT) -> Path:
    """The directory of the modules compiled from this source for this interpreter, or None."""
    source = hashlib.sha256((root / SOURCE).read_bytes()).hexdigest()[:16]
    return root / _KEPT_IN / f"{source}{EXTENSION_SUFFIXES[0]}"


def use() -> bool:
    """Make this process import the compiled modules. Returns whether they exist. Call it before their first import."""
    if os.environ.get("ODRADEK_COMPILED") == "0":
        return False
    found = directory()
    if not found.is_dir():
        return False
    import protocol.records

    protocol.records.__path__.insert(0, str(found))
    return True


def build(root: Path = ROOT) -> Path:
    """Compile. Returns the directory. Raises subprocess.CalledProcessError when mypyc or the C compiler fails."""
    target = directory(root)
    with tempfile.TemporaryDirectory() as temporary:
        # Copy only the package: mypyc works in its directory and reads any pyproject.toml there as its own
        # configuration.
        shutil.copytree(root / "protocol", f"{temporary}/protocol", ignore=shutil.ignore_patterns("__pycache__"))
        options = ["--ignore-missing-imports", "--explicit-package-bases"]
        subprocess.run([sys.executable, "-m", "mypyc", *options, SOURCE], cwd=temporary, check=True)
        made = target.with_suffix(f".{os.getpid()}")
        made.mkdir(parents=True)
        for path in Path(temporary, SOURCE).parent.glob(f"*{EXTENSION_SUFFIXES[0]}"):
            shutil.copy(path, made)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    return target


def main() -> int:
    """The command. Exit code 1, with a message, if a tool is missing."""
    if directory().is_dir():
        print(f"{SOURCE} is compiled already: {directory()}")
        return 0
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        print("pip install mypy setuptools first (a C compiler is needed, too)", file=sys.stderr)
        return 1
    try:
        print(f"compiled: {build()}")
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"{SOURCE} could not be compiled, and will run uncompiled: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
