"""HTTP resources in good and in bad days, against a real server."""

import json
from decimal import Decimal

import pytest

from velostream.errors import Category, OptionError, SourceError, VelostreamError, render_text
from velostream.formats.base import FormatSettings
from velostream.model.http import Answer, HttpAddress, without_parameters
from velostream.model.schema import Schema
from velostream.sources import http_records
from velostream.sources.base import SourceSpec
from velostream.sources.http import HttpSource
from velostream.sources.http_records import Body, BodyRules, infer_columns, path_of, values_at
from velostream.testing.services.http import HttpServer, Reply

RULES = BodyRules(FormatSettings())


@pytest.fixture
def server():
    with HttpServer() as server:
        yield server


def http(url, **options):
    return HttpSource(SourceSpec("http", url, {name.replace("_", "."): value for name, value in options.items()}))


def rows_of(source, bad=None):
    schema = source.schema()
    start = source.initial_offset()
    return [
        row
        for partition in source.partitions(start, source.latest_offset(start))
        for batch in source.read(partition, schema, pytest.fail if bad is None else bad.append)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize(
    ("body", "content_type", "options"),
    [
        ('[{"id": 1, "price": 1.50}, {"id": 2, "price": null}]', "application/json", {}),
        ('{"id": 1, "price": 1.50}\n{"id": 2}\n', "application/json", {}),
        ('{"id": 1, "price": 1.50}\n{"id": 2}\n', "application/x-ndjson", {}),
        ("id,price\n1,1.50\n2,\n", "text/csv; charset=utf-8", {}),
        ("id\tprice\n1\t1.50\n2\t\n", "text/tab-separated-values", {}),
        ("id;price\n1;1.50\n2;\n", "text/plain", {"format": "csv", "delimiter": ";"}),
        ('{"a": {"b": [{"id": 1, "price": 1.50}, {"id": 2}]}}', "application/json", {"http_records": "a.b[*]"}),
        ('{"a": {"b": [{"id": 1, "price": 1.50}, {"id": 2}]}}', "text/plain", {"http_records": "$.a.b"}),
        ('{"x": {"id": 1, "price": 1.50}, "y": {"id": 2}}', "application/json", {"http_records": "*"}),
    ],
)
def test_bodies_are_rows_whatever_they_are_written_in(server, body, content_type, options):
    url = server.put("/rows", body, content_type=content_type)
    expected = [{"id": 1, "price": Decimal("1.50")}, {"id": 2, "price": None}]
    assert rows_of(http(url, **options)) == expected


def test_paths_lead_to_values():
    document = {"a": [{"b": 1, "on": True}, {"b": 2}], "c": {"d": [3, 4, 5]}}
    found = {
        "a[*].b": [1, 2],
        "a[-1].b": [2],
        "a[5].b": [],
        "a[b > 1].b": [2],
        "c.d[1:]": [4, 5],
        "**.b": [1, 2],
        "nothing.here": [],
    }
    assert {path: values_at(document, path_of(path)) for path in found} == found


def test_a_busy_server_is_asked_again_when_it_says(server):
    url = server.put("/rows", '[{"id": 1}]')
    server.fail(Reply(status=429, headers={"Retry-After": "0"}), Reply(status=503), Reply(b"half", broken_off=True))
    assert rows_of(http(url)) == [{"id": 1}]
    assert len(server.requests) == 4


def test_a_polled_resource_that_moves_is_not_taken_for_an_empty_one(server):
    url = server.answer("/rows", lambda _: Reply(status=302, headers={"Location": "/login"}))
    with pytest.raises(VelostreamError) as moved:
        http(url, watch="true", http_method="post", http_body="{}").latest_offset(None)
    assert moved.value.category is Category.CONFIGURATION


@pytest.mark.parametrize("url", ["http://me:s3cret@h/x?k=s3cret#y", "http://me:s3cret@h/x"])
def test_an_address_is_shown_without_user_and_parameters(url):
    assert without_parameters(url) == "http://h/x"


def test_a_server_that_wants_to_be_left_alone_is(server):
    url = server.put("/rows", '[{"id": 1}]')
    source = http(url, watch="true")
    server.fail(Reply(b"slow down", 429, {"Retry-After": "60"}))
    for _ in range(3):
        with pytest.raises(VelostreamError) as busy:
            source.latest_offset(None)
        assert busy.value.category is Category.NETWORK
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "category"),
    [
        (401, Category.AUTHENTICATION),
        (403, Category.AUTHENTICATION),
        (404, Category.MISSING),
        (400, Category.CONFIGURATION),
        (500, Category.NETWORK),
    ],
)
def test_what_an_answer_means(server, status, category):  # B4
    url = server.answer("/rows", lambda asked: Reply(f"the reason: {asked.parameters}".encode(), status))
    source = http(f"{url}?api_key=s3cret", http_token="t0ken")
    with pytest.raises(VelostreamError) as refused:
        source.schema()
    assert refused.value.category is category
    text = render_text(refused.value)
    assert "the reason" in text
    assert "s3cret" not in text
    assert "t0ken" not in text


