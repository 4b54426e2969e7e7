"""JSON as Spark's own expressions read and write it, value for value as the format `json` does: no row leaves the JVM.

Spark's `from_json` takes a string for a number and a number for a string as it likes, knows field names by their exact
case alone, and ignores what follows a document. So a record is read into a map of VARIANTs, which tell what a value was
written as, and each column is made of its VARIANT by rules that are those of `model/rows.py`. Where these rules can't
be kept, for spellings that hardly anybody uses, the record is said to be unclear rather than read another way.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from velostream.model.schema import Column, Schema
from velostream.model.types import render_type

BAD = "!"
"""How the problem of a record begins that the format refuses, too."""
UNCLEAR = "?"
"""How the problem of a record begins that the format may read, and these expressions can't."""

_ENTRIES = "map<string, variant>"
_SPACE = r"r'(?U)^\s+|\s+$'"
_DIGIT = r"r'(?U)\d'"
_WHOLE = r"r'^[+-]?[0-9]+(\.0*)?$'"
_PLAIN = r"r'^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)$'"
_FLOATING = r"r'^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$'"
_DATE = r"r'^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}$'"
_MOMENT = (
    r"r'^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)?)?$'"
)
_ESCAPED = r"""r'[\x00-\x1f"\\]'"""
_Classified = str
"""SQL for a struct of a VARIANT `v`, its kind `k` (NULL of a null), and `n`: the text that may be a number."""
_SHOWN = 60


class CannotReadError(ValueError):
    """A column that these expressions can't read or write as the format does; the text is the reason."""


def records_of(schema: Schema, value: str) -> str:
    """SQL for what a message holds: an array of at most one struct, of the `problem` and the columns `c0`, `c1`, ….

    `value` is SQL for the message's bytes; of a message without any the array is empty. The problem is NULL, or begins
    with `BAD` or `UNCLEAR`. `CannotReadError` names a column whose type isn't served.
    """
    for column in schema.columns:
        _check_readable(column.type, column.name)
    names = _Names()
    fields, entries = names.fresh(), names.fresh()
    columns = [_column(column, entries, names) for column in schema.columns]
    read = ", ".join(f"'c{number}', {sql}" for number, sql in enumerate(columns))
    result = ", ".join(f"'c{number}', {fields}.c{number}.x" for number in range(len(columns)))
    problems = ", ".join(f"{fields}.c{number}.p" for number in range(len(columns)))
    whole = (
        f"CASE WHEN {entries} IS NULL THEN '{BAD}not a JSON object' "
        f"WHEN size(array_distinct(map_keys({entries}))) <> size({entries}) THEN '{UNCLEAR}a field is there twice' END"
    )
    rows = f"transform({_documents(value, names)}, {entries} -> named_struct('whole', {whole}, {read}))"
    problem = f"coalesce({fields}.whole, array_min(array({problems})))"
    return f"transform({rows}, {fields} -> named_struct('problem', {problem}, {result}))"


def texts_of(value: str) -> str:
    """The same for messages that are a text each: the one column is that text."""
    text = f"CAST({value} AS STRING)"
    problem = f"CASE WHEN NOT is_valid_utf8({text}) THEN '{BAD}not valid utf-8' END"
    return (
        f"CASE WHEN {value} IS NULL THEN array() "
        f"ELSE array(named_struct('problem', {problem}, 'c0', try_validate_utf8({text}))) END"
    )


def empty_records_of(value: str) -> str:
    """The same for messages whose value nobody asks for."""
    return f"CASE WHEN {value} IS NULL THEN array() ELSE array(named_struct('problem', CAST(NULL AS STRING))) END"


def object_text(columns: Sequence[tuple[str, str, pa.DataType]]) -> str:
    """SQL for the text of a JSON object, of the names, SQL and types of its fields; `CannotReadError` as above."""
    return _object((name, sql, type_) for name, sql, type_ in columns)


def bare_text(sql: str, type_: pa.DataType) -> str:
    """SQL for a value as text: as JSON, but what JSON writes as a string is that string itself."""
    if pa.types.is_floating(type_):
        raise CannotReadError(f"a {render_type(type_)} has several spellings, and keys are compared by their bytes")
    if pa.types.is_string(type_):
        return sql
    text = _text(sql, type_, _Names())
    return f"trim(BOTH '\"' FROM {text})" if pa.types.is_date(type_) or pa.types.is_timestamp(type_) else text


