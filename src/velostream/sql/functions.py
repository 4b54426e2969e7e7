"""What planning must know of Spark's functions: which aggregate, which generate rows, which can't be repeated."""

from __future__ import annotations

from sqlglot import exp

from velostream.sql.scope import origin_of

_AGGREGATES_BY_NAME = frozenset(
    (
        "any_value",
        "approx_count_distinct",
        "approx_percentile",
        "approx_top_k",
        "approx_top_k_accumulate",
        "approx_top_k_combine",
        "array_agg",
        "avg",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bitmap_and_agg",
        "bitmap_construct_agg",
        "bitmap_or_agg",
        "bool_and",
        "bool_or",
        "collect_list",
        "collect_set",
        "corr",
        "count",
        "count_distinct",
        "count_if",
        "count_min_sketch",
        "covar_pop",
        "covar_samp",
        "every",
        "first",
        "first_value",
        "grouping",
        "grouping_id",
        "histogram_numeric",
        "hll_sketch_agg",
        "hll_union_agg",
        "kll_sketch_agg_bigint",
        "kll_sketch_agg_double",
        "kll_sketch_agg_float",
        "kurtosis",
        "last",
        "last_value",
        "listagg",
        "max",
        "max_by",
        "mean",
        "median",
        "min",
        "min_by",
        "mode",
        "percentile",
        "percentile_approx",
        "percentile_cont",
        "percentile_disc",
        "regr_avgx",
        "regr_avgy",
        "regr_count",
        "regr_intercept",
        "regr_r2",
        "regr_slope",
        "regr_sxx",
        "regr_sxy",
        "regr_syy",
        "schema_of_json_agg",
        "schema_of_variant_agg",
        "skewness",
        "some",
        "std",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "string_agg",
        "sum",
        "theta_intersection_agg",
        "theta_sketch_agg",
        "theta_union_agg",
        "try_avg",
        "try_sum",
        "var_pop",
        "var_samp",
        "variance",
        "group_concat",
    )
)

_WINDOW_ONLY = (
    exp.CumeDist,
    exp.DenseRank,
    exp.Lag,
    exp.Lead,
    exp.NthValue,
    exp.Ntile,
    exp.PercentRank,
    exp.Rank,
)
"""Subclasses of `exp.AggFunc` that only make sense with OVER."""

AGGREGATE_WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)

_GENERATORS = frozenset(
    (
        "explode",
        "explode_outer",
        "posexplode",
        "posexplode_outer",
        "inline",
        "inline_outer",
        "stack",
        "json_tuple",
        "variant_explode",
        "variant_explode_outer",
    )
)

_NONDETERMINISTIC = frozenset(
    (
        "rand",
        "randn",
        "random",
        "uuid",
        "shuffle",
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
        "randstr",
        "uniform",
    )
)

_TIME = frozenset(
    (
        "current_timestamp",
        "current_date",
        "current_time",
        "now",
        "curdate",
        "localtimestamp",
        "getdate",
        "sysdate",
        "current_datetime",
    )
)

_CLOCK_WORDS = ("localtimestamp", "current_time")

SESSION_WORDS = frozenset(
    (
        *_CLOCK_WORDS,
        "user",
        "session_user",
        "current_user",
        "current_catalog",
        "current_schema",
        "current_database",
        "grouping__id",
    )
)
"""Words that Spark reads as a function where no column has that name."""

TIME_UNITS = frozenset(
    (
        "YEAR",
        "QUARTER",
        "MONTH",
        "WEEK",
        "DAY",
        "DAYOFYEAR",
        "HOUR",
        "MINUTE",
        "SECOND",
        "MILLISECOND",
        "MICROSECOND",
        "NANOSECOND",
    )
)
"""Words that may stand as the first argument of functions such as `timestampadd`."""


def function_name(node: exp.Expr) -> str:
    """The lower-case name of a function call; empty for what is no function."""
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    if isinstance(node, exp.Func):
        return str(type(node).sql_names()[0]).lower().lstrip("_")
    return ""


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node itself is a call of an aggregate function (be it under OVER or not)."""
    if isinstance(node, _WINDOW_ONLY):
        return False
    if isinstance(node, exp.AggFunc):
        return True
    return isinstance(node, exp.Anonymous) and str(node.name).lower() in _AGGREGATES_BY_NAME


def aggregate_calls(node: exp.Expr | None) -> list[exp.Expr]:
    """Outermost aggregate calls of an expression, each with its FILTER, WITHIN GROUP or IGNORE NULLS around it.

    Calls under OVER are window functions, not aggregates, but an aggregate may stand inside their arguments; calls
    inside a nested query belong to that query.
    """
    found: list[exp.Expr] = []
    _collect_aggregates(node, found)
    return found


def _collect_aggregates(node: exp.Expr | None, found: list[exp.Expr]) -> None:
    if node is None or isinstance(node, exp.Query):
        return
    if is_aggregate_call(node):
        found.append(node)
        return
    if isinstance(node, exp.Window):
        windowed = node.this
        for part in _children(node):
            if part is windowed:
                for inner in _children(unwrapped(windowed)):
                    _collect_aggregates(inner, found)
            else:
                _collect_aggregates(part, found)
        return
    for part in _children(node):
        _collect_aggregates(part, found)


def is_aggregate_call(node: exp.Expr) -> bool:
    """Whether a node is an aggregate function, or such a function in its wrapper."""
    return is_aggregate(unwrapped(node))


def unwrapped(node: exp.Expr) -> exp.Expr:
    """An aggregate function out of its FILTER, WITHIN GROUP or IGNORE NULLS."""
    while isinstance(node, AGGREGATE_WRAPPERS):
        node = node.this
    return node


def _children(node: exp.Expr) -> list[exp.Expr]:
    return list(node.iter_expressions())


def is_distinct_aggregate(call: exp.Expr) -> bool:
    """Whether an aggregate call counts or sums distinct values only."""
    inner = unwrapped(call)
    if function_name(inner) == "count_distinct":
        return True
    return any(isinstance(argument, exp.Distinct) for argument in _children(inner))


def is_generator(node: exp.Expr) -> bool:
    """Whether a node is a function that makes several rows of one."""
    return function_name(node) in _GENERATORS


def is_nondeterministic(node: exp.Expr) -> bool:
    """Whether a function's value differs when the same row is computed again."""
    return function_name(node) in _NONDETERMINISTIC


def is_time_function(node: exp.Expr) -> bool:
    """Whether a function, or a word read as one, tells the time of the computation."""
    if isinstance(node, exp.Column):
        return str(node.name).lower() in _CLOCK_WORDS and not node.table and origin_of(node) is None
    return function_name(node) in _TIME