def test_no_secret_is_shown_however_a_server_repeats_it(server, monkeypatch):
    monkeypatch.setenv("HOOK", "T0p/S3cret")
    monkeypatch.setenv("PASS", 'p"w&rd')
    monkeypatch.setenv("TOKEN", " t0ken\n")

    def repeated(asked):
        shown = asked.headers["authorization"]
        password = json.dumps({"p": 'p"w&rd'}) if shown.startswith("Basic") else ""
        return Reply(f"{asked.path} {shown} {password}".encode(), 400)

    server.answer("/hooks/T0p/S3cret", repeated)
    url = f"{server.url}/hooks/${{HOOK}}"
    for options in ({"http_username": "me", "http_password": "${PASS}"}, {"http_token": "${TOKEN}"}):
        with pytest.raises(VelostreamError) as refused:
            http(url, **options).schema()
        text = render_text(refused.value)
        assert f'"{url}"' in text
        assert not [secret for secret in ("S3cret", "w&rd", "bWU6", "t0ke") if secret in text]
    assert server.requests[-1].headers["authorization"] == "Bearer t0ken"
    server.put("/hooks/T0p/S3cret", "[1]")
    bad = []
    rows_of(http(url, record_schema="id BIGINT"), bad)
    assert [record.position for record in bad] == [f"{url} page 1 record 1"]
    assert "S3cret" not in repr(HttpAddress.of(url, ()))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://host:99999999/", {}),
        ("http://[bad/", {}),
        ("http://" + "x" * 64 + "/", {}),
        ("http://host\x01/", {}),
        ("http://host/", {"http_headers_X-Name": "ü"}),
        ("http://host/", {"http_headers_X Name": "x"}),
        ("http://host/", {"http_headers_X-Name": "a\nb"}),
        ("http://host/", {"http_token": "tökén"}),
    ],
)
def test_what_can_not_be_asked_is_an_option_error(url, options):
    with pytest.raises(OptionError) as refused:
        http(url, **options).schema()
    assert "tökén" not in render_text(refused.value)


@pytest.mark.parametrize("address", ["http://[bad/", "http://host:99999999/", "http://host\x01/"])
def test_an_address_of_the_server_that_is_none_is_its_mistake(server, address):
    document = json.dumps({"rows": [{"id": 1}], "next": address}).encode()
    url = server.answer("/rows", lambda _: Reply(document, headers={"Link": f'<{address}>; rel="next"'}))
    assert len(rows_of(http(url, http_records="rows"))) == 1
    for paging in ({"http_paging": "link"}, {"http_paging": "cursor", "http_cursor_field": "next"}):
        with pytest.raises(VelostreamError) as unreadable:
            rows_of(http(url, http_records="rows", **paging))
        assert unreadable.value.code == "unreadable-answer"


def test_a_broken_body_is_told_with_its_place(server):
    url = server.put("/rows", '[{"id": 1}, {"id": ')
    with pytest.raises(VelostreamError, match="is not JSON") as broken:
        http(url).schema()
    assert broken.value.category is Category.DATA
    assert "page 1" in broken.value.detail
    assert "char 19" in broken.value.detail
    with pytest.raises(VelostreamError) as passing:
        http(url, watch="true").schema()
    assert passing.value.category.retriable


@pytest.mark.parametrize("block", [4, 1 << 23])
def test_a_bad_record_is_told_with_its_place(server, block, monkeypatch):
    monkeypatch.setattr(http_records, "_BLOCK_BYTES", block)
    lines = server.put("/lines", 'id,n\n1,2\n3,x\n4,"5\n', content_type="text/csv")
    bad = []
    assert [row["id"] for row in rows_of(http(lines, record_schema="id BIGINT, n BIGINT"), bad)] == [1]
    places = sorted(record.position.rpartition("/")[2] for record in bad)
    assert places == ["lines page 1 line 3", "lines page 1 line 4"]
    document = server.put("/document", '[{"n": 1}, 7, {"n": "x"}]')
    bad = []
    assert rows_of(http(document, record_schema="n BIGINT"), bad) == [{"n": 1}]
    assert [(record.raw, record.position.rpartition("/")[2]) for record in bad] == [
        (b"7", "document page 1 record 2"),
        (b'{"n":"x"}', "document page 1 record 3"),
    ]


