"""Get an object instead of a text with Instructor (`pip install instructor`), from a model that keeps to JSON schemas.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/instructor_extract.py "Ada is 36."
"""

import os
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """Who a text is about."""

    name: str
    age: int


sdk = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
client = instructor.from_openai(sdk, mode=instructor.Mode.JSON_SCHEMA)
person = client.chat.completions.create(
    model=os.environ.get("OPENAI_MODEL") or sdk.models.list().data[0].id,
    response_model=Person,
    messages=[{"role": "user", "content": " ".join(sys.argv[1:]) or "Ada is 36 years old."}],
    max_retries=2,  # a wrong answer is sent back, and asked for again
)
print(f"{person.name} is {person.age}")
