"""What there is to choose from, by the names that options have; standard library only."""

from enum import StrEnum


class ExportFormat(StrEnum):
    """How alignments can be written; `text_formats` says what these are."""

    PER_UTT = "per_utt"
    PRA = "pra"
    TRN = "trn"


class By(StrEnum):
    """What utterances can be grouped by: length is of the reference in words, position that in the session."""

    SPEAKER = "speaker"
    SESSION = "session"
    LENGTH = "length"
    POSITION = "position"
