"""`nbest evaluate --url`: an N-best file rescored and evaluated by the service; the result is shown as any other."""

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import ClientError, EvaluationError, ProblemError, RescoreFailedError, UsageError
from ..files import ResultLine, read_either
from ..jsonl import JsonLines
from ..progress import Reporter
from ..retry import RetryPolicy
from ..sdk import Client
from ..types import EvaluationSettings, LogBase, NormalisationChoice, Options, Utterance
from .from_json import from_json
from .result import Evaluation
from .run import Settings, stem

_SHOWN_EVERY = 20
# How a problem names what was sent: the settings are line 1, the utterances follow.
_LINE = re.compile(r"line (\d+)[.:]? ?")


@dataclass(frozen=True, slots=True)
class Service:
    """Where to evaluate, and how to rescore there.

    retry_for: seconds to keep trying while the service is away or busy
    options:   weights and decision that override the bundle's
    """

    url: str
    api_key: str | None
    retry_for: float
    options: Options
    log_base: LogBase


def evaluate_on_service(paths: Sequence[str], settings: Settings, service: Service) -> Evaluation:
    """Evaluate one N-best file there. Raises ClientError, naming file and line where one is at fault."""
    if len(paths) > 1 or settings.nbest is not None or settings.export is not None:
        raise UsageError("--url takes one N-best file, which the service rescores; no --nbest, and no --export")
    (path,) = paths
    with JsonLines(path) as lines:
        reporter = Reporter(lines.total_bytes, retry_seconds=service.retry_for)
    with (
        reporter,
        Client(
            service.url,
            api_key=service.api_key,
            retry=RetryPolicy(total_seconds=service.retry_for),
            on_retry=reporter.retrying,
        ) as client,
    ):
        sent = _Set(path, reporter, skip=settings.skip_missing_reference)
        # Standard input can be read once.
        utterances = iter(sent) if path == "-" else sent
        try:
            return from_json(client.evaluate(utterances, **_asked(path, settings, service)))
        except ProblemError as error:
            raise sent.by_file(error) from error


def _asked(path: str, settings: Settings, service: Service) -> EvaluationSettings:
    choices, chosen = settings.choices, settings.choices.normalisation
    normalisation: NormalisationChoice = {
        "unicode_form": chosen.unicode_form,
        "lowercase": chosen.lowercase,
        "strip_punctuation": chosen.strip_punctuation,
        "dropped_words": sorted(chosen.dropped),
    }
    asked: EvaluationSettings = {
        "set_name": settings.set_name or stem(path),
        "resamples": choices.resamples,
        "seed": choices.seed,
        "boundary_words": choices.boundary_words,
        "normalisation": normalisation,
        "confusions": choices.confusions,
        "worst": choices.worst,
        "skip_missing_reference": settings.skip_missing_reference,
        "log_base": service.log_base,
    }
    if service.options:
        asked["options"] = service.options
    return asked


class _Set:
    """The utterances of an N-best file, checked and reported one by one; gone through anew, the file is read anew.

    lines: of those given so far, the numbers of their lines
    """

    def __init__(self, path: str, reporter: Reporter, *, skip: bool) -> None:
        self._path = path
        self._reporter = reporter
        self._skip = skip
        self.name = path
        self.lines = array("I")

    def by_file(self, error: ProblemError) -> ClientError:
        """A problem with a line that was sent as one with a line of the file; another problem as it is."""
        detail = error.problem["detail"]
        fields = [entry["field"] for entry in error.problem.get("errors", [])]
        named = next((found for text in (*fields, detail) if (found := _LINE.match(text))), None)
        place = int(named[1]) - 2 if named else -1
        if not 0 <= place < len(self.lines):
            return error
        return RescoreFailedError(f"{self.name}:{self.lines[place]}: {_LINE.sub('', detail, count=1)}")

    def __iter__(self) -> Iterator[Utterance]:
        del self.lines[:]
        words = 0
        with JsonLines(self._path) as lines:
            self.name = lines.name
            for line in read_either(lines):
                where = f"{lines.name}:{line.line}"
                if isinstance(line, ResultLine):
                    raise UsageError(f"{where}: a result; --url takes N-best lists, which the service rescores")
                if line.utterance.get("reference") is None and not self._skip:
                    raise EvaluationError(
                        f"{where}: no reference for {line.utterance_id!r}; "
                        "--skip-missing-reference leaves such utterances out"
                    )
                self.lines.append(line.line)
                yield line.utterance
                words += sum(len(hypothesis["text"].split()) for hypothesis in line.utterance["hypotheses"])
                if len(self.lines) % _SHOWN_EVERY == 0:
                    self._reporter.advance(_SHOWN_EVERY, words, lines.position)
                    words = 0
