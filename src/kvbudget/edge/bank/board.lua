-- Decides, inside of Valkey or Redis, what gate/bank/board.py decides: the same rules under the same names.
--
-- KEYS[1]  the board of one ledger
-- ARGV     1 wall clock in ms (only tests give one), 2 life, 3 number, 4 seen, 5 text
-- returns  seen, known, then for each note that is new to the caller: life, text

local VERSION = 1
local MOST_NOTES = 64
local MOST_READ = 8
local KEEP_MS = 3600000

local life, number, seen, text = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local now_ms = tonumber(ARGV[1])
if not now_ms then
  local time = redis.call('TIME')
  now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- p: place of the last note. n: notes in order of their places; in each l: life, c: its number, p: place, t: when it
-- was put, x: text.
local board = {v = VERSION, p = 0, n = {}}
local kept = redis.call('GET', KEYS[1])
if kept then
  local read, unpacked = pcall(cmsgpack.unpack, kept)
  if not read or type(unpacked) ~= 'table' or unpacked.v ~= VERSION then
    local other = read and type(unpacked) == 'table' and tostring(unpacked.v) or 'unknown'
    return redis.error_reply('KVBUDGET the notes are of version ' .. other .. ', this gate knows ' .. VERSION)
  end
  board = unpacked
end

local notes, own, changed = {}, nil, not kept
for _, note in ipairs(board.n) do
  if now_ms - note.t < KEEP_MS then
    notes[#notes + 1] = note
    if note.l == life then
      own = #notes
    end
  else
    changed = true
  end
end
if not own or number > notes[own].c then
  changed = true
  if text ~= '' then
    board.p = board.p + 1
    if own then
      table.remove(notes, own)
    end
    notes[#notes + 1] = {l = life, c = number, p = board.p, t = now_ms, x = text}
    own = #notes
  elseif own then
    notes[own].c, notes[own].t = number, now_ms
  end
end
if #notes > MOST_NOTES then
  table.remove(notes, 1)
end
board.n = notes
if changed then -- who reads on writes nothing
  redis.call('SET', KEYS[1], cmsgpack.pack(board), 'PX', KEEP_MS)
end

if seen > board.p then
  seen = 0
end
local told, last = {seen, own and 1 or 0}, board.p
for _, note in ipairs(notes) do
  if note.p > seen and note.l ~= life then
    if #told == 2 + 2 * MOST_READ then
      last = nil
      break
    end
    told[#told + 1], told[#told + 2] = note.l, note.x
    told[1] = note.p
  end
end
if last then
  told[1] = last
end
return told
