"""Test servers: they answer, come back with their data, and never outlive the process that started them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from velostream.errors import ServiceError
from velostream.testing.services.base import Service
from velostream.testing.services.downloads import cached
from velostream.testing.services.mysql import MysqlService
from velostream.testing.services.postgres import PostgresService
from velostream.testing.services.s3 import S3Service

KINDS: tuple[type[Service], ...] = (PostgresService, MysqlService)

_STARTER = """
import json, sys, threading
from importlib import import_module
service = getattr(import_module(sys.argv[1]), sys.argv[2]).shared()
print(json.dumps({"folder": str(service.folder), "port": service.port}), flush=True)
threading.Event().wait()
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("kind", [*KINDS, S3Service], ids=lambda kind: kind.kind)
def test_a_server_ends_with_a_killed_process(
    kind: type[Service], environment: dict[str, str], eventually: Callable[..., None]
):
    command = [sys.executable, "-c", _STARTER, kind.__module__, kind.__name__]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        told = json.loads(starter.stdout.readline())
        assert listens(told["port"])
        starter.send_signal(signal.SIGKILL)
    eventually(lambda: not listens(told["port"]), seconds=15, what="the server's end")
    eventually(lambda: not Path(told["folder"]).exists(), seconds=15, what="the folder's removal")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_stopped_server_comes_back_with_its_data(kind: type[Service]):
    with kind() as server:
        kept = kind(url=server.new_database())
        for suddenly in (False, True):
            kept.ask()
            with server.stopped(suddenly=suddenly):
                assert not listens(server.port)
                with pytest.raises(Exception, match=r"(?i)connect"):
                    kept.ask()
        kept.ask()
    assert not listens(server.port)
    assert not server.folder.exists()


def test_a_url_of_the_environment_wins_and_is_never_stopped(monkeypatch: pytest.MonkeyPatch):
    url = PostgresService.shared().url

    class Other(PostgresService):
        _shared = None

    monkeypatch.setenv("VELOSTREAM_TEST_POSTGRES_URL", url)
    assert Other.shared().url == url
    assert Other.shared() is Other.shared()
    with pytest.raises(ServiceError, match="VELOSTREAM_TEST_POSTGRES_URL"):
        Other.shared().stop()


def test_a_server_that_can_not_start_shows_its_log():
    class Broken(PostgresService):
        def command(self) -> list[str]:
            return [*super().command(), "-c", "no_such_setting=1"]

    with pytest.raises(ServiceError) as caught:
        Broken().start()
    assert "no_such_setting" in (caught.value.detail or "")


def _fill(folder: Path) -> None:
    (folder / "made").write_text("once")
    with (folder.parent / "times").open("a") as times:
        times.write("x")


def _ask_for_it(_: int) -> str:
    return str(cached("thing", fill=_fill))


def test_a_download_of_many_processes_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with get_context("spawn").Pool(3) as pool:
        folders = pool.map(_ask_for_it, range(6), chunksize=1)
    assert len(set(folders)) == 1
    assert (Path(folders[0]) / "made").read_text() == "once"
    assert (Path(folders[0]).parent / "times").read_text() == "x"


def test_a_failed_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fail(folder: Path) -> None:
        (folder / "half").write_text("of it")
        raise ServiceError("no network")

    with pytest.raises(ServiceError, match="no network"):
        cached("thing", fill=fail)
    left = {path.name for path in (tmp_path / "velostream" / "test-services").iterdir()}
    assert left == {"thing.lock"}
