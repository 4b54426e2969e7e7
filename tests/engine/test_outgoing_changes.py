"""Changes of views on their way out: into topics of a real broker, with tombstones, and into tables of stores."""

import random

import pytest

import velostream
from velostream.engine.context import EngineContext
from velostream.engine.status import State
from velostream.errors import NotExecutableError, UnsupportedError
from velostream.testing.kafka_feed import settled_end
from velostream.testing.services.kafka import KafkaService

REGIONS = ["north", "south", "east", None]


@pytest.fixture(scope="module")
def broker():
    return KafkaService.shared()


def rows(connection, sql):
    return sorted(connection.execute(sql).fetchall(), key=repr)


def change_at_random(connection, generator, number):
    for _ in range(number):
        key, amount, region = generator.randrange(12), generator.randrange(100), generator.choice(REGIONS)
        match generator.randrange(4):
            case 0:
                connection.execute("UPDATE sales SET amount = ?, region = ? WHERE id = ?", [amount, region, key])
            case 1:
                connection.execute("DELETE FROM sales WHERE id = ?", [key])
            case 2:
                # The row goes on under another key.
                connection.execute("DELETE FROM sales WHERE id = ?", [key + 100])
                connection.execute("UPDATE sales SET id = id + 100 WHERE id = ?", [key])
            case _:
                connection.execute("UPSERT INTO sales VALUES (?, ?, ?)", [key, region, amount])


def topics_show_what_the_views_hold(connection, topics, suffix):
    for name, (topic, query, columns) in topics.items():
        connection.drain(f"insert_into_kafka_{name}", timeout=60)
        settled_end(topic)
        connection.execute(f"CREATE TABLE back_{suffix}_{name} AS SELECT {columns} FROM {topic}")
        connection.drain(f"back_{suffix}_{name}", timeout=60)
        assert rows(connection, f"SELECT * FROM back_{suffix}_{name}") == rows(connection, query)


def test_a_compacted_topic_read_back_equals_the_view(broker, tmp_path, monkeypatch, eventually):  # B43, B55
    generator = random.Random(7)
    topics = {
        1: (broker.new_topic(cleanup_policy="compact"), "SELECT region, n, total FROM totals", "region, n, total"),
        2: (broker.new_topic(partitions=2), "SELECT id, region FROM sales WHERE amount > 50", "id, region"),
    }
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute("CREATE TABLE sales (id BIGINT PRIMARY KEY, region STRING, amount BIGINT)")
        connection.execute(
            "CREATE TABLE totals AS SELECT region, COUNT(*) AS n, SUM(amount) AS total FROM sales GROUP BY region"
        )
        change_at_random(connection, generator, 20)
        for topic, query, _ in topics.values():
            connection.execute(f"INSERT INTO {topic} {query} EMIT CHANGES")
        for _ in range(6):
            change_at_random(connection, generator, 8)
        topics_show_what_the_views_hold(connection, topics, "first")
        # A batch that is written and not yet known to be is what a crash leaves at the worst.

        def crash(_, point):
            if point == "sink.after-write":
                raise RuntimeError("gone at the worst of times")

        monkeypatch.setattr(EngineContext, "at_crash_point", staticmethod(crash))
        connection.execute("UPSERT INTO sales VALUES (1, 'west', 1000)")
        names = [f"insert_into_kafka_{number}" for number in topics]
        eventually(lambda: all(connection.status(name).state is State.DEGRADED for name in names), what="the crash")
    monkeypatch.undo()
    ends = {number: settled_end(topic) for number, (topic, _, _) in topics.items()}
    with velostream.connect(tmp_path / "state") as connection:
        for name in names:
            connection.drain(name, timeout=60)
        # What was written before the crash is recognised: nothing of it comes again.
        assert {number: settled_end(topic) for number, (topic, _, _) in topics.items()} == ends
        change_at_random(connection, generator, 30)
        topics_show_what_the_views_hold(connection, topics, "second")


def test_what_can_not_be_told_of_rows_that_leave_is_refused(broker, tmp_path):
    topic = broker.new_topic()
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE bag (id BIGINT, name STRING)")
        connection.execute("CREATE TABLE keyed (id BIGINT PRIMARY KEY, name STRING)")
        refused = {
            f"INSERT INTO {topic} SELECT * FROM bag EMIT CHANGES": "without a key",
            f"INSERT INTO {topic} WITH ('key' = 'name') SELECT * FROM keyed EMIT CHANGES": "it knows them by name",
            f"INSERT INTO file://{tmp_path}/out/ SELECT * FROM keyed EMIT CHANGES": 'kind "file" can\'t do "changes"',
        }
        for statement, reason in refused.items():
            with pytest.raises(UnsupportedError) as caught:
                connection.execute(statement)
            assert reason in f"{caught.value.message} {caught.value.detail}"
        with pytest.raises(NotExecutableError, match="EMIT CHANGES"):
            connection.execute("INSERT INTO bag SELECT * FROM keyed EMIT CHANGES")
        assert connection.queries() == []


def test_a_table_of_a_store_becomes_what_the_view_is(tmp_path):  # B55
    generator = random.Random(11)
    target = f"sql://sqlite:///{tmp_path}/shop.db?table=totals"
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE sales (id BIGINT PRIMARY KEY, region STRING, amount BIGINT)")
        connection.execute(f"INSERT INTO '{target}' SELECT id, amount FROM sales WHERE amount > 30 EMIT CHANGES")
        for _ in range(5):
            change_at_random(connection, generator, 10)
        connection.drain("insert_into_sql_1", timeout=60)
        stored = rows(connection, f"SELECT id, amount FROM '{target}'")
        assert stored == rows(connection, "SELECT id, amount FROM sales WHERE amount > 30")
        with pytest.raises(UnsupportedError, match='table "others"'):
            connection.execute(
                f"INSERT INTO 'sql://sqlite:///{tmp_path}/shop.db?table=others&key=region' "
                "SELECT id, region FROM sales EMIT CHANGES"
            )
