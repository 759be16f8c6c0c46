"""State of models, optimizers and samplers that survives a failed operation; see hvd.elastic."""

from __future__ import annotations

from hvd.elastic import run
from hvd.torch.elastic.sampler import ElasticSampler
from hvd.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
