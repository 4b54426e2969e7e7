-- windows
SELECT COUNT(*) FROM s WINDOW TUMBLING(5m) GROUP BY a
--> SELECT COUNT(*) FROM s GROUP BY a WINDOW TUMBLING(5m)

SELECT COUNT(*) FROM s GROUP BY a WINDOW TUMBLING(ts, 5m) EMIT FINAL
--> SELECT COUNT(*) FROM s GROUP BY a WINDOW TUMBLING(ts, 5m) EMIT FINAL

SELECT COUNT(*) FROM s x GROUP BY a WINDOW SLIDING(x.ts, 10m, 1m)
--> SELECT COUNT(*) FROM s AS x GROUP BY a WINDOW SLIDING(x.ts, 10m, 1m)

SELECT COUNT(*) FROM s GROUP BY a WINDOW HOPPING(ts, 10 minutes, 30s) HAVING COUNT(*) > 1 ORDER BY a LIMIT 5
--> SELECT COUNT(*) FROM s GROUP BY a HAVING COUNT(*) > 1 ORDER BY a LIMIT 5 WINDOW SLIDING(ts, '10 minutes', 30s)

SELECT COUNT(*) FROM s GROUP BY a WINDOW SESSION(ts, 30s)
--> SELECT COUNT(*) FROM s GROUP BY a WINDOW SESSION(ts, 30s)

SELECT COUNT(*) FROM s WINDOW TUMBLING (SIZE 5 MINUTES) GROUP BY a
--> SELECT COUNT(*) FROM s GROUP BY a WINDOW TUMBLING('5 MINUTES')

SELECT COUNT(*) FROM s WINDOW HOPPING (SIZE 5 MINUTES, ADVANCE BY 1 MINUTE) GROUP BY a
--> SELECT COUNT(*) FROM s GROUP BY a WINDOW SLIDING('5 MINUTES', '1 MINUTE')

SELECT COUNT(*) FROM s GROUP BY a WINDOW TUMBLING(`odd ts`, INTERVAL '5' MINUTE)
--> SELECT COUNT(*) FROM s GROUP BY a WINDOW TUMBLING(`odd ts`, 'INTERVAL ''5'' MINUTE')

SELECT COUNT(*) FROM s GROUP BY a WINDOW TUMBLING('5 minutes')
--> SELECT COUNT(*) FROM s GROUP BY a WINDOW TUMBLING('5 minutes')

-- Spark's own
SELECT window(ts, '5 minutes').start, COUNT(*) FROM s GROUP BY window(ts, '5 minutes')
--> SELECT WINDOW(ts, '5 minutes').start, COUNT(*) FROM s GROUP BY WINDOW(ts, '5 minutes')

SELECT a, session_window(ts, '5 minutes') AS w FROM s GROUP BY a, session_window(ts, '5 minutes')
--> SELECT a, SESSION_WINDOW(ts, '5 minutes') AS w FROM s GROUP BY a, SESSION_WINDOW(ts, '5 minutes')

-- named windows stay what they are
SELECT SUM(a) OVER w FROM t WINDOW w AS (PARTITION BY b ORDER BY c)
--> SELECT SUM(a) OVER w FROM t WINDOW w AS (PARTITION BY b ORDER BY c)

SELECT SUM(a) OVER w FROM t WINDOW w AS (ORDER BY c) WINDOW SESSION(5m)
--> SELECT SUM(a) OVER w FROM t WINDOW w AS (ORDER BY c) WINDOW SESSION(5m)

SELECT SUM(a) OVER tumbling FROM t WINDOW tumbling AS (ORDER BY c)
--> SELECT SUM(a) OVER tumbling FROM t WINDOW tumbling AS (ORDER BY c)

-- joins
SELECT * FROM a JOIN b WITHIN 10m ON a.x = b.x
--> SELECT * FROM a JOIN b ON a.x = b.x WITHIN 10m

SELECT * FROM a LEFT JOIN b y ON a.x = y.x WITHIN INTERVAL '5' MINUTE WHERE a.z
--> SELECT * FROM a LEFT JOIN b AS y ON a.x = y.x WITHIN 'INTERVAL ''5'' MINUTE' WHERE a.z

SELECT * FROM a JOIN (SELECT * FROM b) c WITHIN 10 minutes USING (x)
--> SELECT * FROM a JOIN (SELECT * FROM b) AS c USING (x) WITHIN '10 minutes'

SELECT * FROM s ASOF JOIN t MATCH_CONDITION (s.ts >= t.valid_from) ON s.k = t.k
--> SELECT * FROM s ASOF JOIN t MATCH_CONDITION (s.ts >= t.valid_from) ON s.k = t.k

SELECT * FROM s ASOF JOIN t x MATCH_CONDITION (s.ts >= x.valid_from) USING (k)
--> SELECT * FROM s ASOF JOIN t AS x MATCH_CONDITION (s.ts >= x.valid_from) USING (k)

SELECT * FROM t VERSION AS OF 3 x JOIN u TIMESTAMP AS OF '2020-01-01' ON x.a = u.a
--> SELECT * FROM t VERSION AS OF 3 AS x JOIN u TIMESTAMP AS OF '2020-01-01' ON x.a = u.a

-- a table called within
SELECT * FROM a JOIN b within ON a.x = within.x
--> SELECT * FROM a JOIN b AS within ON a.x = within.x

