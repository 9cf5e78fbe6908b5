#!/bin/sh
# What an operator does: a price, a key with limits, a client that reaches one, and who used what. It needs `laneway`
# and curl, starts a server of its own with the scripted backend, and leaves nothing behind.
#   sh examples/limits_and_usage.sh
set -eu
folder=$(mktemp -d)
server=
trap 'test -z "$server" || { kill "$server" && wait "$server" || true; }; rm -rf "$folder"' EXIT

echo "== A config, a store and the first admin key"
laneway init --dir "$folder"
export LANEWAY_CONFIG="$folder/laneway.toml"
cat >>"$LANEWAY_CONFIG" <<'TOML'
[backends.test]
type = "scripted"
models = ["small"]
TOML

echo "== A price, in USD a million tokens, and a key: 3 requests a minute, 5 USD a month"
laneway prices set small --prompt 0.15 --completion 0.60
key=$(laneway keys create --tenant acme --name tour --rpm 3 --budget 5 --json | sed -n 's/^ *"key": "\(.*\)",$/\1/p')

laneway serve --port 0 >"$folder/output" 2>"$folder/log" &
server=$!
until grep -q "^ready" "$folder/output"; do
  kill -0 "$server" || { cat "$folder/log" >&2; exit 1; }
  sleep 0.2
done
address=$(sed -n 's/^ *address *//p' "$folder/output")

echo "== Four requests"
for request in first second third fourth; do
  curl --silent --show-error --dump-header "$folder/head" --output "$folder/body" "$address/chat/completions" \
    -H "Authorization: Bearer $key" -H "X-Request-Id: $request" \
    -d '{"model": "small", "messages": [{"role": "user", "content": "one two three"}]}'
  grep -i -E "^(HTTP|x-ratelimit-remaining-requests|retry-after:)" "$folder/head"
done
cat "$folder/body"
echo

echo "== Who used what"
laneway usage --by tenant,model --since 1d
echo "== Every step of one request"
laneway explain second
echo "== The ledger adds up"
laneway ledger verify