def test_pages_are_followed_by_links(server):
    def page(request):
        number = int(request.parameters.get("p", "1"))
        link = {} if number == 3 else {"Link": f'</rows?p={number + 1}>; rel="next", </rows>; rel="first"'}
        return Reply(json.dumps([{"id": number}]).encode(), headers=link)

    assert rows_of(http(server.answer("/rows", page), http_paging="link")) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_pages_are_followed_by_cursors(server):
    def page(request):
        after = int(request.parameters.get("after", "0"))
        document = {"rows": [{"id": after + 1}], "meta": {"next": after + 1 if after < 2 else None}}
        return Reply(json.dumps(document).encode())

    url = server.answer("/rows", page)
    options = {"http_paging": "cursor", "http_cursor_field": "meta.next", "http_cursor_param": "after"}
    assert rows_of(http(f"{url}?fixed=1", http_records="rows", **options)) == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert {request.parameters["fixed"] for request in server.requests} == {"1"}


def test_pages_are_followed_by_number(server):
    def page(request):
        first = int(request.parameters["offset"]) * 2
        rows = [{"id": number} for number in range(first, min(first + 2, 5))]
        return Reply(json.dumps(rows).encode())

    options = {"http_page_param": "offset", "http_page_first": "0", "http_page_size": "2"}
    source = http(server.answer("/rows", page), http_paging="page", **options)
    assert [row["id"] for row in rows_of(source)] == [0, 1, 2, 3, 4]
    assert server.requests[-1].parameters == {"offset": "2", "per_page": "2"}


def test_a_server_that_knows_no_pages_is_noticed(server):
    url = server.put("/rows", '[{"id": 1}]')
    with pytest.raises(VelostreamError) as round_and_round:
        rows_of(http(url, http_paging="page"))
    assert round_and_round.value.code == "paging-goes-round"


def test_pages_that_lead_back_are_noticed(server):
    def page(request):
        number = int(request.parameters.get("p", "1"))
        return Reply(json.dumps([{"id": number}]).encode(), headers={"Link": f'</rows?p={3 - number}>; rel="next"'})

    url = server.answer("/rows", page)
    with pytest.raises(VelostreamError) as round_and_round:
        rows_of(http(f"{url}?p=1", http_paging="link", record_schema="id BIGINT"))
    assert round_and_round.value.code == "paging-goes-round"
    assert len(server.requests) == 2


def test_pages_without_records_come_to_an_end(server):
    options = {"http_paging": "cursor", "http_cursor_field": "next", "http_records": "rows", "record_schema": "id INT"}

    def feed(request):
        rows = [] if "cursor" in request.parameters else [{"id": 1}]
        return Reply(json.dumps({"rows": rows, "next": "end"}).encode())

    assert rows_of(http(server.answer("/feed", feed), **options)) == [{"id": 1}]
    assert len(server.requests) == 2

    def endless(request):
        return Reply(json.dumps({"rows": [], "next": int(request.parameters.get("cursor", "0")) + 1}).encode())

    with pytest.raises(VelostreamError) as never:
        rows_of(http(server.answer("/endless", endless), **options))
    assert never.value.code == "paging-goes-round"


def test_what_has_not_changed_is_not_sent_again(server):
    url = server.put("/rows", '[{"id": 1}]')
    source = http(url, poll_interval="1s")
    seen = source.latest_offset(None)
    assert source.latest_offset(seen) == seen
    assert "if-none-match" in server.requests[-1].headers
    server.put("/rows", '[{"id": 2}]')
    later = source.latest_offset(seen)
    [part] = source.partitions(seen, later)
    assert part.replaces
    assert [batch.to_pylist() for batch in source.read(part, source.schema(), pytest.fail)] == [[{"id": 2}]]


