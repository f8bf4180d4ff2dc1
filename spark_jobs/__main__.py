"""Run a job by its name: `python -m spark_jobs NAME ARGS...`; a copy of this file is what spark-submit starts."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

import spark_jobs.jobs


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job that the first argument names with the remaining arguments; return 2 for an unknown name."""
    name, *arguments = [*(sys.argv[1:] if argv is None else argv), ""]
    names = sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(spark_jobs.jobs.__path__))
    if name not in names:
        print(f"usage: NAME ARGS..., NAME one of: {' '.join(names)}", file=sys.stderr)
        return 2
    job = importlib.import_module(f"spark_jobs.jobs.{name.replace('-', '_')}")
    code: int = job.main(arguments[:-1])
    return code


if __name__ == "__main__":
    sys.exit(main())
