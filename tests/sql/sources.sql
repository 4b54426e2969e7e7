-- a pattern opens no comment
SELECT * FROM file:///d/*.csv WHERE a = 1
--> SELECT * FROM file:///d/*.csv WHERE a = 1

-- parameters with a semicolon in the middle
SELECT * FROM file:///d/x.csv?format=csv&delimiter=;&header=false
--> SELECT * FROM file:///d/x.csv?format=csv&delimiter=;&header=false AS x

-- a quoted parameter holds anything
SELECT u.id FROM postgres://u:p@h/db?query="SELECT a, b FROM t WHERE x = '?' AND y & 1; --" u WHERE u.id > 1
--> SELECT u.id FROM postgres://u:p@h/db?query="SELECT a, b FROM t WHERE x = '?' AND y & 1; --" AS u WHERE u.id > 1

SELECT * FROM kafka://h1:9092,h2:9092/my-topic
--> SELECT * FROM kafka://h1:9092,h2:9092/my-topic AS `my-topic`

SELECT * FROM kafka://orders o, memory://prices p WHERE o.sku = p.sku
--> SELECT * FROM kafka://orders AS o CROSS JOIN memory://prices AS p WHERE o.sku = p.sku

SELECT * FROM (SELECT * FROM memory://a) x JOIN (SELECT * FROM memory://b) y USING (id)
--> SELECT * FROM (SELECT * FROM memory://a AS a) AS x JOIN (SELECT * FROM memory://b AS b) AS y USING (id)

-- globs
SELECT * FROM s3://bucket/{a,b}/**/part-?.parquet
--> SELECT * FROM s3://bucket/{a,b}/**/part-?.parquet

SELECT * FROM file:///d/${DAY:-today}/*.json?format=${FORMAT:?which one} x
--> SELECT * FROM file:///d/${DAY:-today}/*.json?format=${FORMAT:?which one} AS x

-- paths without a scheme
SELECT * FROM ./data/orders.csv
--> SELECT * FROM file://./data/orders.csv AS orders

SELECT * FROM ../orders.json o JOIN data/users.csv u ON o.user = u.id
--> SELECT * FROM file://../orders.json AS o JOIN file://data/users.csv AS u ON o.user = u.id

SELECT * FROM /var/data/*.parquet
--> SELECT * FROM file:///var/data/*.parquet

SELECT * FROM 'with space/x.csv'
--> SELECT * FROM 'file://with space/x.csv' AS x

SELECT * FROM 'memory://x' y
--> SELECT * FROM memory://x AS y

-- columns can be qualified by the last word of the address
SELECT orders.id, t.id, my_feed.id FROM memory://orders, kafka://h/t, file:///d/my_feed.csv
--> SELECT orders.id, t.id, my_feed.id FROM memory://orders AS orders CROSS JOIN kafka://h/t AS t CROSS JOIN file:///d/my_feed.csv AS my_feed

-- a word of SQL as that name is quoted
SELECT * FROM memory://order
--> SELECT * FROM memory://order AS `order`

-- source functions
SELECT * FROM kafka_topic('orders')
--> SELECT * FROM kafka://orders AS orders

SELECT * FROM file('/d/*.csv', header => false, "skip.lines" => 2) f
--> SELECT * FROM file:///d/*.csv AS f WITH ('header' = 'false', 'skip.lines' = '2') WITH ()

SELECT * FROM postgres('postgres://h/db', table => 'users', 'poll.interval' => 5s) u WHERE u.id = 1
--> SELECT * FROM postgres://h/db AS u WITH ('table' = 'users', 'poll.interval' = '5s') WHERE u.id = 1

SELECT * FROM sql('sqlite:///x.db', query => 'select 1') x JOIN memory('fx') ON TRUE
--> SELECT * FROM sql('sqlite:///x.db') AS x WITH ('query' = 'select 1') JOIN memory://fx AS fx ON TRUE

SELECT * FROM generator(rows => 5), rate://?rows=5
--> SELECT * FROM generator:// WITH ('rows' = '5') CROSS JOIN rate://?rows=5

-- options of one source, and of the statement
SELECT * FROM memory://a WITH ('x' = '1') JOIN t u WITH (y = 2) ON a.i = u.i WITH ('z' = '3')
--> SELECT * FROM memory://a AS a WITH ('x' = '1') JOIN t AS u WITH ('y' = '2') ON a.i = u.i WITH ('z' = '3')

-- options after the only relation are the statement's
CREATE TABLE t AS SELECT * FROM file:///d/x.csv WITH ('watch' = 'true', 'key' = 'id')
--> CREATE TABLE t AS SELECT * FROM file:///d/x.csv AS x WITH ('watch' = 'true', 'key' = 'id')

SELECT * FROM file:///d/x.csv WITH ('watch' = 'true') WHERE a = 1
--> SELECT * FROM file:///d/x.csv AS x WITH ('watch' = 'true') WHERE a = 1

SELECT * FROM file:///d/x.csv WITH ('watch' = 'true') WITH ('timezone' = 'UTC')
--> SELECT * FROM file:///d/x.csv AS x WITH ('watch' = 'true') WITH ('timezone' = 'UTC')

-- option names in lower case, values as written, with or without quotes
SELECT a FROM t WHERE b WITH (Poll.Interval = 500ms, "cdc" = TRUE, 'http.headers.X-Key' = "a ""b"" 'c'", host = ${HOST:-localhost}, n = -1, r = r'\d')
--> SELECT a FROM t WHERE b WITH ('poll.interval' = '500ms', 'cdc' = 'TRUE', 'http.headers.x-key' = 'a "b" ''c''', 'host' = '${HOST:-localhost}', 'n' = '-1', 'r' = '\\d')

-- a table may be called like a relation name of ours
SELECT * FROM source_0, memory://a, memory://b
--> SELECT * FROM source_0 CROSS JOIN memory://a AS a CROSS JOIN memory://b AS b

WITH source_0 AS (SELECT * FROM memory://a) SELECT * FROM source_0
--> WITH source_0 AS (SELECT * FROM memory://a AS a) SELECT * FROM source_0

-- in subqueries
SELECT a FROM t WHERE a IN (SELECT id FROM memory://x WHERE y = (SELECT MAX(z) FROM file:///z.csv))
--> SELECT a FROM t WHERE a IN (SELECT id FROM memory://x AS x WHERE y = (SELECT MAX(z) FROM file:///z.csv AS z))

SELECT * FROM http://api.example.com/orders?status=open&page=1 o
--> SELECT * FROM http://api.example.com/orders?status=open&page=1 AS o

-- a slash is a division elsewhere
SELECT a/b FROM t WHERE EXTRACT(YEAR FROM a) = 2020 / 2
--> SELECT a / b FROM t WHERE EXTRACT(YEAR FROM a) = 2020 / 2

-- a table of a database answers to its name
SELECT users.id FROM postgres://h/db?table=users, mysql('mysql://h/db', table => 'orders')
--> SELECT users.id FROM postgres://h/db?table=users AS users CROSS JOIN mysql://h/db AS orders WITH ('table' = 'orders') WITH ()

-- a URI in double quotes is no name
SELECT * FROM "file:///with space.csv" x
--> SELECT * FROM 'file:///with space.csv' AS x
