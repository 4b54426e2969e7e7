-- every clause of CREATE TABLE
create or replace table if not exists t (id BIGINT PRIMARY KEY, price Decimal(10,2) NOT NULL, tags ARRAY<STRING>)
AS SELECT id, price, tags FROM s emit changes WITH ('memory.limit' = '1g', "retention" = "7d")
--> CREATE OR REPLACE TABLE IF NOT EXISTS t (id BIGINT, price DECIMAL(10,2) NOT NULL, tags ARRAY<STRING>, PRIMARY KEY (id)) AS SELECT id, price, tags FROM s EMIT CHANGES WITH ('memory.limit' = '1g', 'retention' = '7d')

-- a key of several columns
CREATE TABLE t (a INT, b STRUCT<x: INT, `y z`: MAP<STRING, INT>>, PRIMARY KEY (a, B))
--> CREATE TABLE t (a INT, b STRUCT<x: INT, `y z`: MAP<STRING, INT>>, PRIMARY KEY (a, b))

-- PRIMARY KEY after select items
CREATE TABLE priced AS SELECT o.id PRIMARY KEY, upper(o.sku) AS sku PRIMARY KEY, p.price FROM memory://orders o LEFT JOIN prices p ON o.sku = p.sku
--> CREATE TABLE priced AS SELECT o.id PRIMARY KEY, UPPER(o.sku) AS sku PRIMARY KEY, p.price FROM memory://orders AS o LEFT JOIN prices AS p ON o.sku = p.sku

-- a column called key is no key
CREATE TABLE t (key STRING, status STRING, offset INT, properties INT, metrics INT, "primary" INT)
--> CREATE TABLE t (`key` STRING, status STRING, `offset` INT, properties INT, metrics INT, `primary` INT)

-- names that need quotes
CREATE TABLE "order" ("select" INT, "odd ""name" INT, `back``tick` INT)
--> CREATE TABLE `order` (`select` INT, `odd "name` INT, `back``tick` INT)

-- ksql puts WITH before AS
CREATE TABLE t WITH ('key' = 'id') AS SELECT * FROM s
--> CREATE TABLE t AS SELECT * FROM s WITH ('key' = 'id')

CREATE TABLE t AS SELECT a, COUNT(*) AS n FROM s GROUP BY a EMIT FINAL
--> CREATE TABLE t AS SELECT a, COUNT(*) AS n FROM s GROUP BY a EMIT FINAL

-- a stream over a source
CREATE STREAM s (id INT, at TIMESTAMP) WITH ('source' = 'kafka://host:9092/topic', format = json)
--> CREATE STREAM s (id INT, at TIMESTAMP) WITH ('source' = 'kafka://host:9092/topic', 'format' = 'json')

CREATE STREAM s AS SELECT * FROM memory://x WHERE a > 1
--> CREATE STREAM s AS SELECT * FROM memory://x AS x WHERE a > 1

INSERT INTO t SELECT a, b FROM s
--> INSERT INTO t SELECT a, b FROM s

INSERT INTO kafka://host:9092/out SELECT a FROM s
--> INSERT INTO kafka://host:9092/out SELECT a FROM s

INSERT INTO 'file:///tmp/with space.csv' SELECT a FROM s
--> INSERT INTO 'file:///tmp/with space.csv' SELECT a FROM s

INSERT INTO file:///tmp/out.parquet WITH ('compression' = 'zstd') SELECT a FROM s
--> INSERT INTO file:///tmp/out.parquet WITH ('compression' = 'zstd') SELECT a FROM s

INSERT INTO t (a, "b c") VALUES (1, 'it''s'), (-2.50, NULL)
--> INSERT INTO t (a, `b c`) VALUES (1, 'it\'s'), (-2.50, NULL)

