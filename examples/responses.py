"""Two turns with the Responses API of the OpenAI SDK. The server stores nothing, so the second brings the first along.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/responses.py "What is 2 and 2?"
"""

import os
import sys

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = os.environ.get("OPENAI_MODEL") or client.models.list().data[0].id
history = []

for question in (" ".join(sys.argv[1:]) or "What is 2 and 2?", "Are you sure?"):
    history.append({"role": "user", "content": question})
    stream = client.responses.create(model=model, input=history, max_output_tokens=64, temperature=0, stream=True)
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        elif event.type in ("response.completed", "response.incomplete"):
            usage = event.response.usage
            print(f"\n[{usage.input_tokens} input tokens, {usage.output_tokens} output tokens]")
            history += [item.to_dict() for item in event.response.output]
