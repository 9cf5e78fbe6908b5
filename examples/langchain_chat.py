"""Stream a chat with LangChain (`pip install langchain-openai`).

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/langchain_chat.py "What is the capital?"
"""

import os
import sys

from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    model=os.environ.get("OPENAI_MODEL") or "smollm2-135m-instruct",
    stream_usage=True,  # of servers that are not OpenAI's it asks for no counts by itself
)
usage = None
for piece in chat.stream(" ".join(sys.argv[1:]) or "What is the capital of France?"):
    print(piece.text, end="", flush=True)
    usage = piece.usage_metadata or usage
if usage:
    print(f"\n[{usage['input_tokens']} prompt tokens, {usage['output_tokens']} completion tokens]")
