"""Layers divided between ranks: PyTorch's own tensor parallelism, and that of transformers, on hvd as on Gloo."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from dist_ranks import Ranks, folder, place  # noqa: E402
from features_ranks import both, compare, group  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module,
)  # fmt: skip


class Block(nn.Module):
    """A part of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.words = nn.Embedding(24, 12)
        self.norm = nn.LayerNorm(12)
        self.up = nn.Linear(12, 24)
        self.down = nn.Linear(24, 12)
        self.head = nn.Linear(12, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x)
        return self.head(x + self.down(torch.relu(self.up(self.norm(x)))))


def whole(values: Any) -> dict[str, torch.Tensor]:
    """Gradients by name, put together."""
    return {
        name: (w.grad.full_tensor() if isinstance(w.grad, DTensor) else w.grad).clone() for name, w in values
    }


TOKENS = (torch.arange(12).reshape(2, 6) * 7) % 24


def loss_of(model: nn.Module, parallel: bool = False) -> torch.Tensor:
    scores = model(TOKENS)
    if not parallel:
        return nn.functional.cross_entropy(scores.reshape(-1, 24), TOKENS.reshape(-1))
    with loss_parallel():
        loss = nn.functional.cross_entropy(scores.reshape(-1, 24), TOKENS.reshape(-1))
        loss.backward()
    return loss


PLANS: dict[str, Any] = {
    "rows_and_columns": lambda: {"up": ColwiseParallel(), "down": RowwiseParallel()},
    "all": lambda: {
        "words": RowwiseParallel(input_layouts=Replicate()), "up": ColwiseParallel(), "down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    },
    "sequence": lambda: {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
    "loss": lambda: {
        "up": ColwiseParallel(), "down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    },
}  # fmt: skip


def check_parallelize(name: str) -> None:
    def program() -> Any:
        mesh = init_device_mesh("cpu", (place()[1],))
        model = parallelize_module(Block(), mesh, PLANS[name]())
        loss = loss_of(model, name == "loss")
        if name != "loss":
            loss.backward()
        loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
        return [loss.detach(), whole(model.named_parameters())]

    result = both(program)
    model = Block()
    loss = loss_of(model)
    loss.backward()
    compare(result, [loss.detach(), whole(model.named_parameters())], exact=False)


@pytest.mark.parametrize("name", PLANS)
def test_parallelize(features: Ranks, three_features: Ranks, name: str) -> None:
    features.run(check_parallelize, name=name)
    if name == "all":
        three_features.run(check_parallelize, name=name)


def check_with_fsdp() -> None:
    """Two dimensions: layers are divided along one, and sharded along the other."""

    def program() -> Any:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "layer"))
        model = parallelize_module(Block(), mesh["layer"], PLANS["rows_and_columns"]())
        fully_shard(model, mesh=mesh["data"])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [losses, {name: value.full_tensor() for name, value in model.state_dict().items()}]

    both(program)


def test_with_fsdp(four_features: Ranks) -> None:
    four_features.run(check_with_fsdp)


# --- transformers -----------------------------------------------------------------------------------------------------


def check_transformers() -> None:
    """A Llama of random weights says the same on one rank, on two with Gloo, and on two with hvd."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    path = str(folder() / "llama")
    prompt = torch.tensor([[5, 17, 200, 3, 42, 77, 1, 9]])
    with group("hvd"):
        if place()[0] == 0:
            torch.manual_seed(3)
            config = LlamaConfig(
                hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=8,
                num_key_value_heads=4, vocab_size=300, max_position_embeddings=128, tie_word_embeddings=False,
            )  # fmt: skip
            LlamaForCausalLM(config).save_pretrained(path)
        dist.barrier()

    def say(**options: Any) -> Any:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options)
        with torch.no_grad():
            scores = model(prompt).logits
        tokens = model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)
        divided = sum(isinstance(w, DTensor) for w in model.parameters())
        loss = model(prompt, labels=prompt).loss
        loss.backward()
        names = dict(model.named_parameters())
        gradient = names["model.layers.0.mlp.up_proj.weight"].grad
        gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        return [scores, tokens, loss.detach(), gradient], divided

    alone, none = say()
    divided = []

    def program() -> Any:
        result, count = say(tp_plan="auto")
        divided.append(count)
        return result

    compare(both(program), alone, exact=False)
    assert none == 0 and divided[0] == divided[1] >= 15, divided


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate")),
    reason="no transformers with accelerate (tools/setup --python installs them)",
)
def test_transformers(features: Ranks) -> None:
    features.run(check_transformers)
