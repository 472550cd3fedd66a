"""What can go wrong in scoring, training and tuning, as one tree.

RescoringError
├── InvalidNBestError      an N-best list that cannot be scored as it stands
│   └── ListTooLargeError  more hypotheses, or more words, than the limits allow
├── InvalidWeightsError    scales or interpolation weights that are no weights
├── UnknownModelError      a model name that the bundle does not have
├── InvalidTextError       text that holds what no text may hold (NUL, lone surrogates, sentence markers)
├── BundleError            a bundle that is missing, broken or inconsistent
├── TrainingError          a training that cannot start, go on or resume
├── TuningError            a tuning that cannot be done on the data given
├── SessionError           a session that cannot be made, read back or gone on with
├── InvalidOptionError     an option outside its range
└── ModelFailedError       a loaded model failed while scoring
"""


class RescoringError(Exception):
    """The root of every error that this package raises on purpose. exit_code: what a command ends with."""

    exit_code = 1


class InvalidNBestError(RescoringError):
    """An N-best list cannot be scored as it stands; the message names utterance, hypothesis and field."""


class ListTooLargeError(InvalidNBestError):
    """An N-best list holds more hypotheses, or a hypothesis more words, than the limits allow."""


class InvalidWeightsError(RescoringError):
    """A scale is not finite, or interpolation weights are negative or do not sum to 1."""


class UnknownModelError(RescoringError):
    """A model was asked for by a name that the bundle does not have."""


class InvalidTextError(RescoringError):
    """A text holds NUL, a lone surrogate or a sentence marker."""


class BundleError(RescoringError):
    """A bundle is missing, broken or inconsistent; the message names the file."""


class TrainingError(RescoringError):
    """A training cannot start, go on or resume."""


class TuningError(RescoringError):
    """A tuning cannot be done on the data given."""


class SessionError(RescoringError):
    """A session cannot be made, read back or gone on with."""


class InvalidOptionError(RescoringError):
    """An option is outside its range; the message names it."""


class ModelFailedError(RescoringError):
    """A loaded model failed while scoring; the caller may retry."""
