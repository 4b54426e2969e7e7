"""Every registered kind of source, through the suite that ships with the package."""

import pytest

from velostream.plugins import Group, names
from velostream.testing.database_feeds import ClickhouseFeed, PostgresFeed, SqlFeed
from velostream.testing.document_feeds import MongodbFeed, RedisFeed
from velostream.testing.feeds import FileFeed, GeneratorFeed, MemoryFeed
from velostream.testing.http_feed import ReceivedFeed, ResourceFeed
from velostream.testing.kafka_feed import KafkaFeed
from velostream.testing.mysql_feed import MysqlFeed
from velostream.testing.object_feed import AbfsFeed, GsFeed, S3Feed
from velostream.testing.source_suite import SourceSuite

FIELDS = "id:sequence,name:choice(a|b),price:decimal(1,9,2),at:timestamp"

FEEDS = {
    "memory": {
        "appends": MemoryFeed,
        "upserts": lambda folder: MemoryFeed(folder, changelog="upsert", key="id"),
    },
    "file": {
        "csv once": lambda folder: FileFeed(folder, "csv", one_file=True),
        "jsonl once": lambda folder: FileFeed(folder, "jsonl", one_file=False),
        "parquet once": lambda folder: slack(FileFeed(folder, "parquet", one_file=False), 50),
        "json array once": lambda folder: slack(FileFeed(folder, "json", one_file=False, format="json_array"), 50),
        "avro once": lambda folder: slack(FileFeed(folder, "avro", one_file=False), 50),
        "orc once": lambda folder: slack(FileFeed(folder, "orc", one_file=False), 50),
        "csv gzip once": lambda folder: slack(FileFeed(folder, "csv.gz", one_file=False), 50),
        "jsonl zstd watched": lambda folder: slack(FileFeed(folder, "jsonl.zst", one_file=False, watch="true"), 50),
        "csv appended": lambda folder: FileFeed(folder, "csv", one_file=True, watch_mode="append"),
        "jsonl appended": lambda folder: FileFeed(folder, "jsonl", one_file=True, watch_mode="append"),
        "csv folder appended": lambda folder: FileFeed(folder, "csv", one_file=False, watch_mode="append"),
        "csv watched": lambda folder: FileFeed(folder, "csv", one_file=True, watch="true"),
        "csv folder watched": lambda folder: FileFeed(folder, "csv", one_file=False, watch="true"),
        "parquet watched": lambda folder: slack(FileFeed(folder, "parquet", one_file=False, watch="true"), 50),
    },
    "http": {
        "csv once": lambda _: ResourceFeed("csv"),
        "json pages once": lambda _: ResourceFeed("json", pages=True),
        "jsonl polled": lambda _: ResourceFeed("jsonl", watch="true"),
        "server-sent events": lambda folder: ReceivedFeed(folder, "sse"),
        "webhook": lambda folder: ReceivedFeed(folder, "webhook"),
    },
    "kafka": {
        "events": lambda _: KafkaFeed(),
        "upserts": lambda _: KafkaFeed(changelog="upsert", key="id"),
    },
    "clickhouse": {
        "once": lambda _: ClickhouseFeed(),
        "polled": lambda _: ClickhouseFeed(incremental_column="id"),
    },
    "mongodb": {
        "once": lambda _: MongodbFeed(),
        "polled": lambda _: MongodbFeed(incremental_column="_id"),
        "captured": lambda _: MongodbFeed(cdc="true"),
    },
    "mysql": {
        "once": lambda _: MysqlFeed(),
        "polled": lambda _: MysqlFeed(incremental_column="id"),
        "captured": lambda _: MysqlFeed(cdc="true"),
    },
    "postgres": {
        "once": lambda _: PostgresFeed(),
        "polled": lambda _: PostgresFeed(incremental_column="id"),
        "captured": lambda _: PostgresFeed(cdc="true"),
    },
    "s3": {
        "csv once": lambda _: S3Feed("csv"),
        "parquet once": lambda _: S3Feed("parquet"),
        "csv watched": lambda _: S3Feed("csv", watch="true"),
        "jsonl gzip appended": lambda _: S3Feed("jsonl.gz", watch_mode="append"),
    },
    "gs": {
        "csv once": lambda _: GsFeed("csv"),
        "parquet watched": lambda _: GsFeed("parquet", watch="true"),
    },
    "abfs": {
        "csv once": lambda _: AbfsFeed("csv"),
        "parquet watched": lambda _: AbfsFeed("parquet", watch="true"),
    },
    "redis": {
        "stream": lambda _: RedisFeed("stream"),
        "stream of new values": lambda _: RedisFeed("stream", changelog="upsert", key="id"),
        "hashes": lambda _: RedisFeed("prefix", key="id"),
    },
    "sql": {
        "sqlite once": lambda folder: SqlFeed(folder, "sqlite"),
        "sqlite polled": lambda folder: SqlFeed(folder, "sqlite", incremental_column="id"),
        "duckdb once": lambda folder: SqlFeed(folder, "duckdb"),
        "duckdb polled": lambda folder: SqlFeed(folder, "duckdb", incremental_column="id"),
    },
    "rate": {
        "fast": lambda _: GeneratorFeed("rate", number_column="value", first_number=0, rows_per_second="1e9"),
    },
    "generator": {
        "at once": lambda _: GeneratorFeed("generator", number_column="id", first_number=1, fields=FIELDS),
    },
}
CASES = [(kind, case) for kind, cases in FEEDS.items() for case in cases]


def slack(feed, rows):
    feed.limit_slack = rows
    return feed


def test_no_kind_is_forgotten():
    assert set(names(Group.SOURCES)) == set(FEEDS)


@pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind} {case}" for kind, case in CASES])
class TestSources(SourceSuite):
    @pytest.fixture
    def feed(self, kind, case, tmp_path):
        return FEEDS[kind][case](tmp_path)
