"""Ask several things at once with the asynchronous OpenAI SDK; the engine batches them into the same steps.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/chat_async.py
"""

import asyncio
import os

from openai import AsyncOpenAI

QUESTIONS = ("What is the capital of France?", "What do bees make?", "Say hello in Spanish.")


async def ask(client: AsyncOpenAI, model: str, question: str) -> str:
    """The whole answer, in one piece."""
    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], max_tokens=32, temperature=0
    )
    return answer.choices[0].message.content or ""


async def main() -> None:
    async with AsyncOpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    ) as client:
        model = os.environ.get("OPENAI_MODEL") or (await client.models.list()).data[0].id
        answers = await asyncio.gather(*(ask(client, model, question) for question in QUESTIONS))
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"{question}\n  {answer}")


asyncio.run(main())
