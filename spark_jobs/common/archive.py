"""The jobs in one zip, which Spark ships to its executors."""

from __future__ import annotations

import zipfile
from pathlib import Path

import spark_jobs


def write_archive(archive: Path) -> Path:
    """Write every module of the jobs into the zip `archive`, which is returned; the same jobs give the same bytes.

    Raises OSError, or ValueError for a name by which Spark would not know what it is.
    """
    if archive.suffix != ".zip":
        raise ValueError(f"{archive}: must end in .zip, by which Spark knows what it is")
    root = Path(spark_jobs.__file__).parent
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        for path in sorted(root.rglob("*.py")):
            # Without the file's time, which differs from checkout to checkout.
            name = zipfile.ZipInfo(str(path.relative_to(root.parent)))
            written.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return archive
