-- B31
SELECT * FROM a JOIN b
--! 2:17 JOIN without a condition

SELECT *
FROM a
  LEFT JOIN b WHERE a.x = b.x
--! 3:3 JOIN without a condition

SELECT * FROM a JOIN b ON a.x = b.x JOIN c
--! 1:37 JOIN without a condition

SELECT * FROM a ASOF JOIN b MATCH_CONDITION (a.t >= b.t)
--! 1:17 JOIN without a condition

SELECT a b c FROM t
--! 1:12 unexpected "c"

SELECT a FROM t x y
--! 1:19 unexpected "y"

SELECT a FROM t WHERE a = 1 garbage
--! 1:29 unexpected "garbage"

SELECT FROM t
--! 1:8 unexpected "FROM"

SELECT a, FROM t
--! 1:9 a comma without an item

SELECT ,a FROM t
--! 1:8 a comma without an item

SELECT a,, b FROM t
--! 1:10 a comma without an item

SELECT f(a,) FROM t
--! 1:11 a comma without an item

SELECT a FROM
--! 1:14 the statement ends too early

SELECT a FROM t WHERE
--! 1:22 the statement ends too early

SELECT a FROM t GROUP BY
--! 1:25 the statement ends too early

SELECT a FROM t WHERE a IN ()
--! 1:29 unexpected ")"

SELECT (a FROM t
--! 1:8 "(" is never closed

SELECT a) FROM t
--! 1:9 ")" closes no bracket

