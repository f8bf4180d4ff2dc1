"""Inputs that are almost valid."""

from __future__ import annotations

import random
from collections.abc import Sequence

LENGTHS = (b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x00\x10\x00\x00")
MOST_REPEATED = 20_000
"""The maximum size, in characters, of a repeated part of a text."""


def mutated(data: bytes, randomness: random.Random) -> bytes:
    """`data` with a few bytes changed, inserted, removed or repeated; changed ones often become plausible lengths."""
    mutant = bytearray(data)
    for _ in range(randomness.choice([1, 1, 1, 2, 4, 16])):
        position = randomness.randrange(len(mutant) + 1)
        match randomness.randrange(6):
            case 0 if position < len(mutant):
                mutant[position] ^= 1 << randomness.randrange(8)
            case 1 if position < len(mutant):
                mutant[position] = randomness.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF])
            case 2:
                mutant[position:position] = randomness.randbytes(randomness.choice([1, 2, 4, 9]))
            case 3:
                del mutant[position : position + randomness.choice([1, 2, 4, 100])]
            case 4:
                mutant[position : position + 4] = randomness.choice(LENGTHS)
            case _:
                mutant[position:position] = mutant[max(0, position - 8) : position]
    return bytes(mutant)


def mutated_text(text: str, randomness: random.Random, words: Sequence[str]) -> str:
    """`text` with parts removed, moved or repeated, sometimes very often, and with `words` inserted."""
    for _ in range(randomness.choice([1, 1, 1, 2, 4])):
        begin = randomness.randrange(len(text) + 1)
        end = min(len(text), begin + randomness.choice([1, 1, 2, 5, 20]))
        match randomness.randrange(6):
            case 0:
                text = text[:begin] + text[end:]
            case 1 | 2:
                text = text[:begin] + randomness.choice(words) + text[begin:]
            case 3:
                text = text[:begin] + randomness.choice(words) + text[end:]
            case 4:
                text = text[:begin] + text[begin:end] * 2 + text[end:]
            case _ if randomness.random() < 0.05 and end > begin:
                times = min(randomness.choice([10, 100, 3000]), MOST_REPEATED // (end - begin))
                text = text[:begin] + text[begin:end] * times + text[end:]
            case _:
                text = (
                    text[:begin]
                    + chr(randomness.choice([0, 9, 10, 32, 92, 127, 160, 233, 0x6F22, 0x1F600]))
                    + text[end:]
                )
    return text


def put_together(words: Sequence[str], randomness: random.Random, most: int = 12) -> str:
    """Concatenate some of `words`."""
    return "".join(randomness.choices(words, k=randomness.randrange(most + 1)))
