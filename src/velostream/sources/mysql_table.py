"""A table of MySQL or MariaDB that is to be followed: whether the server logs all that becomes of it."""

from __future__ import annotations

from dataclasses import dataclass

from velostream.errors import Category, SourceError
from velostream.sources.database import Selection
from velostream.sources.mysql_driver import MysqlDriver
from velostream.sources.mysql_log import MysqlLog
from velostream.sources.mysql_statements import LoggedTable

_NEEDED = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "log_bin_compress": "OFF",
    "binlog_transaction_compression": "OFF",
}
"""Settings of a server without which its log doesn't tell all, or not so that it can be read; where it has them."""
_TYPES = frozenset(
    {
        *("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit", "year"),
        *("date", "datetime", "timestamp", "time", "json", "enum", "set"),
        *("char", "varchar", "tinytext", "text", "mediumtext", "longtext"),
        *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"),
        *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
        *("geometrycollection", "geomcollection"),
    }
)
_CHARACTER_SETS = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii", "latin1", "binary"})
_UNICODE = frozenset({"utf8mb4", "utf8mb3", "utf8"})


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """What is to be known of a table whose log is followed."""

    logged: LoggedTable
    relation: str
    """Its name in SQL."""
    columns: frozenset[str]
    """All that it has, those included that `SELECT *` leaves out."""
    filled: frozenset[str]
    """Those of them that have a value in rows that nobody gave one."""
    cascades: tuple[str, ...]
    """Foreign keys by which the server changes its rows without a word in the log."""


def captured_table(log: MysqlLog, driver: MysqlDriver, selection: Selection) -> CapturedTable:
    """The table; refused where the log could not tell, or not tell exactly, what becomes of its rows."""
    settings = _settings(log, driver)
    schema, _, name = str(selection.table).rpartition(".")
    schema = selection.schema or schema or driver.address.database
    shown, mark = selection.shown, driver.marker(0)
    found = log.ask(
        "SELECT t.TABLE_SCHEMA AS place, t.TABLE_NAME AS name, t.TABLE_TYPE AS kind, e.TRANSACTIONS AS transactions, "
        "t.ENGINE AS engine FROM information_schema.TABLES t "
        "LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE "
        f"WHERE t.TABLE_SCHEMA = {mark} AND t.TABLE_NAME = {mark}",
        [schema, name],
    )
    if not found:
        raise SourceError.missing_table("mysql", shown, where=str(driver.address), reason="it isn't in the catalog")
    table = found[0]
    if "TABLE" not in str(table["kind"]):
        raise SourceError(
            f'"{shown}" is no table, and has no changes in the log',
            hint="WITH ('poll.interval' = '30s') reads it again and again instead",
            category=Category.CONFIGURATION,
        )
    if table["transactions"] != "YES":
        raise log.refusal(f"table {shown} is in {table['engine']}, which can't show it as of a place in the log")
    columns = log.ask(
        "SELECT COLUMN_NAME AS name, DATA_TYPE AS type, COLUMN_TYPE AS declared, CHARACTER_SET_NAME AS characters, "
        "COLLATION_NAME AS collation, COALESCE(COLUMN_DEFAULT, 'NULL') <> 'NULL' OR IS_NULLABLE = 'NO' OR EXTRA <> '' "
        "AS filled "
        f"FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {mark} AND TABLE_NAME = {mark}",
        [schema, name],
    )
    for column in columns:
        _check_column(column, shown)
    cascades = log.ask(
        "SELECT CONSTRAINT_NAME AS name FROM information_schema.REFERENTIAL_CONSTRAINTS "
        f"WHERE CONSTRAINT_SCHEMA = {mark} AND TABLE_NAME = {mark} "
        "AND (DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL'))",
        [schema, name],
    )
    return CapturedTable(
        LoggedTable(str(table["place"]), str(table["name"]), any_case=settings.get("lower_case_table_names") != "0"),
        driver.relation(selection).sql,
        frozenset(str(column["name"]) for column in columns),
        frozenset(str(column["name"]) for column in columns if str(column["filled"]) != "0"),
        tuple(str(row["name"]) for row in cascades),
    )


def _settings(log: MysqlLog, driver: MysqlDriver) -> dict[str, str]:
    """The server's settings; refused where its log doesn't tell all."""
    names = (*_NEEDED, "lower_case_table_names")
    markers = ", ".join(map(driver.marker, range(len(names))))
    found = log.ask(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({markers})", names)
    settings = {str(row["Variable_name"]): str(row["Value"]).upper() for row in found}
    for name, value in _NEEDED.items():
        if settings.get(name, value) not in (value, {"ON": "1", "OFF": "0"}.get(value)):
            how = "start it with --log-bin" if name == "log_bin" else f"SET GLOBAL {name} = {value}"
            raise log.refusal(f"{name} is {settings[name]}; {how}")
    if "binlog_row_metadata" not in settings:
        raise log.refusal("its log doesn't name columns; MariaDB does from 10.5 on, MySQL from 8.0 on")
    return settings


def _check_column(column: dict[str, str | None], shown: str) -> None:
    """Refuse what can't be read out of the log exactly."""
    type_, declared, characters = str(column["type"]), str(column["declared"]), column["characters"]
    members_told = type_ not in ("enum", "set") or characters in _UNICODE or declared.isascii()
    # A comment in the type says that values are compressed, or are times in the form of old versions.
    # The log tells a collation by its number; of latin1's only the older ones are known.
    is_known = characters != "latin1" or "nopad" not in str(column["collation"])
    characters_told = characters is None or (characters in _CHARACTER_SETS and is_known)
    if type_ in _TYPES and characters_told and members_told and "/*" not in declared:
        return
    in_characters = f" in {characters}" if characters else ""
    raise SourceError(
        f'column "{column["name"]}" of table "{shown}" can\'t be read out of the log',
        detail=f"it is {declared}{in_characters}",
        hint="WITH ('poll.interval' = '30s') instead of cdc, or texts in utf8mb4",
        category=Category.CONFIGURATION,
    )
