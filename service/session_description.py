"""What a session tells of itself."""

from typing import Any

from models.session_wire import perplexities_to_json
from service.session_memory import Held


def describe(held: Held) -> dict[str, Any]:
    """A session as JSON."""
    record, state = held.record, held.now.state
    return {
        "id": record.session_id,
        "version": record.version,
        "bundle": record.bundle,
        **record.options,
        "utterances": record.entries,
        "words_learnt": state.words_learnt,
        "lessons_undone": state.undone,
        "rank": state.rank,
        "bytes": state.bytes,
        "perplexity": perplexities_to_json(state),
        "created": record.created,
        "used": record.used,
    }
