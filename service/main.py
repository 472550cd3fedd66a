"""Starts the service: loads the bundle, builds the app, runs it, and lets it finish what it has begun."""

import gc
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from types import FrameType

import uvicorn
from fastapi import FastAPI

from models.bundle import Bundle, load_bundle, set_threads
from models.cuda_devices import named_devices
from models.errors import BundleError, InvalidOptionError
from models.rescoring import ListLimits
from service.app import create_app
from service.errors import SettingsError
from service.listening import cannot_listen
from service.protocol import limited_protocol
from service.session_store import SessionStore
from service.settings import PREFIX, Settings
from service.store_opening import open_store
from service.telemetry import make_log, route_standard_logging

# How long a thread that computes in Python keeps the others waiting, in seconds; Python's own 5 ms add up.
_SWITCH_S = 0.0005
# When Python looks for garbage among the youngest, the younger and all objects. By itself it looks through all that
# is alive during a large request, a quarter of a second for nothing: what is in a cycle here is young.
_COLLECT_AFTER = (1_000, 10, 2_000)


def run(settings: Settings, listener: socket.socket) -> None:
    """Serve until told to stop. Raises StartError or a BundleError, one line each, when it cannot start.

    listener: bound to where the service shall listen; closed at the end
    """
    with listener:
        set_threads(settings.threads)
        bundle, *replicas = load_replicas(settings)
        with closing(open_store(settings.session_store)) as store:
            _serve(settings, bundle, replicas, store, listener)


def load_replicas(settings: Settings) -> list[Bundle]:
    """The bundle once a device, in the order of the devices. Raises SettingsError for devices, or a BundleError."""
    try:
        devices = named_devices(settings.device)
    except InvalidOptionError as error:
        raise SettingsError(f"--device (or {PREFIX}DEVICE): {error}") from error
    limits = ListLimits(max_hypotheses=settings.max_hypotheses, max_words=settings.max_words)
    bundles = [
        load_bundle(
            settings.bundle,
            device=device,
            limits=limits,
            precision=settings.precision,
            exact_normaliser=settings.exact_normaliser,
        )
        for device in devices
    ]
    if len({bundle.sha256 for bundle in bundles}) > 1:
        raise BundleError(f"{settings.bundle}: the bundle was changed while it was loaded for several devices")
    return bundles


def _serve(
    settings: Settings, bundle: Bundle, replicas: Sequence[Bundle], store: SessionStore, listener: socket.socket
) -> None:
    log = make_log(sys.stderr, settings.log_level)
    route_standard_logging(sys.stderr, settings.log_level)
    app = create_app(
        bundle,
        settings,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        with_docs=settings.docs,
        log=log,
        log_requests=settings.log_requests,
        store=store,
        replicas=replicas,
    )
    host, port = listener.getsockname()[:2]

    _keep_pauses_short()

    def announce() -> None:
        log.info("listening", host=host, port=port, bundle=bundle.sha256, models=list(bundle.rescorer.models))

    def drain() -> None:
        app.state.routes.draining = True

    try:
        server = DrainingServer(_configuration(app, settings), announce, drain, settings.drain_delay_s)
        server.run(sockets=[listener])
    except OSError as error:
        raise cannot_listen(settings.host, settings.port, error) from error
    if app.state.routes.busy or app.state.evaluations.busy:
        # A step that does not end would keep its thread, and the thread the process, for ever; a bootstrap, for long.
        log.error("stopped while a step or an evaluation was still running")
        logging.shutdown()
        os._exit(1)


def _keep_pauses_short() -> None:
    """Keep the event loop from being held up by other threads, and by the search for garbage in what was loaded."""
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(*_COLLECT_AFTER)
    gc.collect()
    gc.freeze()


def _configuration(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=limited_protocol(settings),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=math.ceil(settings.drain_timeout_s),
    )


class DrainingServer(uvicorn.Server):
    """Stops in order: no longer ready first, then no new connections, then the rest is finished.

    A second signal stops it at once. Having stopped as told, the process ends with exit code 0.

    announce: called when connections are taken
    drain:    called when told to stop, turns readiness off
    delay_s: seconds between the two, for load balancers to notice; an interrupt from the keyboard does not
    wait
    """

    def __init__(
        self,
        config: uvicorn.Config,
        announce: Callable[[], None],
        drain: Callable[[], None],
        delay_s: float,
    ) -> None:
        super().__init__(config)
        self._announce = announce
        self._drain = drain
        self._delay_s = delay_s
        self._stop_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start taking connections, and say so."""
        await super().startup(sockets)
        if self.started:
            self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        del frame
        if self._stop_at is not None:
            self.should_exit = self.force_exit = True
            return
        self._drain()
        self._stop_at = time.monotonic() + (0.0 if sig == signal.SIGINT else self._delay_s)

    async def on_tick(self, counter: int) -> bool:
        """Look, ten times a second, whether it is time to stop."""
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            self.should_exit = True
        return await super().on_tick(counter)
