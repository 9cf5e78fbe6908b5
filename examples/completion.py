"""Complete a plain text, without a chat template, with the OpenAI SDK.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/completion.py "Once upon a time"
"""

import os
import sys

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = os.environ.get("OPENAI_MODEL") or client.models.list().data[0].id
prompt = " ".join(sys.argv[1:]) or "Once upon a time"

completion = client.completions.create(model=model, prompt=prompt, max_tokens=32, temperature=0, stop=["\n\n"])
print(prompt + completion.choices[0].text)
print(f"[finish reason: {completion.choices[0].finish_reason}]")
