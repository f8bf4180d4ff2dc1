"""Login modules of JAAS, in files and in keys, and the options that name the file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from config.definitions import ConfigError
from security.jaas import LoginModule, parse_module, parse_sections, system_properties
from tests.fuzz.mutation import mutated_text, put_together
from tests.fuzz.runner import Target, Trial

SECRET = "verysecret"
WORDS = (
    *('"', "\\", "{", "}", ";", "=", " ", "\n", "//", "/*", "*/", "#", "'", '\\"', "/**/", "required", "optional "),
    *("KafkaServer", "org.apache.kafka.X", "username=", f'password="{SECRET}"', "user_alice=x", "a/b", "é", "\0"),
)
KEY = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{SECRET}" user_b=c;'
FILE = f"KafkaServer {{\n  {KEY}\n}};\n/* another */ Client {{ # one\n  A.B required x=y; C.D optional; }};"
OPTIONS = "-Xmx1g -Djava.security.auth.login.config=/etc/jaas.conf '-Da=b c' -Dd=\"e\""


class LoginCase(NamedTuple):
    """`kind` is key, file, options or module; `module` is the login module that the text denotes, with the text as its
    key.
    """

    kind: str
    text: str
    module: LoginModule | None = None


class Logins:
    """Texts of all kinds."""

    def make(self, draw: random.Random) -> LoginCase:
        match draw.randrange(5):
            case 0:
                options = {f"o{at}": put_together(WORDS, draw) for at in range(draw.randrange(4))}
                module = LoginModule("org.apache.kafka.X", options)
                return LoginCase("module", module.to_text(), module)
            case 1:
                return LoginCase("options", mutated_text(OPTIONS, draw, WORDS))
            case 2:
                return LoginCase("file", mutated_text(FILE, draw, WORDS))
            case 3:
                return LoginCase(draw.choice(["file", "key"]), put_together(WORDS, draw, 40))
            case _:
                return LoginCase("key", mutated_text(KEY, draw, WORDS))

    def check(self, case: LoginCase) -> bool:
        def failure(reason: str) -> ConfigError:
            return ConfigError("sasl.jaas.config", "[hidden]", reason)

        try:
            if case.kind == "options":
                system_properties(case.text)
            elif case.kind == "file":
                parse_sections(case.text, failure)
            else:
                found = parse_module(case.text, failure)
                assert case.module is None or found == case.module
        except ConfigError as error:
            assert case.module is None
            assert SECRET not in str(error)
            return False
        return True


@contextmanager
def logins() -> Iterator[Trial]:
    """See `Logins`."""
    yield Logins()


TARGETS = (Target("jaas", 100, logins),)
