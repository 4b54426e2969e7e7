"""Parts that several threads work on are given one after the other, and end with who takes them."""

import threading
import time

import pytest

from velostream.engine.nearby import in_order


def numbers(first, count=30, pause=0.0):
    def part():
        for number in range(first, first + count):
            time.sleep(pause)
            yield number

    return part


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_one_part_comes_after_the_other(threads, count):
    # The first ones are the slowest.
    parts = [numbers(part * 30, pause=0.0005 if part < 2 else 0.0) for part in range(count)]
    assert list(in_order(parts, threads=threads)) == list(range(count * 30))


def test_parts_are_worked_on_at_a_time():
    met = threading.Barrier(2, timeout=30)

    def part():
        met.wait()
        yield threading.current_thread().name

    first, second = in_order([part, part], threads=2)
    assert first != second


def test_a_part_is_only_so_far_ahead():
    given = []

    def part():
        for number in range(1000):
            given.append(number)
            yield number

    taken = in_order([numbers(0), part], threads=2)
    assert next(taken) == 0
    time.sleep(0.3)
    assert len(given) < 20
    assert list(taken)[29:] == list(range(1000))


def test_an_error_comes_where_its_item_would_have():
    def broken():
        yield "last"
        raise ValueError("no more")

    taken = in_order([numbers(0, 3), broken, numbers(3, 3)], threads=2)
    assert [next(taken) for _ in range(4)] == [0, 1, 2, "last"]
    with pytest.raises(ValueError, match="no more"):
        next(taken)


def test_who_stops_taking_ends_all_parts():
    ended = []

    def endless():
        try:
            while True:
                yield "more"
        finally:
            ended.append(threading.current_thread())

    taken = in_order([endless] * 5, threads=2)
    assert next(taken) == "more"
    taken.close()
    assert 1 <= len(ended) <= 5
    assert not any(thread.is_alive() for thread in ended)
