"""Events and requests: what arrives by itself is kept before anybody is told so."""

import itertools
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.errors import Category, OptionError, VelostreamError
from velostream.model.http import HTTP_OPTIONS, HttpAddress, HttpClient
from velostream.model.options import Options
from velostream.model.spool import Spool
from velostream.sources.base import SourceSpec
from velostream.sources.http import HttpSource
from velostream.sources.http_events import Event, EventParser
from velostream.sources.http_receivers import Arrival, Inbox, Receiver, release, running_receiver
from velostream.testing.services.base import LOOPBACK, free_port
from velostream.testing.services.http import HttpServer, Reply


@pytest.fixture
def server():
    with HttpServer() as server:
        yield server


@pytest.fixture
def followed(tmp_path):
    """Makes sources that follow, and closes them."""
    made = []

    def make(url, folder="received", **options):
        given = {name.replace("_", "."): value for name, value in options.items()}
        source = HttpSource(SourceSpec("http", url, {"spool": str(tmp_path / folder), **given}))
        made.append(source)
        source.latest_offset(source.initial_offset())
        return source

    yield make
    for source in made:
        source.close()


@pytest.fixture(scope="module")
def client():
    with httpx.Client(limits=httpx.Limits(max_keepalive_connections=0)) as client:
        yield client


@pytest.fixture
def address():
    return f"http://{LOOPBACK}:{free_port()}"


def webhook(followed, url, **options):
    return followed(url, http_mode="webhook", **options)


def rows_of(source, bad=None):
    schema = source.schema()
    start = source.initial_offset()
    return [
        row
        for partition in source.partitions(start, source.latest_offset(start))
        for batch in source.read(partition, schema, pytest.fail if bad is None else bad.append)
        for row in batch.to_pylist()
    ]


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_objects_arrays_and_lines_are_records(followed, address, client):
    source = webhook(followed, f"{address}/in")
    client.post(f"{address}/in", content=b'{"id":\n 1}').raise_for_status()
    client.put(f"{address}/in?x=1", content=b'[{"id": 2}, {"id": 3}]').raise_for_status()
    lines = {"content-type": "application/x-ndjson"}
    client.post(f"{address}/in", content=b'{"id": 4}\n{"id": 5}\n', headers=lines).raise_for_status()
    client.post(f"{address}/in", content=b"").raise_for_status()
    client.post(f"{address}/in", content=b"[broken").raise_for_status()
    bad = []
    assert [row["id"] for row in rows_of(source, bad)] == [1, 2, 3, 4, 5]
    assert [record.raw for record in bad] == [b"[broken"]
    assert bad[0].position.startswith("/in at ")


def test_a_record_of_csv_may_hold_line_breaks(followed, address, client):
    source = webhook(followed, f"{address}/in", format="csv", record_schema="id BIGINT, text STRING")
    client.post(f"{address}/in", content=b'1,"a\r\nb"\r\n\r\n2,c').raise_for_status()
    assert [(row["id"], row["text"].split()) for row in rows_of(source)] == [(1, ["a", "b"]), (2, ["c"])]


def test_half_a_body_is_thrown_away(followed, address, client):
    source = webhook(followed, f"{address}/in", format="csv", record_schema="id BIGINT")
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=10) as sender:
        sender.sendall(b"POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n1\n2\n")
        sender.shutdown(socket.SHUT_WR)
        assert sender.recv(100) == b""
    client.post(f"{address}/in", content=b"3\n").raise_for_status()
    assert rows_of(source) == [{"id": 3}]


def test_who_may_not_come_in_is_told_so(followed, address, client):
    source = webhook(followed, f"{address}/in", http_token="t0ken")
    assert client.post(f"{address}/in", json={"id": 1}).status_code == 401
    assert client.post(f"{address}/other", json={"id": 1}).status_code == 404
    assert client.get(f"{address}/in").status_code == 501
    shown = {"authorization": "Bearer t0ken"}
    assert client.post(f"{address}/in", json={"id": 2}, headers=shown).status_code == 200
    chunks = iter([b'{"id": 3}'])
    assert client.post(f"{address}/in", content=chunks, headers=shown).status_code == 411
    assert rows_of(source) == [{"id": 2}]


