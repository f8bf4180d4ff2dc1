"""kafka-delegation-tokens: Kafka's and ours, against Apache Kafka and against our broker: the same output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess, free_port
from tests.tools.tool_pair import Answer, Runner, lines_of

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SIDES = ("k", "o")
"""The users, whose passwords equal their names: each tool is one of them."""
MASKS = (
    (re.compile(r"[A-Za-z0-9+/]{86}=="), "<hmac>"),
    (re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d"), "<date>"),
)
STEPS = """
AT --create --max-life-time-period -1
AT --create --max-life-time-period 1000000 --renewer-principal User:x --renewer-principal 'User:CN=é, O=y'
AT --create --max-life-time-period=-1 --owner-principal User:another-SIDE
AT --describe
AT --describe --owner-principal User:another-SIDE
AT --describe --owner-principal User:nobody --owner-principal User:another-SIDE
AT --describe --owner-principal User:nobody
AT --create --max-life-time-period 5000000
AT --renew --renew-time-period -1 --hmac HMAC
AT --renew --renew-time-period 500000 --hmac HMAC
AT --expire --expiry-time-period 300000 --hmac=HMAC
AT --expire --expiry-time-period -1 --hmac HMAC
AT --renew --renew-time-period -1 --hmac HMAC
AT --expire --expiry-time-period -1 --hmac HMAC
AT --renew --renew-time-period -1 --hmac abcd
# Mistakes
AT
AT --create
AT --create --describe
AT --renew
AT --renew --hmac x
AT --renew --renew-time-period 1
AT --expire --hmac x
AT --create --max-life-time-period -1 --hmac x
AT --create --max-life-time-period -1 --renewer-principal x
AT --create --max-life-time-period -1 --renewer-principal Group:x
AT --describe --owner-principal x
AT --describe --hmac x
AT --renew --renew-time-period -1 --hmac x --owner-principal User:x
AT --nothing
PLAIN --create --max-life-time-period -1
PLAIN --describe
--bootstrap-server=127.0.0.1:1 --describe
--command-config=nothing --describe
"""


@pytest.fixture(scope="module", params=["apache-kafka", "odradek"])
def addresses(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a broker, in plain text and with SASL."""
    kind: type[ApacheKafka | BrokerProcess] = ApacheKafka if request.param == "apache-kafka" else BrokerProcess
    directory, sasl_address = tmp_path_factory.mktemp(f"tokens-{request.param}"), f"127.0.0.1:{free_port()}"
    users = " ".join(f'user_{side}="{side}"' for side in SIDES)
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{MODULE} {users};",
        "delegation.token.secret.key": "secret",
    }
    broker = kind(directory, settings)
    with (directory / "server.properties").open("a") as properties:
        properties.write(f"listeners=PLAINTEXT://{broker.address},SASL_PLAINTEXT://{sasl_address}\n")
    broker.start()
    yield broker.address, sasl_address
    broker.stop()


class Side:
    """One of the tools. HMAC in its steps stands for that of its latest token."""

    def __init__(self, runner: Runner, addresses: tuple[str, str], directory: Path) -> None:
        self._runner = runner
        side = runner.side
        login = f'{MODULE} username="{side}" password="{side}";'
        files = {
            "AT": f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n",
            "PLAIN": "security.protocol=PLAINTEXT\n",
        }
        self._words = {}
        for (word, text), address in zip(files.items(), reversed(addresses), strict=True):
            file = directory / f"{side}-{word}.properties"
            file.write_text(text)
            self._words[word] = [f"--bootstrap-server={address}", f"--command-config={file}"]
        self._hmac = ""

    def play(self, step: str) -> tuple[int | None, list[str], str]:
        """The exit code, the lines, and the first line of standard error."""
        words: list[str] = []
        for word in shlex.split(step.replace("SIDE", self._runner.side).replace("HMAC", self._hmac)):
            words += self._words.get(word, [word])
        answer = self._runner.run("delegation_tokens", words)
        made = MASKS[0][0].findall(answer.stdout)
        if made and "--create" in words:
            self._hmac = made[-1]
        return answer.code, self._masked(answer), "" if answer.code == 0 else answer.stderr.partition("\n")[0]

    def _masked(self, answer: Answer) -> list[str]:
        text = answer.stdout
        for pattern, replacement in MASKS:
            text = pattern.sub(replacement, text)
        text = text.replace(f":{self._runner.side}", ":<side>").replace(f"-{self._runner.side}", "-<side>")
        return lines_of(answer._replace(stdout=text))


def test_both_say_the_same(addresses: tuple[str, str], kafkas: Runner, ours: Runner, tmp_path: Path) -> None:
    sides = [Side(runner, addresses, tmp_path) for runner in (kafkas, ours)]
    differences = []
    with ThreadPoolExecutor(2) as players:
        for step in filter(None, (line.partition("#")[0].strip() for line in STEPS.splitlines())):
            theirs, mine = players.map(lambda side, step=step: side.play(step), sides)
            if theirs != mine:
                differences.append(f"{step}\n  Kafka's: {theirs}\n  ours:    {mine}")
    assert not differences, f"{len(differences)} differ:\n" + "\n".join(differences)
