"""Rules for all Python of the repository that no other tool checks. Exceptions are listed here with their reasons."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *("bench", "bin", "broker", "client", "cluster", "config", "environment", "odradek", "protocol", "security"),
    *("spark_jobs", "zookeeper"),
    *("storage", "tests", "tools"),
)
MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_AN_OWNER = 800
"""The limit for a file in which one class, the owner of some state, takes more than half of the lines."""
MOST_LINES_OF_A_FUNCTION = 60
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


def texts() -> Iterator[tuple[str, str]]:
    """Every docstring and every string below an attribute, with its place as `path:line`."""
    for module in modules():
        for node in ast.walk(module.tree):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield f"{module.path}:{node.lineno}", text


LONG_FILES: dict[str, str] = {
    "protocol/records/compaction.py": "mypyc compiles it as one unit, and its loops are laid out for it",
    "tests/parity/scenarios/configs_alter.py": "one API's scenarios, which are named after the module",
    "tests/parity/scenarios/groups.py": "one API's scenarios, which are named after the module",
}
"""Files that may be longer, each with the reason."""

LONG_FUNCTIONS: dict[str, str] = {
    "config/rules.py:rules": "a table of rules",
    "protocol/records/compaction.py:_filter_each": "the loop over records, where a call costs more than the work",
    "protocol/records/record_codec.py:_decode_each": "the loop over records, where a call costs more than the work",
    "tests/simulation/plan.py:draw_plan": "one draw after another from one seed",
    "tests/storage/compaction/test_log_cleaner_kafka.py:test_both_cleaners_leave_the_same": "one scenario in order",
    "tests/storage/recovery/test_kafka_interop.py:test_one_directory_used_in_turn": "one scenario in order",
    "tests/tools/test_dump_log.py:command_lines": "a table of command lines",
}
"""Functions that may be longer, as `path:name`, each with the reason."""

SHARED_NAMES: dict[str, str] = {
    "__main__.py": "entry points",
    "coordination.py": "the coordination service: its contract, the stage that opens it, the simulated one",
    "environment.py": "clock, network, files and randomness: the client's, and those of tests",
    "errors.py": "exceptions: those with a code of the protocol, and the client's others",
}
"""Module names in several packages, each with the one thing that it means in all of them."""

SAME_API = ("broker/handlers", "broker/handlers/security", "protocol/messages", "tools")
"""Folders whose modules are named after API families."""


def excepted(found: dict[str, int], exceptions: dict[str, str]) -> None:
    """Fail for each finding without an exception, and for each exception without a finding."""
    assert {name: size for name, size in found.items() if name not in exceptions} == {}
    assert [name for name in exceptions if name not in found] == [], "exceptions that nothing needs any more"


def lines_of(definition: Definition) -> int:
    """Lines from the `def` or `class` to its end."""
    return (definition.end_lineno or 0) - definition.lineno + 1


def most_lines(module: Module) -> int:
    """The limit on the lines of `module`. An owner of state stays whole; other files are split by subject."""
    classes = [lines_of(node) for node in module.tree.body if isinstance(node, ast.ClassDef)]
    owns_state = max(classes, default=0) > module.text.count("\n") / 2
    return MOST_LINES_OF_AN_OWNER if owns_state else MOST_LINES_OF_A_FILE


def test_files_are_short() -> None:
    """A file that does not fit in your head has two subjects."""
    lines = {module.path: (module.text.count("\n"), most_lines(module)) for module in modules()}
    excepted({path: count for path, (count, most) in lines.items() if count > most}, LONG_FILES)


def test_functions_are_short() -> None:
    """A function that does not fit on the screen does two things."""
    long = {
        f"{module.path}:{function.name}": lines
        for module in modules()
        for function in definitions(module)
        if not isinstance(function, ast.ClassDef) and (lines := lines_of(function)) > MOST_LINES_OF_A_FUNCTION
    }
    excepted(long, LONG_FUNCTIONS)


def test_every_module_says_what_it_is_for() -> None:
    """An empty `__init__.py` needs no description."""
    assert [module.path for module in modules() if module.tree.body and not ast.get_docstring(module.tree)] == []


def test_nothing_is_left_to_do() -> None:
    """Open work belongs in an issue, where it can be found."""
    marks = re.compile(r"\b(TODO|FIXME)\b")
    own = str(Path(__file__).relative_to(ROOT))
    assert [module.path for module in modules() if module.path != own and marks.search(module.text)] == []


def test_a_module_name_means_one_thing() -> None:
    """A module name leads readers to a single module."""
    folders: dict[str, list[str]] = {}
    for module in modules():
        path = Path(module.path)
        is_searched = module.path.split("/")[0] not in {"bench", "bin", "spark_jobs", "tests"} or "/kit/" in module.path
        if is_searched and path.name != "__init__.py" and str(path.parent) not in SAME_API:
            folders.setdefault(path.name, []).append(str(path.parent))
    excepted({name: len(found) for name, found in folders.items() if len(found) > 1}, SHARED_NAMES)


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """A docstring that begins with "What" is a clause without a sentence. The rule covers the texts below
    attributes.
    """
    assert [place for place, text in texts() if text.startswith("What ")] == []


PRODUCT = (
    *("broker/", "client/", "cluster/", "config/", "environment/", "protocol/", "security/", "storage/", "zookeeper/"),
)
BUGS = {"Exception", "BaseException"}
"""Handlers of these catch bugs too. Those keep their traceback, because it is logged."""


def is_error(annotation: ast.expr) -> bool:
    """Whether all values of this type are exceptions, or None."""
    kinds = {kind.strip() for kind in ast.unparse(annotation).split("|")} - {"None"}
    return all(re.fullmatch(r"\w*(Error|Exception)", kind) for kind in kinds)


def stored_errors(module: Module) -> Iterator[str]:
    """The places that keep or raise an error which was caught, or came as an argument, without a copy."""
    names: list[tuple[ast.AST, str]] = []
    for node in ast.walk(module.tree):
        match node:
            case ast.Raise(exc=ast.Name(id=name) | ast.Attribute(attr=name)) if not name[0].isupper():
                yield f"{module.path}:{node.lineno}"
            case ast.Raise(exc=ast.Subscript()):
                yield f"{module.path}:{node.lineno}"
            case ast.ExceptHandler(type=ast.Name(id=kind), name=str()) if kind in BUGS:
                pass
            case ast.ExceptHandler(name=str(name)):
                names.append((node, name))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names += [(node, each.arg) for each in node.args.args if each.annotation and is_error(each.annotation)]
    for scope, name in names:
        for node in ast.walk(scope):
            kept: list[ast.expr | None] = []
            match node:
                case ast.Assign(targets=[ast.Attribute(attr="__cause__")]):
                    pass
                case ast.Assign(targets=targets, value=value):
                    if isinstance(scope, ast.ExceptHandler) or not isinstance(targets[0], ast.Name):
                        kept = [value]
                case ast.AnnAssign(value=value):
                    kept = [value]
                case ast.Return(value=value) if isinstance(scope, ast.ExceptHandler):
                    kept = [value]
                case ast.Tuple(elts=elts) | ast.List(elts=elts):
                    kept = list(elts)
                case ast.Dict(values=elts):
                    kept = list(elts)
                case ast.Call(func=ast.Attribute(attr="append" | "set_exception"), args=args):
                    kept = list(args)
                case ast.Call(func=ast.Name(id="partial"), args=args):
                    kept = list(args)
            if any(isinstance(each, ast.Name) and each.id == name for each in kept):
                yield f"{module.path}:{node.lineno}"  # type: ignore[attr-defined]


def test_stored_errors_have_no_traceback() -> None:
    """A traceback holds all objects of the calls, in a cycle: `protocol.errors.detached` gives a copy without it."""
    found = {place for module in modules() if module.path.startswith(PRODUCT) for place in stored_errors(module)}
    assert sorted(found) == []
