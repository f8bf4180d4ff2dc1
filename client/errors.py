"""Errors beside the error codes that brokers answer (`protocol.errors.ApiError`)."""

from __future__ import annotations

from protocol.errors import ApiError, ErrorCode, detached


class ClientError(Exception):
    """Base of the errors that this package raises beside ApiError."""


class SettingsError(ClientError):
    """A setting that cannot be used; the message names it, its value and what is allowed."""


class DisconnectedError(ClientError):
    """The connection ended, or never came to be, before the answer arrived. Asking again may help."""


class AuthenticationError(ApiError):
    """A broker does not accept this client, or this client does not accept it. Asking again does not help."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.SASL_AUTHENTICATION_FAILED, message)


class ClientTimeoutError(ClientError):
    """A call did not succeed within the time that the settings allow."""


class NoBrokerError(ClientError):
    """No bootstrap server has ever answered, and `ClientSettings.bootstrap_timeout_ms` is over."""


class UnsupportedVersionError(ClientError):
    """The broker and this client have no version of an API in common."""


class NoOffsetError(ClientError):
    """A partition has no committed offset and `auto.offset.reset` is `none`, or its offset is out of range then."""


class FencedError(ClientError):
    """Another member has taken this one's `group.instance.id`; it must not go on."""


class IllegalStateError(ClientError):
    """A call that the producer's state does not allow, such as a commit without a transaction."""


class TransactionError(ClientError):
    """A transaction failed because of `cause`. It has to be aborted, or, when `is_fatal`, the producer to be closed."""

    def __init__(self, message: str, cause: Exception, *, is_fatal: bool) -> None:
        super().__init__(message)
        self.cause = detached(cause)
        self.is_fatal = is_fatal


def refusal(code: int, message: str | None = None) -> ApiError | None:
    """The error that a broker has answered, or None."""
    return ApiError(ErrorCode.of(code), message or "") if code else None


def raise_for(code: int, message: str | None = None) -> None:
    """Raise the error that a broker has answered, if any."""
    error = refusal(code, message)
    if error is not None:
        raise detached(error)
