"""Entity tags of sessions, as ETag and If-Match carry them: "7-1f0c9a5be2d4", version 7 of one particular session.

What follows the version tells apart the sessions that had one id, one after another: a caller who knows the version of
one that was deleted shall not change the next by chance. A tag without it, "7", is of any session at that version.
"""

import hashlib
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass

from service.errors import InvalidPreconditionError, VersionConflictError
from service.session_store import SessionRecord

_DIGITS = 12
_TAG = re.compile(rf'"(0|[1-9][0-9]{{0,17}})(?:-([0-9a-f]{{{_DIGITS}}}))?"')


@dataclass(frozen=True, slots=True)
class Tag:
    """A version. incarnation: of which session; None where any will do."""

    version: int
    incarnation: str | None = None

    def __str__(self) -> str:
        return f'"{self.version}"' if self.incarnation is None else f'"{self.version}-{self.incarnation}"'


# What a caller would have a session be; None where it does not say.
Tags = Collection[Tag] | None


def incarnation_of(record: SessionRecord) -> str:
    """What tells a session from others of its id: it was made at another time, to the last bit of a float64."""
    return hashlib.sha256(struct.pack("<d", record.created)).hexdigest()[:_DIGITS]


def tag_of(record: SessionRecord, version: int | None = None) -> Tag:
    """The tag of a session at a version; at its own when left out."""
    return Tag(record.version if version is None else version, incarnation_of(record))


def read_tags(header: str) -> Tags:
    """The tags of an If-Match. Raises InvalidPreconditionError where it holds anything else."""
    if not header or header.strip() == "*":
        return None
    found = [_TAG.fullmatch(tag.strip()) for tag in header.split(",")]
    if None in found:
        raise InvalidPreconditionError('If-Match must be the ETag of an answer, a version such as "3", or *')
    return {Tag(int(tag[1]), tag[2]) for tag in found if tag}


def check_incarnation(record: SessionRecord, tags: Tags) -> None:
    """Raise VersionConflictError where every tag is of another session that had this id."""
    if tags is not None and not any(tag.incarnation in {None, incarnation_of(record)} for tag in tags):
        message = "the session is not the one asked for, which had its id before"
        raise VersionConflictError(record.version, str(tag_of(record)), message)


def check(record: SessionRecord, tags: Tags) -> None:
    """Raise VersionConflictError where the caller would have the session be at another version, or another session."""
    check_incarnation(record, tags)
    if tags is not None and not {Tag(record.version), tag_of(record)} & set(tags):
        raise VersionConflictError(record.version, str(tag_of(record)))
