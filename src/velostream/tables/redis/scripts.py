"""The scripts that run inside the server: one reads rows, one applies a commit. Each is one atomic step.

Rows travel packed, see `columns.Packed`: a string of 4-byte lengths, -1 for NULL, and a string of the values by rows.
"""

from __future__ import annotations

_SHARED = """
-- Takes rows of `width` values each out of their lengths and data, one row per call.
local function unpacker(lengths, data, width)
  local form, at, place = '<' .. string.rep('i4', width), 1, 1
  return function()
    local row = {struct.unpack(form, lengths, at)}
    at = row[width + 1]
    row[width + 1] = nil
    for i = 1, width do
      local length = row[i]
      if length < 0 then row[i] = false else
        row[i] = string.sub(data, place, place + length - 1)
        place = place + length
      end
    end
    return row
  end
end
local function listed(lengths, data)
  local take, list = unpacker(lengths, data, 1), {}
  for i = 1, #lengths / 4 do list[i] = take()[1] end
  return list
end
"""

READ = (
    _SHARED
    + """
-- KEYS: meta, the rows' order ('' for hashes of the user's), an index.
-- ARGV: prefix, source, two arguments of the source, what else is wanted ('i' ids, 'n' numbers), fields...
-- Sources: 'ids' (lengths, data), 'ranks' (first, last), 'scores' of the index (lowest, highest); an index that was
-- given up lacks its sentinel, and all rows are given.
-- Gives the version, lengths and data of the rows that are there; a row is its id and number, where wanted, and fields.
local prefix, source, order = ARGV[1], ARGV[2], KEYS[2]
local ids
if source == 'ids' then ids = listed(ARGV[3], ARGV[4])
elseif source == 'ranks' then ids = redis.call('ZRANGE', order, ARGV[3], ARGV[4])
elseif not redis.call('ZSCORE', KEYS[3], ':') then ids = redis.call('ZRANGE', order, 0, -1)
else ids = redis.call('ZRANGEBYSCORE', KEYS[3], ARGV[3], ARGV[4]) end
local fields = {}
for i = 6, #ARGV do fields[i - 5] = ARGV[i] end
local with_ids, with_numbers = string.find(ARGV[5], 'i'), string.find(ARGV[5], 'n')
local width = #fields
local form = '<' .. string.rep('i4', width + 2)
local lengths, data, count = {}, {}, 0
for rank, id in ipairs(ids) do
  local key, number = prefix .. id, false
  if source == 'ranks' then number = tostring(rank) elseif order ~= '' then number = redis.call('ZSCORE', order, id) end
  if number or order == '' then
    local values, row, there = {}, {-1, -1}, false
    if width > 0 then values = redis.call('HMGET', key, unpack(fields)) end
    local size = count
    if with_ids then
      size = size + 1
      row[1], data[size] = #id, id
    end
    if with_numbers and number then
      size = size + 1
      row[2], data[size] = #number, number
    end
    for i = 1, width do
      local value = values[i]
      if value then
        there = true
        row[i + 2] = #value
        size = size + 1
        data[size] = value
      else
        row[i + 2] = -1
      end
    end
    if there or redis.call('EXISTS', key) == 1 then
      lengths[#lengths + 1] = struct.pack(form, unpack(row))
      count = size
    end
  end
end
for i = #data, count + 1, -1 do data[i] = nil end
return {redis.call('HGET', KEYS[1], 'version'), table.concat(lengths), table.concat(data)}
"""
)

