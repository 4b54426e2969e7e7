"""Random aggregates whose result doesn't depend on the order of rows."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from velostream.testing.fuzz.expressions import Expressions, Scope
from velostream.testing.fuzz.text import Expression, Text, sql
from velostream.testing.fuzz.values import ORDERED, Family

_COUNTABLE = tuple(family for family in ORDERED if family is not Family.FLOAT)
_FORMS: Sequence[tuple[str, Sequence[Family], Family | None]] = (
    ("COUNT({})", ORDERED, Family.WHOLE),
    ("COUNT(DISTINCT {})", _COUNTABLE, Family.WHOLE),
    ("SUM({})", (Family.WHOLE,), Family.WHOLE),
    ("SUM({})", (Family.DECIMAL,), Family.DECIMAL),
    ("SUM(DISTINCT {})", (Family.WHOLE, Family.DECIMAL), None),
    ("SUM({})", (Family.FLOAT,), Family.APPROXIMATE),
    ("AVG({})", (Family.WHOLE, Family.FLOAT), Family.APPROXIMATE),
    ("AVG({})", (Family.DECIMAL,), Family.DECIMAL),
    ("MIN({})", ORDERED, None),
    ("MAX({})", ORDERED, None),
    ("STDDEV({})", (Family.WHOLE, Family.DECIMAL), Family.APPROXIMATE),
    ("VAR_POP({})", (Family.WHOLE,), Family.APPROXIMATE),
    ("MEDIAN({})", (Family.WHOLE,), Family.APPROXIMATE),
    ("bool_or({})", (Family.TRUTH,), Family.TRUTH),
    ("count_if({})", (Family.TRUTH,), Family.WHOLE),
    ("sort_array(collect_list({}))", _COUNTABLE, Family.APPROXIMATE),
    ("sort_array(collect_set({}))", _COUNTABLE, Family.APPROXIMATE),
    ("STRING_AGG({0}, ',') WITHIN GROUP (ORDER BY {0})", (Family.TEXT,), Family.TEXT),
)


def aggregate(random: Random, expressions: Expressions, scope: Scope) -> Expression:
    """An aggregate over the rows of a group."""
    form, taken, given = random.choice(_FORMS)
    if random.random() < 0.2 or not any(one.family in taken for one in scope):
        found = Expression(Text.of("COUNT(*)"), Family.WHOLE)
    else:
        columns = [one for one in scope if one.family in taken]
        argument = random.choice(columns)
        if random.random() < 0.2:
            argument = expressions.value(scope, argument.family)
        wide = argument.wide or argument.family is Family.DECIMAL
        found = Expression(sql(form, argument.text), given or argument.family, wide)
    if random.random() < 0.1 and "WITHIN" not in found.text.ours and "sort_array" not in found.text.ours:
        filtered = sql("{} FILTER (WHERE {})", found.text, expressions.condition(scope, 1))
        return Expression(filtered, found.family, found.wide)
    return found