def test_credentials_and_headers_go_to_the_server_of_the_address_alone(server):
    with HttpServer() as other:
        elsewhere = other.put("/rows", '[{"id": 1}]')
        moved = server.answer("/moved", lambda _: Reply(status=302, headers={"Location": elsewhere}))
        linked = server.answer(
            "/linked", lambda _: Reply(b'[{"id": 2}]', headers={"Link": f'<{elsewhere}>; rel="next"'})
        )
        given = {"http_token": "t0ken", "http_headers_X-Api-Key": "k3y"}
        assert rows_of(http(moved, **given)) == [{"id": 1}]
        assert rows_of(http(linked, http_paging="link", **given)) == [{"id": 2}, {"id": 1}]
        assert all(request.headers["authorization"] == "Bearer t0ken" for request in server.requests)
        assert all(request.headers["x-api-key"] == "k3y" for request in server.requests)
        assert other.requests
        assert not any({"authorization", "x-api-key"} & request.headers.keys() for request in other.requests)


def test_variables_may_hold_any_character(server, monkeypatch):
    monkeypatch.setenv("USER_NAME", "me")
    monkeypatch.setenv("PASS", "p@ss:w/rd?&#")
    monkeypatch.setenv("WHEN", "a&b=c d")
    url = server.put("/rows", '[{"id": 1}]').replace("http://", "http://${USER_NAME}:${PASS}@")
    rows_of(http(f"{url}?since=${{WHEN}}&http.params.key=k"))
    request = server.requests[-1]
    assert request.parameters == {"since": "a&b=c d", "key": "k"}
    assert request.headers["authorization"] == "Basic bWU6cEBzczp3L3JkPyYj"
    assert "p@ss" not in repr(HttpAddress.of("http://me:p@ss@h/x", ()))


def test_parameters_are_options_where_there_is_one_of_that_name(server):
    url = server.put("/rows", '{"x": [{"id": 1}]}', content_type="text/plain")
    assert rows_of(http(f"{url}?http.records=x&userId=7&flag&format=json")) == [{"id": 1}]
    assert server.requests[-1].parameters == {"userId": "7", "flag": ""}


@pytest.mark.parametrize(
    "options",
    [
        {"http_recrods": "x"},
        {"http_auth": "bearer"},
        {"http_auth": "basic"},
        {"http_paging": "cursor"},
        {"format": "protobuf"},
        {"encoding": "utf-16"},
    ],
)
def test_options_that_can_not_be_are_refused(options):
    with pytest.raises(OptionError):
        http("http://host/rows", **options)


def test_a_list_of_objects_is_read_without_being_parsed_as_a_whole():
    body = b'\xef\xbb\xbf[{"id": 1, "price": 1.50},\n {"id": 2, "price": 12.25}]'
    page = Body(Answer(200, "http://a/b", "http://a/b", {"content-type": "application/json"}, body), RULES, page=1)
    schema = infer_columns(iter([page]), RULES.settings)
    assert [row for rows in page.decode(schema, pytest.fail) for row in rows.to_pylist()] == [
        {"id": 1, "price": Decimal("1.50")},
        {"id": 2, "price": Decimal("12.25")},
    ]
    assert (page.count, "document" in vars(page)) == (2, False)


@pytest.mark.parametrize(
    "body",
    ['[{"id": [1}, {"id": 2]}]', '[{"id": 1]]', '[{"x": {"id": 1]}, {"id": 2}]', '[{"x": [{"id": 1}}], {"id": 2}]'],
)
def test_a_list_whose_brackets_do_not_pair_is_told_as_malformed_and_gives_no_rows(body):
    answer = Answer(200, "http://a/b", "http://a/b", {"content-type": "application/json"}, body.encode())
    page = Body(answer, RULES, page=1)
    assert page.elements is not None
    for read in (lambda: list(page.decode(Schema.of(("id", "BIGINT")), pytest.fail)), lambda: page.first_records(10)):
        with pytest.raises(SourceError) as caught:
            read()
        assert caught.value.code == "unreadable-answer"


def test_a_list_with_an_object_that_does_not_fit_is_parsed_and_loses_only_that():
    body = b'[{"id": 1}, {"id": "two"}, {"id": 3}]'
    page = Body(Answer(200, "http://a/b", "http://a/b", {"content-type": "application/json"}, body), RULES, page=1)
    bad = []
    rows = [row for rows in page.decode(Schema.of(("id", "BIGINT")), bad.append) for row in rows.to_pylist()]
    assert (rows, [letter.position for letter in bad]) == ([{"id": 1}, {"id": 3}], ["http://a/b page 1 record 2"])
