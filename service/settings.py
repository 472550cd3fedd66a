"""Every setting of the service, with its unit. Nothing else in the service reads the environment.

A setting NAME is read from the environment variable NBEST_NAME; options of `nbest serve` go before it. An
empty variable counts as unset. true, 1, yes, on and false, 0, no, off are booleans; all else is an error.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.errors import SettingsError

PREFIX = "NBEST_"

# The request schema itself takes no more utterances than this, whatever the settings say.
UTTERANCES_CAP = 1000

_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
_Idle = Annotated[float, Field(gt=0, le=10 * 366 * 86_400, allow_inf_nan=False)]
_Delay = Annotated[float, Field(ge=0, le=3_600, allow_inf_nan=False)]


def _devices(names: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?(,cuda(:\d+)?)*", names, re.ASCII):
        raise PydanticCustomError("device", "name auto, cpu, cuda, or several CUDA devices: cuda:0,cuda:1")
    return names


class Limits(BaseModel):
    """What the service takes on at most.

    max_body_bytes:      bytes of one request's body
    max_inflight_bytes:  bytes of all bodies held at once; beyond it, requests are answered with 429
    max_header_bytes:    bytes of request line and headers
    max_connections:     open connections
    max_utterances:      N-best lists in one request
    max_hypotheses:      hypotheses in one list
    max_words:           words in one hypothesis
    max_list_tokens:     words and sentence ends in one list; it bounds the memory of a step
    max_queue_lists:     lists waiting to be scored
    max_queue_tokens:    words and sentence ends waiting to be scored
    max_batch_tokens:    hypotheses x longest hypothesis scored in one step, padding counted
    target_step_s:       seconds that a step with several lists shall take at most, since what comes meanwhile waits as
                         long; steps may take longer where shorter ones would cost throughput
    receive_timeout_s:   seconds for a client to send a request's headers, and again for its body
    keep_alive_s:        seconds an idle connection is kept open
    deadline_s:          seconds from a complete request to its answer; then 503 or 504
    max_sessions:        sessions kept; beyond it, none is made
    session_idle_s:      seconds after which a session that nobody uses expires
    session_memory_bytes: bytes of sessions' states in memory; those least recently used are put into the store
    session_snapshot_every: utterances after which a session's state is put into the store again; those since then are
                         learnt anew when it comes back
    session_log_bytes:   bytes of one session's log, answers counted as stored; then it takes no more utterances
    max_import_bytes:    bytes of an imported session; no more than max_inflight_bytes ever get in
    max_evaluations:     evaluations at a time; more are answered with 429
    max_evaluation_lines: utterances of one evaluation that comes line by line
    max_evaluation_line_bytes: bytes of one of its lines
    max_evaluation_draws: utterances x resamples of one evaluation: what its bootstrap computes
    evaluation_lists:    lists of one evaluation in the queue at a time; so long others wait behind it
    evaluation_patience_s: seconds that an evaluation goes on trying while the queue has no room for it
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    max_body_bytes: _Count = 8 * 2**20
    max_inflight_bytes: _Count = 64 * 2**20
    max_header_bytes: Annotated[int, Field(ge=1024)] = 16 * 2**10
    max_connections: _Count = 1024
    max_utterances: Annotated[int, Field(ge=1, le=UTTERANCES_CAP)] = 256
    max_hypotheses: _Count = 2000
    max_words: _Count = 1000
    max_list_tokens: _Count = 2**17
    max_queue_lists: _Count = 2048
    max_queue_tokens: _Count = 2**20
    max_batch_tokens: _Count = 2**15
    target_step_s: _Seconds = 0.1
    receive_timeout_s: _Seconds = 30.0
    keep_alive_s: Annotated[int, Field(ge=1, le=3600)] = 15
    deadline_s: _Seconds = 30.0
    max_sessions: _Count = 10_000
    session_idle_s: _Idle = 86_400.0
    session_memory_bytes: _Count = 2 * 2**30
    session_snapshot_every: _Count = 20
    session_log_bytes: _Count = 64 * 2**20
    max_import_bytes: _Count = 64 * 2**20
    max_evaluations: Annotated[int, Field(ge=1, le=64)] = 2
    max_evaluation_lines: _Count = 1_000_000
    max_evaluation_line_bytes: _Count = 8 * 2**20
    max_evaluation_draws: _Count = 10**10
    evaluation_lists: _Count = 16
    evaluation_patience_s: _Seconds = 300.0


class Settings(Limits, BaseSettings):
    """The limits, and what only the start of the service needs.

    bundle:         the bundle's folder
    session_store:  where sessions are kept: the path of an SQLite file, redis://..., or memory: for no longer than
                    the process lives; .nbest/sessions.sqlite3 in the working directory when empty
    host, port:     where to listen; port 0 takes any free port
    device:         auto, cpu or cuda; or several CUDA devices, cuda:0,cuda:1, each of which then scores
    threads:        threads for matrix products; 0 leaves torch's own choice
    precision:      of a full softmax's normaliser: float32, or bfloat16 where the processor is faster in it
    exact_normaliser: whether the normaliser is computed even of networks that were trained to do without
    api_key:        when set, every request but GET /health/* must bring it as "Authorization: Bearer KEY"
    docs:           whether /docs and /openapi.json are served
    log_requests:   whether each request is logged
    log_level:      the least severe level that is logged
    drain_delay_s:  seconds from SIGTERM, when readiness turns to 503, until no new connection is taken
    drain_timeout_s: seconds that requests in flight then have to finish
    """

    # The environment also holds NBEST_ variables of other commands, so unknown ones are let pass there.
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    bundle: Path
    session_store: str = ""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    device: Annotated[str, AfterValidator(_devices)] = "auto"
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    exact_normaliser: bool = False
    api_key: Annotated[SecretStr, Field(min_length=8)] | None = None
    docs: bool = True
    log_requests: bool = True
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    drain_delay_s: _Delay = 1.0
    drain_timeout_s: _Seconds = 30.0


def read_settings(options: dict[str, Any]) -> Settings:
    """Settings from the command's options, then the environment, then the defaults.

    options: by setting name; None where the option was not given

    Raises SettingsError naming the option or the variable; its value is not repeated, for it may be a key.
    """
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name = str(first["loc"][0])
        if name == "bundle" and first["type"] == "missing":
            raise SettingsError(f"name a bundle: nbest serve BUNDLE, or {PREFIX}BUNDLE") from error
        source = f"--{name.replace('_', '-')}" if name in given else f"{PREFIX}{name.upper()}"
        raise SettingsError(f"{source}: {first['msg'][0].lower()}{first['msg'][1:]}") from error