SELECT a[1 FROM t
--! 1:9 "[" is never closed

SELECT (a] FROM t
--! 1:10 "]" closes no bracket

SELECT 'abc FROM t
--! 1:8 string is never closed

SELECT "abc FROM t
--! 1:8 quoted name is never closed

SELECT `abc FROM t
--! 1:8 quoted name is never closed

SELECT a /* FROM t
--! 1:10 comment is never closed

SELECT a FROM t WHERE a = {x}
--! 1:27 character "{" can't stand here

SELECT a § b FROM t
--! 1:10 character "§" can't stand here

SELECT memory://x
--! 1:8 a source can't stand here

SELECT a FROM t WHERE x = file:///y
--! 1:27 a source can't stand here

SELECT a FROM ''
--! 1:15 the name of a source is empty

SELECT kafka_topic('x') FROM kafka_topic('x' 'y' z)
--! 1:46 expected "," or ")" in kafka_topic(…)

SELECT * FROM t WITH ('a' = 'b', 'A' = 'c')
--! 1:34 option "a" is given twice

SELECT * FROM memory('x', a => 1) WITH (a = 2) WHERE b
--! 1:41 option "a" is given twice

SELECT * FROM t WITH ('a' 'b')
--! 1:27 expected the name of an option and its value

SELECT * FROM t WITH ('a' = )
--! 1:23 option "a" has no value

SELECT * FROM t WITH ('a' = 'b' 'c')
--! 1:33 expected "," or ")" after an option

SELECT * FROM t WITH
--! 1:17 unexpected "WITH"

CREATE TABLE t WITH (a = b) AS SELECT * FROM s WITH (c = d)
--! 1:54 the statement has two WITH clauses

SELECT * FROM t WITH (a = b) JOIN t u WITH (a = c) ON TRUE
--! 1:45 relation "t" has different options elsewhere in the query

SELECT a FROM t EMIT SOMETHING
--! 1:22 unexpected "SOMETHING"

SELECT a FROM t EMIT CHANGES EMIT FINAL
--! 1:30 unexpected "EMIT"

SELECT a FROM (SELECT a FROM t EMIT CHANGES)
--! 1:32 unexpected "EMIT"

SELECT a FROM s WINDOW TUMBLING()
--! 1:33 expected a time column or a duration

SELECT a FROM s WINDOW TUMBLING(ts)
--! 1:35 expected "," and the size of the window

SELECT a FROM s WINDOW TUMBLING(5m, 1m)
--! 1:35 expected ")" to end TUMBLING(…)

SELECT a FROM s WINDOW TUMBLING(ts, abc)
--! 1:37 expected a duration

SELECT a FROM (SELECT a FROM s WINDOW TUMBLING(5m)) x
--! 1:32 this WINDOW belongs to the outermost SELECT

SELECT a FROM s WITHIN 5m
--! 1:15 WITHIN belongs to a join of two streams

SELECT a + b PRIMARY KEY FROM t
--! 1:14 PRIMARY KEY needs a column or an alias before it

SELECT * PRIMARY KEY FROM t
--! 1:10 PRIMARY KEY needs a column or an alias before it

SELECT a FROM (SELECT a PRIMARY KEY FROM t) x
--! 1:25 PRIMARY KEY belongs to the items of the outermost SELECT

SELECT a FROM (SELECT a INTO u FROM t) x
--! 1:25 INTO belongs to the outermost SELECT

SELECT f(x).*.y FROM t
--! 1:8 a wildcard path begins with a column

SELECT a -> b FROM t
--! 1:10 unexpected "->"

CREATE
--! 1:7 expected TABLE, STREAM or INDEX

CREATE VIEW v AS SELECT 1
--! 1:8 expected TABLE, STREAM or INDEX

CREATE TABLE
--! 1:13 expected the name of the table

CREATE TABLE t
--! 1:15 table "t" has neither columns nor a query

CREATE TABLE t ()
--! 1:17 expected the name of a column

CREATE TABLE t (a)
--! 1:18 expected the type of the column

CREATE TABLE t (a INT, a STRING)
--! 1:24 column "a" is declared twice

CREATE TABLE t (a WIBBLE)
--! 1:19 type "WIBBLE" is not known

CREATE TABLE t (a DECIMAL(50, 2))
--! 1:19 type "DECIMAL(50, 2)" is not known

CREATE TABLE t (a INT, PRIMARY KEY (b))
--! 1:37 key column "b" is not among the columns

CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY)
--! 1:42 the primary key is declared twice

CREATE TABLE t (a INT) EMIT CHANGES
--! 1:29 EMIT CHANGES belongs to a query

CREATE TABLE a.b (c INT)
--! 1:14 a name has one part only

CREATE TABLE "" (c INT)
--! 1:14 a name is empty

CREATE TABLE t AS SELECT a INTO u FROM s
--! 1:33 a query with a target can't fill a table

CREATE INDEX i ON t
--! 1:20 expected "("

CREATE INDEX i ON t ()
--! 1:22 expected the name of a column

DROP VIEW v
--! 1:6 expected TABLE, STREAM or INDEX

DROP TABLE
--! 1:11 expected the name of the table

DROP TABLE t RESTRICT
--! 1:14 unexpected "RESTRICT"

INSERT t VALUES (1)
--! 1:8 expected INTO

INSERT INTO t
--! 1:14 the statement ends too early

INSERT INTO t VALUES
--! 1:21 expected "(" before a row of values

INSERT INTO t VALUES (1), (1, 2)
--! 1:27 expected 1 values in the row, got 2

INSERT INTO t (a, b) VALUES (1)
--! 1:29 expected 2 values in the row, got 1

INSERT INTO t VALUES ()
--! 1:23 expected an expression

UPDATE t
--! 1:9 expected SET

UPDATE t SET a
--! 1:15 expected "=" after column "a"

UPDATE t SET a = 1 SET b = 2
--! 1:20 unexpected "SET"

DELETE t
--! 1:8 expected FROM

DELETE FROM t WHERE
--! 1:20 expected an expression

UPSERT INTO t SELECT * FROM s ON
--! 1:33 expected an expression

MERGE INTO memory://t USING s ON TRUE WHEN MATCHED THEN DELETE
--! 1:12 MERGE INTO needs a table

EXPLAIN
--! 1:8 expected a statement to explain or validate

EXPLAIN EXPLAIN SELECT 1
--! 1:9 expected a statement to explain or validate

EXPLAIN ANALYZE q
--! 1:17 expected QUERY

VALIDATE
--! 1:9 expected a statement to explain or validate

DESCRIBE
--! 1:9 expected the name of a table, a stream or a query

SHOW
--! 1:5 expected what to show

SHOW WIBBLE
--! 1:6 expected what to show

SHOW SCHEMA
--! 1:12 expected the name of a table or a stream

SHOW TABLES t
--! 1:13 unexpected "t"

SHOW TABLES LIKE p
--! 1:18 expected a pattern in quotes

PAUSE q
--! 1:7 expected QUERY

STOP QUERY
--! 1:11 expected the name of a query

SET
--! 1:4 expected a setting, "=" and its value

SET a
--! 1:6 expected a setting, "=" and its value

SET a =
--! 1:8 expected the value of the setting

TRUNCATE t
--! 1:10 expected TABLE

BEGIN WORK
--! 1:7 unexpected "WORK"

WIBBLE
--! 1:1 no statement begins with "WIBBLE"

"SELECT" 1
--! 1:1 no statement begins with "SELECT"

SELECT 1; SELECT 2
--! 1:11 expected one statement, found another one

;
--! 1:1 there is no statement in the text

-- nothing but a comment
--! 1:1 there is no statement in the text

SELECT [1, 2]
--! 1:8 unexpected "["

SELECT * FROM t LATERAL f(x) y
--! 1:25 LATERAL needs a comma or JOIN before it, or VIEW after it

SELECT 0 . a
--! 1:8 a field of something that has none

SELECT * FROM (t WHERE a > 1)
--! 1:16 a relation in brackets has no clauses of its own

SELECT * FROM a..b
--! 1:15 a part of the name is missing

SELECT * FROM t*
--! 1:16 unexpected "*"

SELECT DISTINCT ON (a) b FROM t
--! 1:21 DISTINCT has no ON in Spark

SELECT date(a) 'text'
--! 1:16 unexpected "'text'"

VALUES (1) WINDOW TUMBLING(5m)
--! 1:12 this WINDOW belongs to the outermost SELECT

SELECT * FROM (t WINDOW TUMBLING(5m))
--! 1:18 this WINDOW belongs to the outermost SELECT

INSERT INTO kafka('x', a => 1) WITH (a = 2) SELECT 1
--! 1:38 option "a" is given twice

-- the ON is that of no join
SELECT * FROM a JOIN b, c ON TRUE
--! 2:17 JOIN without a condition

SELECT * FROM SELECT 1
--! 1:22 a query in FROM needs brackets

SELECT CAST(a AS DECIMAL(1 0, 2))
--! 1:26 a type takes numbers only

SELECT * FROM a JOIN b JOIN c ON b.x = c.x ON a.x = b.x
--! 1:17 JOIN without a condition

CREATE TABLE t (a INT, b INT, PRIMARY KEY (a, b, A))
--! 1:50 key column "A" is named twice
