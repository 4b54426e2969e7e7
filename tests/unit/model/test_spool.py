import pickle

import pyarrow as pa
import pytest

from velostream.errors import ClosedError, StateError
from velostream.model.spool import Spool


def rows(*values):
    return pa.table({"n": pa.array(values, pa.int64())})


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


def test_an_unwritten_spool_is_empty(spool):
    assert (spool.count(), spool.schema(), spool.closed, spool.first()) == (0, None, False, 1)


def test_rows_come_back_by_number(spool):
    assert spool.append(rows(1, 2)) == 1
    assert spool.append(rows(3)) == 2
    assert [spool.read(number)["n"].to_pylist() for number in (1, 2)] == [[1, 2], [3]]
    assert [spool.rows(1), spool.rows(2)] == [2, 1]
    assert spool.schema() == pa.schema([("n", pa.int64())])
    assert spool.read(1).schema.metadata is None


def test_prepared_rows_are_not_seen_before_they_are_published(spool):
    prepared = spool.prepare(rows(1))
    assert Spool(spool.directory).count() == 0
    spool.publish(prepared)
    spool.publish(prepared)
    assert Spool(spool.directory).count() == 1


def test_another_process_sees_what_was_published(spool):
    reader = pickle.loads(pickle.dumps(spool))
    assert reader.count() == 0
    spool.append(rows(1))
    spool.append(rows(2, 3))
    assert reader.count() == 2
    assert reader.rows(2) == 2


@pytest.mark.parametrize(("committed", "kept"), [(1, [[1]]), (2, [[1], [2]])])
@pytest.mark.parametrize("published", [True, False])
def test_recovery_shows_exactly_what_is_committed(spool, committed, kept, published):
    spool.append(rows(1))
    prepared = spool.prepare(rows(2))
    if published:
        spool.publish(prepared)
    after_crash = Spool(spool.directory)
    after_crash.recover(committed)
    assert [after_crash.read(n)["n"].to_pylist() for n in range(1, after_crash.count() + 1)] == kept
    assert not list(spool.directory.glob("*.tmp"))


def test_recovery_misses_a_committed_file(spool):
    spool.append(rows(1))
    with pytest.raises(StateError):
        spool.recover(2)


def test_numbers_go_on_after_old_files_are_deleted(spool):
    for value in range(5):
        spool.append(rows(value))
    spool.delete_before(100)
    assert (spool.first(), spool.count()) == (5, 5)
    assert Spool(spool.directory).append(rows(9)) == 6
    with pytest.raises(StateError, match="damaged"):
        spool.read(1)


def test_a_reader_catches_up_past_deleted_files(spool):
    spool.append(rows(1))
    reader = Spool(spool.directory)
    assert reader.count() == 1
    for value in range(3):
        spool.append(rows(value))
    spool.delete_before(4)
    assert reader.count() == 4


def test_nothing_follows_the_end(spool):
    spool.append(rows(1))
    spool.close()
    assert Spool(spool.directory).closed
    with pytest.raises(ClosedError):
        spool.append(rows(2))


def test_a_note_travels_with_the_file(spool):
    spool.append(rows(1), note={"epoch": "7"})
    assert Spool(spool.directory).note(1) == {"epoch": "7"}


def test_a_torn_file_is_named(spool):
    spool.append(rows(1))
    path = next(spool.directory.glob("*.arrow"))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(StateError, match="damaged"):
        Spool(spool.directory).read(1)


def test_dictionaries_that_change_between_batches_are_written(spool):
    changing = pa.concat_tables(
        [pa.table({"s": pa.array(["a"]).dictionary_encode()}), pa.table({"s": pa.array(["b"]).dictionary_encode()})]
    )
    spool.append(changing)
    assert spool.read(1)["s"].to_pylist() == ["a", "b"]
