import json
import os
import pickle
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from velostream.errors import Category, SourceError
from velostream.model.schema import Schema
from velostream.sources.base import Emits, SourceSpec
from velostream.sources.files import FileSource

SCHEMA = Schema.of(("n", "BIGINT"), ("s", "STRING"))


class Follower:
    """A source and the position of one reader, with the table that its partitions make up."""

    def __init__(self, uri, mode, **options):
        values = {name.replace("_", "."): value for name, value in options.items()}
        values |= {"watch": "true", "watch.mode": mode}
        self.source = FileSource(SourceSpec("file", str(uri), values, SCHEMA))
        self.position = self.source.initial_offset()
        self.content = {}
        self.bad = []

    def step(self, max_rows=None):
        """Read on; gives what came as (origin, replaces, values) and keeps the content up to date."""
        end = self.source.latest_offset(self.position, max_rows=max_rows)
        came = []
        for partition in self.source.partitions(self.position, end):
            batches = list(pickle.loads(pickle.dumps(self.source)).read(partition, SCHEMA, self.bad.append))
            values = [row["n"] for batch in batches for row in batch.to_pylist()]
            signed = self.source.capabilities.emits is Emits.CHANGES and not partition.replaces
            assert all(("_change" in batch.schema.names) == signed for batch in batches)
            origin = partition.origin and partition.origin.rpartition("/")[2]
            if partition.replaces:
                self.content[origin] = []
            self.content.setdefault(origin, []).extend(values)
            came.append((origin, partition.replaces, values))
        assert self.source.reached(end, self.position)
        self.position = json.loads(json.dumps(end))
        assert self.source.latest_offset(self.position, max_rows=0) == self.position
        return came

    def restart(self):
        self.source = FileSource(self.source.spec)

    @property
    def values(self):
        return sorted(value for values in self.content.values() for value in values)


def lines(*numbers, header=True):
    return ("n,s\n" if header else "") + "".join(f"{number},row {number}\n" for number in numbers)


