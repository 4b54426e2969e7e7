"""Objects of a real server: which ones are meant, how a change is noticed, what trouble is called."""

import urllib.request

import boto3
import pytest
from pyarrow.fs import FileInfo, FileType

from velostream.errors import Category, OptionError, VelostreamError, render_text
from velostream.model.options import Options
from velostream.model.s3 import S3_OPTIONS, S3Store
from velostream.sources.base import SourceSpec
from velostream.sources.object_listing import ObjectAddress, Objects, StoredObject
from velostream.sources.s3 import S3Source
from velostream.testing.services.s3 import S3Service


@pytest.fixture(scope="module")
def service():
    return S3Service.shared()


@pytest.fixture
def bucket(service):
    return service.new_database().removeprefix("s3://")


@pytest.fixture
def put(service, bucket):
    system = service.file_system()

    def write(key, text):
        with system.open_output_stream(f"{bucket}/{key}") as stream:
            stream.write(text.encode())

    return write


@pytest.fixture
def source(service, bucket):
    def make(key, **options):
        given = {name.replace("_", "."): value for name, value in options.items()}
        return S3Source(SourceSpec("s3", f"s3://{bucket}/{key}", {**service.options, **given}))

    return make


def read_all(source, bad=None):
    start = source.initial_offset()
    return read(source, start, source.latest_offset(start), bad)


def read(source, start, end, bad=None):
    schema = source.schema()
    return [
        row
        for partition in source.partitions(start, end)
        for batch in source.read(partition, schema, pytest.fail if bad is None else bad.append)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("d/*.csv", ["d/a.csv"], ["d/x/a.csv", "d/a.csv.gz", "e/a.csv", "d/.a.csv", "d/_a.csv", "d/a.csv.tmp"]),
        ("d/**/*.csv", ["d/a.csv", "d/x/y/a.csv"], ["e/a.csv"]),
        ("d/**", ["d/a", "d/x/y"], ["e"]),
        ("d/?.{csv,json}", ["d/a.csv", "d/b.json"], ["d/ab.csv", "d/a.txt"]),
        ("d/[a].csv*", ["d/[a].csv"], ["d/a.csv"]),
    ],
)
def test_patterns_mean_keys(pattern, matches, others):
    address = ObjectAddress.of(f"s3://bucket/{pattern}", S3Store)
    assert [key for key in (*matches, *others) if address.matches(f"bucket/{key}")] == matches


@pytest.mark.parametrize("uri", ["s3://", "s3:///key", "s3://b*/key"])
def test_an_address_needs_a_bucket(uri):
    with pytest.raises(OptionError):
        ObjectAddress.of(uri, S3Store)


def test_a_folder_is_what_is_in_it_and_not_below(put, source):
    put("d/a.csv", "id\n1\n")
    put("d/x/b.csv", "id\n2\n")
    for address in ("d/", "d"):
        assert read_all(source(address)) == [{"id": 1}]


def test_an_object_written_again_within_its_second_is_noticed(put, source):  # B42
    put("a.csv", "id\n1\n")
    watched = source("*.csv", watch="true")
    before = watched.latest_offset(watched.initial_offset())
    assert watched.latest_offset(before) == before
    put("a.csv", "id\n2\n")
    after = watched.latest_offset(before)
    assert [part.replaces for part in watched.partitions(before, after)] == [True]
    assert read(watched, before, after) == [{"id": 2}]


def test_an_object_that_is_gone_before_it_is_read_is_told(service, bucket, put, source):
    put("a.csv", "id\n1\n")
    put("b.csv", "id\n2\n")
    appended = source("*.csv", watch_mode="append")
    appended.schema()
    start = appended.initial_offset()
    end = appended.latest_offset(start)
    service.file_system().delete_file(f"{bucket}/a.csv")
    put("b.csv", "id\n33\n")
    bad = []
    assert read(appended, start, end, bad) == []
    assert [(record.position, record.reason) for record in bad] == [
        (f"s3://{bucket}/a.csv", "deleted before it could be read"),
        (f"s3://{bucket}/b.csv", "replaced before it could be read"),
    ]
    # In a table that follows, that one is gone is a step of its own, and the newer version of the other is as good.
    watched = source("*.csv", watch="true")
    assert read(watched, start, end) == [{"id": 33, "_change": 1}]
    later = watched.latest_offset(end)
    assert sorted((part.origin, part.replaces) for part in watched.partitions(end, later)) == [
        (f"s3://{bucket}/a.csv", True),
        (f"s3://{bucket}/b.csv", True),
    ]
    assert read(watched, end, later) == [{"id": 33}]


