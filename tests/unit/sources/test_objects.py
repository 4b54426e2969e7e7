"""Google's and Azure's stores by real emulators: what is special about each, beyond the suite that all kinds run."""

import base64
import hmac
from urllib.parse import unquote, urlencode

import pytest

from velostream.errors import Category, OptionError, VelostreamError, render_text
from velostream.model.azure_storage import AzureStore
from velostream.model.google_storage import GoogleStore
from velostream.model.options import Options
from velostream.plugins import Group, load
from velostream.sinks.base import SinkSpec
from velostream.sources.base import SourceSpec
from velostream.testing.feeds import numbered_rows
from velostream.testing.services.azure import AzureService
from velostream.testing.services.gs import GsService
from velostream.testing.services.http import HttpServer, Reply

SERVICES = {"gs": GsService, "abfs": AzureService}


def source_of(kind, uri, **options):
    given = {name.replace("_", "."): value for name, value in options.items()}
    return load(Group.SOURCES, kind)(SourceSpec(kind, uri, {**SERVICES[kind].shared().options, **given}))


def put(kind, bucket, key, text):
    path = f"{bucket.partition('://')[2]}/{key}"
    with SERVICES[kind].shared().file_system().open_output_stream(path) as stream:
        stream.write(text.encode())


def read(source, start, end):
    schema = source.schema()
    parts = source.partitions(start, end)
    return [row for part in parts for batch in source.read(part, schema, pytest.fail) for row in batch.to_pylist()]


@pytest.fixture(params=list(SERVICES))
def kind(request):
    return request.param


@pytest.fixture
def bucket(kind):
    return SERVICES[kind].shared().new_database()


def test_an_object_written_again_within_its_second_is_noticed(kind, bucket):  # B42
    put(kind, bucket, "d/a.csv", "id\n1\n")
    watched = source_of(kind, f"{bucket}/d/*.csv", watch="true")
    before = watched.latest_offset(watched.initial_offset())
    assert watched.latest_offset(before) == before
    put(kind, bucket, "d/a.csv", "id\n2\n")
    after = watched.latest_offset(before)
    assert [(part.origin, part.replaces) for part in watched.partitions(before, after)] == [(f"{bucket}/d/a.csv", True)]
    assert read(watched, before, after) == [{"id": 2}]


def test_an_empty_object_is_none_yet(kind, bucket):
    put(kind, bucket, "a.parquet", "")
    watched = source_of(kind, f"{bucket}/*.parquet", watch="true")
    assert watched.schema() is None
    assert watched.latest_offset(watched.initial_offset()) == watched.initial_offset()


def test_a_bucket_that_is_not_there_is_missing(kind):
    for key in ("x/*.csv", "x.csv"):
        with pytest.raises(VelostreamError) as missing:
            source_of(kind, f"{kind}://nowhere-at-all/{key}").schema()
        assert missing.value.category is Category.MISSING
    spec = SinkSpec(kind, f"{kind}://nowhere-at-all/out/", dict(SERVICES[kind].shared().options))
    with pytest.raises(VelostreamError) as missing:
        load(Group.SINKS, kind)(spec).open(numbered_rows(1, 0).schema)
    assert missing.value.category is Category.MISSING


def test_a_wrong_account_key_is_refused():
    wrong = "d3Jvbmcta2V5LWFsdG9nZXRoZXI="
    with pytest.raises(VelostreamError) as refused:
        source_of("abfs", "abfs://container/*.csv", **{"abfs.account.key": wrong}).schema()
    assert refused.value.category is Category.AUTHENTICATION
    assert wrong not in render_text(refused.value)


def shared_access_signature(*, key):
    fields = {"sp": "rl", "ss": "b", "srt": "sco", "st": "", "se": "2099-01-01T00:00:00Z", "sip": "", "spr": ""}
    fields |= {"sv": "2022-11-02", "ses": ""}
    signed = "".join(f"{value}\n" for value in (AzureService.storage_account, *fields.values()))
    digest = hmac.digest(base64.b64decode(key), signed.encode(), "sha256")
    return urlencode({name: value for name, value in fields.items() if value} | {"sig": base64.b64encode(digest)})


@pytest.mark.parametrize("begins", ["", "?"])
def test_a_shared_access_signature_lets_in_and_is_told_in_no_error(begins):
    service = AzureService.shared()
    bucket = service.new_database()
    put("abfs", bucket, "a.csv", "id\n1\n")
    endpoint = {name: value for name, value in service.options.items() if name != "abfs.account.key"}

    def let_in(token):
        return load(Group.SOURCES, "abfs")(SourceSpec("abfs", f"{bucket}/*.csv", {**endpoint, "abfs.sas.token": token}))

    source = let_in(begins + shared_access_signature(key=service.account_key))
    assert read(source, source.initial_offset(), source.latest_offset(source.initial_offset())) == [{"id": 1}]
    wrong = shared_access_signature(key="d3Jvbmc=")
    with pytest.raises(VelostreamError) as refused:
        let_in(begins + wrong).schema()
    assert refused.value.category is Category.AUTHENTICATION
    assert wrong.rpartition("=")[2] not in render_text(refused.value)
    assert unquote(wrong.rpartition("=")[2]) not in render_text(refused.value)


def test_an_access_token_goes_to_the_store_and_into_no_error():
    with HttpServer() as server:
        server.answer("/storage/v1/b/bucket/o", lambda _: Reply(b"{}", 401))
        asked = SourceSpec("gs", "gs://bucket/*.csv", {"gs.endpoint": server.url, "gs.access.token": "s3cret"})
        with pytest.raises(VelostreamError) as refused:
            load(Group.SOURCES, "gs")(asked).schema()
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer s3cret"}
    assert refused.value.category is Category.AUTHENTICATION
    assert "s3cret" not in render_text(refused.value) + repr(GoogleStore(None, "s3cret"))


@pytest.mark.parametrize(
    ("uri", "options", "account", "path"),
    [
        ("abfs://data@shop.dfs.core.windows.net/in/a.csv", {}, "shop", "data/in/a.csv"),
        ("abfss://data/in/a.csv", {"abfs.account": "shop"}, "shop", "data/in/a.csv"),
        ("abfs://data@shop.dfs.core.windows.net", {"abfs.account": "other"}, "shop", "data"),
    ],
)
def test_the_account_stands_in_the_address_or_among_the_options(uri, options, account, path):
    assert AzureStore.of(Options(options, AzureStore.options), uri).account == account
    assert AzureStore.path_of(uri) == path


@pytest.mark.parametrize(
    ("store", "options"),
    [
        (AzureStore, {}),
        (AzureStore, {"abfs.account": "a", "abfs.account.key": "k", "abfs.sas.token": "t"}),
        (AzureStore, {"abfs.account": "a", "abfs.endpoint": "localhost:10000"}),
        (GoogleStore, {"gs.endpoint": "localhost:9023"}),
        (GoogleStore, {"gs.access.token": "t", "gs.anonymous": "true"}),
    ],
)
def test_options_that_say_too_little_or_too_much_are_refused(store, options):
    with pytest.raises(OptionError):
        store.of(Options(options, store.options), f"{store.scheme}://bucket/key")