def quieten(path, seconds=60):
    """Let the file look as if nobody had written to it for a while."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def rewrite(path, text):
    path.write_text(text)
    quieten(path)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "x.csv"
    rewrite(path, lines(1, 2))
    return path


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def test_append_is_a_stream_of_lines(path):  # B42
    follower = Follower(path, "append")
    assert follower.source.capabilities.is_stream
    assert follower.step() == [(None, False, [1, 2])]
    assert follower.step() == []
    append(path, lines(3, header=False))
    assert follower.step() == [(None, False, [3])]


def test_a_half_written_line_waits_for_its_newline(path):  # B42
    follower = Follower(path, "append")
    follower.step()
    before = follower.position
    append(path, "3,ro")
    assert follower.step() == []
    assert follower.position == before
    append(path, "w 3\n4")
    assert follower.step() == [(None, False, [3])]
    append(path, ",x\n")
    assert follower.step() == [(None, False, [4])]


def test_an_open_quote_waits_for_its_end(path):
    follower = Follower(path, "append")
    follower.step()
    append(path, '3,"two\n')
    assert follower.step() == []
    append(path, 'lines"\n4,x\n')
    assert follower.step() == [(None, False, [3, 4])]


def test_a_stray_quote_costs_one_line_only(path):
    follower = Follower(path, "append")
    follower.step()
    append(path, '3,"never closed\n' + lines(*range(4, 200_004), header=False))
    assert follower.step()[0][2] == list(range(4, 200_004))
    assert [record.position for record in follower.bad] == [f"{path}:4"]


def test_a_half_written_header_waits(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("n,")
    follower = Follower(path, "append")
    assert follower.step() == []
    append(path, "s\n")
    assert follower.step() == []
    append(path, "1,x\n")
    assert follower.step() == [(None, False, [1])]


def test_new_files_join_the_stream(tmp_path, path):
    follower = Follower(tmp_path / "*.csv", "append")
    follower.step()
    (tmp_path / "a.csv").write_text(lines(7))
    (tmp_path / "z.csv").write_text(lines(8))
    assert sorted(value for _, _, values in follower.step() for value in values) == [7, 8]


@pytest.mark.parametrize("mode", ["append", "auto"])
def test_nothing_there_yet_is_no_error_when_watching(tmp_path, mode):
    follower = Follower(tmp_path / "later.csv", mode)
    assert FileSource(SourceSpec("file", str(tmp_path / "later.csv"), {"watch": "true"})).schema() is None
    assert follower.step() == []
    (tmp_path / "later.csv").write_text(lines(1))
    assert follower.step()[0][2] == [1]


def test_a_truncated_file_is_read_from_its_start(path):  # B42
    follower = Follower(path, "append")
    follower.step()
    path.write_text("")
    assert follower.step() == []
    append(path, lines(9))
    assert follower.step() == [(None, False, [9])]
    append(path, lines(10, header=False))
    assert follower.step() == [(None, False, [10])]


def test_a_rotated_file_is_noticed_by_its_content(path):  # B42
    follower = Follower(path, "append")
    follower.step()
    path.rename(path.with_suffix(".old"))
    path.write_text(lines(5, 6, 7, 8))
    assert follower.step() == [(None, False, [5, 6, 7, 8])]


def test_a_rotation_within_the_pattern_repeats_nothing(tmp_path):
    log = tmp_path / "x.csv"
    log.write_text(lines(1, 2))
    follower = Follower(tmp_path / "x.csv*", "append", format="csv")
    assert follower.step() == [(None, False, [1, 2])]
    append(log, lines(3, header=False))
    log.rename(tmp_path / "x.csv.1")
    log.write_text(lines(4))
    came = [value for _, _, values in follower.step() for value in values]
    assert sorted(came) == [3, 4]
    (tmp_path / "x.csv.1").rename(tmp_path / "x.csv.2")
    log.rename(tmp_path / "x.csv.1")
    assert follower.step() == []
    log.write_text(lines(5, 6))
    assert [value for _, _, values in follower.step() for value in values] == [5, 6]


def test_lines_lost_to_a_rotation_are_reported(path):
    follower = Follower(path, "append")
    end = follower.source.latest_offset(follower.position)
    (partition,) = follower.source.partitions(follower.position, end)
    path.write_text(lines(9))
    bad = []
    assert list(follower.source.read(partition, SCHEMA, bad.append)) == []
    assert "truncated or rotated" in bad[0].reason


def test_a_replay_gives_the_same_rows_after_growth(path):
    follower = Follower(path, "append")
    start = follower.position
    follower.step()
    append(path, lines(3, header=False))
    rows = [
        row["n"]
        for partition in follower.source.partitions(start, follower.position)
        for batch in follower.source.read(partition, SCHEMA, follower.bad.append)
        for row in batch.to_pylist()
    ]
    assert rows == [1, 2]


def test_latest_begins_at_the_end(path):  # B8
    follower = Follower(path, "append", auto_offset_reset="Latest")
    assert follower.step() == []
    append(path, lines(3, header=False))
    assert follower.step() == [(None, False, [3])]


def test_growth_adds_rows_to_the_origin(path):
    follower = Follower(path, "auto")
    assert follower.source.capabilities.emits is Emits.CHANGES
    assert follower.source.capabilities.follows
    assert follower.step() == [("x.csv", False, [1, 2])]
    append(path, lines(3, header=False))
    assert follower.step() == [("x.csv", False, [3])]


def test_a_rewrite_replaces_the_rows_of_the_file(path):  # B42
    follower = Follower(path, "auto")
    follower.step()
    rewrite(path, lines(2, 3, 4))
    assert follower.step() == [("x.csv", True, [2, 3, 4])]
    rewrite(path, lines(2))
    assert follower.step() == [("x.csv", True, [2])]
    rewrite(path, lines())
    assert follower.step() == [("x.csv", True, [])]
    append(path, lines(5, header=False))
    assert follower.step() == [("x.csv", False, [5])]


def test_a_rewrite_waits_until_the_file_is_quiet(path):
    follower = Follower(path, "auto", watch_debounce="10s")
    follower.step()
    path.write_text(lines(7))
    assert follower.step() == []
    quieten(path, seconds=11)
    assert follower.step() == [("x.csv", True, [7])]


def test_growth_does_not_wait(path):
    follower = Follower(path, "auto", watch_debounce="1h")
    follower.step()
    append(path, lines(3, header=False))
    assert follower.step() == [("x.csv", False, [3])]


def test_a_touched_file_is_nothing_new(path):
    follower = Follower(path, "auto")
    follower.step()
    quieten(path, seconds=5)
    assert follower.step() == []


def test_an_edit_in_the_middle_of_a_large_file_is_noticed(tmp_path):
    path = tmp_path / "x.csv"
    rewrite(path, lines(*range(200_000)))
    follower = Follower(path, "auto")
    follower.step()
    text = path.read_text().replace("100000,row 100000", "999999,row 100000")
    path.write_text(text)
    quieten(path, seconds=30)
    follower.restart()
    follower.step()
    assert follower.values[-1] == 999_999
    assert len(follower.values) == 200_000


def test_replace_takes_every_change_as_a_whole(path):
    follower = Follower(path, "replace")
    assert follower.step(max_rows=1) == [("x.csv", False, [1, 2])]
    append(path, lines(3, header=False))
    quieten(path)
    assert follower.step() == [("x.csv", True, [1, 2, 3])]
    append(path, "4,half")
    quieten(path)
    assert follower.step() == []


def test_a_deleted_file_takes_its_rows_along(tmp_path, path):  # B42
    (tmp_path / "y.csv").write_text(lines(5))
    for mode in ("directory", "auto"):
        follower = Follower(tmp_path, mode)
        follower.step()
        assert follower.values == [1, 2, 5]
        (tmp_path / "y.csv").unlink()
        assert follower.step() == [("y.csv", True, [])]
        assert follower.values == [1, 2]
        assert follower.step() == []
        (tmp_path / "y.csv").write_text(lines(5))
        assert follower.step() == [("y.csv", False, [5])]


def test_a_single_deleted_file_keeps_its_rows_and_is_missed(path):
    follower = Follower(path, "auto")
    follower.step()
    path.unlink()
    with pytest.raises(SourceError) as caught:
        follower.step()
    assert caught.value.category is Category.MISSING
    rewrite(path, lines(1, 2))
    assert follower.step() == []


def test_a_single_deleted_file_in_directory_mode_is_empty(path):
    follower = Follower(path, "directory")
    follower.step()
    path.unlink()
    assert follower.step() == [("x.csv", True, [])]


def test_a_vanished_folder_is_trouble_and_not_a_deletion(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "x.csv").write_text(lines(1))
    follower = Follower(folder / "*.csv", "auto")
    follower.step()
    folder.rename(tmp_path / "away")
    with pytest.raises(SourceError, match="no file matches"):
        follower.step()


def test_whole_files_are_replaced_when_quiet(tmp_path):
    path = tmp_path / "x.parquet"

    def write(*numbers):
        pq.write_table(pa.table({"n": list(numbers), "s": [str(n) for n in numbers]}), path)

    write(1, 2)
    follower = Follower(path, "auto", watch_debounce="10s")
    assert follower.step() == []
    quieten(path)
    assert follower.step() == [("x.parquet", False, [1, 2])]
    write(3)
    assert follower.step() == []
    quieten(path, seconds=20)
    assert follower.step() == [("x.parquet", True, [3])]


def test_a_json_array_is_replaced_when_it_changes(tmp_path):
    path = tmp_path / "x.json"
    rewrite(path, '[{"n": 1, "s": "a"}]')
    follower = Follower(path, "auto")
    assert follower.step() == [("x.json", False, [1])]
    rewrite(path, '[{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]')
    assert follower.step() == [("x.json", True, [1, 2])]


def test_a_restart_goes_on_where_it_was(tmp_path, path):
    for mode in ("append", "auto"):
        follower = Follower(path, mode)
        follower.step(max_rows=1)
        follower.restart()
        assert follower.step()[0][2] == [2]
        follower.restart()
        assert follower.step() == []


@pytest.mark.parametrize("mode", ["append", "auto"])
def test_limits_hold_across_files(tmp_path, mode):
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text(lines(*range(5)))
    follower = Follower(tmp_path, mode)
    counts = []
    while came := follower.step(max_rows=3):
        counts.append(sum(len(values) for _, _, values in came))
    assert sum(counts) == 15
    assert max(counts) == 3


def test_readers_at_different_positions_can_meet(path):
    source = FileSource(SourceSpec("file", str(path), {"watch.mode": "auto"}, SCHEMA))
    first = source.latest_offset(source.initial_offset())
    rewrite(path, lines(7, 8, 9))
    first = source.latest_offset(first)
    second = source.latest_offset(source.initial_offset())
    assert source.reached(second, first)
    assert source.reached(first, second)


def test_poll_interval_alone_means_watching(path):
    assert FileSource(SourceSpec("file", str(path), {"poll.interval": "1s"})).capabilities.follows
    assert not FileSource(SourceSpec("file", str(path), {"poll.interval": "1s", "watch": "false"})).capabilities.follows


def test_upserts_from_a_followed_file(path):
    source = FileSource(
        SourceSpec("file", str(path), {"watch.mode": "append", "changelog": "upsert", "key": "n"}, SCHEMA)
    )
    assert source.capabilities.emits is Emits.UPSERTS
    assert source.schema().key == ("n",)
    start = source.initial_offset()
    (partition,) = source.partitions(start, source.latest_offset(start))
    (batch,) = source.read(partition, SCHEMA, print)
    assert batch.to_pylist()[0] == {"n": 1, "s": "row 1", "_change": 1}
