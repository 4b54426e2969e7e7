-- stream person
SELECT person.* FROM memory://nexmark WHERE event_type = 0

-- stream auction
SELECT auction.* FROM memory://nexmark WHERE event_type = 1

-- stream bid
SELECT bid.*, current_timestamp() AS p_time FROM memory://nexmark WHERE event_type = 2

-- table people
SELECT * FROM person

-- table auctions
SELECT * FROM auction

-- table bids
SELECT * FROM bid

-- query 0
SELECT auction, bidder, price, dateTime, extra FROM bid

-- query 1
SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid

-- query 2
SELECT auction, price FROM bid WHERE mod(auction, 123) = 0

-- query 3
SELECT P.name, P.city, P.state, A.id
FROM auctions AS A INNER JOIN people AS P ON A.seller = P.id
WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')

-- query 4
SELECT Q.category, AVG(Q.final) AS average
FROM (
  SELECT MAX(B.price) AS final, A.category
  FROM auction A, bid B
  WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
  GROUP BY A.id, A.category
) Q
GROUP BY Q.category

-- query 5
SELECT AuctionBids.auction, AuctionBids.num, AuctionBids.starttime
FROM (
  SELECT auction, count(*) AS num, window(dateTime, '10 seconds', '2 seconds').start AS starttime,
    window(dateTime, '10 seconds', '2 seconds').end AS endtime
  FROM bid
  GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')
) AS AuctionBids
JOIN (
  SELECT max(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
  FROM (
    SELECT count(*) AS num, window(dateTime, '10 seconds', '2 seconds').start AS starttime,
      window(dateTime, '10 seconds', '2 seconds').end AS endtime
    FROM bid
    GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')
  ) AS CountBids
  GROUP BY CountBids.starttime, CountBids.endtime
) AS MaxBids
ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
  AND AuctionBids.num >= MaxBids.maxn

-- query 6
SELECT Q.seller, Q.dateTime,
  AVG(Q.final) OVER (PARTITION BY Q.seller ORDER BY Q.dateTime ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS average
FROM (
  SELECT A.id, A.seller, B.price AS final, B.dateTime,
    ROW_NUMBER() OVER (PARTITION BY A.id, A.seller ORDER BY B.price DESC, B.dateTime) AS place
  FROM auction AS A, bid AS B
  WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
) AS Q
WHERE Q.place <= 1

-- query 7
SELECT B.auction, B.price, B.bidder, B.dateTime, B.extra
FROM bid B
JOIN (
  SELECT MAX(price) AS maxprice, window(dateTime, '10 seconds').end AS dateTime
  FROM bid
  GROUP BY window(dateTime, '10 seconds')
) B1
ON B.price = B1.maxprice
WHERE B.dateTime BETWEEN B1.dateTime - INTERVAL '10' SECOND AND B1.dateTime

-- query 8
SELECT P.id, P.name, P.starttime
FROM (
  SELECT id, name, window(dateTime, '10 seconds').start AS starttime, window(dateTime, '10 seconds').end AS endtime
  FROM person
  GROUP BY id, name, window(dateTime, '10 seconds')
) P
JOIN (
  SELECT seller, window(dateTime, '10 seconds').start AS starttime, window(dateTime, '10 seconds').end AS endtime
  FROM auction
  GROUP BY seller, window(dateTime, '10 seconds')
) A
ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime

-- query 9
SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
  auction, bidder, price, bid_dateTime, bid_extra
FROM (
  SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
    ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime ASC) AS rownum
  FROM auction A, bid B
  WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
)
WHERE rownum <= 1

-- query 10
SELECT auction, bidder, price, dateTime, extra, date_format(dateTime, 'yyyy-MM-dd') AS dt,
  date_format(dateTime, 'HH:mm') AS hm
FROM bid

-- query 11 EMIT FINAL WITH ('watermark' = '4s')
SELECT B.bidder, count(*) AS bid_count, session_window(B.dateTime, '10 seconds').start AS starttime,
  session_window(B.dateTime, '10 seconds').end AS endtime
FROM bid B
GROUP BY B.bidder, session_window(B.dateTime, '10 seconds')

-- query 12 EMIT CHANGES
SELECT B.bidder, count(*) AS bid_count, window(B.p_time, '10 seconds').start AS starttime,
  window(B.p_time, '10 seconds').end AS endtime
FROM bid B
GROUP BY B.bidder, window(B.p_time, '10 seconds')

-- query 13
SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
FROM bid B JOIN side_input S ON mod(B.auction, 10000) = S.key

-- query 14
SELECT auction, bidder, 0.908 * price AS price,
  CASE
    WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
    WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
    ELSE 'otherTime'
  END AS bidTimeType,
  dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000

-- query 15
SELECT date_format(dateTime, 'yyyy-MM-dd') AS day,
  count(*) AS total_bids,
  count(*) FILTER (WHERE price < 10000) AS rank1_bids,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
  count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
  count(DISTINCT bidder) AS total_bidders,
  count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
  count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
  count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
  count(DISTINCT auction) AS total_auctions,
  count(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
  count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
  count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
FROM bid
GROUP BY date_format(dateTime, 'yyyy-MM-dd')

-- query 16
SELECT channel, date_format(dateTime, 'yyyy-MM-dd') AS day, max(date_format(dateTime, 'HH:mm')) AS minute,
  count(*) AS total_bids,
  count(*) FILTER (WHERE price < 10000) AS rank1_bids,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
  count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
  count(DISTINCT bidder) AS total_bidders,
  count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
  count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
  count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
  count(DISTINCT auction) AS total_auctions,
  count(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
  count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
  count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
FROM bid
GROUP BY channel, date_format(dateTime, 'yyyy-MM-dd')

-- query 17
SELECT auction, date_format(dateTime, 'yyyy-MM-dd') AS day,
  count(*) AS total_bids,
  count(*) FILTER (WHERE price < 10000) AS rank1_bids,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
  count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
  min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
FROM bid
GROUP BY auction, date_format(dateTime, 'yyyy-MM-dd')

-- query 18
SELECT auction, bidder, price, channel, url, dateTime, extra
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS rank_number FROM bid
)
WHERE rank_number <= 1

-- query 19
SELECT auction, bidder, price, channel, url, dateTime, extra, rank_number
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) AS rank_number FROM bid
)
WHERE rank_number <= 10

-- query 20
SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.dateTime, B.extra, A.itemName, A.description, A.initialBid,
  A.reserve, A.dateTime AS auction_dateTime, A.expires, A.seller, A.category, A.extra AS auction_extra
FROM bids AS B INNER JOIN auctions AS A ON B.auction = A.id
WHERE A.category = 10

-- query 21
SELECT auction, bidder, price, channel,
  CASE
    WHEN lower(channel) = 'apple' THEN '0'
    WHEN lower(channel) = 'google' THEN '1'
    WHEN lower(channel) = 'facebook' THEN '2'
    WHEN lower(channel) = 'baidu' THEN '3'
    ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)
  END AS channel_id
FROM bid
WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL
  OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')

-- query 22
SELECT auction, bidder, price, channel, split(url, '/')[3] AS dir1, split(url, '/')[4] AS dir2,
  split(url, '/')[5] AS dir3
FROM bid
