"""Text of a model that transformers spreads over ranks by tensor parallelism. Needs PyTorch and transformers."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tensor_parallelism.settings import ALONE, Settings
from training.turns import Barrier, steps_in_turn

PROMPT = 16
FAKE = "fake"  # PyTorch's backend that reports everything as done without doing it
SIZES = {  # a Llama with random weights, of 100 million parameters
    "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 4, "vocab_size": 16384,
}
TINY_SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 256,
}


def why_not(sizes: dict[str, int], ranks: int) -> str | None:
    """Why there are no tokens; empty if there are."""
    for name in ("transformers", "accelerate"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed (tools/setup --python installs it)"
    if any(value % ranks for key, value in sizes.items() if key != "num_hidden_layers"):
        return f"{ranks} ranks cannot share its {sizes['num_key_value_heads']} heads of keys and values"
    return None if ranks > 1 else "one rank alone sums nothing"


@contextlib.contextmanager
def meshes_over(backend: str) -> Iterator[None]:
    """Gives meshes made meanwhile this backend. transformers always takes the default group, but each model of this
    process needs its own."""
    make = dist.init_device_mesh

    def over(device: str, shape: Any, **more: Any) -> Any:
        whole = {place: backend for place, ranks in enumerate(shape) if ranks > 1}
        return make(device, shape, backend_override=whole, **more)

    dist.init_device_mesh = over
    try:
        yield
    finally:
        dist.init_device_mesh = make


def measure_tokens(
    settings: Settings, groups: dict[str, Any], missing: dict[str, str], folder: Path, rank: int, ranks: int,
    barrier: Barrier,
) -> dict[str, Any]:
    """Seconds of each text of this rank by backend, and the tokens of that text."""
    sizes = TINY_SIZES if settings.tiny else SIZES
    if why := why_not(sizes, ranks):
        return {"missing": why}
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")
    transformers = importlib.import_module("transformers")
    spread = importlib.import_module("transformers.distributed").DistributedConfig(tp_plan="auto", tp_size=ranks)
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # makes the backend known
    transformers.utils.logging.disable_progress_bar()
    place = str(folder / "model")
    if rank == 0:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(**sizes, max_position_embeddings=1024, tie_word_embeddings=False)
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(place)
    barrier()
    models = {}
    for backend in (*groups, FAKE):
        with contextlib.nullcontext() if groups.get(backend) is dist.group.WORLD else meshes_over(backend):
            models[ALONE if backend == FAKE else backend] = transformers.AutoModelForCausalLM.from_pretrained(
                place, distributed_config=spread, dtype=torch.float32
            )
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(1, sizes["vocab_size"], (1, PROMPT), generator=generator)
    texts: dict[str, list[list[int]]] = {backend: [] for backend in models}

    def step(backend: str) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            text = models[backend].generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=settings.tokens,
                min_new_tokens=settings.tokens, do_sample=False, pad_token_id=0,
            )
        seconds = time.perf_counter() - start
        texts[backend].append(text[0, PROMPT:].tolist())
        return seconds

    seconds = steps_in_turn(list(models), settings.texts, 1, barrier, lambda _: None, step)
    return {
        "missing": None, "without": missing, "seconds": seconds,
        "texts": {backend: sorted(set(map(tuple, found))) for backend, found in texts.items()},
        "sizes": sizes, "prompt": PROMPT, "tokens": settings.tokens,
        "parameters": sum(parameter.numel() for parameter in models[ALONE].parameters()),
    }
