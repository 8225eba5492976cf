"""The Lua that runs inside Redis for prefix_redis. Each script is atomic and needs one round trip.

Under the namespace `ns` (KEYS[1]) there are
  b:<hash>    a bitmap: who holds this block, by slot
  holders     hash: name -> "slot incarnation expires_ms"
  slots       how many slots there are; `free` (sorted set): those that no bitmap mentions any more
  waiting     slots of former lives and former snapshots; `sweeping`: those being cleared now; `cursor`: how far
A slot that no holder has counts for nothing, so voiding all claims of a life is one write. Its bits are cleared later, by
`SWEEP`, in bounded batches. Incarnations are 20 digits and compared as text: Lua's numbers would round them.
"""

from hashlib import sha1

MOST_SLOTS = 8192  # 1 KiB of bitmap for a block held by the last slot

_PRELUDE = """
local ns = KEYS[1]
local holders, blocks = ns .. 'holders', ns .. 'b:'

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function parse(record)
  local slot, incarnation, expires = string.match(record, '^(%d+) (%d+) (%d+)$')
  return tonumber(slot), incarnation, tonumber(expires)
end

local function read(name)
  local record = redis.call('HGET', holders, name)
  if record then return parse(record) end
end

local function write(name, slot, incarnation, expires)
  redis.call('HSET', holders, name, string.format('%d %s %.0f', slot, incarnation, expires))
end

local function retire(name, slot)
  redis.call('HDEL', holders, name)
  redis.call('RPUSH', ns .. 'waiting', slot)
end

-- Holds nothing yet. False when all slots are taken.
local function admit(name, incarnation, expires)
  local slot = redis.call('ZPOPMIN', ns .. 'free')[1]
  if not slot then
    slot = redis.call('INCR', ns .. 'slots') - 1
    if slot >= MOST_SLOTS then
      redis.call('DECR', ns .. 'slots')
      return false
    end
  end
  write(name, slot, incarnation, expires)
  return true
end

local function clear(key, slot)
  if redis.call('GETBIT', key, slot) == 1 then
    redis.call('SETBIT', key, slot, 0)
    if redis.call('BITCOUNT', key) == 0 then redis.call('DEL', key) end
  end
end
""".replace("MOST_SLOTS", str(MOST_SLOTS))

# name, incarnation, ttl_ms -> kept | unknown (admitted, holds nothing) | old | full
KEEP = """
local name, incarnation, expires = ARGV[1], ARGV[2], now_ms() + ARGV[3]
local slot, held = read(name)
if slot and held > incarnation then return 'old' end
if slot and held == incarnation then
  write(name, slot, incarnation, expires)
  return 'kept'
end
if slot then retire(name, slot) end
return admit(name, incarnation, expires) and 'unknown' or 'full'
"""

# name, incarnation, stored, removed -> stored | unknown | old
CHANGE = """
local name, incarnation, stored, removed = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local slot, held = read(name)
if slot and held > incarnation then return 'old' end
if slot and held < incarnation then
  retire(name, slot)
  slot = nil
end
if not slot then return 'unknown' end
for i = 1, #stored, 16 do redis.call('SETBIT', blocks .. string.sub(stored, i, i + 15), slot, 1) end
for i = 1, #removed, 16 do clear(blocks .. string.sub(removed, i, i + 15), slot) end
return 'stored'
"""

# name, incarnation, first_ttl_ms -> replaced (holds nothing; CHANGEs follow) | old | full
REPLACE = """
local name, incarnation = ARGV[1], ARGV[2]
local slot, held, expires = read(name)
if slot and held > incarnation then return 'old' end
if slot then retire(name, slot) end
if held ~= incarnation then expires = now_ms() + ARGV[3] end
return admit(name, incarnation, expires) and 'replaced' or 'full'
"""

# hashes -> {name, incarnation, blocks, ...} of live holders that have the first. A holder's set is closed under prefixes
# (engines evict leaf first), so its longest prefix is found by halving; bitmaps once read serve all holders.
FIND = """
local chain = ARGV[1]
local count = math.floor(#chain / 16)
local bitmaps = {}
local function holds(i, slot)
  local bitmap = bitmaps[i]
  if not bitmap then
    bitmap = redis.call('GET', blocks .. string.sub(chain, i * 16 - 15, i * 16)) or ''
    bitmaps[i] = bitmap
  end
  local byte = string.byte(bitmap, bit.rshift(slot, 3) + 1)
  return byte and bit.band(byte, bit.rshift(128, bit.band(slot, 7))) ~= 0
end

local found, now = {}, now_ms()
local all = redis.call('HGETALL', holders)
for at = 1, #all, 2 do
  local slot, incarnation, expires = parse(all[at + 1])
  if expires > now and holds(1, slot) then
    local low, high = 1, count
    while low < high do
      local middle = math.floor((low + high + 1) / 2)
      if holds(middle, slot) then low = middle else high = middle - 1 end
    end
    found[#found + 1] = all[at]
    found[#found + 1] = incarnation
    found[#found + 1] = low
  end
end
return found
"""

# grace_ms, keys -> 1 while more is to be swept, else 0. Forgets holders that have been silent for longer than the grace,
# and clears the bits of retired slots on about `keys` keys. A slot is free only after a whole pass that began after it
# was retired.
SWEEP = """
local now = now_ms()
local all = redis.call('HGETALL', holders)
for at = 1, #all, 2 do
  local slot, _, expires = parse(all[at + 1])
  if expires + ARGV[1] < now then retire(all[at], slot) end
end

local waiting, sweeping, cursor = ns .. 'waiting', ns .. 'sweeping', ns .. 'cursor'
if redis.call('EXISTS', sweeping) == 0 then
  if redis.call('EXISTS', waiting) == 0 then return 0 end
  redis.call('RENAME', waiting, sweeping)
end
local slots = redis.call('LRANGE', sweeping, 0, -1)
local page = redis.call('SCAN', redis.call('GET', cursor) or '0', 'MATCH', blocks .. '*', 'COUNT', ARGV[2])
for _, key in ipairs(page[2]) do
  for _, slot in ipairs(slots) do clear(key, slot) end
end
if page[1] ~= '0' then
  redis.call('SET', cursor, page[1])
  return 1
end
for _, slot in ipairs(slots) do redis.call('ZADD', ns .. 'free', slot, slot) end
redis.call('DEL', sweeping, cursor)
return redis.call('EXISTS', waiting)
"""


class Script:
    """Its text with the prelude, and the name by which Redis remembers it."""

    def __init__(self, body: str) -> None:
        self.text = _PRELUDE + body
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


SCRIPTS: dict[str, Script] = {
    "keep": Script(KEEP),
    "change": Script(CHANGE),
    "replace": Script(REPLACE),
    "find": Script(FIND),
    "sweep": Script(SWEEP),
}