def test_an_object_that_is_replaced_before_it_is_read_once_is_read_as_it_is(put, source):
    put("a.csv", "id\n1\n")
    bounded = source("a.csv")
    bounded.schema()
    end = bounded.latest_offset(bounded.initial_offset())
    put("a.csv", "id\n22\n")
    assert read(bounded, bounded.initial_offset(), end) == [{"id": 22}]


def test_a_copy_is_of_one_version(service, bucket, put, tmp_path):
    put("a.csv", "id\n1\n")
    replacements = ["id\n22\n"]

    class Overtaken(Objects):
        def _copied(self, path, target, most):
            copied = super()._copied(path, target, most)
            if replacements:
                put("a.csv", replacements.pop())
            return copied

    store = S3Store.of(Options(service.options, S3_OPTIONS))
    objects = Overtaken(store, ObjectAddress.of(f"s3://{bucket}/a.csv", S3Store))
    objects.fetch(f"{bucket}/a.csv", tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "id\n22\n"
    replacements += [f"id\n{number}\n" for number in range(9)]
    with pytest.raises(VelostreamError, match="replaced faster") as endless:
        objects.fetch(f"{bucket}/a.csv", tmp_path / "copy")
    assert endless.value.category.retriable


def test_a_listing_tells_the_time_as_the_object_does():
    listed = StoredObject.listed(FileInfo("b/a.csv", FileType.File, mtime_ns=1_700_000_000_123_000_000, size=5))
    # Some stores list milliseconds, which is no change of the object that was taken.
    assert listed.modified == 1_700_000_000_000_000_000


def test_a_bad_record_is_told_by_its_object(bucket, put, source):
    put("a.csv", "id,n\n1,2\n2,x\n")
    bounded = source("a.csv", record_schema="id BIGINT, n BIGINT")
    bad = []
    assert read_all(bounded, bad) == [{"id": 1, "n": 2}]
    assert [record.position for record in bad] == [f"s3://{bucket}/a.csv:3"]


def test_columns_of_a_large_object_are_found_in_its_beginning(put, source):
    line = "1,1.25,{}\n".format("x" * 100)
    put("large.csv", "id,price,text\n" + line * 50_000)
    assert [str(column.type) for column in source("large.csv").schema().columns] == [
        "int64",
        "decimal128(18, 2)",
        "string",
    ]


def test_a_bucket_that_is_not_there_is_missing(service):
    for uri in ("s3://nowhere-at-all/x/*.csv", "s3://nowhere-at-all/x.csv"):
        with pytest.raises(VelostreamError) as missing:
            S3Source(SourceSpec("s3", uri, dict(service.options))).schema()
        assert missing.value.category is Category.MISSING


def test_an_unknown_key_is_refused():
    with S3Service() as strict:
        strict.file_system().create_dir("some-bucket")
        address, plain = f"{strict.url}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        with urllib.request.urlopen(urllib.request.Request(address, data=b"0", headers=plain, method="POST")):
            pass
        stranger = S3Source(SourceSpec("s3", "s3://some-bucket/*.csv", dict(strict.options)))
        with pytest.raises(VelostreamError) as refused:
            stranger.schema()
    assert refused.value.category is Category.AUTHENTICATION
    assert strict.secret_key not in render_text(refused.value)


def test_events_say_when_to_list(service, bucket, put, source):
    given = {"aws_access_key_id": service.access_key, "aws_secret_access_key": service.secret_key}
    sqs = boto3.client("sqs", endpoint_url=service.url, region_name="us-east-1", **given)
    s3 = boto3.client("s3", endpoint_url=service.url, region_name="us-east-1", **given)
    queue = sqs.create_queue(QueueName=f"events-of-{bucket}")["QueueUrl"]
    put("a.csv", "id\n1\n")
    followed = source("*.csv", **{"s3.events.queue": queue})
    position = followed.latest_offset(followed.initial_offset(), max_rows=100)
    assert followed.latest_offset(position, max_rows=100) == position
    # Nobody has told of this one, so it isn't looked for until everything is.
    put("b.csv", "id\n2\n")
    assert followed.latest_offset(position, max_rows=100) == position
    position = followed.latest_offset(position)
    assert len(position["objects"]) == 2
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    told = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=told)
    put("c.csv", "id\n3\n")
    later = followed.latest_offset(position, max_rows=100)
    assert [row["id"] for row in read(followed, position, later)] == [3]
    assert followed.latest_offset(later, max_rows=100) == later
    counted = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    left = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=counted)["Attributes"]
    assert set(left.values()) == {"0"}
    followed.close()


def test_a_queue_that_is_not_there_is_missing(service, put, source):
    put("a.csv", "id\n1\n")
    followed = source("*.csv", **{"s3.events.queue": f"{service.url}/123456789012/nowhere"})
    with pytest.raises(VelostreamError) as missing:
        followed.latest_offset(followed.initial_offset(), max_rows=100)
    followed.close()
    assert missing.value.category is Category.MISSING
