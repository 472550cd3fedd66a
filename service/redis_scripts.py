"""The Lua scripts by which RedisStore changes and reads sessions, each as a whole or not at all."""

# KEYS[1] is what all names begin with and ARGV[1] the session's id. Within the names:
#   session:ID    hash: the record, the tokens of its making (birth) and of its last change. There is a session where
#                 this has a version
#   log:ID        hash: by number, an entry as RedisStore writes it, the confirmed words in the first line;
#                 by u and number, the utterance's id
#   numbers:ID    hash: an entry's number by its utterance's id
#   confirmed:ID  sorted set of the numbers of confirmed entries, by the version that their confirmed words came with
#   snapshot:ID   hash: the newest snapshot, and the birth of the session it is of
#   used          sorted set of ids, by last use
#   gone          sorted set of deleted and expired ids, in the order they went
#   reasons       hash: why they went, by id
#   farewells     how many have gone
#
# A script that fails half-way is not undone, so each first looks at all it needs. Out of memory, Redis refuses a
# script's first command that needs more, and none after one that was let pass: a script that removes something does
# that first and always succeeds, any other begins with a command that is refused.
#
# Redis that dies while it writes a script's commands to its file may, after a restart that took none of them, at the
# next one take the first few, before all that was written in between. So what is set is set to a value, never raised
# by one; what lies in a log beyond the record's count of entries, or under a number that is another utterance's by
# now, does not count, nor does a snapshot that does not fit the log; and a log that was reset goes later, by a script
# of its own.
#
# Numbers that are no small integers pass as the text they came in, for Lua rounds what it writes.
COMMON = """
local root, id = KEYS[1], ARGV[1]
local session, log, numbers = root .. 'session:' .. id, root .. 'log:' .. id, root .. 'numbers:' .. id
local confirmed, snapshot = root .. 'confirmed:' .. id, root .. 'snapshot:' .. id
local used, gone, reasons, farewells = root .. 'used', root .. 'gone', root .. 'reasons', root .. 'farewells'

local function record()
    return redis.call('HMGET', session, 'version', 'bundle', 'options', 'created', 'used', 'entries', 'base')
end

local function exists()
    return redis.call('HEXISTS', session, 'version') == 1
end

local function absent()
    local reason = redis.call('HGET', reasons, id)
    if reason then return {'gone', reason} end
    return {'unknown'}
end

local function refusal(version, token)
    local now = redis.call('HMGET', session, 'version', 'token')
    if not now[1] then return absent() end
    if now[2] == token then return {'ok', record()} end
    if now[1] ~= version then return {'stale', now[1]} end
    return nil
end

local function count()
    return tonumber(redis.call('HGET', session, 'entries'))
end

local function number_of(utterance)
    local number = redis.call('HGET', numbers, utterance)
    if not number or tonumber(number) >= count() then return nil end
    if redis.call('HGET', log, 'u' .. number) ~= utterance then return nil end
    return number
end

local function note_use(at)
    if tonumber(at) > tonumber(redis.call('HGET', session, 'used')) then
        redis.call('HSET', session, 'used', at)
        redis.call('ZADD', used, at, id)
    end
end

local function advance(token, version, at, entries, base)
    redis.call('HSET', session, 'token', token)
    redis.call('HSET', session, 'version', version + 1, 'entries', entries, 'base', base)
    note_use(at)
    return {'ok', record()}
end

local function keep_snapshot(birth, version, entries, sha256, state)
    redis.call('HSET', snapshot, 'of', birth, 'version', version, 'entries', entries, 'sha256', sha256, 'state', state)
end

local function has_snapshot()
    local of = redis.call('HGET', snapshot, 'of')
    return of and of == redis.call('HGET', session, 'birth')
end

local function is_current(version, entries)
    local now = redis.call('HMGET', session, 'version', 'entries', 'base')
    if version > tonumber(now[1]) or entries > tonumber(now[2]) or version < tonumber(now[3]) then return false end
    for _, number in ipairs(redis.call('ZRANGEBYSCORE', confirmed, '(' .. version, '+inf')) do
        if tonumber(number) < entries then return false end
    end
    return true
end

local function remove(name, reason, remembered)
    redis.call('UNLINK', root .. 'session:' .. name, root .. 'log:' .. name, root .. 'numbers:' .. name,
        root .. 'confirmed:' .. name, root .. 'snapshot:' .. name)
    redis.call('ZREM', used, name)
    redis.call('ZADD', gone, redis.call('INCR', farewells), name)
    redis.call('HSET', reasons, name, reason)
    local excess = redis.call('ZCARD', gone) - remembered
    if excess > 0 then
        for _, forgotten in ipairs(redis.call('ZRANGE', gone, 0, excess - 1)) do
            redis.call('HDEL', reasons, forgotten)
        end
        redis.call('ZREMRANGEBYRANK', gone, 0, excess - 1)
    end
end
"""

