"""Which store a setting opens."""

import sys
from pathlib import Path

import pytest

from service.errors import StartError
from service.redis_store import RedisStore
from service.sqlite_store import SqliteStore
from service.store_opening import open_store


@pytest.mark.parametrize("name", ["a.sqlite3", "folder/b", "redis", "redis:", "memory"])
def test_a_path_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store(name)
    assert isinstance(store, SqliteStore)
    store.close()
    assert (tmp_path / name).is_file()


def test_nothing_is_the_file_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store("").close()
    assert (tmp_path / ".nbest" / "sessions.sqlite3").is_file()


def test_a_store_in_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("memory:")
    assert store.count() == 0
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_an_address_of_redis_is_redis(shared_redis: object) -> None:
    store = open_store(shared_redis.url)  # type: ignore[attr-defined]
    assert isinstance(store, RedisStore)
    store.close()


@pytest.mark.parametrize("where", ["http://user:geheim@host/", "unix:///run/redis.sock", "REDIS://:geheim@host"])
def test_an_address_of_something_else_is_refused_and_not_shown(where: str) -> None:
    with pytest.raises(StartError, match="redis://") as caught:
        open_store(where)
    assert "geheim" not in str(caught.value)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "service.redis_store", raising=False)
    with pytest.raises(StartError, match=r"nbest-rescoring\[redis\]"):
        open_store("redis://:geheim@host")
