"""The generated parts of docs/: `python -m tests.docs.documents` rewrites them, `--check` only compares.

A generated part is between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import broker.handlers
import broker.security
from broker.metadata.config_service import NOT_YET_DYNAMIC
from broker.network.registry import ApiMark, marks_of
from broker.observability.metric_definitions import DEFINITIONS
from broker.test_mode.api_description import Schema, operations_of
from broker.test_mode.cluster_requests import ClusterRequests
from broker.test_mode.control_server import ControlServer
from broker.test_mode.faulty_disk import DiskFaults
from config.broker_keys import BROKER_KEYS, DYNAMIC_BROKER_KEYS, OdradekKeys
from config.definitions import ConfigKey, UpdateMode, value_to_text
from config.topic_config import TOPIC_KEYS
from protocol.messages import REQUEST_TYPES
from tests.parity.known_differences import KnownDifference, known_differences
from tests.simulation.cluster.cluster_mutants import CLUSTER_MUTANTS, PROCESS_MUTANTS
from tests.simulation.cluster.found import read_found

DOCS = Path(__file__).resolve().parents[2] / "docs"
_MISSING = re.compile(r"(.*): not implemented yet")


def served_apis() -> list[ApiMark]:
    """The marks of every handler in `broker.handlers` and `broker.security`, in the order of their keys."""
    marks: list[ApiMark] = []
    found = [
        name
        for package in (broker.handlers, broker.security)
        for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    for module in map(importlib.import_module, found):
        for member in vars(module).values():
            if isinstance(member, type) and member.__module__ == module.__name__:
                marks.extend(mark for _, mark in marks_of(member))
    return sorted(marks, key=lambda mark: mark.api_key)


def table(head: str, rows: Iterable[str]) -> str:
    """A Markdown table. `head` and `rows` hold cells separated by ` | `."""
    columns = head.count(" | ") + 1
    return "\n".join([f"| {head} |", "|" + "---|" * columns, *(f"| {row} |" for row in rows)])


def compatibility() -> str:
    """The served APIs with their versions."""
    rows = []
    for mark in served_apis():
        request_type = REQUEST_TYPES[mark.api_key]
        name = request_type.__name__.removesuffix("Request")
        kafka = f"{request_type.min_version}-{request_type.max_version}"
        rows.append(f"{name} | {int(mark.api_key)} | {mark.min_version}-{mark.max_version} | {kafka}")
    return table("API | key | served | Apache Kafka 3.9.1", rows)


def _missing_feature(difference: KnownDifference) -> str | None:
    found = _MISSING.fullmatch(difference.reason)
    return None if found is None else found[1]


def missing() -> str:
    """The features without a handler, each with the API keys that it would serve."""
    keys: dict[str, list[str]] = {}
    for difference in known_differences():
        feature = _missing_feature(difference)
        if feature is not None:
            keys.setdefault(feature, []).append(difference.path.rpartition(".")[2])
    return table("feature | API keys", [f"{feature} | {', '.join(numbers)}" for feature, numbers in keys.items()])


def differences() -> str:
    """The known differences other than missing features."""
    rows = [
        f"`{each.scenario}` | `{each.path}` | {each.reason}"
        for each in known_differences()
        if _missing_feature(each) is None
    ]
    return table("scenario | where | why", rows)


_UPDATES = {UpdateMode.READ_ONLY: "no", UpdateMode.PER_BROKER: "each broker", UpdateMode.CLUSTER_WIDE: "yes"}


def _update(key: ConfigKey) -> str:
    return "no" if NOT_YET_DYNAMIC.match(key.name) else _UPDATES[key.update_mode]


def _default(key: ConfigKey) -> str:
    text = value_to_text(key.default)
    return "" if text is None else f"`{text}`" if text else "empty"


def _key_row(key: ConfigKey, *extra: str) -> str:
    meaning = key.doc.replace("|", "\\|")
    return " | ".join([f"`{key.name}`", _default(key), *extra, meaning])


def broker_keys() -> str:
    """Every supported key of server.properties."""
    own = {key.name for key in OdradekKeys.declared()}
    keys = [key for key in BROKER_KEYS.values() if not key.internal and key.refusal is None and key.name not in own]
    rows = [_key_row(key, _update(key)) for key in sorted(keys)]
    return table("key | default | dynamic | meaning", rows)


def own_keys() -> str:
    """Odradek's own keys."""
    return table("key | default | meaning", [_key_row(key) for key in OdradekKeys.declared()])


