"""Rules that rows must keep, read from a YAML file: SQL expressions with names and severities."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Literal, cast

import yaml
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

Severity = Literal["error", "warning"]
SEVERITIES = ("error", "warning")

_TIME_OF_RUNNING = re.compile(r"\b(now|curdate|current_date|current_time|current_timestamp|localtimestamp)\s*\(", re.I)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule. A row keeps it if `expect`, an SQL expression over its columns, is true (null is not)."""

    name: str
    expect: str
    severity: Severity = "error"

    def broken(self) -> Column:
        """Whether a row breaks the rule; never null."""
        return ~sql.coalesce(sql.expr(self.expect), sql.lit(False))


def read_rules(path: str) -> tuple[Rule, ...]:
    """The rules of a file, at least one; raises OSError, or ValueError naming the file and the mistake."""
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as failure:
        raise ValueError(f"--rules {path}: not YAML: {' '.join(str(failure).split())}") from None
    listed = document.get("rules") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"--rules {path}: must be a mapping with a list 'rules' of at least one rule")
    rules = tuple(_rule(path, number, entry) for number, entry in enumerate(listed, start=1))
    names = [rule.name for rule in rules]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"--rules {path}: two rules are named '{twice[0]}'")
    return rules


def _rule(path: str, number: int, entry: object) -> Rule:
    fields = {str(key): value for key, value in entry.items()} if isinstance(entry, dict) else {}
    unknown = sorted(set(fields) - {"name", "expect", "severity"})
    if unknown:
        raise ValueError(f"--rules {path}: rule {number}: no such key: {unknown[0]}")
    if not all(isinstance(fields.get(key), str) and fields[key].strip() for key in ("name", "expect")):
        raise ValueError(f"--rules {path}: rule {number}: needs a 'name' and 'expect', an SQL expression, both text")
    severity = fields.get("severity", "error")
    if severity not in SEVERITIES:
        raise ValueError(f"--rules {path}: rule {number}: severity {severity}: must be error or warning")
    return Rule(name=fields["name"], expect=fields["expect"], severity=cast("Severity", severity))


def check_rules(rows: DataFrame, rules: tuple[Rule, ...]) -> None:
    """Raise ValueError for a rule that Spark cannot evaluate on `rows`, or whose result may change when repeated."""
    for rule in rules:
        try:
            # Try each as a filter: a filter must be boolean, and cannot aggregate over rows.
            asked = rows.where(sql.expr(rule.expect))
            same_again = asked._jdf.queryExecution().analyzed().deterministic()
        except (AnalysisException, ParseException) as failure:
            line = next((line for line in str(failure).splitlines() if line.strip()), "cannot be understood")
            raise ValueError(f"rule '{rule.name}': {rule.expect}: {line}") from None
        if not same_again or _TIME_OF_RUNNING.search(rule.expect):
            raise ValueError(
                f"rule '{rule.name}': {rule.expect}: must give the same answer when a batch is run again; "
                "compare with kafka_timestamp instead of the time of running"
            )
