"""Passwords in Kafka's encrypted format for ZooKeeper (Kafka class `EncryptingPasswordEncoder`)."""

from __future__ import annotations

import base64
import hashlib
import ssl
from collections.abc import Mapping
from typing import Final

from config.definitions import ConfigError, Value

CIPHER: Final = "AES/CBC/PKCS5Padding"
_SECRET: Final = "password.encoder.secret"  # noqa: S105  the name of a key
_HASHES: Final = {
    "PBKDF2WithHmacSHA1": "sha1",
    "PBKDF2WithHmacSHA256": "sha256",
    "PBKDF2WithHmacSHA384": "sha384",
    "PBKDF2WithHmacSHA512": "sha512",
}
_KEY_LENGTHS: Final = (128, 192, 256)
_BLOCK_BITS: Final = 128
_SALT_BYTES: Final = 256
_MOST_ITERATIONS: Final = 1_000_000


class PasswordEncoder:
    """Encrypts with a key derived from a secret."""

    def __init__(self, secret: str, key_factory: str, key_length: int, iterations: int) -> None:
        """`key_factory` is Java's name; `key_length` is in bits."""
        self._secret = secret.encode()
        self._key_factory = key_factory
        self._key_length = key_length
        self._iterations = iterations

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> PasswordEncoder | None:
        """The encoder configured by a broker's keys, or None without a secret. Raises ConfigError."""
        secret = values[_SECRET]
        if not isinstance(secret, str) or not secret:
            return None
        key_factory = str(values["password.encoder.keyfactory.algorithm"] or "PBKDF2WithHmacSHA512")
        cipher, key_length = values["password.encoder.cipher.algorithm"], values["password.encoder.key.length"]
        iterations = values["password.encoder.iterations"]
        for name, value, allowed in (
            ("keyfactory.algorithm", key_factory, tuple(_HASHES)),
            ("cipher.algorithm", cipher, (CIPHER,)),
            ("key.length", key_length, _KEY_LENGTHS),
        ):
            if value not in allowed:
                reason = f"it must be one of: {', '.join(map(str, allowed))}"
                raise ConfigError(f"password.encoder.{name}", value, reason)
        assert isinstance(key_length, int)
        assert isinstance(iterations, int)
        return cls(secret, key_factory, key_length, iterations)

    def encode(self, password: str) -> str:
        """The encrypted text, different on each call."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.padding import PKCS7

        salt, vector = ssl.RAND_bytes(_SALT_BYTES), ssl.RAND_bytes(_BLOCK_BITS // 8)
        key = self._key(self._key_factory, salt, self._iterations, self._key_length)
        padder, encryptor = PKCS7(_BLOCK_BITS).padder(), Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
        padded = padder.update(password.encode()) + padder.finalize()
        parts = {
            "keyFactoryAlgorithm": self._key_factory,
            "cipherAlgorithm": CIPHER,
            "keyLength": self._key_length,
            "salt": _base64(salt),
            "iterations": self._iterations,
            "initializationVector": _base64(vector),
            "encryptedPassword": _base64(encryptor.update(padded) + encryptor.finalize()),
            "passwordLength": _java_length(password),
        }
        return ",".join(f"{name}:{value}" for name, value in parts.items())

    def decode(self, text: str) -> str:
        """The password. Raises ValueError if the text was not encoded with this secret."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.padding import PKCS7

        try:
            parts = dict(part.split(":", 1) for part in text.split(","))
            iterations, key_length = int(parts["iterations"]), int(parts["keyLength"])
            if parts["cipherAlgorithm"] != CIPHER or key_length not in _KEY_LENGTHS or iterations > _MOST_ITERATIONS:
                raise ValueError("it was encoded in a way that is not supported")
            salt, vector, encrypted = (
                base64.b64decode(parts[name], validate=True)
                for name in ("salt", "initializationVector", "encryptedPassword")
            )
            key = self._key(parts["keyFactoryAlgorithm"], salt, iterations, key_length)
            decryptor, unpadder = (
                Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor(),
                PKCS7(_BLOCK_BITS).unpadder(),
            )
            padded = decryptor.update(encrypted) + decryptor.finalize()
            password = (unpadder.update(padded) + unpadder.finalize()).decode()
            if _java_length(password) != int(parts["passwordLength"]):
                raise ValueError("its length is another one")
        except KeyError as error:
            raise ValueError(f"it has no usable {error}") from error
        return password

    def _key(self, key_factory: str, salt: bytes, iterations: int, key_length: int) -> bytes:
        return hashlib.pbkdf2_hmac(_HASHES[key_factory], self._secret, salt, iterations, key_length // 8)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _java_length(text: str) -> int:
    return len(text.encode("utf-16-be")) // 2
