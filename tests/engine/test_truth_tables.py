"""ANY, SOME, ALL, IN and NOT IN cell by cell (B34): every comparison, NULL on either side, sets with nothing in them.

What is right is worked out here, by three-valued logic: None stands for NULL. The same statements are asked of a
stream, of a view whose tables change, and of the tables as they are now.
"""

from __future__ import annotations

import itertools
import operator
from functools import reduce
from operator import itemgetter
from typing import NamedTuple

import pytest

import velostream

VALUES = (None, 1, 2, 3)
SETS = {"empty": [], "null": [None], "one": [2], "many": [1, 2, 2], "mixed": [2, None], "above": [3, None, None]}
LATER = {"empty": [None], "null": [], "one": [2, None], "many": [1, 2, 2, 3], "mixed": [2], "above": [3]}
COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def negated(truth):
    return None if truth is None else not truth


def either(first, second):
    if first is True or second is True:
        return True
    return None if first is None or second is None else False


def compared(sign, value, member):
    return None if value is None or member is None else COMPARISONS[sign](value, member)


def of_some(sign, value, members):
    return reduce(either, (compared(sign, value, member) for member in members), False)


def of_all(sign, value, members):
    return negated(reduce(either, (negated(compared(sign, value, member)) for member in members), False))


FORMS = {
    "p.x = ANY (%s)": lambda value, members: of_some("=", value, members),
    "p.x <> ANY (%s)": lambda value, members: of_some("<>", value, members),
    "p.x < ANY (%s)": lambda value, members: of_some("<", value, members),
    "p.x >= SOME (%s)": lambda value, members: of_some(">=", value, members),
    "p.x = ALL (%s)": lambda value, members: of_all("=", value, members),
    "p.x <> ALL (%s)": lambda value, members: of_all("<>", value, members),
    "p.x <= ALL (%s)": lambda value, members: of_all("<=", value, members),
    "ALL (%s) < p.x": lambda value, members: of_all(">", value, members),
    "NOT (p.x > ANY (%s))": lambda value, members: negated(of_some(">", value, members)),
    "p.x IN (%s)": lambda value, members: of_some("=", value, members),
    "p.x NOT IN (%s)": lambda value, members: of_all("<>", value, members),
    "NOT (p.x NOT IN (%s))": lambda value, members: of_some("=", value, members),
}
"""Conditions, and what each is for a value and the members of a set."""
TOGETHER = 6
"""Conditions in one SELECT: Spark takes far longer to plan many subqueries at once than a few at a time."""

OF_ITS_ROW = "SELECT m.v FROM members m WHERE m.s = p.s"
BY_ITSELF = "SELECT v FROM members WHERE s = '{}'"
CELLS = [(form, name) for form in ("p.x < ANY (%s)", "p.x NOT IN (%s)") for name in ("empty", "mixed")]
"""Conditions over subqueries that don't look at the row they are asked for."""
ALONE = ("p.x <= ALL (%s)", "p.x IN (%s)", "p.x NOT IN (%s)")
"""Conditions that are all of a WHERE, which Spark runs as joins of other kinds."""


class Probe(NamedTuple):
    """A row that is asked about: a value, the set it is held against, and which form is to keep it."""

    id: int
    x: int | None
    s: str
    form: int


PROBES = [
    Probe(number, *cell) for number, cell in enumerate(itertools.product(VALUES, SETS, range(len(FORMS))), start=1)
]


def forms_as_values(forms):
    items = ", ".join(f"{form % OF_ITS_ROW} AS c{number}" for number, form in enumerate(forms))

    def right(probe, sets):
        return tuple(FORMS[form](probe.x, sets[probe.s]) for form in forms) if probe.form == 0 else None

    return f"SELECT p.id, {items} FROM {{}} p WHERE p.form = 0", right


def forms_over_one_set():
    items = ", ".join(f"{form % BY_ITSELF.format(name)} AS c{number}" for number, (form, name) in enumerate(CELLS))

    def right(probe, sets):
        return tuple(FORMS[form](probe.x, sets[name]) for form, name in CELLS) if probe.form == 0 else None

    return f"SELECT p.id, {items} FROM {{}} p WHERE p.form = 0", right


def form_that_filters(form):
    def right(probe, sets):
        return () if FORMS[form](probe.x, sets[probe.s]) else None

    return f"SELECT p.id FROM {{}} p WHERE {form % OF_ITS_ROW}", right


def forms_that_filter():
    """All of them under OR, each for the rows that name it."""
    parts = " OR ".join(f"(p.form = {number} AND {form % OF_ITS_ROW})" for number, form in enumerate(FORMS))
    conditions = list(FORMS.values())

    def right(probe, sets):
        return () if conditions[probe.form](probe.x, sets[probe.s]) else None

    return f"SELECT p.id FROM {{}} p WHERE {parts}", right


STATEMENTS = {
    **{
        f"valued_{first}": forms_as_values(list(FORMS)[first : first + TOGETHER])
        for first in range(0, len(FORMS), TOGETHER)
    },
    "over_one_set": forms_over_one_set(),
    "filtered": forms_that_filter(),
    **{f"alone_{number}": form_that_filters(form) for number, form in enumerate(ALONE)},
}
"""A query whose FROM is to be put in, and the cells that a probe and the sets give; None: the row isn't there."""


@pytest.fixture(scope="module")
def connection():
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE members (s STRING, v INT)")
        connection.execute("CREATE TABLE probes (id INT PRIMARY KEY, x INT, s STRING, form INT)")
        connection.execute(
            "CREATE STREAM asked (id INT, x INT, s STRING, form INT) WITH ('source' = 'memory://probes')"
        )
        fill(connection, SETS)
        connection.table("probes").insert([probe._asdict() for probe in PROBES])
        for name, (sql, _) in STATEMENTS.items():
            connection.execute(f"CREATE TABLE view_{name} AS {sql.format('probes')}")
            connection.execute(f"CREATE TABLE stream_{name} AS {sql.format('asked')}")
        connection.memory("probes").append([probe._asdict() for probe in PROBES])
        yield connection


def fill(connection, sets):
    connection.table("members").insert(
        [{"s": name, "v": member} for name, members in sets.items() for member in members]
    )


def assert_cells(found, name, sets):
    _, right = STATEMENTS[name]
    cells = ((probe.id, right(probe, sets)) for probe in PROBES)
    assert sorted(found, key=itemgetter(0)) == [(number, *row) for number, row in cells if row is not None]


def test_a_stream_query_gives_every_cell(connection):
    for name in STATEMENTS:
        connection.drain(f"stream_{name}", timeout=300)
        assert_cells(connection.execute(f"SELECT * FROM stream_{name}").fetchall(), name, SETS)


def test_a_view_gives_every_cell_before_and_after_its_sets_become_others(connection):
    for sets in (SETS, LATER):
        if sets is LATER:
            with connection.begin() as transaction:
                transaction.execute("DELETE FROM members WHERE TRUE")
                fill(transaction, sets)
        for name in STATEMENTS:
            connection.drain(f"view_{name}", timeout=300)
            assert_cells(connection.execute(f"SELECT * FROM view_{name}").fetchall(), name, sets)


def test_a_pull_query_gives_every_cell(connection):
    connection.execute("DELETE FROM members WHERE TRUE")
    fill(connection, LATER)
    for name, (sql, _) in STATEMENTS.items():
        assert_cells(connection.execute(sql.format("probes")).fetchall(), name, LATER)
