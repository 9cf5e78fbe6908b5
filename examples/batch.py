"""Ask many questions in one batch, with the OpenAI SDK: upload, begin, watch, read the answers.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/batch.py "one question" "another question"
"""

import json
import os
import sys
import time

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = os.environ.get("OPENAI_MODEL") or client.models.list().data[0].id
questions = sys.argv[1:] or ["Where is Bern?", "Where is Lima?", "Where is Oslo?"]

lines = [
    {
        "custom_id": question,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 64},
    }
    for question in questions
]
file = client.files.create(file="\n".join(map(json.dumps, lines)).encode(), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")

while batch.status in ("validating", "in_progress", "finalizing"):
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
    print(f"{batch.status}: {batch.request_counts.completed} of {batch.request_counts.total}", file=sys.stderr)

for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
    for line in map(json.loads, client.files.content(file_id).text.splitlines()):
        body = line["response"]["body"]
        answer = body["choices"][0]["message"]["content"] if "choices" in body else body["error"]["message"]
        print(f"{line['custom_id']}\n  {answer}")
print(f"[{batch.status}, {batch.usage.total_tokens if batch.usage else 0} tokens]")
