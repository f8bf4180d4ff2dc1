"""The README says what the code does."""

import re
from pathlib import Path

import pytest

from config.broker_config import BROKER_KEYS
from config.definitions import ConfigKey, value_to_text
from config.dynamic_keys import DYNAMIC_BROKER_KEYS
from config.keys_odradek import KEYS as OWN_KEYS
from config.topic_config import TOPIC_KEYS
from tests.readme import main, rewritten, served_apis

ROOT = Path(__file__).resolve().parent.parent


def test_the_generated_parts_are_up_to_date() -> None:
    assert main(["--check", str(ROOT / "README.md")]) == 0


def test_a_stale_table_is_noticed_and_mended() -> None:
    stale = "x\n<!-- compatibility:begin -->\nold\n<!-- compatibility:end -->\ny"
    mended = rewritten(stale, ROOT)
    assert "old" not in mended
    assert "| Produce | 0 | 0-11 | 0-11 |" in mended
    assert rewritten(mended, ROOT) == mended
    assert len(served_apis()) >= 6


def quoted() -> list[str]:
    """What stands between single backticks in the README, code blocks left out."""
    text = re.sub(r"(?ms)^```.*?^```", "", (ROOT / "README.md").read_text())
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("key", OWN_KEYS, ids=[key.name for key in OWN_KEYS])
def test_every_key_of_our_own_is_in_the_table_with_its_default(key: ConfigKey) -> None:
    default = value_to_text(key.default)
    shown = "off" if default is None else default if default.lstrip("-").isdigit() else f"`{default}`"
    assert f"\n| `{key.name}` | {shown} | " in (ROOT / "README.md").read_text()


def test_keys_that_are_named_exist() -> None:
    names = {match[1] for text in quoted() if (match := re.fullmatch(r"([a-z]+(?:\.[a-z]+)+)(?:=.*)?", text))}
    names -= {name for name in names if name.endswith((".py", ".properties", ".toml", ".ddl"))}
    names -= {name for name in names if name.startswith("kafka.")}  # loggers
    assert len(names) > 15
    assert names <= {*BROKER_KEYS, *DYNAMIC_BROKER_KEYS, *TOPIC_KEYS}


def test_files_that_are_named_exist() -> None:
    rooms = ("bin/", "bench/", "config/", "tests/", "broker/", "storage/", "cluster/", "protocol/", "client/", "tools/")
    names = {text.split()[0] for text in quoted() if text.startswith(rooms)}
    assert len(names) > 20
    assert [name for name in names if "*" not in name and not (ROOT / name).exists()] == []


def test_lines_fit_a_screen() -> None:
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        lines = (ROOT / name).read_text().splitlines()
        assert [line for line in lines if len(line) > 130 and not line.startswith("|")] == [], name