def refused_keys() -> str:
    """Keys of Kafka that stop the start unless they have their default value."""
    keys = [key for key in BROKER_KEYS.values() if key.refusal is not None]
    return table("key | why", [f"`{key.name}` | {key.refusal}" for key in sorted(keys)])


def topic_keys() -> str:
    """Every key of a topic."""
    return table("key | default | meaning", [_key_row(key) for key in TOPIC_KEYS.values()])


def dynamic_keys() -> str:
    """Keys that exist only in the dynamic configuration."""
    return table("key | meaning", [f"`{key.name}` | {key.doc}" for key in DYNAMIC_BROKER_KEYS.values()])


def metrics() -> str:
    """Every metric of the broker."""
    rows = []
    for each in DEFINITIONS:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        rows.append(f"`{each.sample_name}` | {each.type} | {each.unit} | {labels} | {each.meaning}")
    return table("name | type | unit | labels | meaning", rows)


def _fields(schema: Schema | None) -> list[str]:
    """The fields of a struct with their meaning, a line each."""
    lines = []
    for name, field in ({} if schema is None else schema["properties"]).items():
        mark = "" if schema is not None and name in schema.get("required", []) else "?"
        values = f" One of {', '.join(f'`{each}`' for each in field['enum'])}." if "enum" in field else ""
        default = f" Default: `{json.dumps(field['default'])}`." if field.get("default") not in (None, {}) else ""
        lines.append(f"`{name}{mark}`: {field['description']}{values}{default}")
        if field["type"] == "array" and "properties" in field["items"]:
            inner = [each.partition(":")[0] for each in _fields(field["items"])]
            lines[-1] += f" Each has {', '.join(inner)}."
    return lines


def control_requests() -> str:
    """The requests of the control API."""
    rows = []
    for handler_type in (ControlServer, DiskFaults, ClusterRequests):
        for _, mark in operations_of(handler_type):
            fields = "<br>".join([*_fields(mark.parameter_schema), *_fields(mark.body)])
            answer = ", ".join(f"`{name}`" for name in mark.answer.get("properties", {}))
            rows.append(f"`{mark.line}` | {mark.summary} | {fields} | {answer}")
    return table("request | effect | fields | answer", rows)


_TRAP = re.compile(r"M(\d+): ")


def planted_bugs() -> str:
    """The planted bugs of clusters, in the order of the traps, and the seeds that found them."""
    found = read_found()
    rows: list[tuple[int, str]] = []
    for name, mutant in {**CLUSTER_MUTANTS, **PROCESS_MUTANTS}.items():
        text, _, test = " ".join((mutant.__doc__ or "").split()).partition(" | ")
        trap, by = _TRAP.match(text), found.get(name)
        told = f"{test or 'not found yet'} | | " if by is None else f"{by.check} | {by.seed} | {by.tried}"
        number, text = (99, f" | {text}") if trap is None else (int(trap[1]), f"M{trap[1]} | {text[trap.end() :]}")
        rows.append((number, f"{text} | {told}"))
    rows.sort(key=lambda row: row[0])
    return table("trap | planted bug | violated | seed | seeds tried", [row for _, row in rows])


PARTS: dict[str, Callable[[], str]] = {
    "planted-bugs": planted_bugs,
    "compatibility": compatibility,
    "missing": missing,
    "differences": differences,
    "own-keys": own_keys,
    "broker-keys": broker_keys,
    "dynamic-keys": dynamic_keys,
    "topic-keys": topic_keys,
    "refused-keys": refused_keys,
    "metrics": metrics,
    "control-requests": control_requests,
}


def rewritten(page: str) -> str:
    """`page` with its generated parts updated."""
    for name, make in PARTS.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{make()}\n{end}{rest.partition(end)[2]}" if rest else page
    return page


def main(argv: list[str]) -> int:
    """Rewrite or check every page; returns exit code 1 if `--check` finds one out of date."""
    stale = 0
    for path in sorted(DOCS.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = rewritten(before)
        if before == after:
            continue
        if "--check" in argv:
            print(f"{path} is out of date: run scripts/update-docs", file=sys.stderr)
            stale = 1
        else:
            path.write_text(after, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
