-- Decides, inside of Valkey or Redis, what gate/bank/bank.py decides: the same rules under the same names.
--
-- KEYS[1]  the bank of one pool
-- ARGV     1 channel to wake branches by, 2 PUBLISH or SPUBLISH, 3 run_id of the server that the caller speaks to,
--          4 wall clock in ms (only tests give one), then the call: 5 branch, 6 number, 7 lease_ms, 8 priority,
--          9 waited_ms, 10 leaves, 11 blocks and 12 sequences in the engine and 13 ms since that look (all empty: it
--          tells nothing), then for each line: account, limit, keeps, needs, wants, promised
-- returns  nil when the call is out of date; else branch, number, known, short, settling, branches, yields, to which
--          class, missing, then for each line granted and elsewhere
--
-- The state is one string, so that one write at the end changes all of it or nothing. Names are compared by bytes:
-- `<` would go by the locale of the server.

local VERSION = 4
local PREFIX = 'prefix '
local ASK_MS = 1000
local PATIENCE_MS = 1500
local URGENT_MS = 500
local MISSING_MS = 600000
local LEAST_TTL_MS = 3600000

local caller = ARGV[5]
local number = tonumber(ARGV[6])
local lease_ms = tonumber(ARGV[7])
local bank, now_ms

-- What is kept. b: branches in order of coming; in each n: name, c: number of its last call, e: when it expires,
-- h: what it has of each account, a: asks until, p and s: priority and since when it waits, q: since when what it asks
-- for is promised to nobody. m: those whose lease ran out; in each n: name, k: when the engine was looked at, u and x:
-- until when at most, l: lease, g: what it had.

local function load()
  local wall_ms = tonumber(ARGV[4])
  if not wall_ms then
    local time = redis.call('TIME')
    wall_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  local kept = redis.call('GET', KEYS[1])
  if not kept then
    -- No memory: old leases may live for one more.
    now_ms = wall_ms
    bank = {v = VERSION, r = ARGV[3], w = wall_ms, t = now_ms, u = now_ms + lease_ms, b = {}, m = {}}
    return nil
  end
  local read, unpacked = pcall(cmsgpack.unpack, kept)
  if not read or type(unpacked) ~= 'table' or unpacked.v ~= VERSION then
    return read and type(unpacked) == 'table' and tostring(unpacked.v) or 'unknown'
  end
  bank = unpacked
  -- Whoever lives calls several times in a lease: a wall clock that leaps further was set, and must end no lease.
  now_ms = bank.t + math.max(0, math.min(wall_ms - bank.w, math.floor(lease_ms / 2)))
  bank.t, bank.w = now_ms, wall_ms
  if bank.r ~= ARGV[3] then
    -- Another server than the one that wrote this: the last that was granted may be lost.
    bank.r = ARGV[3]
    bank.u = math.max(bank.u, now_ms + lease_ms)
  end
  return nil
end

local function save()
  redis.call('SET', KEYS[1], cmsgpack.pack(bank), 'PX', math.max(LEAST_TTL_MS, 20 * lease_ms))
end

-- Who is there

