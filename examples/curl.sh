#!/bin/sh
# Stream a chat with curl alone; -N shows every event as it comes.
#   OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none OPENAI_MODEL=smollm2-135m-instruct sh examples/curl.sh
set -eu
curl -N --fail-with-body --silent --show-error "${OPENAI_BASE_URL:-http://127.0.0.1:8000/v1}/chat/completions" \
  -H "Authorization: Bearer ${OPENAI_API_KEY:-none}" \
  -H "Content-Type: application/json" \
  -d "{
    \"model\": \"${OPENAI_MODEL:-smollm2-135m-instruct}\",
    \"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}],
    \"max_tokens\": 32,
    \"temperature\": 0,
    \"stream\": true
  }"
