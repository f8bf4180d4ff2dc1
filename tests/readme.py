"""The README's generated parts: `python -m tests.readme README.md` rewrites them, `--check` only compares.

The table comes from the handlers' marks, the list of differences from tests/parity/known_differences.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

import broker.handlers
from broker.registry import ApiMark, marks_of
from protocol.messages import REQUEST_TYPES


def served_apis() -> list[ApiMark]:
    """The marks of every handler in `broker.handlers`, in the order of their keys."""
    marks: list[ApiMark] = []
    for module_info in pkgutil.iter_modules(broker.handlers.__path__):
        module = importlib.import_module(f"broker.handlers.{module_info.name}")
        for member in vars(module).values():
            if isinstance(member, type) and member.__module__ == module.__name__:
                marks.extend(mark for _, mark in marks_of(member))
    return sorted(marks, key=lambda mark: mark.api_key)


def compatibility_table() -> str:
    """The served APIs as a Markdown table."""
    rows = ["| API | key | served | Apache Kafka 3.9.1 |", "|---|---|---|---|"]
    for mark in served_apis():
        request_type = REQUEST_TYPES[mark.api_key]
        name = request_type.__name__.removesuffix("Request")
        kafka = f"{request_type.min_version}-{request_type.max_version}"
        rows.append(f"| {name} | {int(mark.api_key)} | {mark.min_version}-{mark.max_version} | {kafka} |")
    return "\n".join(rows)


def differences(known_differences: Path) -> str:
    """The listed differences as a Markdown table, one row for a line of the file that is not a comment."""
    lines = known_differences.read_text(encoding="utf-8").splitlines() if known_differences.exists() else []
    rows = ["| scenario | where | why |", "|---|---|---|"]
    for line in lines:
        if line.strip() and not line.startswith("#"):
            scenario, path, reason = (part.strip() for part in line.split(" | "))
            rows.append(f"| `{scenario}` | `{path}` | {reason} |")
    return "\n".join(rows)


def rewritten(readme: str, root: Path) -> str:
    """`readme` with its generated parts made anew."""
    parts = {
        "compatibility": compatibility_table(),
        "differences": differences(root / "tests" / "parity" / "known_differences"),
    }
    for name, text in parts.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, _, rest = readme.partition(begin)
        readme = f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}" if rest else readme
    return readme


def main(argv: list[str]) -> int:
    """Rewrite or check one README; exit code 1 when `--check` finds it out of date."""
    check = "--check" in argv
    path = Path(next(argument for argument in argv if argument != "--check"))
    before = path.read_text(encoding="utf-8")
    after = rewritten(before, path.resolve().parent)
    if check:
        if before != after:
            print(f"{path} is out of date: run bin/update-readme", file=sys.stderr)
        return int(before != after)
    path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
