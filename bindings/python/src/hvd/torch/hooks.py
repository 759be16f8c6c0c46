"""Hooks with which an optimizer follows the backward pass."""

from __future__ import annotations

from typing import Any, Callable, cast

import torch

from hvd.torch.optimizer_arguments import Parameter


def remove(hooks: list[object]) -> None:
    """Removes hooks returned by ``after_gradient``."""
    for hook in hooks:
        if hasattr(hook, "remove"):
            hook.remove()


def after_gradient(p: Parameter, function: Callable[[Parameter], None]) -> object:
    """Calls ``function(p)`` whenever a backward pass has added to p.grad. The hook lasts as long as the returned
    object.
    """
    if hasattr(p, "register_post_accumulate_grad_hook"):
        register: Any = p.register_post_accumulate_grad_hook
        return cast(object, register(function))
    # Before PyTorch 2.1: the accumulating node lives only while it is referenced.
    node = p.expand_as(p).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    node.register_hook(lambda *_: function(p))  # type: ignore[union-attr]
    return node


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Calls ``function`` when the backward pass ends. To be called within a hook."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(function)
