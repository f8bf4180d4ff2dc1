"""One small addition of each kind that docs/contributing describes, as text to insert into a copy of the code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from tests.kit.broker_process import ROOT

PACKAGES = (
    *("broker", "client", "cluster", "config", "environment", "odradek", "protocol", "security", "spark_jobs"),
    *("storage", "tools", "zookeeper"),
    "tests/simulation",
)


class Insertion(NamedTuple):
    """`text` goes in front of `before`, which the file contains once; an empty `before` means a new file."""

    file: str
    before: str
    text: str


API = (
    Insertion(
        "protocol/messages/group_offsets.py",
        "class OffsetDeleteRequest(Request",
        '''class ConsumerGroupDescribeRequest(Request, api_key=ApiKey.CONSUMER_GROUP_DESCRIBE, versions="0"):
    """A group."""

    group_id: string


class ConsumerGroupDescribeResponse(Response, api_key=ApiKey.CONSUMER_GROUP_DESCRIBE, versions="0"):
    """Whether the client may describe the group."""

    throttle_time_ms: int32
    error_code: int16


''',
    ),
    Insertion(
        "broker/handlers/group_offsets.py",
        "    OffsetCommitRequest,\n    OffsetCommitResponse,\n",
        "    ConsumerGroupDescribeRequest,\n    ConsumerGroupDescribeResponse,\n",
    ),
    Insertion(
        "broker/handlers/group_offsets.py",
        "    @api(\n        ApiKey.OFFSET_DELETE,",
        """    @api(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        versions=(0, 0),
        right=OnGroup(
            AclOperation.DESCRIBE,
            lambda _, code: ConsumerGroupDescribeResponse(throttle_time_ms=0, error_code=code),
        ),
        reads_only=True,
    )
    def consumer_group_describe(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse:
        return ConsumerGroupDescribeResponse(throttle_time_ms=0, error_code=ErrorCode.NONE)

""",
    ),
)
KEY = (
    Insertion(
        "config/broker_keys.py",
        "    log_validate_records = Setting(",
        '    greeting_interval_ms = Setting(LONG, 60_000, "How often the broker says hello.", Range(1))\n',
    ),
    Insertion(
        "broker/stages/serving.py",
        '        supervisor.every(DISK_CHECK_MS, "refused-logs",',
        '        supervisor.every(config.greeting_interval_ms, "greeting", space.check)\n',
    ),
)
METRIC = (
    Insertion(
        "broker/observability/metric_definitions.py",
        "FAILED_MOVES = _gauge(",
        'GREETINGS = _counter("odradek_greetings", "How often the broker said hello.")\n',
    ),
    Insertion(
        "broker/observability/metrics.py",
        "        yield metric.FAILED_MOVES.of(",
        "        yield metric.GREETINGS.of(7)\n",
    ),
)
TOOL = (
    Insertion(
        "tools/greet.py",
        "",
        '''"""odradek greet: say hello to a broker (Kafka class `Greeter`)."""

import sys

from tools.support.common import run_tool
from tools.support.options import Option, OptionParser

PARSER = OptionParser("Say hello to a broker.", [Option("name", "The name of the broker.", "name")])


async def work(options):
    print(f"hello, {options.text('name')}")
    return 0


def main(argv):
    return run_tool(argv, PARSER, lambda options: None, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
''',
    ),
)
SPARK_JOB = (
    Insertion(
        "spark_jobs/jobs/count_greetings.py",
        "",
        '''"""`count_greetings`: count how often a broker said hello."""


def main(argv):
    print("7 greetings", *argv)
    return 0


if __name__ == "__main__":
    main([])
''',
    ),
)
FAULT = (
    Insertion(
        "tests/simulation/plan.py",
        "    renewed = None\n",
        """    if Random(f"second kill {seed}").random() < 0.5:
        rarer.append("second kill")
""",
    ),
    Insertion(
        "tests/simulation/faults.py",
        '            "bit flip": self._flip_bit,\n',
        '            "second kill": self._kill_again,\n',
    ),
    Insertion(
        "tests/simulation/faults.py",
        "    def _pause(self) -> bool:\n",
        """    def _kill_again(self) -> bool:
        return self.kill(self.some_machine())

""",
    ),
)
ADDITIONS = {"api": API, "key": KEY, "metric": METRIC, "tool": TOOL, "spark-job": SPARK_JOB, "fault": FAULT}
"""By the name of the page that tells how to make it."""


def copy_with_additions(directory: Path) -> None:
    """Make `directory` a copy of the repository that has all additions."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, directory / package)
    for folder in (ROOT, ROOT / "tests"):
        for each in folder.iterdir():
            copy = directory / each.relative_to(ROOT)
            if not copy.exists() and not each.name.startswith("."):
                copy.symlink_to(each)
    for insertions in ADDITIONS.values():
        for insertion in insertions:
            path = directory / insertion.file
            code = path.read_text(encoding="utf-8") if insertion.before else ""
            assert code.count(insertion.before) == 1, f"{insertion.file} has changed: {insertion.before}"
            code = code.replace(insertion.before, insertion.text + insertion.before)
            path.write_text(code, encoding="utf-8")