SCRIPTS = {
    "open": """
-- ARGV: -, format
local known = redis.call('GET', root .. 'format')
if known then return {'ok', known} end
redis.call('SET', root .. 'format', ARGV[2])
return {'ok', ARGV[2]}
""",
    "create": """
-- ARGV: id, token, version, bundle, options, created, used, base, number of entries, then utterance's id and text of
-- each, then, if there is one, the snapshot's version, entries, sha256, state
local token, entries = ARGV[2], tonumber(ARGV[9])
if exists() then
    if redis.call('HGET', session, 'token') == token then return {'ok'} end
    return {'exists'}
end
redis.call('HSET', session, 'token', token)
redis.call('UNLINK', log, numbers, confirmed, snapshot)
for number = 0, entries - 1 do
    local utterance, text = ARGV[10 + 2 * number], ARGV[11 + 2 * number]
    redis.call('HSET', log, number, text, 'u' .. number, utterance)
    redis.call('HSET', numbers, utterance, number)
end
local rest = 10 + 2 * entries
if ARGV[rest] then keep_snapshot(token, ARGV[rest], ARGV[rest + 1], ARGV[rest + 2], ARGV[rest + 3]) end
redis.call('ZADD', used, ARGV[7], id)
redis.call('HSET', session, 'birth', token, 'version', ARGV[3], 'bundle', ARGV[4], 'options', ARGV[5],
    'created', ARGV[6], 'used', ARGV[7], 'base', ARGV[8], 'entries', ARGV[9])
return {'ok'}
""",
    "record": """
-- ARGV: id
if not exists() then return absent() end
return {'ok', record()}
""",
    "entries": """
-- ARGV: id, first
if not exists() then return absent() end
local texts = {}
for number = tonumber(ARGV[2]), count() - 1 do texts[#texts + 1] = redis.call('HGET', log, number) or '' end
return {'ok', texts}
""",
    "entry": """
-- ARGV: id, utterance's id
if not exists() then return absent() end
local number = number_of(ARGV[2])
if not number then return {'ok'} end
return {'ok', number, redis.call('HGET', log, number)}
""",
    "append": """
-- ARGV: id, token, version, used, utterance's id, text
local refused = refusal(ARGV[3], ARGV[2])
if refused then return refused end
if number_of(ARGV[5]) then return {'taken'} end
local number = count()
redis.call('HSET', log, number, ARGV[6], 'u' .. number, ARGV[5])
redis.call('HSET', numbers, ARGV[5], number)
return advance(ARGV[2], ARGV[3], ARGV[4], number + 1, redis.call('HGET', session, 'base'))
""",
    "confirm": """
-- ARGV: id, token, version, used, number, words
local refused = refusal(ARGV[3], ARGV[2])
if refused then return refused end
local number, entries = tonumber(ARGV[5]), count()
if number >= entries then return {'beyond'} end
local text = redis.call('HGET', log, number)
local first_end = string.find(text, '\\n', 1, true)
local rest = string.sub(text, first_end)
local taken_in = tonumber(redis.call('HGET', snapshot, 'entries') or '')
local answer = advance(ARGV[2], ARGV[3], ARGV[4], entries, redis.call('HGET', session, 'base'))
redis.call('HSET', log, number, ARGV[6] .. rest)
redis.call('ZADD', confirmed, ARGV[3] + 1, number)
if taken_in and taken_in > number then redis.call('UNLINK', snapshot) end
return answer
""",
    "reset": """
-- ARGV: id, token, version, used
local refused = refusal(ARGV[3], ARGV[2])
if refused then return refused end
redis.call('UNLINK', snapshot)
return advance(ARGV[2], ARGV[3], ARGV[4], 0, ARGV[3] + 1)
""",
    "sweep": """
-- ARGV: id. After a reset
if exists() and count() == 0 then redis.call('UNLINK', log, numbers, confirmed) end
return {'ok'}
""",
    "snapshot": """
-- ARGV: id
if not exists() then return absent() end
if not has_snapshot() then return {'ok'} end
local parts = redis.call('HMGET', snapshot, 'version', 'entries', 'sha256', 'state')
local version, entries = tonumber(parts[1] or ''), tonumber(parts[2] or '')
if version and entries and not is_current(version, entries) then return {'ok'} end
return {'ok', parts}
""",
    "save_snapshot": """
-- ARGV: id, version, entries, sha256, state
if not exists() then return absent() end
local version, entries = tonumber(ARGV[2]), tonumber(ARGV[3])
if not is_current(version, entries) then return {'ok', 0} end
local newest = tonumber(redis.call('HGET', snapshot, 'version') or '')
if has_snapshot() and newest and version < newest then return {'ok', 0} end
keep_snapshot(redis.call('HGET', session, 'birth'), ARGV[2], ARGV[3], ARGV[4], ARGV[5])
return {'ok', 1}
""",
    "drop_snapshot": """
-- ARGV: id, sha256
if (redis.call('HGET', snapshot, 'sha256') or '') == ARGV[2] then redis.call('UNLINK', snapshot) end
return {'ok'}
""",
    "touch": """
-- ARGV: id, used
if not exists() then return absent() end
note_use(ARGV[2])
return {'ok'}
""",
    "delete": """
-- ARGV: id, token, how many to remember
local reason = 'deleted ' .. ARGV[2]
if exists() then
    remove(id, reason, tonumber(ARGV[3]))
elseif redis.call('HGET', reasons, id) ~= reason then
    return absent()
end
return {'ok'}
""",
    "expire": """
-- ARGV: -, before, how many to remember. The index may lag behind a session's own word
local expired = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', used, '-inf', '(' .. ARGV[2])) do
    local at = redis.call('HGET', root .. 'session:' .. name, 'used')
    if not at then
        redis.call('ZREM', used, name)
    elseif tonumber(at) < tonumber(ARGV[2]) then
        remove(name, 'expired', tonumber(ARGV[3]))
        expired[#expired + 1] = name
    else
        redis.call('ZADD', used, at, name)
    end
end
return {'ok', expired}
""",
    "count": """
-- ARGV: -
return {'ok', redis.call('ZCARD', used)}
""",
}
