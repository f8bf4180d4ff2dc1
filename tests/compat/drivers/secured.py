"""Produce a few records and consume them over a secured listener: `secured CLIENT SETTINGS`, in a separate process.

SETTINGS are JSON: address, protocol, topic and, where they are needed, trusted, certificate, key, mechanism, username
and password, the service of Kerberos, or the token for OAUTHBEARER; and give_up_ms, for a client that retries forever.
Prints `received N`, or `refused: `, the client's error and what it logged before.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

COUNT = 500
PATIENCE_S = 60
VALUES = [b"%06d" % number + b"x" * 1000 for number in range(COUNT)]
Settings = dict[str, str]


def librdkafka(settings: Settings) -> int:
    """Over librdkafka."""
    from confluent_kafka import Consumer, KafkaException, Producer

    names = {
        "address": "bootstrap.servers",
        "protocol": "security.protocol",
        "trusted": "ssl.ca.location",
        "certificate": "ssl.certificate.location",
        "key": "ssl.key.location",
        "mechanism": "sasl.mechanism",
        "service": "sasl.kerberos.service.name",
        "username": "sasl.username",
        "password": "sasl.password",
    }
    common: dict[str, Any] = {name: settings[key] for key, name in names.items() if key in settings}
    if "token" in settings:
        extensions = {"traceId": "1"}
        common["oauth_cb"] = lambda _: (settings["token"], time.time() + 600, "", extensions)
    errors: list[Any] = []
    producer = Producer({**common, "error_cb": errors.append})
    # The client requests the token during a poll.
    producer.poll(0)
    for value in VALUES:
        producer.produce(settings["topic"], value)
    while producer.flush(0.5):
        # The generic _ALL_BROKERS_DOWN error follows the real reason.
        if errors:
            producer.purge()
            raise KafkaException(errors[0])
    consumer = Consumer({**common, "group.id": settings["topic"], "auto.offset.reset": "earliest"})
    consumer.subscribe([settings["topic"]])
    received: list[bytes | None] = []
    while len(received) < COUNT:
        received += [each.value() for each in consumer.consume(COUNT, PATIENCE_S)]
    consumer.close()
    assert received == VALUES
    return len(received)


def python_settings(settings: Settings) -> dict[str, Any]:
    """Settings under the names of kafka-python and aiokafka."""
    given: dict[str, Any] = {
        "bootstrap_servers": settings["address"],
        "security_protocol": settings["protocol"].upper(),
    }
    if "trusted" in settings:
        context = ssl.create_default_context(cafile=settings["trusted"])
        if "certificate" in settings:
            context.load_cert_chain(settings["certificate"], settings["key"])
        given["ssl_context"] = context
    if "service" in settings:
        given |= {"sasl_mechanism": "GSSAPI", "sasl_kerberos_service_name": settings["service"]}
    elif "mechanism" in settings:
        given["sasl_mechanism"] = settings["mechanism"]
        if "token" not in settings:
            given["sasl_plain_username"] = settings["username"]
            given["sasl_plain_password"] = settings["password"]
    return given


def kafka_python(settings: Settings) -> int:
    """Over kafka-python."""
    from kafka import KafkaConsumer, KafkaProducer

    common = python_settings(settings)
    if "token" in settings:
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class KafkaPythonToken(AbstractTokenProvider):
            def token(self) -> str:
                return settings["token"]

        common["sasl_oauth_token_provider"] = KafkaPythonToken()
    waiting = {"bootstrap_timeout_ms": int(settings["give_up_ms"])} if "give_up_ms" in settings else {}
    producer = KafkaProducer(**common, **waiting, max_block_ms=PATIENCE_S * 1000)
    for value in VALUES:
        producer.send(settings["topic"], value)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(settings["topic"], auto_offset_reset="earliest", **common)
    received = [next(consumer).value for _ in VALUES]
    consumer.close()
    assert received == VALUES
    return len(received)


def asyncio_client(settings: Settings) -> int:
    """Over aiokafka."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def scenario() -> list[bytes | None]:
        common = python_settings(settings)
        if "token" in settings:
            from aiokafka.abc import AbstractTokenProvider

            class AsyncToken(AbstractTokenProvider):
                async def token(self) -> str:
                    return settings["token"]

            common["sasl_oauth_token_provider"] = AsyncToken()
        async with AIOKafkaProducer(**common) as producer:
            for sent in [await producer.send(settings["topic"], value) for value in VALUES]:
                await sent
        async with AIOKafkaConsumer(settings["topic"], auto_offset_reset="earliest", **common) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    received = asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert received == VALUES
    return len(received)


CLIENTS: dict[str, Callable[[Settings], int]] = {
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "aiokafka": asyncio_client,
}


class Remembered(logging.Handler):
    """Warnings and errors of a client's log: kafka-python and aiokafka give their reasons nowhere else."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.lines[record.getMessage()] = None


def main(client: str, settings: Settings) -> str:
    """Return the line to print."""
    log = Remembered()
    logging.getLogger().addHandler(log)
    try:
        return f"received {CLIENTS[client](settings)}"
    except Exception as error:  # noqa: BLE001  each client has its own
        return " | ".join([f"refused: {type(error).__name__}: {error}", *log.lines])


if __name__ == "__main__":
    print(main(sys.argv[1], json.loads(sys.argv[2])))
