"""Stream a chat with LlamaIndex (`pip install llama-index-llms-openai-like`).

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/llama_index_chat.py "What is the capital?"
"""

import os
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    api_base=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    model=os.environ.get("OPENAI_MODEL") or "smollm2-135m-instruct",
    is_chat_model=True,  # by default it asks /v1/completions, which knows no roles
    context_window=2048,  # it asks no server how long a context may be
)
question = ChatMessage(role="user", content=" ".join(sys.argv[1:]) or "What is the capital of France?")

for piece in model.stream_chat([question]):
    print(piece.delta or "", end="", flush=True)
print()
