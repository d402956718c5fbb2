-- The guard inside Redis: checks everything that an access shows, lifts the marks, then runs the commands. Redis runs nothing
-- else meanwhile. The rules are those of rules.rs, and a test compares the two over random histories.
--
-- KEYS[1]  the hash with the marks. Its fields: `version`, `base`, and `name:NAME` for each name, with the four floors and the
--          number of writes
-- ARGV     the version; `reads` if no command may write, else `writes`; the number of names shown; each name with its token and
--          use; then the commands, each preceded by the number of its words
--
-- Tokens are below 2^53, so Lua's numbers hold them exactly.

local WRITE_FLOOR, READ_FLOOR, WRITE_FLOOR_BELOW, READ_FLOOR_BELOW, WRITES = 1, 2, 3, 4, 5

local version = redis.call('HGET', KEYS[1], 'version')
if version and version ~= ARGV[1] then
    return {'version', version}
end

local shown, commands = {}, {}
local at = 4
for nth = 1, tonumber(ARGV[3]) do
    shown[nth] = {name = ARGV[at], token = tonumber(ARGV[at + 1]), used_to = ARGV[at + 2]}
    at = at + 3
end
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    commands[#commands + 1] = {unpack(ARGV, at + 1, at + words)}
    at = at + words + 1
end

-- A claim or a read must not carry a command that writes.
if ARGV[2] == 'reads' then
    for _, command in ipairs(commands) do
        local known = redis.call('COMMAND', 'INFO', command[1])[1]
        for _, flag in ipairs(known and known[3] or {}) do
            if flag.ok == 'write' then
                return {'writes', command[1]}
            end
        end
    end
end

-- Rule: fence-gc
local base = tonumber(redis.call('HGET', KEYS[1], 'base') or 0)
local kept = {}
local function marks(name)
    if not kept[name] then
        local numbers = {0, 0, 0, 0, 0}
        local nth = 1
        for number in string.gmatch(redis.call('HGET', KEYS[1], 'name:' .. name) or '', '%d+') do
            numbers[nth] = tonumber(number)
            nth = nth + 1
        end
        kept[name] = numbers
    end
    return kept[name]
end

-- The names above a path, from the top: `/a` and `/a/b` for `/a/b/c`.
local function ancestors(name)
    local names = {}
    if name:sub(1, 1) == '/' then
        for slash in name:gmatch('()/') do
            if slash > 1 then
                names[#names + 1] = name:sub(1, slash - 1)
            end
        end
    end
    return names
end

-- Rule: fence, fence-hierarchy. All names are checked before any mark moves.
for nth, one in ipairs(shown) do
    local floor, below = WRITE_FLOOR, WRITE_FLOOR_BELOW
    if one.used_to == 'read' then
        floor, below = READ_FLOOR, READ_FLOOR_BELOW
    end
    local here = marks(one.name)
    local highest = math.max(base, here[floor], here[below])
    if one.token < highest then
        return {'stale', nth, one.name, highest}
    end
    for _, name in ipairs(ancestors(one.name)) do
        if one.token < marks(name)[floor] then
            return {'stale', nth, name, marks(name)[floor]}
        end
    end
end

-- Rule: fence, fence-hierarchy, claim-before-read
for _, one in ipairs(shown) do
    local here = marks(one.name)
    here[WRITE_FLOOR] = math.max(here[WRITE_FLOOR], one.token)
    if one.used_to == 'write' then
        here[READ_FLOOR] = math.max(here[READ_FLOOR], one.token)
        here[WRITES] = here[WRITES] + 1
    end
    for _, name in ipairs(ancestors(one.name)) do
        local above = marks(name)
        above[WRITE_FLOOR_BELOW] = math.max(above[WRITE_FLOOR_BELOW], one.token)
        if one.used_to == 'write' then
            above[READ_FLOOR_BELOW] = math.max(above[READ_FLOOR_BELOW], one.token)
        end
    end
end
for name, numbers in pairs(kept) do
    redis.call('HSET', KEYS[1], 'version', ARGV[1], 'name:' .. name, string.format('%.0f %.0f %.0f %.0f %.0f', unpack(numbers)))
end

-- The commands run last, because Redis undoes nothing if one of them fails: marks that are lifted too early shut out only
-- holders that are stale anyway.
-- Rule: same-transaction
local answers = {'done'}
for nth, command in ipairs(commands) do
    answers[nth + 1] = redis.call(unpack(command))
end
return answers
