-- wrk: append a message of 1,000 characters to one of 200 conversations, or send the same to the echo (PATH).
local requests, next = {}, 0

function init(args)
  local text = string.rep("The quick brown fox jumps over the lazy dog. ", 23):sub(1, 1000)
  local body = '{"messages":[{"role":"user","content":"' .. text .. '"}]}'
  for n = 0, 199 do
    local path = os.getenv("BENCH_PATH"):gsub("{n}", tostring(n))
    requests[n] = wrk.format("POST", path, { ["Content-Type"] = "application/json" }, body)
  end
  math.randomseed(os.time())
  next = math.random(0, 199)
end

function request()
  next = (next + 7) % 200
  return requests[next]
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format('\n{"done":%d,"rate":%f,"p50":%f,"p99":%f,"errors":%d}\n', summary.requests,
    summary.requests / summary.duration * 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