INSERT INTO t VALUES (1, now(), DATE '2020-02-29', array(1, 2), (SELECT MAX(a) FROM memory://m))
--> INSERT INTO t VALUES (1, CURRENT_TIMESTAMP(), CAST('2020-02-29' AS DATE), ARRAY(1, 2), (SELECT MAX(a) FROM memory://m AS m))

INSERT INTO t (SELECT 1) UNION (SELECT 2)
--> INSERT INTO t (SELECT 1) UNION (SELECT 2)

SELECT a, b FROM s WHERE a > 1 INSERT INTO t
--> INSERT INTO t SELECT a, b FROM s WHERE a > 1

SELECT a FROM s INTO file:///tmp/out.csv WITH ('header' = 'true')
--> INSERT INTO file:///tmp/out.csv WITH ('header' = 'true') SELECT a FROM s

SELECT a INTO t FROM s WHERE a > 1
--> INSERT INTO t SELECT a FROM s WHERE a > 1

SELECT a FROM s EMIT CHANGES INTO t
--> INSERT INTO t SELECT a FROM s EMIT CHANGES

UPDATE t SET a = a * 1.1, b = 'x' WHERE c IS NULL
--> UPDATE t SET a = a * 1.1, b = 'x' WHERE c IS NULL

UPDATE stock AS st SET st.left = st.left - o.quantity FROM memory://orders o WITH ('watermark' = '10s') JOIN users u ON o.user = u.id WHERE st.sku = o.sku
--> UPDATE stock AS st SET `left` = st.left - o.quantity FROM memory://orders AS o WITH ('watermark' = '10s') JOIN users AS u ON o.user = u.id WHERE st.sku = o.sku

UPDATE t SET a = (SELECT MAX(x) FROM memory://m) WHERE b IN (SELECT y FROM memory://n)
--> UPDATE t SET a = (SELECT MAX(x) FROM memory://m AS m) WHERE b IN (SELECT y FROM memory://n AS n)

DELETE FROM t
--> DELETE FROM t

DELETE FROM t WHERE age > 65
--> DELETE FROM t WHERE age > 65

DELETE FROM t USING kafka_topic('gone') g WHERE t.id = g.id
--> DELETE FROM t USING kafka://gone AS g WHERE t.id = g.id

DELETE FROM t FROM s WHERE t.id = s.id
--> DELETE FROM t USING s WHERE t.id = s.id

UPSERT INTO t SELECT id, a FROM s ON t.id = s.id
--> UPSERT INTO t SELECT id, a FROM s ON t.id = s.id

UPSERT INTO t SELECT s.id FROM s JOIN u ON s.u = u.id ON t.id = s.id AND t.x > 5 WITH ('trigger' = '1s')
--> UPSERT INTO t SELECT s.id FROM s JOIN u ON s.u = u.id ON t.id = s.id AND t.x > 5 WITH ('trigger' = '1s')

UPSERT INTO t (a, b) VALUES (1, 2)
--> UPSERT INTO t (a, b) VALUES (1, 2)

MERGE INTO t USING memory://s s ON t.id = s.id WHEN MATCHED AND s.gone THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, s.a) WHEN NOT MATCHED BY SOURCE THEN DELETE
--> MERGE INTO t USING memory://s AS s ON t.id = s.id WHEN MATCHED AND s.gone THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, s.a) WHEN NOT MATCHED BY SOURCE THEN DELETE

begin transaction
--> BEGIN

BEGIN
--> BEGIN

COMMIT
--> COMMIT

ROLLBACK
--> ROLLBACK

CREATE INDEX i ON t (a, "b c")
--> CREATE INDEX i ON t (a, `b c`)

DROP TABLE IF EXISTS t CASCADE
--> DROP TABLE IF EXISTS t CASCADE

DROP STREAM s
--> DROP STREAM s

DROP INDEX i
--> DROP INDEX i

TRUNCATE TABLE t
--> TRUNCATE TABLE t

REFRESH TABLE t
--> REFRESH TABLE t

SELECT * FROM t
--> SELECT * FROM t

SELECT * FROM t EMIT CHANGES LIMIT 5
--> SELECT * FROM t LIMIT 5 EMIT CHANGES

EXPLAIN EXTENDED CREATE TABLE t AS SELECT * FROM s
--> EXPLAIN EXTENDED CREATE TABLE t AS SELECT * FROM s

EXPLAIN ANALYZE QUERY q
--> EXPLAIN ANALYZE QUERY q

VALIDATE DELETE FROM t
--> VALIDATE DELETE FROM t

DESCRIBE t
--> DESCRIBE t

SHOW TABLES
--> SHOW TABLES

SHOW STREAMS LIKE 'a%'
--> SHOW STREAMS LIKE 'a%'

SHOW JOBS
--> SHOW QUERIES

SHOW SOURCES
--> SHOW SOURCES

SHOW FUNCTIONS
--> SHOW FUNCTIONS

SHOW STATUS
--> SHOW STATUS

SHOW STATUS t
--> SHOW STATUS t

SHOW PROGRESS LIKE 'x'
--> SHOW PROGRESS LIKE 'x'

SHOW METRICS t
--> SHOW METRICS t

SHOW SCHEMA t
--> SHOW SCHEMA t

SHOW PROPERTIES t
--> SHOW PROPERTIES t

show dead letters
--> SHOW DEAD LETTERS

SHOW DEAD LETTERS t LIKE 'p%'
--> SHOW DEAD LETTERS t LIKE 'p%'

PAUSE QUERY q
--> PAUSE QUERY q

RESUME JOB q
--> RESUME QUERY q

STOP QUERY "q r"
--> STOP QUERY `q r`

RESTART QUERY q
--> RESTART QUERY q

SET timezone = UTC
--> SET timezone = 'UTC'

SET spark.sql.shuffle.partitions = 4
--> SET spark.sql.shuffle.partitions = '4'

SET 'a key' = "a value"
--> SET 'a key' = 'a value'

-- a trailing comment and a comment inside
SELECT /* what */ a -- which
FROM t -- from where
--> SELECT a FROM t

-- an ON after a comma is not that of a join
UPSERT INTO t SELECT a.id FROM a, s ON t.id = s.id
--> UPSERT INTO t SELECT a.id FROM a, s ON t.id = s.id

-- EMIT after WITH
CREATE TABLE t AS SELECT a FROM s WHERE b WITH ('x' = 'y') EMIT CHANGES
--> CREATE TABLE t AS SELECT a FROM s WHERE b EMIT CHANGES WITH ('x' = 'y')
