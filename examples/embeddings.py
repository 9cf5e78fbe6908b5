"""Find the text that is nearest to a question, with the OpenAI SDK.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/embeddings.py "a question" "a text"
"""

import os
import sys

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = os.environ.get("OPENAI_MODEL") or client.models.list().data[0].id
question, *texts = sys.argv[1:] or ["Where is Bern?", "Bern is in Switzerland.", "Bread is baked.", "Where is Bern?"]

answer = client.embeddings.create(model=model, input=[question, *texts])
asked, *vectors = (item.embedding for item in answer.data)
likeness = [sum(a * b for a, b in zip(asked, vector, strict=True)) for vector in vectors]

for score, text in sorted(zip(likeness, texts, strict=True), reverse=True):
    print(f"{score:6.3f}  {text}")
print(f"[{answer.usage.prompt_tokens} tokens, {len(asked)} dimensions]")