class _Names:
    """Names of variables, each of which is used once."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def fresh(self) -> str:
        return f"v{next(self._numbers)}"


def _let(sql: str, names: _Names, body: Callable[[str], str]) -> str:
    """The body with a variable that stands for the value of `sql`, which is computed once."""
    name = names.fresh()
    return f"transform(array({sql}), {name} -> {body(name)})[0]"


def _documents(value: str, names: _Names) -> str:
    """An array of one map, which is NULL where the message is no JSON object; empty where there is no message.

    `from_json` reads the first value of a text and ignores what follows. So the record is read as the first of two
    elements, the second of which nobody can foresee.
    """
    mark = secrets.token_hex(8)
    text = f"CAST({value} AS STRING)"
    options = "map('allowSingleQuotes', 'false', 'mode', 'PERMISSIVE')"
    pair = f"from_json(concat('[', {text}, ',{{\"m\":\"{mark}\"}}]'), 'array<{_ENTRIES}>', {options})"
    nothing = f"array(CAST(NULL AS {_ENTRIES}))"

    def whole(found: str) -> str:
        marked = f"size({found}) = 2 AND try_cast({found}[1]['m'] AS STRING) = '{mark}'"
        return f"CASE WHEN {marked} THEN slice({found}, 1, 1) ELSE {nothing} END"

    return (
        f"CASE WHEN {value} IS NULL THEN CAST(array() AS array<{_ENTRIES}>) "
        f"WHEN NOT is_valid_utf8({text}) THEN {nothing} ELSE {_let(pair, names, whole)} END"
    )


def _column(column: Column, entries: str, names: _Names) -> str:
    """A struct of the value `x` of a column and the problem `p`."""
    exact = f"{entries}[{_literal(column.name)}]"
    near = names.fresh()
    same = f"lower({near}.key) = {_literal(column.name.lower())}"
    nearly = f"try_element_at(filter(map_entries({entries}), {near} -> {same}), 1).value"
    found = f"CASE WHEN map_contains_key({entries}, {_literal(column.name)}) THEN {exact} ELSE {nearly} END"
    read = _read(found, column.type, f'column "{column.name}"', names)
    if column.nullable:
        return read
    missing = _literal(f'{BAD}column "{column.name}" is NOT NULL')

    def checked(one: str) -> str:
        return f"named_struct('x', {one}.x, 'p', CASE WHEN {one}.x IS NULL THEN coalesce({one}.p, {missing}) END)"

    return _let(read, names, checked)


def _read(variant: str, type_: pa.DataType, what: str, names: _Names) -> str:
    """A struct of the value `x` that a VARIANT is as a type, and the problem `p` if it isn't one."""
    if pa.types.is_struct(type_):
        return _read_struct(variant, type_, what, names)
    if pa.types.is_list(type_):
        return _read_list(variant, type_, what, names)

    def read(one: str) -> str:
        value, misfit = _scalar(one, type_)
        shown = f"substring(coalesce(try_cast({one}.v AS STRING), ''), 1, {_SHOWN})"
        problem = f"({misfit}) || {_literal(f'{what} is {render_type(type_)}, not ')} || {shown}"
        return (
            f"named_struct('x', {value}, 'p', CASE WHEN {one}.k IS NOT NULL AND ({value}) IS NULL THEN {problem} END)"
        )

    return _let(_classified(variant), names, lambda one: _let(_with_number(one), names, read))


def _classified(variant: str) -> _Classified:
    kind = f"regexp_extract(schema_of_variant({variant}), '^[A-Z]+', 0)"
    return f"named_struct('v', {variant}, 'k', CASE WHEN NOT is_variant_null({variant}) THEN {kind} END)"


def _with_number(one: str) -> _Classified:
    text = f"try_cast({one}.v AS STRING)"
    number = (
        f"CASE {one}.k WHEN 'STRING' THEN regexp_replace({text}, {_SPACE}, '') "
        f"WHEN 'BIGINT' THEN {text} WHEN 'DECIMAL' THEN {text} END"
    )
    return f"named_struct('v', {one}.v, 'k', {one}.k, 'n', {number})"