def test_endpoints_of_one_port_are_told_apart_by_their_paths(followed, address, client):
    one = webhook(followed, f"{address}/one", folder="one")
    other = webhook(followed, address, folder="other", webhook_path="/two")
    both = webhook(followed, f"{address}/one", folder="both")
    client.post(f"{address}/one", json={"id": 1}).raise_for_status()
    client.post(f"{address}/two", json={"id": 2}).raise_for_status()
    assert (rows_of(one), rows_of(other), rows_of(both)) == ([{"id": 1}], [{"id": 2}], [{"id": 1}])
    one.close()
    both.close()
    assert client.post(f"{address}/one", json={"id": 3}).status_code == 404
    other.close()
    with pytest.raises(httpx.ConnectError):
        client.post(f"{address}/two", json={"id": 4})


def test_a_port_that_is_taken_is_said_so(followed, server):
    with pytest.raises(VelostreamError, match="can't listen") as taken:
        webhook(followed, f"{server.url}/in")
    assert taken.value.category is Category.NETWORK


@pytest.mark.parametrize("url", ["https://127.0.0.1:1/in", "http://127.0.0.1/in"])
def test_an_endpoint_needs_a_port_and_no_encryption(followed, url):
    with pytest.raises(OptionError):
        webhook(followed, url)


def test_a_record_can_be_the_new_value_of_its_key(followed, address, client):
    with pytest.raises(OptionError):
        webhook(followed, f"{address}/in", changelog="upsert")
    source = webhook(followed, f"{address}/in", changelog="upsert", key="id")
    client.post(f"{address}/in", json={"id": 1, "n": 2}).raise_for_status()
    assert source.schema().key == ("id",)
    assert rows_of(source) == [{"id": 1, "n": 2, "_change": 1}]


def test_what_is_no_longer_kept_is_an_error(followed, address, client, tmp_path):
    source = webhook(followed, f"{address}/in", http_retention="0s")
    start = source.initial_offset()
    for number in range(3):
        client.post(f"{address}/in", json={"id": number}).raise_for_status()
    Spool(tmp_path / "received").delete_before(3)
    with pytest.raises(VelostreamError) as expired:
        source.latest_offset(start)
    assert expired.value.code == "records-expired"


def test_events_go_on_where_they_were_broken_off(followed, server):
    url = server.events("/events")
    source = followed(url, http_mode="sse")
    server.send("/events", '{"id": 1}', '{"id":\n2}')
    until(lambda: len(rows_of(source)) == 2)
    server.hang_up()
    server.send("/events", '[{"id": 3}, {"id": 4}]')
    until(lambda: len(rows_of(source)) == 4)
    source.close()
    server.send("/events", '{"id": 5}')
    again = followed(url, http_mode="sse")
    until(lambda: len(rows_of(again)) == 5)
    assert [row["id"] for row in rows_of(again)] == [1, 2, 3, 4, 5]
    assert [request.headers.get("last-event-id") for request in server.requests] == [None, "2", "3"]


def test_a_server_of_events_that_is_silent_is_asked_again(followed, server):
    source = followed(server.events("/events"), http_mode="sse", socket_timeout="200ms")
    until(lambda: len(server.requests) > 1)
    assert source.latest_offset(source.initial_offset()) == source.initial_offset()
    server.send("/events", '{"id": 1}')
    until(lambda: rows_of(source) == [{"id": 1}])


def test_the_system_watches_over_a_stream_of_events(server):
    url = server.events("/events")
    address, _ = HttpAddress.of(url, ())
    client = HttpClient(address, Options({}, HTTP_OPTIONS))
    with client.listening({}) as response:
        connection = response.extensions["network_stream"].get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    client.close()


def test_a_server_of_events_that_is_away_is_said_so_and_found_again(followed, server):
    source = followed(server.events("/events"), http_mode="sse")
    start = source.initial_offset()
    with server.stopped():

        def is_told():
            try:
                return source.latest_offset(start) != start
            except VelostreamError as error:
                return error.category is Category.NETWORK

        until(is_told)
    server.send("/events", '{"id": 1}')
    until(lambda: Spool(source.spec.options["spool"]).count() == 1)
    assert rows_of(source) == [{"id": 1}]


def test_events_that_can_not_be_kept_are_asked_for_again(followed, server, tmp_path):
    (tmp_path / "blocked").write_text("in the way")
    source = followed(server.events("/events"), folder="blocked/received", http_mode="sse")
    server.send("/events", '{"id": 1}')

    def is_told():
        try:
            return source.latest_offset(source.initial_offset()) is None
        except VelostreamError as error:
            return "can't be kept" in error.message and error.category.retriable

    until(is_told)
    (tmp_path / "blocked").unlink()
    until(lambda: Spool(tmp_path / "blocked" / "received").count() == 1)
    assert rows_of(source) == [{"id": 1}]


