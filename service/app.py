"""The application: everything is made here and handed down, nothing is global."""

import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from structlog.typing import FilteringBoundLogger

from models.bundle import Bundle
from service import docs, problems
from service import openapi_parts as parts
from service.engine import Engine
from service.evaluation_routes import EvaluationRoutes
from service.middleware import LimitBody, Observe, RequireKey
from service.routes import Routes
from service.session_routes import SessionRoutes
from service.session_store import SessionStore
from service.sessions import Sessions
from service.settings import Limits
from service.sqlite_store import SqliteStore
from service.telemetry import Telemetry, make_log

# FastAPI would otherwise load its pages from elsewhere, redirect to whatever Host says, and export traces to wherever
# the environment says, which only settings reads.
_PLAIN: dict[str, Any] = {
    "title": "N-best rescoring",
    "docs_url": None,
    "redoc_url": None,
    "redirect_slashes": False,
    "telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
}


def create_app(
    bundle: Bundle,
    limits: Limits | None = None,
    *,
    api_key: str | None = None,
    with_docs: bool = True,
    log: FilteringBoundLogger | None = None,
    log_requests: bool = True,
    store: SessionStore | None = None,
    clock: Callable[[], float] = time.time,
    replicas: Sequence[Bundle] = (),
) -> FastAPI:
    """The service for one loaded bundle. Its `state.routes.draining` turns readiness off before a stop.

    bundle:    what is served; its rescorer's own limits on lists hold too
    limits:    what is taken on at most; the defaults when left out
    api_key:   what every request but those after health must bring; none is asked for when left out
    with_docs: whether /docs and /openapi.json are served
    log:       where to write; JSON lines on standard error when left out
    store:     where sessions are kept; memory when left out
    clock:     what sessions expire by, in seconds since 1970
    replicas:  the same bundle on further devices, which score as well; sessions stay with the first
    """
    limits = limits or Limits()
    telemetry = Telemetry(log or make_log(sys.stderr))
    engine = Engine(bundle, limits, telemetry, replicas)
    routes = Routes(bundle, limits, engine, telemetry)
    sessions = Sessions(bundle, engine, limits, store or SqliteStore(None), telemetry, clock)
    evaluations = EvaluationRoutes(bundle, limits, engine, telemetry, lambda: routes.draining)

    app = FastAPI(
        **_PLAIN,
        version=version("nbest-rescoring"),
        description=parts.DESCRIPTION,
        openapi_url="/openapi.json" if with_docs else None,
        lifespan=lambda _: _lifespan(engine, sessions, routes, evaluations),
    )
    # Of these the last one added stands outermost.
    if api_key is not None:
        app.add_middleware(RequireKey, api_key)
    app.add_middleware(LimitBody, limits)
    app.add_middleware(Observe, telemetry, lambda: routes.draining, log_requests=log_requests)
    app.state.routes = routes
    app.state.sessions = sessions
    app.state.evaluations = evaluations
    app.include_router(routes.router())
    app.include_router(evaluations.router())
    app.include_router(SessionRoutes(sessions, limits, telemetry).router())
    problems.install(app)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign] # the documented way to extend it
    if with_docs:
        docs.install(app)
    return app


@asynccontextmanager
async def _lifespan(
    engine: Engine, sessions: Sessions, routes: Routes, evaluations: EvaluationRoutes
) -> AsyncIterator[None]:
    engine.start()
    sessions.start()
    # The first sentence through the models is ours: no caller pays for it, and readiness waits for it.
    routes.start_probe()
    yield
    routes.draining = True
    await sessions.stop()
    evaluations.stop()
    engine.stop()


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of an app, made once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        document["components"] = parts.components()
        document["security"] = [{}, {"bearer": []}]
        app.openapi_schema = document
    return app.openapi_schema