COMMIT = (
    _SHARED
    + """
-- KEYS: meta, the rows' order ('' for hashes of the user's), epochs, changes, writer, indexes...
-- ARGV: a JSON object with what isn't rows; then lengths and data of: new ids, changed ids, gone ids, and the rows of
-- the new ids and of the changed ones, each its fields and its scores (of a bag also how many); the blob of changes.
local given = cjson.decode(ARGV[1])
local meta = redis.call('HMGET', KEYS[1], 'incarnation', 'version', 'followed_from', 'indexes')
if meta[1] ~= given.incarnation then return {'dropped'} end
local version = tonumber(meta[2])
if tonumber(redis.call('GET', KEYS[5]) or '-1') >= given.commit then return {'done', version} end
if given.writer then
  local last = redis.call('HGET', KEYS[3], given.writer)
  if last and tonumber(last) >= given.epoch then return {'repeat', version} end
end
if given.expected >= 0 and version ~= given.expected then return {'moved', version} end
if (meta[3] and true or false) ~= given.followed then return {'moved', version} end
if (meta[4] or '[]') ~= given.indexes then return {'moved', version} end

local own, prefix, fields = KEYS[2] ~= '', given.prefix, given.fields
local created, changed, gone = listed(ARGV[2], ARGV[3]), listed(ARGV[4], ARGV[5]), listed(ARGV[6], ARGV[7])
local width, indexes = #fields, #KEYS - 5
local take = unpacker(ARGV[8], ARGV[9], width + indexes + (given.bag and 1 or 0))
if not given.bag then
  for i, id in ipairs(created) do
    if redis.call('EXISTS', prefix .. id) == 1 then return {'duplicate', i - 1} end
  end
end

local expiry = prefix .. ':expiry'
local function forget(id)
  redis.call('DEL', prefix .. id)
  if given.ttl > 0 then redis.call('ZREM', expiry, id) end
  if own then redis.call('ZREM', KEYS[2], id) end
  for i = 6, #KEYS do redis.call('ZREM', KEYS[i], id) end
end
for _, id in ipairs(gone) do
  if not given.bag or redis.call('HINCRBY', prefix .. id, '%count', -1) <= 0 then forget(id) end
end

local number = own and #created > 0 and redis.call('HINCRBY', KEYS[1], 'next', #created) - #created or 0
local function store(id, row, is_new)
  local key, values, size, missing = prefix .. id, {}, 0, {}
  for i = 1, width do
    if row[i] then
      values[size + 1], values[size + 2] = fields[i], row[i]
      size = size + 2
    elseif not is_new then missing[#missing + 1] = fields[i] end
  end
  if given.bag then values[size + 1], values[size + 2] = '%count', row[width + indexes + 1]
  elseif size == 0 then values = {'%', ''} end
  redis.call('HSET', key, unpack(values))
  if #missing > 0 then redis.call('HDEL', key, unpack(missing)) end
  if own and is_new then
    number = number + 1
    redis.call('ZADD', KEYS[2], number, id)
  end
  for i = 1, indexes do
    local score = row[width + i]
    if score then redis.call('ZADD', KEYS[5 + i], score, id) else redis.call('ZREM', KEYS[5 + i], id) end
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function expire(id)
  if given.ttl > 0 then
    redis.call('PEXPIRE', prefix .. id, given.ttl)
    if own then redis.call('ZADD', expiry, now + given.ttl, id) end
  end
end
for _, id in ipairs(created) do
  local row = take()
  local count = given.bag and tonumber(row[width + indexes + 1])
  if not count or redis.call('HINCRBY', prefix .. id, '%count', count) == count then store(id, row, true) end
  expire(id)
end
for _, id in ipairs(changed) do
  store(id, take(), false)
  expire(id)
end

if own and given.ttl > 0 then
  -- The server removes expired rows by itself, but not their places in our sorted sets.
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, 1000 + 2 * #created)) do
    if redis.call('EXISTS', prefix .. id) == 0 then forget(id) end
  end
end

if #created + #changed + #gone > 0 then
  version = version + 1
  redis.call('HSET', KEYS[1], 'version', version)
  if given.followed then
    redis.call('ZADD', KEYS[4], version, struct.pack('>I8', version) .. ARGV[#ARGV])
    local oldest = version - given.history
    if oldest > tonumber(meta[3]) then
      redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', oldest)
      redis.call('HSET', KEYS[1], 'followed_from', oldest)
    end
  end
end
if given.writer then redis.call('HSET', KEYS[3], given.writer, given.epoch) end
redis.call('SET', KEYS[5], given.commit, 'EX', 86400)
return {'done', version}
"""
)