-- quantified comparisons
SELECT a > ANY (SELECT b FROM t), a = SOME (SELECT b FROM t), NOT a <= ALL (SELECT b FROM memory://t) FROM u
--> SELECT a > ANY(SELECT b FROM t), a = ANY(SELECT b FROM t), NOT a <= ALL (SELECT b FROM memory://t AS t) FROM u

SELECT a FROM t WHERE a <> ALL (SELECT b FROM u WHERE u.x = t.x) OR EXISTS (SELECT 1 FROM v)
--> SELECT a FROM t WHERE a <> ALL (SELECT b FROM u WHERE u.x = t.x) OR EXISTS(SELECT 1 FROM v)

-- now() is one value per batch
SELECT now(), NOW() - INTERVAL '1' DAY, current_timestamp FROM t
--> SELECT CURRENT_TIMESTAMP(), CURRENT_TIMESTAMP() - INTERVAL '1' DAY, CURRENT_TIMESTAMP() FROM t

-- wildcard paths
SELECT positions.*.shares FROM t
--> SELECT positions.*.shares FROM t

SELECT a FROM t WHERE ANY(positions.*.shares) > 100
--> SELECT a FROM t WHERE ANY(positions.*.shares) > 100

SELECT SUM(positions.*.market_value), COUNT(orders[*]), MAX(t.orders[*].amount) FROM t
--> SELECT SUM(positions.*.market_value), COUNT(orders[*]), MAX(t.orders[*].amount) FROM t

SELECT a.**.b, **.deep_value, a.**, *.x FROM t
--> SELECT a.**.b, **.deep_value, a.**, *.x FROM t

SELECT x[1:3], x[:2], x[-2:], x[price > 100].y, x[a = 'b' AND c <> 2][0] FROM t
--> SELECT x[1:3], x[:2], x[-2:], x[price > 100].y, x[a = 'b' AND c <> 2][0] FROM t

SELECT a."odd.name".*.c, `b c`.*.d FROM t
--> SELECT a."odd.name".*.c, `b c`.*.d FROM t

-- plain paths are SQL's own
SELECT x[0].y, x[-1], m['k'], users[0].profile.email, t.*, a.b.c.d, x[i + 1], x[:p] FROM t
--> SELECT x[0].y, x[-1], m['k'], users[0].profile.email, t.*, a.b.c.d, x[i + 1], x[:p] FROM t

-- words that stay names
SELECT status, metrics, properties, key, offset, value, window, emit, stream, source, state, level, type, name, user, date, timestamp, first, last, queries FROM t AS metrics
--> SELECT status, metrics, properties, key, offset, value, window, emit, stream, source, state, level, type, name, user, date, timestamp, first, last, queries FROM t AS metrics

SELECT a status, b AS key, c offset, d emit, e changes FROM t properties
--> SELECT a AS status, b AS key, c AS offset, d AS emit, e AS changes FROM t AS properties

SELECT "a b" AS "c""d", `e``f` FROM "t u" AS `x.y`
--> SELECT `a b` AS `c"d`, `e``f` FROM `t u` AS `x.y`

SELECT a FROM t emit
--> SELECT a FROM t AS emit

-- parameters
SELECT * FROM t WHERE a = ? AND b IN (:b, :c) LIMIT :n
--> SELECT * FROM t WHERE a = ? AND b IN (:b, :c) LIMIT :n

VALUES (1, 'a'), (2, 'b')
--> VALUES (1, 'a'), (2, 'b')

WITH c AS (SELECT 1 AS a UNION ALL SELECT 2), d(x) AS (SELECT a FROM c) SELECT * FROM d ORDER BY x DESC LIMIT 3 OFFSET 1
--> WITH c AS (SELECT 1 AS a UNION ALL SELECT 2), d(x) AS (SELECT a FROM c) SELECT * FROM d ORDER BY x DESC LIMIT 3 OFFSET 1

(SELECT a FROM t ORDER BY a LIMIT 1) UNION ALL (SELECT b FROM u) EMIT CHANGES
--> (SELECT a FROM t ORDER BY a LIMIT 1) UNION ALL (SELECT b FROM u) EMIT CHANGES

-- what is piped is the result
SELECT b AS a FROM t |> WHERE a > 1 |> LIMIT 5
--> SELECT * FROM (SELECT b AS a FROM t) WHERE a > 1 LIMIT 5

-- an inner CTE of the same name stays another one
WITH a AS (SELECT 1 AS x) SELECT * FROM (WITH a AS (SELECT 2 AS x) SELECT * FROM a) JOIN a ON TRUE
--$ WITH a AS (SELECT 1 AS x), a_1 AS (SELECT 2 AS x) SELECT * FROM (SELECT * FROM a_1 AS a) JOIN a ON TRUE

-- also one that hides a table
SELECT * FROM (WITH a AS (SELECT * FROM a) SELECT * FROM a b JOIN a ON TRUE) JOIN a ON TRUE
--$ WITH a_1 AS (SELECT * FROM a) SELECT * FROM (SELECT * FROM a_1 AS b JOIN a_1 AS a ON TRUE) JOIN a ON TRUE

-- Spark would take the name for its keyword
SELECT * FROM stream AS s
--$ SELECT * FROM `stream` AS s

-- sources are ordinary tables for Spark, their options are not its business
SELECT o.id FROM memory://orders o WITH ('x' = 'y') JOIN file:///d/*.csv WITHIN 5m USING (id) WINDOW TUMBLING(5m) EMIT FINAL
--$ SELECT o.id FROM source_0 AS o JOIN source_1 USING (id)

-- FROM may come first
FROM a JOIN b ON a.x = b.x SELECT a.y WHERE a.z
--> SELECT a.y FROM a JOIN b ON a.x = b.x WHERE a.z

-- names beyond ASCII, which Spark reads in quotes only
SELECT größe, 数量 + 1 AS Menge FROM bestände b WHERE b.größe > 1
--> SELECT `größe`, `数量` + 1 AS Menge FROM `bestände` AS b WHERE b.`größe` > 1
