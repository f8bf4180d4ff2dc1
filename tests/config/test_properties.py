"""The .properties format of java.util.Properties, compared with Java where available."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config.definitions import ConfigError
from config.properties import load_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("  a \t = \t b  ", {"a": "b  "}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a = = b", {"a": "= b"}),
        ("=b", {"": "b"}),
        ("# a=b\n! c=d\n\n  # e=f", {}),
        ("a=b # no comment", {"a": "b # no comment"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\n# c", {"a": "b# c"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("\\\n", {"": ""}),
        ("\\\r\n", {}),
        ("\\\n# c", {}),
        ("a=b\\\n", {"a": "b"}),
        ("# a comment \\\nb=c", {"b": "c"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a\\=b\\:c=d", {"a=b:c": "d"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=\\u00e4\\u20ac", {"a": "ä€"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("log.dirs=C:\\\\data,D:\\\\data", {"log.dirs": "C:\\data,D:\\data"}),
    ],
)
def test_properties(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_bytes_are_latin_1() -> None:
    assert load_properties(b"a=\xe4") == {"a": "ä"}


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "a=\\u"])
def test_broken_escapes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        parse_properties(text)


JUDGE = """
import java.io.*; import java.util.*; import java.nio.charset.StandardCharsets;
public class Judge { public static void main(String[] a) throws Exception {
  DataInputStream in = new DataInputStream(System.in); DataOutputStream out = new DataOutputStream(System.out);
  int cases = in.readInt();
  for (int i = 0; i < cases; i++) {
    byte[] text = new byte[in.readInt()]; in.readFully(text);
    Properties p = new Properties(); boolean ok = true;
    try { p.load(new ByteArrayInputStream(text)); } catch (IllegalArgumentException e) { ok = false; }
    out.writeInt(ok ? p.size() : -1);
    if (ok) for (String k : new TreeSet<>(p.stringPropertyNames())) for (String s : List.of(k, p.getProperty(k))) {
      byte[] b = s.getBytes(StandardCharsets.UTF_16BE); out.writeInt(b.length); out.write(b); } }
  out.flush(); } }
"""


@pytest.mark.java
def test_java_reads_the_same(tmp_path: Path) -> None:
    texts: list[bytes] = []

    @settings(max_examples=1500, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.sampled_from([*"ab#!=: \t\f\\\n\ru0041", "\\u00e4", "\\u12", "é"]), max_size=14))
    def collect(parts: list[str]) -> None:
        texts.append("".join(parts).encode("latin-1"))

    collect()
    (tmp_path / "Judge.java").write_text(JUDGE)
    given_bytes = len(texts).to_bytes(4, "big") + b"".join(len(text).to_bytes(4, "big") + text for text in texts)
    done = subprocess.run(
        ["java", str(tmp_path / "Judge.java")], input=given_bytes, capture_output=True, timeout=60, check=True
    )
    said, at = done.stdout, 0

    def integer() -> int:
        nonlocal at
        at += 4
        return int.from_bytes(said[at - 4 : at], "big", signed=True)

    def string() -> str:
        nonlocal at
        size = integer()
        at += size
        return said[at - size : at].decode("utf-16-be", "replace")

    for text in texts:
        count = integer()
        if count < 0:
            with pytest.raises(ConfigError):
                load_properties(text)
            continue
        assert load_properties(text) == dict([(string(), string()) for _ in range(count)]), text  # noqa: C404  in order
