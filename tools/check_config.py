"""odradek check-config: say what each key of a server.properties means to this broker."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from config.definitions import ConfigError
from config.review import KeyReview, Verdict, review
from tools.support.common import parse_pairs, read_properties, reason

WIDTH = 60


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
        print(f"{arguments.file} cannot be read: {reason(error)}", file=sys.stderr)
        return 1
    findings = review(properties, os.environ)
    print("\n".join(report(findings)))
    return 1 if any(finding.verdict.stops_the_start for finding in findings) else 0


def report(findings: Sequence[KeyReview]) -> list[str]:
    """A line for each finding, the worst last, then a line with their counts."""
    lines = []
    counts = []
    for verdict in Verdict:
        matching = [finding for finding in findings if finding.verdict is verdict]
        if matching:
            counts.append(f"{len(matching)} {verdict.value}")
        for finding in matching:
            setting = f"{finding.key}={finding.value}"
            lines.append(f"{verdict.value:14}  {setting:{WIDTH}}  {finding.note}".rstrip())
    return [*lines, "", f"{len(findings)} keys: {', '.join(counts)}." if counts else "No key is set."]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