def _scalar(one: _Classified, type_: pa.DataType) -> tuple[str, str]:
    """SQL for the value of a type, NULL where it isn't one, and for whether that makes the record bad or unclear."""
    kind, number = f"{one}.k", f"{one}.n"
    spark = render_type(type_)
    # A text that has digits in it may be a number in one of the spellings that Python knows, too.
    spelled = f"{kind} = 'STRING' AND {number} RLIKE {_DIGIT}"
    if pa.types.is_string(type_):
        return (
            f"CASE WHEN {kind} IN ('STRING', 'BOOLEAN', 'BIGINT') THEN try_cast({one}.v AS STRING) END",
            f"'{UNCLEAR}'",
        )
    if pa.types.is_boolean(type_):
        word = f"lower({number})"
        value = (
            f"CASE WHEN {kind} = 'BOOLEAN' THEN try_cast({one}.v AS BOOLEAN) WHEN {kind} = 'DECIMAL' THEN NULL "
            f"WHEN {word} IN ('true', 't', 'yes', '1') THEN true "
            f"WHEN {word} IN ('false', 'f', 'no', '0') THEN false END"
        )
        return value, f"'{BAD}'"
    if pa.types.is_integer(type_):
        value = f"try_cast(regexp_extract({number}, '^[+-]?[0-9]+', 0) AS {spark})"
        return (
            f"CASE WHEN {number} RLIKE {_WHOLE} THEN {value} END",
            _unclear_if(f"{kind} = 'DOUBLE' OR {spelled} AND NOT {number} RLIKE {_PLAIN}"),
        )
    if pa.types.is_decimal(type_):
        digits, scale = type_.precision - type_.scale, type_.scale
        fits = rf"r'^[+-]?0*[0-9]{{0,{digits}}}(\.[0-9]{{0,{scale}}}0*)?$'"
        return (
            f"CASE WHEN {number} RLIKE {fits} AND {number} RLIKE {_PLAIN} THEN try_cast({number} AS {spark}) END",
            _unclear_if(f"{kind} = 'DOUBLE' OR {spelled} AND NOT {number} RLIKE {_PLAIN}"),
        )
    if pa.types.is_floating(type_):
        written = f"CASE WHEN {kind} = 'DOUBLE' THEN try_cast({one}.v AS {spark}) "
        written += f"WHEN {number} RLIKE {_FLOATING} THEN try_cast({number} AS {spark}) END"
        # What is no number, or too large for one, has no spelling in JSON.
        finite = f"nullif(nullif(nullif({written}, {spark}('NaN')), {spark}('Infinity')), {spark}('-Infinity'))"
        return (finite, _unclear_if(f"{kind} = 'DOUBLE' OR {number} RLIKE '(?i)[0-9]|nan|inf'"))
    if pa.types.is_date(type_):
        return (
            f"CASE WHEN {kind} = 'STRING' AND {number} RLIKE {_DATE} THEN try_cast({number} AS DATE) END",
            _unclear_if(f"{kind} = 'BIGINT' OR {spelled} AND NOT {number} RLIKE {_DATE}"),
        )
    moment = f"try_cast(upper({number}) AS TIMESTAMP)"
    return (
        f"CASE WHEN {kind} = 'STRING' AND {number} RLIKE {_MOMENT} THEN CAST({moment} AS {spark}) END",
        _unclear_if(f"{spelled} AND NOT {number} RLIKE {_MOMENT}"),
    )


def _unclear_if(condition: str) -> str:
    return f"CASE WHEN {condition} THEN '{UNCLEAR}' ELSE '{BAD}' END"


def _read_struct(variant: str, type_: pa.StructType, what: str, names: _Names) -> str:
    """A field is found without regard to case; fields that the type doesn't have are left out."""

    def from_fields(entries: str) -> str:
        fields = []
        for number, field in enumerate(type_):
            near = names.fresh()
            same = f"filter(map_entries({entries}), {near} -> lower({near}.key) = {_literal(field.name.lower())})"

            def first(found: str, field: pa.Field = field) -> str:
                read = _read(f"try_element_at({found}, 1).value", field.type, f"{what}, field {field.name}", names)
                twice = f"'{UNCLEAR}' || {_literal(f'{what} has the field {field.name} twice')}"
                return _let(
                    read,
                    names,
                    lambda one: (
                        f"named_struct('x', {one}.x, 'p', CASE WHEN size({found}) > 1 THEN {twice} ELSE {one}.p END)"
                    ),
                )

            fields.append(f"'f{number}', {_let(same, names, first)}")
        return f"named_struct({', '.join(fields)})"

    def gathered(read: str) -> str:
        values = ", ".join(f"{_literal(field.name)}, {read}.f{number}.x" for number, field in enumerate(type_))
        problems = ", ".join(f"{read}.f{number}.p" for number in range(type_.num_fields))
        return f"named_struct('x', named_struct({values}), 'p', array_min(array({problems})))"

    def of_kind(one: str) -> str:
        entries = f"try_cast({one}.v AS {_ENTRIES})"
        read = _let(entries, names, lambda found: _let(from_fields(found), names, gathered))
        return _of_kind(one, "OBJECT", read, type_, what)

    return _let(_classified(variant), names, of_kind)


