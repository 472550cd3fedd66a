"""Opens the session store that a setting names."""

from pathlib import Path

from service.errors import StartError
from service.session_store import SessionStore
from service.sqlite_store import SqliteStore

DEFAULT_STORE = ".nbest/sessions.sqlite3"
IN_MEMORY = "memory:"


def open_store(where: str) -> SessionStore:
    """The store at a place. Raises StartError where it cannot be used; an address is not repeated.

    where: redis://... or rediss://... for Redis, memory: for one that lasts as long as the process, else the path of
           an SQLite file; empty for .nbest/sessions.sqlite3 in the working directory
    """
    if where == IN_MEMORY:
        return SqliteStore(None)
    if where.startswith(("redis://", "rediss://")):
        return _open_redis(where)
    if "://" in where:
        raise StartError("the session store is neither a path nor an address that begins with redis:// or rediss://")
    return SqliteStore(Path(where or DEFAULT_STORE))


def _open_redis(url: str) -> SessionStore:
    try:
        from service.redis_store import RedisStore  # noqa: PLC0415 - an extra that not every installation has
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise StartError(
            "a session store at Redis needs the redis package: pip install 'nbest-rescoring[redis]'"
        ) from error
    return RedisStore(url)