local function expire()
  local living, missing = {}, {}
  for _, one in ipairs(bank.m) do
    if now_ms < math.min(one.u, one.x) then
      missing[#missing + 1] = one
    end
  end
  for _, one in ipairs(bank.b) do
    if now_ms < one.e then
      living[#living + 1] = one
    else
      local kept, some = {}, false
      for account, held in pairs(one.h) do
        if held.g > 0 then
          kept[account], some = held.g, true
        end
      end
      if some then
        missing[#missing + 1] = {
          n = one.n, k = now_ms, u = now_ms + lease_ms, x = now_ms + MISSING_MS, l = lease_ms, g = kept,
        }
      end
    end
  end
  bank.b, bank.m = living, missing
end

local function kept_for_missing(account)
  local sum = 0
  for _, one in ipairs(bank.m) do
    sum = sum + (one.g[account] or 0)
  end
  return sum
end

-- What it had when its lease ran out, as far as that was kept; it is missing no more.
local function come_back(name)
  for at, one in ipairs(bank.m) do
    if one.n == name then
      table.remove(bank.m, at)
      return one.g
    end
  end
  return {}
end

local prefixes = {} -- what `is_prefix` has said: there are few accounts, which are asked for many times

local function is_prefix(account)
  local known = prefixes[account]
  if known == nil then
    known = account:sub(1, #PREFIX) == PREFIX
    prefixes[account] = known
  end
  return known
end

-- Blocks of beginnings that living ones keep, or those that are missing: each once.
local function in_common(with_missing)
  local most, sum = {}, 0
  for _, one in ipairs(bank.b) do
    for account, held in pairs(one.h) do
      if is_prefix(account) then
        most[account] = math.max(most[account] or 0, held.g)
      end
    end
  end
  for _, one in ipairs(with_missing and bank.m or {}) do
    for account, amount in pairs(one.g) do
      if is_prefix(account) then
        most[account] = math.max(most[account] or 0, amount)
      end
    end
  end
  for _, amount in pairs(most) do
    sum = sum + amount
  end
  return sum
end

-- What is charged to an account beside slices of it: of blocks, all that is kept in common. Whoever changes what any
-- keeps forgets `common`.
local common = nil

local function charged(account)
  if account ~= 'blocks' then
    return 0
  end
  common = common or in_common(true)
  return common
end

-- Blocks of a branch's slice, and of all that is kept in common.
local function charged_for(branch)
  return charged('blocks') + (branch.h.blocks and branch.h.blocks.g or 0)
end

local function promised(account)
  local sum = 0
  for _, one in ipairs(bank.b) do
    sum = sum + (one.h[account] and one.h[account].p or 0)
  end
  return sum
end

-- What of those that are missing the engine may still have, by a look that was made since.
local function look()
  local age_ms = tonumber(ARGV[13])
  if not age_ms then
    return
  end
  local looked_ms, left = now_ms - age_ms, {}
  local there = tonumber(ARGV[11]) > promised('blocks') + in_common(false) or tonumber(ARGV[12]) > promised('sequences')
  for _, one in ipairs(bank.m) do
    if one.k < looked_ms and there then
      one.k, one.u = looked_ms, now_ms + one.l
    end
    if one.k >= looked_ms then
      left[#left + 1] = one
    end
  end
  bank.m, common = left, nil
end

local function find(name)
  for at, one in ipairs(bank.b) do
    if one.n == name then
      return one, at
    end
  end
end

local function least(account)
  local found = nil
  for _, one in ipairs(bank.b) do
    local held = one.h[account]
    if held and held.l > 0 and (not found or held.l < found) then
      found = held.l
    end
  end
  return found or 0
end

local function free(account)
  if is_prefix(account) then
    account = 'blocks'
  end
  local granted, found = 0, nil
  for _, one in ipairs(bank.b) do
    local held = one.h[account]
    if held then
      granted = granted + held.g
      if held.l > 0 and (not found or held.l < found) then
        found = held.l
      end
    end
  end
  return (found or 0) - granted - kept_for_missing(account) - charged(account)
end

-- What one keeps, asks for and is lent

local function lines_of()
  local lines = {}
  for at = 14, #ARGV, 6 do
    lines[#lines + 1] = {
      account = ARGV[at], limit = tonumber(ARGV[at + 1]), keeps = tonumber(ARGV[at + 2]),
      needs = tonumber(ARGV[at + 3]), wants = tonumber(ARGV[at + 4]), promised = tonumber(ARGV[at + 5]),
    }
  end
  return lines
end

local function keep(branch, lines)
  local before, had_blocks = branch.h, charged_for(branch)
  branch.h = {}
  for _, line in ipairs(lines) do
    local had = before[line.account] and before[line.account].g or 0
    branch.h[line.account] = {l = line.limit, g = math.min(line.keeps, had), n = line.needs, p = line.promised}
  end
  common = nil
  local given_up = had_blocks - charged_for(branch)
  for _, line in ipairs(lines) do
    local held, room = branch.h[line.account], math.max(0, free(line.account))
    if not is_prefix(line.account) then
      local more = math.min(line.keeps - held.g, room)
      held.g = held.g + more
      if line.account == 'blocks' then  -- what it gave up has gone into that first
        given_up = given_up - more
      end
    elseif held.g < line.keeps then
      local kept, charged_before = held.g, charged_for(branch)
      held.g, common = line.keeps, nil
      local more = charged_for(branch) - charged_before
      if more > math.max(room, given_up) then
        held.g, common = kept, nil
      else
        given_up = given_up - more
      end
    end
  end
end

local function asks(branch)
  return branch.a ~= nil and now_ms < branch.a
end

local function is_less(one, other)
  for at = 1, math.min(#one, #other) do
    local left, right = one:byte(at), other:byte(at)
    if left ~= right then
      return left < right
    end
  end
  return #one < #other
end

-- Rank of two that ask: priority, since when it waits, name.
local function is_first(p, s, n, other)
  if p ~= other.p then
    return p < other.p
  end
  if s ~= other.s then
    return s < other.s
  end
  return is_less(n, other.n)
end

-- Whether one that asks must not be passed by one of this rank.
local function is_before(one, p, s)
  if one.p ~= p then
    return one.p < p
  end
  local in_vain = one.q and now_ms - one.q > PATIENCE_MS
  return one.s + (in_vain and 0 or PATIENCE_MS) < s
end

local function asked_before(account, p, s, name)
  local sum = 0
  for _, other in ipairs(bank.b) do
    local held = other.h[account]
    if held and other.n ~= name and asks(other) and is_before(other, p, s) then
      sum = sum + math.max(0, held.n - held.g)
    end
  end
  return sum
end

local function ask(branch, lines, settling)
  local lacks = {}
  for _, line in ipairs(lines) do
    if line.needs > branch.h[line.account].g then
      lacks[#lacks + 1] = line
    end
  end
  local p, s = tonumber(ARGV[8]), now_ms - tonumber(ARGV[9])
  local granted = #lacks > 0 and not settling
  for _, line in ipairs(lacks) do
    granted = granted
      and line.needs - branch.h[line.account].g <= free(line.account) - asked_before(line.account, p, s, caller)
  end
  if granted then
    for _, line in ipairs(lacks) do
      branch.h[line.account].g = line.needs
    end
    lacks = {}
  end
  branch.a, branch.p, branch.s = nil, nil, nil
  if #lacks > 0 then
    branch.a, branch.p, branch.s = now_ms + ASK_MS, p, s
  end
  return lacks
end

-- The class of the first of others who ask, if it has waited so long that the caller has to yield.
local function yields_to(first, lines)
  if not first then
    return nil
  end
  local p, s = first.p, now_ms
  for _, line in ipairs(lines) do
    if line.needs > line.promised then
      p, s = tonumber(ARGV[8]), now_ms - tonumber(ARGV[9])
      break
    end
  end
  local late = now_ms - first.s > (first.p < p and URGENT_MS or PATIENCE_MS)
  if late and is_before(first, p, s) then
    return first.p
  end
  return nil
end

-- Since when there is room for each who asks, beside what all have promised.
local function note_room()
  for _, one in ipairs(bank.b) do
    local has_room = asks(one)
    if has_room then
      for account, held in pairs(one.h) do
        if held.n > held.g then
          local beside = promised(account) - held.p + kept_for_missing(account) + charged(account)
          if held.n > least(account) - beside then
            has_room = false
            break
          end
        end
      end
    end
    one.q = has_room and (one.q or now_ms) or nil
  end
end

local function lend(branch, lines)
  for _, line in ipairs(lines) do
    local held = branch.h[line.account]
    local part = math.floor(math.max(0, free(line.account)) / (1 + #bank.b))
    held.g = held.g + math.max(0, math.min(line.wants - held.g, part))
  end
end

-- Who should call

local function servable()
  if now_ms < bank.u then
    return {}
  end
  local asking, names, taken = {}, {}, {}
  for _, one in ipairs(bank.b) do
    if asks(one) then
      asking[#asking + 1] = one
    end
  end
  table.sort(asking, function(one, other) return is_first(one.p, one.s, one.n, other) end)
  for _, one in ipairs(asking) do
    local fits = true
    for account, held in pairs(one.h) do
      local before = asked_before(account, one.p, one.s, one.n)
      if held.n > held.g and held.n - held.g > free(account) - before - (taken[account] or 0) then
        fits = false
      end
    end
    if fits then
      names[#names + 1] = one.n
      for account, held in pairs(one.h) do
        if held.n > held.g then
          taken[account] = (taken[account] or 0) + held.n - held.g
        end
      end
    end
  end
  return names
end

local function add_idle(names, lacks)
  local there = {[caller] = true}
  for _, name in ipairs(names) do
    there[name] = true
  end
  for _, one in ipairs(bank.b) do
    for _, line in ipairs(lacks) do
      local held = one.h[line.account]
      if held and held.g > held.n and not there[one.n] then
        names[#names + 1] = one.n
        there[one.n] = true
      end
    end
  end
end

local function wake(names)
  if #names > 0 then
    redis.call(ARGV[2], ARGV[1], table.concat(names, '\n'))
  end
end

local function answer(branch, lines, known, short, settling, to)
  local told = {
    caller, number, known and 1 or 0, short and 1 or 0, settling and 1 or 0, #bank.b, to and 1 or 0, to or 0,
    #bank.m > 0 and 1 or 0,
  }
  for _, line in ipairs(lines) do
    local elsewhere = kept_for_missing(line.account) + charged(line.account)
    for _, other in ipairs(bank.b) do
      local held = other.h[line.account]
      if held and other ~= branch then
        elsewhere = elsewhere + held.p
      end
    end
    told[#told + 1] = branch.h[line.account].g
    told[#told + 1] = elsewhere
  end
  return told
end

local other_version = load()
if other_version then
  return redis.error_reply('KVBUDGET the state is of version ' .. other_version .. ', this gate knows ' .. VERSION)
end
expire()
local branch, at = find(caller)
if branch and number <= branch.c then
  save()
  return false
end
local known = branch ~= nil
if ARGV[10] == '1' then
  if branch then
    table.remove(bank.b, at)
  end
  come_back(caller)
  save()
  wake(servable())
  return {caller, number, known and 1 or 0, 0, 0, #bank.b, 0, 0, 0}
end
if not branch then
  branch = {n = caller, h = {}}
  for account, amount in pairs(come_back(caller)) do
    branch.h[account] = {l = 0, g = amount, n = 0, p = 0}
  end
  bank.b[#bank.b + 1] = branch
end
branch.c, branch.e = number, now_ms + lease_ms
local lines = lines_of()
keep(branch, lines)
look()
local settling = now_ms < bank.u
local asked = asks(branch)
local lacks = ask(branch, lines, settling)
local first = nil
for _, other in ipairs(bank.b) do
  if other ~= branch and asks(other) and (not first or is_first(other.p, other.s, other.n, first)) then
    first = other
  end
end
local short = first ~= nil
for _, line in ipairs(lines) do
  short = short or free(line.account) < 0
end
if #lacks == 0 and not short and not settling then
  lend(branch, lines)
end
note_room()
save()
local names = servable()
if #lacks > 0 and not asked then
  add_idle(names, lacks)
end
wake(names)
return answer(branch, lines, known, short, settling, yields_to(first, lines))
