"""A broker process and its signals: every stop terminates, and diagnostic signals do not end it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.broker_process import BrokerProcess, Host, free_port
from tests.kit.waiting import eventually
from tests.kit.zookeeper import new_served_tree


def started(directory: Path, *command: str, **settings: str) -> BrokerProcess:
    """A running broker, started through `command` as a wrapper."""
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    broker = BrokerProcess(directory, overrides, host=Host("127.0.0.1", command))
    broker.start()
    return broker


def said(broker: BrokerProcess, text: str) -> Callable[[], bool]:
    return lambda: text in broker.output.read_text()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_sigquit_prints_what_the_broker_does_and_sighup_stops_it(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODRADEK_LOOP", loop)
    broker = started(tmp_path)
    try:
        for count in (1, 2):
            broker.send_signal(signal.SIGQUIT)
            eventually("its state", lambda wanted=count: broker.output.read_text().count("it answered after") == wanted)
        printed = broker.output.read_text()
        assert "(most recent call first)" in printed, "the stacks of threads"
        assert '"MainThread"' in printed
        assert 'Task "disk-space"' in printed
        assert f"The event loop ({loop}." in printed
        assert AdminClient({"bootstrap.servers": broker.address, "log_level": 0}).list_topics(timeout=30).brokers
        broker.send_signal(signal.SIGHUP)
        assert broker.wait() == 0
    finally:
        broker.kill()
    assert "shut down completed" in broker.output.read_text()


def test_sighup_stays_ignored_where_it_is(tmp_path: Path) -> None:
    broker = started(tmp_path, "nohup")
    try:
        broker.send_signal(signal.SIGHUP)
        broker.send_signal(signal.SIGQUIT)
        eventually("its state", said(broker, "runs: it answered after"))
        assert "shutting down" not in broker.output.read_text()
        assert broker.stop() == 0
    finally:
        broker.kill()


@pytest.mark.parametrize("closed", ["0<&-", "0<&- 1>&- 2>&-"])
def test_standard_streams_that_are_closed(closed: str, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, host=Host("127.0.0.1", ("sh", "-c", f'exec "$@" {closed}', "sh")))
    broker.launch()
    try:
        broker.await_listening()  # without a way to read that it has started
        descriptors = Path(f"/proc/{broker.pid}/fd")
        if descriptors.exists():
            assert {os.readlink(descriptors / str(number)) for number in range(3)} <= {
                "/dev/null",
                str(broker.output),
            }
        assert broker.stop() == 0
    finally:
        broker.kill()


def test_a_stop_waits_for_nobody_who_does_not_answer(tmp_path: Path) -> None:
    """The issuer's keys are being read, from a server that accepts the request and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as issuer:
        url = f"http://127.0.0.1:{issuer.getsockname()[1]}/keys"
        package = "org.apache.kafka.common.security.oauthbearer"
        port = free_port()
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{free_port()}",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": (
                f"{package}.OAuthBearerValidatorCallbackHandler"
            ),
            "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
            "sasl.oauthbearer.jwks.endpoint.url": url,
            "sasl.oauthbearer.expected.audience": "a",
            "org.apache.kafka.sasl.oauthbearer.allowed.urls": url,
        }
        broker = BrokerProcess(tmp_path, settings)
        broker.address = f"127.0.0.1:{port}"
        try:
            broker.start()
            asked, _ = issuer.accept()
            assert broker.stop() == 0
            assert "cannot be read" not in broker.output.read_text(), "the stop waited until the reading gave up"
            asked.close()
        finally:
            broker.kill()


@pytest.fixture
def without_tree(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Two brokers with leaderships to hand over, whose tree is down."""
    tree = new_served_tree(tmp_path / "tree")
    tree.start()
    brokers: list[BrokerProcess] = []
    try:
        for number in ("0", "1"):
            brokers.append(started(tmp_path / number, broker_id=number, zookeeper_connect=tree.address))
        admin = AdminClient({"bootstrap.servers": brokers[0].address, "log_level": 0})
        (created,) = admin.create_topics([NewTopic("t", 4, 2)]).values()
        created.result(30)
        tree.kill()
        for broker in brokers:
            eventually("the loss", said(broker, "is lost"))
        yield brokers
    finally:
        tree.kill()
        for broker in brokers:
            broker.kill()


def test_a_stop_ends_without_the_tree(without_tree: list[BrokerProcess], tmp_path: Path) -> None:
    for broker in without_tree:
        broker.send_signal(signal.SIGTERM)
    for number, broker in enumerate(without_tree):
        assert broker.wait() == 0
        text = broker.output.read_text()
        assert "Stopping without contact to ZooKeeper" in text
        assert "Traceback" not in text
        assert (tmp_path / str(number) / "data" / ".kafka_cleanshutdown").exists()


def test_a_second_signal_ends_it_at_once(without_tree: list[BrokerProcess]) -> None:
    broker = without_tree[0]
    broker.send_signal(signal.SIGTERM)
    eventually("the stop", said(broker, "shutting down"))

    def has_ended() -> bool:
        if broker.is_running:
            broker.send_signal(signal.SIGINT)
        return not broker.is_running

    eventually("the end", has_ended, pause_s=0.1)
    assert broker.wait() == 1
    text = broker.output.read_text()
    assert "A second signal: the process ends at once" in text
    assert "shut down completed" not in text
