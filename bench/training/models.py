"""The models that bench/torch_step.py trains, each with its optimizer, data and sizes. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# A module, functions that make its optimizer and a batch of data, and its sizes as text.
Model = tuple[nn.Module, Callable[[Any], Any], Callable[[Any], tuple[Any, Any]], str]


def conv(tiny: bool) -> Model:
    """ResNet-18 (He et al., "Deep residual learning for image recognition", 2016), its optimizer, data and sizes."""
    width, classes, pixels, batch = (8, 10, 32, 2) if tiny else (64, 1000, 64, 8)

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.path = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
                nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
            )
            self.shortcut = nn.Sequential() if stride == 1 else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

        def forward(self, x: Any) -> Any:
            return torch.relu(self.path(x) + self.shortcut(x))

    widths = [width, width, 2 * width, 4 * width, 8 * width]
    blocks = [Block(widths[i + (b > 0)], widths[i + 1], 2 if i and not b else 1) for i in range(4) for b in range(2)]
    model = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes),
    )

    def data(generator: Any) -> tuple[Any, Any]:
        images = torch.randn(batch, 3, pixels, pixels, generator=generator)
        return images, torch.randint(classes, (batch,), generator=generator)

    return (
        model, lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9), data,
        f"{batch} images of {pixels} x {pixels} on each rank; SGD with momentum",
    )


def transformer(tiny: bool) -> Model:
    """A decoder like GPT-2's (embeddings tied, norms first), with its optimizer, data and sizes."""
    wide, layers, heads, words, length, batch = (32, 2, 2, 64, 8, 2) if tiny else (512, 8, 8, 8192, 64, 2)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, wide)
            self.places = nn.Parameter(torch.randn(length, wide) * 0.02)
            nn.init.normal_(self.words.weight, std=0.02)
            layer = nn.TransformerEncoderLayer(
                wide, heads, 4 * wide, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(wide), enable_nested_tensor=False)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

        def forward(self, text: Any) -> Any:
            x = self.layers(self.words(text) + self.places, mask=self.mask, is_causal=True)
            return (x @ self.words.weight.t()).flatten(0, 1)

    def data(generator: Any) -> tuple[Any, Any]:
        text = torch.randint(words, (batch, length + 1), generator=generator)
        return text[:, :-1], text[:, 1:].flatten()

    return (
        Decoder(), lambda parameters: torch.optim.AdamW(parameters, lr=1e-4), data,
        f"{batch} texts of {length} tokens on each rank; AdamW",
    )


MODELS = {"conv": conv, "transformer": transformer}
