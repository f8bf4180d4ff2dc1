"""Rules for the layout of the product: one file for a subject, and no separate interface for a single class."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.docs.test_tidy import PRODUCT, Module, excepted, modules

FEWEST_LINES_OF_A_MODULE = 60
PACKAGES_THAT_MAKE_A_MODULE = 3
"""A shorter module is justified if so many folders import it."""

SHORT_MODULES: dict[str, str] = {
    "environment/daemon_log_files.py": "only a daemon loads it",
    "cluster/groups/group_config.py": "a broker without groups loads nothing else of them",
    "cluster/groups/offset_events.py": "a broker without groups loads nothing else of them",
    "spark_jobs/common/dedupe.py": "users import it",
    "spark_jobs/copies/target.py": "three jobs share it, and jobs have one folder",
}
"""Shorter modules, each with the reason."""

SOLE_IMPLEMENTATIONS: dict[str, str] = {
    "broker/coordinators/coordinator_runtime.py:CoordinatorLog": "tests run coordinators over a log in memory",
    "environment/contract.py:Random": "the simulation has the other one",
    "storage/io/file_system.py:FileSystem": "the simulation has the other one",
}
"""Interfaces next to their only implementation, as `path:name`, each with the reason."""

NAMESAKES: dict[str, str] = {
    "Network": "the client and the broker each say what they need of sockets; neither imports the other",
    "Random": "the client and the broker each say what they need of randomness; neither imports the other",
}
"""Names of several classes, each with the reason."""


def product() -> Iterator[Module]:
    """The modules of the product, including jobs and tools."""
    return (module for module in modules() if module.path.startswith((*PRODUCT, "odradek/", "spark_jobs/", "tools/")))


def name_of(module: Module) -> str:
    """The dotted name for imports."""
    return module.path.removesuffix(".py").replace("/", ".")


def imports(module: Module) -> Iterator[str]:
    """Dotted names that may be modules."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def is_started(module: Module) -> bool:
    """Whether the module is run directly: as a command or a job."""
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in module.tree.body)


def test_short_modules_are_shared_or_started() -> None:
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for module in product():
        for name in imports(module):
            importers[name].add(str(PurePosixPath(module.path).parent))
    short = {
        module.path: lines
        for module in product()
        if (lines := module.text.count("\n")) < FEWEST_LINES_OF_A_MODULE
        and PurePosixPath(module.path).name not in {"__init__.py", "__main__.py"}
        and len(importers[name_of(module)]) < PACKAGES_THAT_MAKE_A_MODULE
        and not is_started(module)
    }
    excepted(short, SHORT_MODULES)


def methods(definition: ast.ClassDef) -> set[str]:
    """The names of a class's methods and declared attributes, without those with a leading underscore."""
    names = {node.name for node in definition.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    fields = {
        node.target.id
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return {name for name in names | fields if not name.startswith("_")}


def test_one_class_has_no_interface_in_its_own_package() -> None:
    """A Protocol pays if two classes implement it, or if it avoids an import of another package."""
    interfaces: list[tuple[str, str, set[str]]] = []
    classes: list[tuple[str, str, set[str]]] = []
    for module in product():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                is_interface = any(ast.unparse(base).startswith("Protocol") for base in node.bases)
                (interfaces if is_interface else classes).append((module.path, node.name, methods(node)))
    alone: dict[str, int] = {}
    for path, name, wanted in interfaces:
        met = {(other, each) for other, each, offered in classes if wanted and wanted <= offered}
        folders = {PurePosixPath(other).parent for other, _ in met}
        if len(met) == 1 and folders == {PurePosixPath(path).parent}:
            alone[f"{path}:{name}"] = len(wanted)
    excepted(alone, SOLE_IMPLEMENTATIONS)


def test_public_classes_have_names_of_their_own() -> None:
    """Classes of the protocol's messages are nested in their message, where Kafka's schemas repeat some names. The
    package `odradek` is for programs of users, and shares no class with the broker.
    """
    modules_of: defaultdict[str, set[str]] = defaultdict(set)
    for module in product():
        for node in module.tree.body if not module.path.startswith("odradek/") else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules_of[node.name].add(module.path)
    excepted({name: len(paths) for name, paths in modules_of.items() if len(paths) > 1}, NAMESAKES)
