"""odradek check-config: say what each key of a server.properties means to this broker."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence

from config.definitions import ConfigError
from config.review import KeyReview, Verdict, review
from tools.support.common import parse_pairs, read_properties, reason
from tools.support.terminal import Part, Table, show

STYLES = {
    Verdict.SUPPORTED.value: "green",
    Verdict.WITHOUT_EFFECT.value: "dim",
    Verdict.UNKNOWN.value: "yellow",
    Verdict.REFUSED.value: "bold red",
    Verdict.BAD.value: "bold red",
}
"""Colours of the verdicts, for terminals."""


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog=os.environ.get("ODRADEK_COMMAND", "odradek check-config"),
        description="Say what each key of a configuration file means to this broker, all at once. "
        "Exit code 1 when a key stops the start.",
    )
    parser.add_argument("file", help="server.properties")
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE", help="as of server-start")
    return parser


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code, 1 if a broker would not start with the file."""
    arguments = make_parser().parse_args(argv)
    try:
        properties = {**read_properties(arguments.file), **parse_pairs(arguments.override)}
    except (OSError, ConfigError) as error:
        print(
            f"cannot read {reason(error)}" if isinstance(error, OSError) else f"{arguments.file}: {error}",
            file=sys.stderr,
        )
        return 1
    findings = review(properties, os.environ)
    show(report(findings), STYLES)
    return 1 if any(finding.verdict.stops_the_start for finding in findings) else 0


def report(findings: Sequence[KeyReview]) -> list[Part]:
    """A row for each finding, the worst last, then a line with their counts."""
    if not findings:
        return ["No key is set."]
    order = list(Verdict)
    worst_last = sorted(findings, key=lambda finding: order.index(finding.verdict))
    rows = [(each.verdict.value, f"{each.key}={each.value}", each.note) for each in worst_last]
    count = Counter(each.verdict.value for each in worst_last)
    return [
        Table(rows),
        "",
        f"{len(findings)} keys: {', '.join(f'{number} {verdict}' for verdict, number in count.items())}.",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
