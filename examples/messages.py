"""Two turns with Anthropic's SDK, counted first and streamed; the second brings the first along.

ANTHROPIC_BASE_URL=http://127.0.0.1:8000 ANTHROPIC_API_KEY=none python examples/messages.py "What is 2 and 2?"
"""

import os
import sys

from anthropic import Anthropic

client = Anthropic(
    base_url=os.environ.get("ANTHROPIC_BASE_URL", "http://127.0.0.1:8000"),
    api_key=os.environ.get("ANTHROPIC_API_KEY", "none"),
)
model = os.environ.get("ANTHROPIC_MODEL") or client.models.list().data[0].id
history = []

for question in (" ".join(sys.argv[1:]) or "What is 2 and 2?", "Are you sure?"):
    history.append({"role": "user", "content": question})
    counted = client.messages.count_tokens(model=model, messages=history)
    print(f"[{counted.input_tokens} tokens to read]")
    with client.messages.stream(model=model, messages=history, max_tokens=64) as stream:
        for piece in stream.text_stream:
            print(piece, end="", flush=True)
        message = stream.get_final_message()
    usage = message.usage
    print(f"\n[{usage.input_tokens} input tokens, {usage.output_tokens} output tokens, {message.stop_reason}]")
    history.append({"role": "assistant", "content": message.content})
