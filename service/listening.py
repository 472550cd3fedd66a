"""Where the service listens. Light, so that a port in use is told before anything slow is imported or loaded."""

import errno
import socket

from service.errors import StartError


def bind(host: str, port: int, unread_timeout_s: float) -> socket.socket:
    """A socket bound to an address; it does not listen yet. Raises StartError, one line, when it cannot be had.

    unread_timeout_s: seconds after which a connection is dropped whose client reads nothing of its answer
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unread_timeout_s * 1000))
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise cannot_listen(host, port, error) from error
    return listener


def cannot_listen(host: str, port: int, error: OSError) -> StartError:
    """What to tell the person who started the service."""
    reason = "the port is in use" if error.errno == errno.EADDRINUSE else (error.strerror or "unknown reason")
    return StartError(f"cannot listen on {host}:{port}: {reason}")