@pytest.mark.parametrize(
    ("reply", "category"),
    [
        (Reply(b"no", 401), Category.AUTHENTICATION),
        (Reply(b"<html>"), Category.CONFIGURATION),
        (Reply(status=302, headers={"Location": "/"}), Category.CONFIGURATION),
    ],
)
def test_what_is_no_stream_of_events_is_an_error_at_once(followed, server, reply, category):
    url = server.answer("/events", lambda _: reply)
    with pytest.raises(VelostreamError) as refused:
        followed(url, http_mode="sse")
    assert refused.value.category is category


@settings(max_examples=40, deadline=None, database=None)
@given(st.lists(st.integers(0, 90), max_size=8), st.sampled_from(["\n", "\r\n", "\r"]))
def test_events_are_found_however_they_are_cut(cuts, end):
    text = end.join(
        ["", ": hello", "id: 1", "data: one", "", "event: x", "data:two", "data: 2", "", "id", "", "data: z"]
    )
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parser = EventParser()
    pieces = [text[low:high] for low, high in itertools.pairwise(bounds)]
    found = [event for piece in [*pieces, end, end, "x"] for event in parser.feed(piece)]
    assert found == [Event("one", "1"), Event("two\n2", "1"), Event("z", "")]


def test_a_byte_order_mark_is_no_part_of_the_first_event():
    parser = EventParser()
    pieces = ["", "\ufeffdata: one\n\n", "data: \ufeff\n\n"]
    assert [event.data for piece in pieces for event in parser.feed(piece)] == ["one", "\ufeff"]


def test_a_receiver_that_takes_its_time_keeps_no_other_waiting(tmp_path):
    begun, let_go, done = threading.Event(), threading.Event(), threading.Event()
    in_time = []

    class Slow(Receiver):
        def start(self):
            begun.set()
            in_time.append(let_go.wait(10))

        stop = start

    class Quick(Receiver):
        def start(self):
            pass

        stop = start

    spools = Spool(tmp_path / "slow"), Spool(tmp_path / "quick")

    def follow_and_leave():
        running_receiver(spools[0], Slow, follower=begun)
        release(spools[0], begun)
        done.set()

    threading.Thread(target=follow_and_leave, daemon=True).start()
    assert begun.wait(10)
    running_receiver(spools[1], Quick, follower=let_go)
    release(spools[1], let_go)
    let_go.set()
    assert done.wait(10)
    assert in_time == [True, True]


def test_what_comes_at_once_is_written_together(tmp_path):
    inbox = Inbox(Spool(tmp_path / "spool"))
    begun = threading.Barrier(16)

    def send(number):
        begun.wait()
        for step in range(10):
            inbox.put(Arrival([b"%d" % (number * 10 + step)], "here"))

    senders = [threading.Thread(target=send, args=(number,)) for number in range(16)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    spool = inbox.spool
    kept = [record for n in range(1, spool.count() + 1) for record in spool.read(n)["record"].to_pylist()]
    assert sorted(map(int, kept)) == list(range(160))
    assert spool.count() < 160


_LISTENER = """
import sys, threading
from velostream.sources.base import SourceSpec
from velostream.sources.http import HttpSource

source = HttpSource(SourceSpec("http", sys.argv[1], {"spool": sys.argv[2], "http.mode": "webhook"}))
source.latest_offset(source.initial_offset())
print("listening", flush=True)
threading.Event().wait()
"""


def test_what_was_answered_survives_a_kill(address, client, tmp_path):  # B55
    url = f"{address}/in"
    listener = subprocess.Popen(
        [sys.executable, "-c", _LISTENER, url, str(tmp_path / "received")], stdout=subprocess.PIPE, text=True
    )
    answered = []

    def send(sender):
        for step in itertools.count():
            number = sender * 100_000 + step
            try:
                client.post(url, json={"id": number}).raise_for_status()
            except httpx.TransportError:
                return
            answered.append(number)

    with listener:
        assert listener.stdout.readline() == "listening\n"
        senders = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
        for sender in senders:
            sender.start()
        until(lambda: len(answered) > 40)
        listener.kill()
        for sender in senders:
            sender.join()
    source = HttpSource(SourceSpec("http", url, {"spool": str(tmp_path / "received"), "http.mode": "webhook"}))
    kept = [row["id"] for row in rows_of(source)]
    source.close()
    assert set(answered) <= set(kept)
    assert len(kept) == len(set(kept))
    # Of what nobody got an answer to, at most what each sender had on its way.
    assert len(kept) - len(answered) <= len(senders)
