"""Rules for all Python of the repository that no other tool checks. An exception stands here with its reason."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *("bench", "bin", "broker", "client", "cluster", "config", "odradek", "protocol", "spark_jobs", "storage"),
    *("tests", "tools"),
)
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
MOST_MODULES_OF_A_FOLDER = 22
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Module(NamedTuple):
    """A source file, `path` relative to the repository."""

    path: str
    text: str
    tree: ast.Module


@cache
def modules() -> tuple[Module, ...]:
    """Every Python file of the repository."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    texts = [(path, path.read_text(encoding="utf-8")) for path in paths]
    return tuple(Module(str(path.relative_to(ROOT)), text, ast.parse(text)) for path, text in texts)


def definitions(module: Module) -> Iterator[Definition]:
    """Every function and class of a module, nested ones included."""
    return (node for node in ast.walk(module.tree) if isinstance(node, Definition))


LONG_FILES: dict[str, str] = {
    "protocol/records/compaction.py": "mypyc compiles it as one unit, and its loops are laid out for it",
    "storage/log_manager.py": "to be split",
    "tests/parity/scenarios/configs_alter.py": "one API's scenarios, which are named after the module",
    "tests/parity/scenarios/fetch.py": "one API's scenarios, which are named after the module",
    "tests/parity/scenarios/groups.py": "one API's scenarios, which are named after the module",
    "tests/parity/scenarios/produce.py": "one API's scenarios, which are named after the module",
    "tests/simulation/network.py": "to be split",
    "tests/storage/compaction/test_log_cleaner.py": "to be split",
    "tests/storage/log/test_retention.py": "to be split",
    "tests/storage/log/test_unified_log.py": "to be split",
    "tests/storage/recovery/test_segment_split.py": "to be split",
    "tests/storage/relocation/test_future_logs.py": "to be split",
    "tests/storage/test_log_manager.py": "to be split",
}
"""Files that may be longer, each with the reason."""

LONG_FUNCTIONS: dict[str, str] = {
    "config/rules.py:rules": "a table of rules",
    "protocol/records/compaction.py:_filter_each": "the loop over records, where a call costs more than the work",
    "protocol/records/record_codec.py:_decode_each": "the loop over records, where a call costs more than the work",
    "tests/simulation/plan.py:draw_plan": "one draw after another from one seed",
    "tests/storage/compaction/test_log_cleaner_kafka.py:test_both_cleaners_leave_the_same": "one story in order",
    "tests/storage/recovery/test_kafka_interop.py:test_one_directory_used_in_turn": "one story in order",
    "tests/tools/test_dump_log.py:command_lines": "a table of command lines",
}
"""Functions that may be longer, as `path:name`, each with the reason."""

LARGE_FOLDERS: dict[str, str] = {"storage/log": "the parts of one log, all of which work on its segments"}
"""Folders that may hold more modules, each with the reason."""

BEGINS_WITH_WHAT: dict[str, int] = {
    "broker/network": 7,
    "broker/replication": 3,
    "protocol/wire": 4,
    "tests/simulation": 9,
    "tests/storage": 1,
    "tests/storage/compaction": 2,
    "tests/storage/directory": 1,
    "tests/storage/io": 1,
    "tests/storage/log": 6,
    "tests/storage/recovery": 5,
    "tests/storage/relocation": 5,
}
"""Docstrings that begin with "What" and are still to be rewritten, by folder. A number may only become smaller."""


def test_files_are_short() -> None:
    """A file that does not fit the head holds two subjects."""
    lines = {module.path: module.text.count("\n") for module in modules()}
    long = {path: count for path, count in lines.items() if count > MOST_LINES_OF_A_FILE}
    assert {path: count for path, count in long.items() if path not in LONG_FILES} == {}


def test_functions_are_short() -> None:
    """A function that does not fit the screen does two things."""
    long = {
        f"{module.path}:{function.name}": lines
        for module in modules()
        for function in definitions(module)
        if not isinstance(function, ast.ClassDef)
        and (lines := (function.end_lineno or 0) - function.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    }
    assert {name: lines for name, lines in long.items() if name not in LONG_FUNCTIONS} == {}


def test_folders_are_small() -> None:
    """Beyond some twenty modules, a reader needs sub-packages to find one."""
    sizes = Counter(str(Path(module.path).parent) for module in modules() if not module.path.endswith("__init__.py"))
    large = {folder: size for folder, size in sizes.items() if size > MOST_MODULES_OF_A_FOLDER}
    assert {folder: size for folder, size in large.items() if folder not in LARGE_FOLDERS} == {}


def test_every_module_says_what_it_is_for() -> None:
    """An empty `__init__.py` holds nothing to describe."""
    assert [module.path for module in modules() if module.tree.body and not ast.get_docstring(module.tree)] == []


def test_nothing_is_left_to_do() -> None:
    """Open work goes into an issue, where somebody finds it."""
    marks = re.compile(r"\b(TODO|FIXME)\b")
    own = str(Path(__file__).relative_to(ROOT))
    assert [module.path for module in modules() if module.path != own and marks.search(module.text)] == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """A docstring that begins with "What" is a clause without a sentence."""
    found: Counter[str] = Counter()
    for module in modules():
        for node in (module.tree, *definitions(module)):
            if (ast.get_docstring(node) or "").startswith("What "):
                found[str(Path(module.path).parent)] += 1
    too_many = {folder: count for folder, count in found.items() if count > BEGINS_WITH_WHAT.get(folder, 0)}
    assert too_many == {}
