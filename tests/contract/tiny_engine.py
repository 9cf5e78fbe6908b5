"""The engine on a small model, in a thread of the tests; each backend made here is one more front of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from backends.base import DEFAULT_LANE_RULES
from backends.hf.assembly import build_engine
from backends.hf.backend import FrontModel, HFBackend
from backends.hf.checkpoint import Checkpoint
from backends.hf.embedding_engine import EmbeddingEngine
from backends.hf.engine import Engine
from backends.hf.local import EngineThread, LocalClient
from backends.hf.loop import Deliver
from backends.hf.messages import Welcome
from backends.hf.options import HFOptions
from backends.hf.tokenizer import ModelTokenizer

EMPTY_WITHIN_S = 30


class TinyEngine:
    """Loads `folder` and steps until `stop`."""

    def __init__(self, folder: Path) -> None:
        self._options = HFOptions(model=str(folder), dtype="float32", threads=1, kv_cache_memory=64 << 20)
        checkpoint = Checkpoint.read(folder)
        self._model = FrontModel(ModelTokenizer.load(folder), checkpoint.max_model_len, checkpoint.encoder)
        self._engine: Engine | EmbeddingEngine | None = None
        self._thread = EngineThread(self._build)
        self._thread.start()

    def backend(self) -> HFBackend:
        """A backend that is not started yet."""
        return HFBackend(self._options, LocalClient(self._thread), lambda: self._model)

    async def until_empty(self) -> None:
        """Wait until no sequence lives: what a test left behind would keep it from ending."""
        assert self._engine is not None
        async with asyncio.timeout(EMPTY_WITHIN_S):
            while self._engine.num_live:
                await asyncio.sleep(0.005)

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop()

    def _build(self, deliver: Deliver) -> tuple[Engine | EmbeddingEngine, Welcome]:
        self._engine, welcome = build_engine(self._options, DEFAULT_LANE_RULES, deliver)
        return self._engine, welcome
