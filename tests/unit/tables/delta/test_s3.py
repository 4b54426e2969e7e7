"""Delta tables in an object store, against a real server over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Lake

from velostream.errors import Category, OptionError, StoreError, TableError
from velostream.model.change import Epoch, Mode
from velostream.model.options import Options
from velostream.model.s3 import S3_OPTIONS, S3Store
from velostream.tables.base import TableSpec
from velostream.tables.delta import DeltaTable
from velostream.testing.services.s3 import S3Service
from velostream.testing.table_cases import KEYED, content, in_threads, keys, rows_of, write


@pytest.fixture(scope="module")
def server() -> S3Service:
    return S3Service.shared()


@pytest.fixture
def bucket(server) -> str:
    return server.new_database()


def open_table(server, url, *, name: str = "t", id_: str = "id", **options: str) -> DeltaTable:
    given = {"url": url, **server.options, **{option.replace("_", "."): value for option, value in options.items()}}
    return DeltaTable.open(TableSpec(id_, name, KEYED, options=given))


def test_a_table_in_a_bucket(server, bucket):
    table = open_table(server, f"{bucket}/lake", partition_by="name")
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b")), Epoch("q", 1))
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b")), Epoch("q", 1))
    version = table.version
    table.commit(write(Mode.UPSERT, (2, "c"), (3, "a")))
    table.commit(keys(1))
    again = open_table(server, f"{bucket}/lake")
    assert content(again.snapshot().scan()) == content(rows_of(KEYED, (2, "c"), (3, "a")))
    assert again.snapshot(version).get(2)["name"] == "b"
    assert again.snapshot(again.version_at(datetime.now(UTC))).count() == 2
    assert again.changes(version).arrow.num_rows == 4
    theirs = Lake(f"{bucket}/lake/t", storage_options=S3Store.of(Options(server.options, S3_OPTIONS)).storage_options())
    assert theirs.transaction_version("velostream:q") == 1
    assert content(theirs.to_pyarrow_table()) == content(rows_of(KEYED, (2, "c"), (3, "a")))
    again.drop()
    assert [
        info.path
        for info in server.file_system().get_file_info(pa.fs.FileSelector(bucket[5:], recursive=True))
        if info.is_file
    ] == []


def test_a_commit_whose_outcome_is_asked_for(server, bucket):
    table = open_table(server, bucket)
    log = table._writing
    state = log.newest()
    (file,) = table._files.write(rows_of(KEYED, (1, "a")), version=1)
    assert not log.may_name([file], after=state)
    log.commit(state, added=[file], removed=(), epoch=None)
    assert log.may_name([file], after=state)
    with pytest.raises(TableError, match="not kept any more"):
        table.snapshot(-1)


def test_of_two_writers_nobody_is_lost(server, bucket):
    first, second = (open_table(server, bucket) for _ in range(2))

    def commit(number: int) -> None:
        (first, second)[number % 2].commit(write(Mode.UPSERT, (number, "x")))

    in_threads([lambda number=number: commit(number) for number in range(6)])
    assert first.snapshot().count() == second.snapshot().count() == 6


def test_what_is_there_is_replaced(server, bucket):
    open_table(server, bucket).commit(write(Mode.APPEND, (1, "a")))
    assert open_table(server, bucket, id_="other", if_exists="replace").snapshot().count() == 0


def test_trouble_has_a_category_and_no_secret(server, bucket):
    with pytest.raises(StoreError) as missing:
        open_table(server, "s3://no-such-bucket-here")
    assert missing.value.category is Category.MISSING
    with pytest.raises(StoreError) as away:
        open_table(server, bucket, s3_endpoint="http://127.0.0.1:1")
    assert away.value.category is Category.NETWORK
    for caught in (missing, away):
        shown = f"{caught.value.message} {caught.value.detail}"
        assert server.secret_key not in shown
        assert "\x1b" not in shown
    store = S3Store.of(Options(server.options, S3_OPTIONS))
    assert server.secret_key not in repr(store)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(OptionError, match=r"s3\.secret\.key"):
        S3Store.of(Options({"s3.access.key": "a"}, S3_OPTIONS))
    with pytest.raises(OptionError, match=r"s3\.endpoint"):
        S3Store.of(Options({"s3.endpoint": "localhost:9000"}, S3_OPTIONS))
