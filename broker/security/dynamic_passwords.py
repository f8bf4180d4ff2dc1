"""Passwords in a broker's dynamic configuration: encoded where they are kept, plain where they are used."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from config.broker_config import BrokerConfig
from config.broker_keys import is_password
from protocol.errors import ApiError, ErrorCode
from security.password_encoder import PasswordEncoder

logger = logging.getLogger("kafka.server.DynamicBrokerConfig")


def decoded(properties: Mapping[str, str], config: BrokerConfig) -> dict[str, str]:
    """`properties` with passwords in plain text. Those that cannot be decoded are left out, which is logged."""
    encoder = PasswordEncoder.of(config.values)
    result: dict[str, str] = {}
    for name, text in properties.items():
        if not is_password(name):
            result[name] = text
        elif encoder is None:
            logger.error("Dynamic password config %s is ignored: password.encoder.secret is not set", name)
        else:
            try:
                result[name] = encoder.decode(text)
            except ValueError as error:
                logger.error("Dynamic password config %s could not be decoded, ignoring: %s", name, error)
    return result


def encoded(properties: Mapping[str, str], config: BrokerConfig) -> dict[str, str]:
    """`properties` as they are kept. Raises ApiError(INVALID_REQUEST) for passwords where there is no secret."""
    encoder = PasswordEncoder.of(config.values)
    if encoder is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Password encoder secret not configured")
    return {name: encoder.encode(text) if is_password(name) else text for name, text in properties.items()}
