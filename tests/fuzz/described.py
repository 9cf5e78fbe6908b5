"""Requests that schemathesis makes from our own document, of every operation, right ones and wrong ones."""

from __future__ import annotations

import collections
import contextlib
import random
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from gateway.api.generating import TIMEOUT_HEADER
from gateway.openapi import openapi_document
from tests.fuzz.rules import Rules
from tests.integration.front.front_server import Front

KNOWN_KEY = 0.95  # of the requests have a key that may do everything, the others none
KNOWN_MODEL = 0.5  # are about a model that is there
EACH_ROUND = 50


class Described:
    """A run against one front. `faults` say what was sent, and what was wrong with the reply."""

    def __init__(self, front: Front, key: str, first_seed: int) -> None:
        self._front, self._key, self._seed = front, key, first_seed
        self._dice = random.Random(first_seed)
        self._rules = Rules()
        self.num_requests = 0
        self.statuses: collections.Counter[int] = collections.Counter()
        self.operations: set[str] = set()
        self.faults: list[str] = []

    def run_until(self, number: int) -> None:
        """Rounds with a seed of their own each, until `number` requests were made."""
        while self.num_requests < number:
            self.run(EACH_ROUND)
            self._seed += 1_000_000

    def run(self, num_each: int) -> None:
        """`num_each` right and as many wrong requests of each operation; where fewer can be told apart, fewer."""
        document = openapi_document()
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["security"] = []  # the key is ours to give; schemathesis would leave it out of what is wrong
        schema = schemathesis.openapi.from_dict(document)
        for found in schema.get_all_operations():
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                self._run(found.ok(), mode, num_each)  # type: ignore[union-attr]

    def _run(self, operation: Any, mode: GenerationMode, number: int) -> None:
        @seed(self._seed)
        @settings(
            max_examples=number,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            self._ask(case)

        with contextlib.suppress(Unsatisfiable):  # an operation without any input cannot be asked wrongly
            ask()

    def _ask(self, case: Any) -> None:
        key = {"Authorization": f"Bearer {self._key}"} if self._dice.random() < KNOWN_KEY else {}
        if self._dice.random() < KNOWN_MODEL:
            if isinstance(case.body, dict) and "model" in case.body:
                case.body["model"] = "scripted"
            if "model" in case.path_parameters:
                case.path_parameters["model"] = "scripted"
        reply = case.call(base_url=self._front.url, headers=key, timeout=30)
        self.num_requests += 1
        self.statuses[reply.status_code] += 1
        self.operations.add(case.operation.label)
        answers = case.operation.definition.raw["responses"]
        body = reply.content
        content_type = (reply.headers.get("content-type") or [""])[0]
        if reply.status_code == 504 and TIMEOUT_HEADER in case.headers:
            return  # as it asked for
        found = self._rules.faults(reply.status_code, content_type, body, answers.get(str(reply.status_code)))
        if reply.status_code < 400 and str(reply.status_code) not in answers:
            found.append(f"status {reply.status_code} is not described")
        sent = f"{case.operation.label} {case.formatted_path} {case.query!r} {case.headers!r} {case.body!r}"[:600]
        self.faults += [f"{sent}: {fault}" for fault in found]
