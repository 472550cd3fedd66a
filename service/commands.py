"""The subcommand that this package brings to the command line. Nothing heavy is imported before it is run."""

from pathlib import Path
from typing import Annotated

import typer

_Bundle = Annotated[
    Path | None, typer.Argument(help="The bundle's folder; NBEST_BUNDLE when left out.", show_default=False)
]
_Host = Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1.", show_default=False)]
_Port = Annotated[
    int | None, typer.Option(min=0, max=65_535, help="Port; 0 takes any free one; default 8000.", show_default=False)
]
_Device = Annotated[
    str | None,
    typer.Option(
        help="auto, cpu or cuda; or several, each of which scores: cuda:0,cuda:1; default auto.", show_default=False
    ),
]
_Threads = Annotated[
    int | None,
    typer.Option(min=0, help="Threads for matrix products; 0 is torch's choice; default 0.", show_default=False),
]
_Precision = Annotated[
    str | None,
    typer.Option(help="Of a full softmax's normaliser: float32 or bfloat16; default float32.", show_default=False),
]
_ExactNormaliser = Annotated[
    bool | None,
    typer.Option(
        "--exact-normaliser/--no-exact-normaliser",
        help="Compute the normaliser even of networks trained to do without; default no.",
        show_default=False,
    ),
]
_Deadline = Annotated[
    float | None, typer.Option(help="Seconds from a request to its answer; default 30.", show_default=False)
]
_MaxBody = Annotated[
    int | None, typer.Option(min=1, help="Bytes of one request's body; default 8388608.", show_default=False)
]
_SessionStore = Annotated[
    str | None,
    typer.Option(
        help="Where sessions are kept: an SQLite file, redis://..., or memory:; default .nbest/sessions.sqlite3.",
        show_default=False,
    ),
]
_MaxSessions = Annotated[int | None, typer.Option(min=1, help="Sessions kept; default 10000.", show_default=False)]
_SessionIdle = Annotated[
    float | None, typer.Option(help="Seconds until an unused session expires; default 86400.", show_default=False)
]
_SessionMemory = Annotated[
    int | None,
    typer.Option(min=1, help="Bytes of sessions' states in memory; default 2147483648.", show_default=False),
]
_LogRequests = Annotated[
    bool | None,
    typer.Option("--log-requests/--no-log-requests", help="Log each request; default yes.", show_default=False),
]


def serve(
    bundle: _Bundle = None,
    host: _Host = None,
    port: _Port = None,
    device: _Device = None,
    threads: _Threads = None,
    precision: _Precision = None,
    exact_normaliser: _ExactNormaliser = None,
    deadline_s: _Deadline = None,
    max_body_bytes: _MaxBody = None,
    session_store: _SessionStore = None,
    max_sessions: _MaxSessions = None,
    session_idle_s: _SessionIdle = None,
    session_memory_bytes: _SessionMemory = None,
    log_requests: _LogRequests = None,
) -> None:
    """Rescore N-best lists over HTTP.

    Every option can also be set by an environment variable, NBEST_ and its name in capitals; the option goes first.
    """
    # A command imports what it runs: help stays fast, extras stay optional. Likely errors come before torch does.
    from service import listening, settings  # noqa: PLC0415 - see above

    chosen = settings.read_settings(
        {
            "bundle": bundle,
            "host": host,
            "port": port,
            "device": device,
            "threads": threads,
            "precision": precision,
            "exact_normaliser": exact_normaliser,
            "deadline_s": deadline_s,
            "max_body_bytes": max_body_bytes,
            "session_store": session_store,
            "max_sessions": max_sessions,
            "session_idle_s": session_idle_s,
            "session_memory_bytes": session_memory_bytes,
            "log_requests": log_requests,
        }
    )
    listener = listening.bind(chosen.host, chosen.port, chosen.receive_timeout_s)

    from service import main  # noqa: PLC0415 - see above

    main.run(chosen, listener)