def _read_list(variant: str, type_: pa.ListType, what: str, names: _Names) -> str:
    def gathered(read: str) -> str:
        element = names.fresh()
        return (
            f"named_struct('x', transform({read}, {element} -> {element}.x), "
            f"'p', array_min(transform({read}, {element} -> {element}.p)))"
        )

    def of_kind(one: str) -> str:
        element = names.fresh()
        elements = f"try_cast({one}.v AS array<variant>)"
        each = f"transform({elements}, {element} -> {_read(element, type_.value_type, f'{what}, element', names)})"
        return _of_kind(one, "ARRAY", _let(each, names, gathered), type_, what)

    return _let(_classified(variant), names, of_kind)


def _of_kind(one: _Classified, kind: str, read: str, type_: pa.DataType, what: str) -> str:
    """What is read of a value of that kind; NULL for a null, and a problem for any other."""
    nothing = f"named_struct('x', CAST(NULL AS {render_type(type_)}), 'p', "
    shown = f"substring(coalesce(try_cast({one}.v AS STRING), ''), 1, {_SHOWN})"
    other = f"'{BAD}' || {_literal(f'{what} is {render_type(type_)}, not ')} || {shown}"
    return (
        f"CASE WHEN {one}.k = '{kind}' THEN {read} ELSE {nothing} CASE WHEN {one}.k IS NOT NULL THEN {other} END) END"
    )


def _object(columns: Iterator[tuple[str, str, pa.DataType]] | Sequence[tuple[str, str, pa.DataType]]) -> str:
    names = _Names()
    parts: list[str] = []
    for name, sql, type_ in columns:
        opening = ("," if parts else "{") + _json_string(name) + ":"
        parts += [_literal(opening), f"coalesce({_text(sql, type_, names)}, 'null')"]
    return f"concat({', '.join(parts)}, '}}')" if parts else "'{}'"


def _text(sql: str, type_: pa.DataType, names: _Names) -> str:
    """SQL for the JSON text of a value, NULL for NULL."""
    if pa.types.is_string(type_):
        escaped = f"to_json(array({sql}))"
        inner = f"substring({escaped}, 2, length({escaped}) - 2)"
        return f"CASE WHEN {sql} RLIKE {_ESCAPED} THEN {inner} ELSE concat('\"', {sql}, '\"') END"
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_decimal(type_):
        return f"CAST({sql} AS STRING)"
    if pa.types.is_floating(type_):
        special = f"isnan({sql}) OR abs({sql}) = DOUBLE('Infinity')"
        return f"CASE WHEN {special} THEN 'null' ELSE CAST({sql} AS STRING) END"
    if pa.types.is_date(type_):
        return f"concat('\"', CAST({sql} AS STRING), '\"')"
    if pa.types.is_timestamp(type_):
        fraction = f"CASE WHEN extract(SECOND FROM {sql}) % 1 <> 0 THEN date_format({sql}, '.SSSSSS') ELSE '' END"
        zone = "Z" if type_.tz else ""
        seconds = f"date_format({sql}, \"yyyy-MM-dd'T'HH:mm:ss\")"
        return f"concat('\"', {seconds}, {fraction}, '{zone}\"')"
    if pa.types.is_binary(type_):
        return f"concat('\"', translate(base64({sql}), '\\r\\n', ''), '\"')"
    if pa.types.is_struct(type_):
        fields = ((field.name, f"{sql}.{_quoted(field.name)}", field.type) for field in type_)
        return f"CASE WHEN {sql} IS NOT NULL THEN {_object(fields)} END"
    if pa.types.is_list(type_):
        one = names.fresh()
        elements = f"transform({sql}, {one} -> coalesce({_text(one, type_.value_type, names)}, 'null'))"
        return f"concat('[', array_join({elements}, ','), ']')"
    if pa.types.is_map(type_) and pa.types.is_string(type_.key_type):
        one = names.fresh()
        key = _text(f"{one}.key", type_.key_type, names)
        item = f"coalesce({_text(f'{one}.value', type_.item_type, names)}, 'null')"
        return (
            f"concat('{{', array_join(transform(map_entries({sql}), {one} -> concat({key}, ':', {item})), ','), '}}')"
        )
    raise CannotReadError(f"a {render_type(type_)} can't be written as JSON by Spark as it is by the sink")


def _check_readable(type_: pa.DataType, name: str) -> None:
    if pa.types.is_struct(type_):
        for field in type_:
            _check_readable(field.type, f"{name}.{field.name}")
    elif pa.types.is_list(type_):
        _check_readable(type_.value_type, name)
    elif not any(fits(type_) for fits in _READABLE):
        raise CannotReadError(f'column "{name}" is {render_type(type_)}, which Spark reads from JSON otherwise')


_READABLE: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_string,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_floating,
    pa.types.is_date,
    pa.types.is_timestamp,
)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _json_string(text: str) -> str:
    return '"' + "".join(_escape(character) for character in text) + '"'


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return f"\\u{ord(character):04x}" if character < " " else character


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
