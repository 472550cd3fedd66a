"""The N-best list: what a recogniser proposes for one utterance."""

import math
from dataclasses import dataclass

from models.errors import InvalidNBestError


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One candidate transcript, as the recogniser proposed it.

    text:       the transcript as the recogniser wrote it; may be empty (silence)
    acoustic:   ln p(audio | words), unscaled
    first_pass: ln p(words) under the recogniser's own language model, unscaled; None where it gives none
    """

    text: str
    acoustic: float
    first_pass: float | None = None


@dataclass(frozen=True, slots=True)
class NBest:
    """The hypotheses for one utterance, best first by the recogniser's own ranking.

    utterance_id: the caller's name for the utterance, returned as it came
    hypotheses:   at least one; either all carry a first-pass score or none does
    reference:    the true transcript, where known; never used for scoring
    session_id:   what the utterance belongs to; hidden state is carried within one session only
    speaker:      who spoke, for reports

    Raises InvalidNBestError, naming the utterance and the hypothesis, when a score is not finite.
    """

    utterance_id: str
    hypotheses: tuple[Hypothesis, ...]
    reference: str | None = None
    session_id: str | None = None
    speaker: str | None = None

    def __post_init__(self) -> None:
        where = f"utterance {self.utterance_id!r}"
        if not self.hypotheses:
            raise InvalidNBestError(f"{where}: the N-best list is empty")
        for index, hypothesis in enumerate(self.hypotheses):
            if not math.isfinite(hypothesis.acoustic):
                raise InvalidNBestError(
                    f"{where}, hypothesis {index}: acoustic_score is {hypothesis.acoustic}; it must be finite"
                )
            if hypothesis.first_pass is not None and not math.isfinite(hypothesis.first_pass):
                raise InvalidNBestError(
                    f"{where}, hypothesis {index}: lm_score is {hypothesis.first_pass}; it must be finite"
                )
        missing = [i for i, h in enumerate(self.hypotheses) if h.first_pass is None]
        if missing and len(missing) < len(self.hypotheses):
            raise InvalidNBestError(
                f"{where}, hypothesis {missing[0]}: lm_score is missing, though other hypotheses have one"
            )
