"""Damage: of bytes, of text, and of values as JSON holds them. The same chance gives the same damage."""

from __future__ import annotations

import random
import re
from typing import Any, Final

NUMBERS: Final[tuple[Any, ...]] = (
    *(0, -1, 1, 2, 255, 65_536, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**18),
    *(
        -(2**31),
        -(2**62),
        -(2**63),
        10**30,
        -(10**25),
        999_999_937,
        10**9,
        10**12,
        1e308,
        -1e308,
        1e-308,
        0.5,
        -0.0,
    ),
)
TEXTS: Final = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "a\nb\r\nc",
        "\x1b[31mred\x1b]0;title\x07",
        "\u202edef",
        "\ud800",
        "\u2028",
        "x" * 100_000,
    ),
    *(
        "nan",
        "inf",
        "-inf",
        "1e999",
        "9" * 400,
        "[0, ...]",
        "[0, 1]",
        "*" * 500,
        "a." * 2_000,
        "../../etc/passwd",
    ),
    *(
        "all_reduce",
        "send",
        "recv",
        "forward",
        "<script>",
        "%s%n",
        "{0}",
        "step 18446744073709551615",
        "a{,9}" * 9,
    ),
)
TOKENS: Final = (
    *(
        b"NaN",
        b"1e999",
        b"-",
        b'"',
        b"}, {",
        b"]}",
        b"[" * 3000,
        b'{"a":' * 3000,
        b"\\u00",
        b"\\ud800",
        b"null",
    ),
    *(
        b"9" * 50,
        b"\n",
        b"\r\n",
        b"\x00",
        b"\xff\xfe",
        b"[[",
        b"]]",
        b"= ",
        b"'''",
        b'"""',
        b"#",
        b",",
        b"a = {" * 900,
    ),
)
_DIGITS: Final = re.compile(rb"\d+(?:\.\d+)?")
_DEEPEST: Final = (3, 60, 990, 3_000, 30_000)


def hostile(chance: random.Random) -> Any:
    """Return a value that nobody expects where it will stand."""
    match chance.randrange(9):
        case 0 | 1 | 2:
            return chance.choice(NUMBERS)
        case 3 | 4:
            return chance.choice(TEXTS)
        case 5:
            return chance.choice((None, True, False, [], {}, [None], {"": None}, float("nan"), float("inf")))
        case 6:
            return [hostile(chance) for _ in range(chance.randrange(4))]
        case 7:
            return {str(chance.choice(TEXTS))[:99]: hostile(chance) for _ in range(chance.randrange(3))}
        case _:
            return int(chance.choice((1, -1)) * chance.paretovariate(0.08) % 2**70)


def nested(depth: int, text: bool) -> str:
    """Return JSON that is nested so deep."""
    return '{"a":' * depth + "1" + "}" * depth if text else "[" * depth + "]" * depth


def deep(chance: random.Random) -> str:
    """Return JSON nested deep, often deeper than a stack."""
    return nested(chance.choice(_DEEPEST), chance.random() < 0.5)


def of_bytes(content: bytes, chance: random.Random, most: int = 4) -> bytes:
    """Return content after one to `most` flips, cuts, insertions, swaps or repetitions."""
    made = bytearray(content)
    for _ in range(chance.randint(1, most)):
        if not made:
            break
        place = chance.randrange(len(made))
        until = min(len(made), place + int(min(chance.paretovariate(0.4), 1e7)))
        match chance.randrange(9):
            case 0:
                made[place] ^= 1 << chance.randrange(8)
            case 1:
                made[place] = chance.choice(b'{}[]",:\\0-.eEnN \n\xff\x00\x7f\x80')
            case 2:
                del made[place:until]
            case 3:
                made[place:place] = chance.randbytes(chance.randint(1, 8))
            case 4:
                made[place:place] = made[place : min(until, place + 5_000)]
            case 5:
                del made[place:]
            case 6:
                width = chance.choice((2, 4, 8))
                number = int(chance.choice(NUMBERS) if chance.random() < 0.7 else chance.getrandbits(62))
                made[place : place + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
            case 7:
                made[place:place] = bytes(chance.choice((0, 255))) * chance.choice((1, 100, 4096))
            case _:
                made[place:place] = chance.choice(TOKENS)
    return bytes(made)


def of_text(content: bytes, chance: random.Random) -> bytes:
    """Return text after damage to its numbers, lines or bytes."""
    match chance.randrange(5):
        case 0 | 1:
            numbers = list(_DIGITS.finditer(content))
            for match in chance.sample(numbers, min(len(numbers), chance.randint(1, 3))):
                begin, end = match.span()
                number = str(chance.choice(NUMBERS)).encode()
                content = content[:begin] + number[: max(1, len(number))] + content[end:]
            return content
        case 2:
            lines = content.split(b"\n")
            for _ in range(chance.randint(1, 3)):
                place = chance.randrange(len(lines))
                match chance.randrange(4):
                    case 0:
                        lines[place:place] = [lines[place]] * chance.choice((1, 2, 50))
                    case 1:
                        lines[place] = lines[chance.randrange(len(lines))]
                    case 2:
                        del lines[place]
                        lines = lines or [b""]
                    case _:
                        words = lines[place].split(b" ")
                        text = str(hostile(chance)).encode("utf-8", "surrogatepass")
                        words[chance.randrange(len(words))] = text
                        lines[place] = b" ".join(words)
            return b"\n".join(lines)
        case _:
            return of_bytes(content, chance)


def of_tree(value: Any, chance: random.Random, most: int = 4) -> Any:
    """Return a tree of dicts, lists and values, changed in place at one to `most` places."""
    for _ in range(chance.randint(1, most)):
        value = _once(value, chance)
    return value


def _once(root: Any, chance: random.Random) -> Any:
    holder, key, here = None, None, root
    while isinstance(here, (dict, list)) and here and (holder is None or chance.random() < 0.85):
        keys = list(here) if isinstance(here, dict) else range(len(here))
        holder, key = here, chance.choice(keys)
        here = holder[key]
    if holder is None:
        return hostile(chance)
    match chance.randrange(8):
        case 0 | 1 | 2 | 3:
            holder[key] = hostile(chance)
        case 4:
            del holder[key]
        case 5 if isinstance(holder, list):
            holder[key:key] = [here] * chance.choice((1, 2, 40))
        case 5:
            holder[str(chance.choice(TEXTS))[:2_000]] = here
        case 6:
            depth = chance.choice((2, 50, 300))
            for _ in range(depth):
                here = [here]
            holder[key] = here
        case _ if isinstance(here, (int, float)) and not isinstance(here, bool):
            holder[key] = here * chance.choice((-1, 2, 1000, 10**6, 10**9)) + chance.choice((0, 1, -1))
        case _:
            holder[key] = (
                str(here) * chance.choice((1, 2, 200)) if here is None or isinstance(here, str) else str(here)
            )
    return root
