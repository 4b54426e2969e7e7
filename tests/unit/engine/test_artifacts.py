"""What is fetched into the cache folder."""

from __future__ import annotations

from pathlib import Path

from velostream.engine.artifacts import megabytes


def test_files_that_go_while_they_are_counted_count_nothing(tmp_path, monkeypatch):
    tmp_path.joinpath("kept").write_bytes(b"x" * 2_000_000)
    tmp_path.joinpath("link").symlink_to("nowhere")
    listed = [*tmp_path.rglob("*"), tmp_path / "gone"]
    monkeypatch.setattr(Path, "rglob", lambda *_: listed)
    assert megabytes(tmp_path) == 2
