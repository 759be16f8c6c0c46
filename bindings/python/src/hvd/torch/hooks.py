"""How an optimizer gets to know what the backward pass does."""

from __future__ import annotations

from typing import Any, Callable, List, cast

import torch

from hvd.torch.optimizer_arguments import Parameter


def remove(hooks: List[object]) -> None:
    """Takes back what ``after_gradient`` has returned."""
    for hook in hooks:
        if hasattr(hook, "remove"):
            hook.remove()


def after_gradient(p: Parameter, function: Callable[[Parameter], None]) -> object:
    """Has ``function(p)`` called whenever a backward pass has added to p.grad; returns what keeps it so."""
    if hasattr(p, "register_post_accumulate_grad_hook"):
        register: Any = p.register_post_accumulate_grad_hook
        return cast(object, register(function))
    # Before PyTorch 2.1: the node that accumulates lives as long as somebody holds it.
    node = p.expand_as(p).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    node.register_hook(lambda *_: function(p))  # type: ignore[union-attr]
    return node


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Within a hook: has ``function`` called when the backward pass ends."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(function)
