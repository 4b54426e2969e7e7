"""The scripts that run inside the server: one reads rows, one applies a commit. Each is one atomic step.

Columns travel packed, see `columns`: a string of 4-byte lengths and a string of the values.
"""

from __future__ import annotations

_SHARED = """
local function unpacker(lengths, data)
  local at, place = 1, 1
  return function()
    local length
    length, at = struct.unpack('<i4', lengths, at)
    if length < 0 then return false end
    local value = string.sub(data, place, place + length - 1)
    place = place + length
    return value
  end
end
"""

READ = (
    _SHARED
    + """
-- KEYS: meta, rows (or an index of them). ARGV: prefix, source, two arguments of the source, fields...
-- Sources: 'ids' (lengths, data), 'ranks' (first, last), 'scores' (lowest, highest; KEYS[3] is the rows' order).
-- Gives the version, then lengths and data of: ids, order numbers, and every field of the rows that are there.
local prefix, source = ARGV[1], ARGV[2]
local order = KEYS[3] or KEYS[2]
local ids = {}
if source == 'ids' then
  local take = unpacker(ARGV[3], ARGV[4])
  for i = 1, #ARGV[3] / 4 do ids[i] = take() end
elseif source == 'ranks' then
  ids = redis.call('ZRANGE', KEYS[2], ARGV[3], ARGV[4])
else
  ids = redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[3], ARGV[4])
end
local fields = {}
for i = 5, #ARGV do fields[#fields + 1] = ARGV[i] end
local lengths, data = {}, {}
for column = 1, #fields + 2 do lengths[column], data[column] = {}, {} end
local count = 0
local function put(column, value)
  if value then
    lengths[column][count] = struct.pack('<i4', #value)
    data[column][#data[column] + 1] = value
  else
    lengths[column][count] = struct.pack('<i4', -1)
  end
end
for _, id in ipairs(ids) do
  local key = prefix .. id
  local number = order ~= '' and redis.call('ZSCORE', order, id)
  local values, there = {}, false
  if order == '' or number then
    if #fields > 0 then
      values = redis.call('HMGET', key, unpack(fields))
      for i = 1, #fields do if values[i] then there = true break end end
    end
    there = there or redis.call('EXISTS', key) == 1
  end
  if there then
    count = count + 1
    put(1, id)
    put(2, number)
    for i = 1, #fields do put(i + 2, values[i]) end
  end
end
local reply = {redis.call('HGET', KEYS[1], 'version')}
for column = 1, #fields + 2 do
  reply[#reply + 1] = table.concat(lengths[column])
  reply[#reply + 1] = table.concat(data[column])
end
return reply
"""
)

COMMIT = (
    _SHARED
    + """
-- KEYS: meta, rows ('' for hashes of the user's), epochs, changes, writer, indexes...
-- ARGV: a JSON object with what isn't rows, then packed: new ids, changed ids, gone ids, counts of a bag's new ids,
-- every field of the new rows and then of the changed ones, every index of the two alike, and the blob of changes.
local given = cjson.decode(ARGV[1])
local meta = redis.call('HMGET', KEYS[1], 'incarnation', 'version', 'followed_from')
if meta[1] ~= given.incarnation then return {'dropped'} end
local version = tonumber(meta[2])
if tonumber(redis.call('GET', KEYS[5]) or '-1') >= given.commit then return {'done', version} end
if given.writer then
  local last = redis.call('HGET', KEYS[3], given.writer)
  if last and tonumber(last) >= given.epoch then return {'repeat', version} end
end
if given.expected >= 0 and version ~= given.expected then return {'moved', version} end
if (meta[3] and true or false) ~= given.followed then return {'moved', version} end

local own = KEYS[2] ~= ''
local takes = {}
for i = 2, #ARGV - 1, 2 do takes[#takes + 1] = unpacker(ARGV[i], ARGV[i + 1]) end
local created, changed, gone = {}, {}, {}
for i = 1, #ARGV[2] / 4 do created[i] = takes[1]() end
for i = 1, #ARGV[4] / 4 do changed[i] = takes[2]() end
for i = 1, #ARGV[6] / 4 do gone[i] = takes[3]() end
if not given.bag then
  for i, id in ipairs(created) do
    if redis.call('EXISTS', given.prefix .. id) == 1 then return {'duplicate', i - 1} end
  end
end

local function forget(id)
  redis.call('DEL', given.prefix .. id)
  if own then redis.call('ZREM', KEYS[2], id) end
  for i = 6, #KEYS do redis.call('ZREM', KEYS[i], id) end
end
local number = own and #created > 0 and redis.call('HINCRBY', KEYS[1], 'next', #created) - #created or 0
local function store(id, values, scores, is_new)
  local key = given.prefix .. id
  if not is_new then
    if own then redis.call('DEL', key) else
      local missing = {}
      for _, name in ipairs(given.fields) do missing[#missing + 1] = name end
      redis.call('HDEL', key, unpack(missing))
    end
  end
  redis.call('HSET', key, unpack(values))
  if given.ttl > 0 then redis.call('PEXPIRE', key, given.ttl) end
  if own and is_new then
    number = number + 1
    redis.call('ZADD', KEYS[2], number, id)
  end
  for i = 6, #KEYS do
    if scores[i - 5] then redis.call('ZADD', KEYS[i], scores[i - 5], id) else redis.call('ZREM', KEYS[i], id) end
  end
end
local function each(ids, is_new)
  for i, id in ipairs(ids) do
    local values, scores = {}, {}
    for column, name in ipairs(given.fields) do
      local value = takes[4 + column]()
      if value then
        values[#values + 1] = name
        values[#values + 1] = value
      end
    end
    for index = 1, #KEYS - 5 do scores[index] = takes[4 + #given.fields + index]() end
    if given.bag then
      local count = tonumber(takes[4]())
      if redis.call('HINCRBY', given.prefix .. id, '%count', count) == count then
        values[#values + 1] = '%count'
        values[#values + 1] = count
        store(id, values, scores, true)
      elseif given.ttl > 0 then
        redis.call('PEXPIRE', given.prefix .. id, given.ttl)
      end
    else
      if #values == 0 then values = {'%', ''} end
      store(id, values, scores, is_new)
    end
  end
end
if given.bag then
  for _, id in ipairs(gone) do
    if redis.call('HINCRBY', given.prefix .. id, '%count', -1) <= 0 then forget(id) end
  end
else
  for _, id in ipairs(gone) do forget(id) end
end
each(created, true)
each(changed, false)

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
