"""Large JSON bodies cut into pieces that are parsed one by one.

A parser written in C holds Python's lock until it is done: a body of some megabytes would hold up every other request,
and whoever asks whether the service lives, for as long. Cutting costs about as much as parsing, but can be interrupted.
"""

import re
from dataclasses import dataclass

# Strings whole, so that brackets inside them do not count.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_ARRAY = re.compile(rb"\s*:\s*\[")
_OPENING, _CLOSING = frozenset((b"{", b"[")), frozenset((b"}", b"]"))


@dataclass(frozen=True, slots=True)
class Pieces:
    """An object one of whose fields is an array of objects.

    frame: the object, its array reduced to the first item
    items: the items
    """

    frame: bytes
    items: tuple[bytes, ...]


def cut(body: bytes, field: str) -> Pieces | None:
    """Cut the array of objects in a field of the outermost object; None where it cannot be cut.

    Whether the pieces are JSON is for a parser to say: all of them are exactly if the body is.
    """
    key = f'"{field}"'.encode()
    begin = _begin(body, key)
    found = None if begin is None else _items(body, begin)
    if found is None:
        return None
    items, end = found
    if key in body[end:]:
        # Of a key that stands there twice the last one counts; which one that is, the parser knows.
        return None
    return Pieces(body[:begin] + items[0] + body[end:], tuple(items))


def _begin(body: bytes, key: bytes) -> int | None:
    """Where the array of a key of the outermost object begins, after its bracket."""
    depth = 0
    for token in _TOKEN.finditer(body):
        text = token[0]
        if text in _OPENING:
            depth += 1
        elif text in _CLOSING:
            depth -= 1
        elif depth == 1 and text == key and (array := _ARRAY.match(body, token.end())):
            return array.end()
    return None


def _items(body: bytes, begin: int) -> tuple[list[bytes], int] | None:
    """The objects of an array, at least one, and where its closing bracket stands; None where there is aught else."""
    items: list[bytes] = []
    depth, start, last = 0, begin, begin
    for token in _TOKEN.finditer(body, begin):
        text = token[0]
        if text in _OPENING:
            depth += 1
            if depth == 1:
                start = token.start()
                if text != b"{" or body[last:start].strip() != (b"," if items else b""):
                    return None
        elif text in _CLOSING:
            depth -= 1
            if depth == 0:
                last = token.end()
                items.append(body[start:last])
            elif depth < 0:
                end = token.start()
                return (items, end) if items and not body[last:end].strip() else None
    return None
