"""Client errors other than the error codes of brokers (`protocol.errors.ApiError`)."""

from __future__ import annotations

from protocol.errors import ApiError, ErrorCode, detached


class ClientError(Exception):
    """Base of the errors of this package other than ApiError."""


class SettingsError(ClientError):
    """An invalid setting; the message gives its name, its value and the allowed values."""


class DisconnectedError(ClientError):
    """The connection failed or ended before the response. A retry may help."""


class AuthenticationError(ApiError):
    """A broker does not accept this client, or the client does not accept the broker. A retry does not help."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.SASL_AUTHENTICATION_FAILED, message)


class ClientTimeoutError(ClientError):
    """A call did not succeed within the configured time."""


class NoBrokerError(ClientError):
    """No bootstrap server has ever responded, and `ClientSettings.bootstrap_timeout_ms` is over."""


class UnsupportedVersionError(ClientError):
    """The broker and this client do not share a version of an API."""


class NoOffsetError(ClientError):
    """`auto.offset.reset` is `none`, and a partition lacks a committed offset or its offset is out of range."""


class FencedError(ClientError):
    """Another member has taken over the `group.instance.id`; this one must stop."""


class IllegalStateError(ClientError):
    """A call that the producer's state does not allow, such as a commit without a transaction."""


class TransactionError(ClientError):
    """A transaction failed because of `cause`. Abort it, or if `is_fatal`, close the producer."""

    def __init__(self, message: str, cause: Exception, *, is_fatal: bool) -> None:
        super().__init__(message)
        self.cause = detached(cause)
        self.is_fatal = is_fatal


def refusal(code: int, message: str | None = None) -> ApiError | None:
    """The error for a broker's error code, or None."""
    return ApiError(ErrorCode.of(code), message or "") if code else None


def raise_for(code: int, message: str | None = None) -> None:
    """Raise the error for a broker's error code, if any."""
    error = refusal(code, message)
    if error is not None:
        raise detached(error)
