"""The collectives in programs that JAX compiles (``jax.jit``): calls of the engine without Python.

A program calls a handler that `_core` registers with XLA. The calls have an ordered effect, as JAX names it: XLA runs
them in the order of the program, and JAX runs programs that have them in the order in which they are called. So ranks
that run the same programs make the same calls in the same order, and none waits in a call that the others make later.
JAX's public interface has no ordered effects for such calls, so they are made from its internal modules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax._src import core, dispatch, effects
from jax.interpreters import batching, mlir

from hvd import _core
from hvd.core.program_call import program_call
from hvd.core.reduce_op import Reduction
from hvd.exceptions import HorovodInternalError

# Calls without a name share this one, because the programs of a thread have no more than one call under way. So ranks
# that make different calls get an error that says so.
UNNAMED = "jax.program"


class _Ordered(effects.Effect):  # type: ignore[misc,unused-ignore]
    __repr__ = __str__ = lambda _: "hvd"  # noqa: E731


_ORDERED = _Ordered()
for _allowed in (
    effects.ordered_effects, effects.lowerable_effects, effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects, effects.remat_allowed_effects,
):
    _allowed.add_type(_Ordered)

_primitive = jax.extend.core.Primitive("hvd_collective")
_primitive.multiple_results = True
_primitive.def_impl(functools.partial(dispatch.apply_primitive, _primitive))


@_primitive.def_effectful_abstract_eval  # type: ignore[untyped-decorator,unused-ignore]
def _types(*tensors: Any, shapes: Sequence[tuple[int, ...]], **_: Any) -> Any:
    return [core.ShapedArray(shape, t.dtype) for shape, t in zip(shapes, tensors)], {_ORDERED}


def _lowered(context: Any, *tensors: Any, kind: str, name: str, how: Reduction, process_set: int, root: int,
             shapes: Any) -> Any:
    token = context.tokens_in.get(_ORDERED)
    context_with_token = dataclasses.replace(
        context, avals_in=[*context.avals_in, core.abstract_token], avals_out=[*context.avals_out, core.abstract_token]
    )
    numbers = program_call(kind, [(len(tensors), name, how)], process_set, root)
    # In memory that the program needs no more, the result replaces the input.
    same = {i: i for i in range(len(tensors))} if kind in ("allreduce", "broadcast") else None
    call = jax.ffi.ffi_lowering("hvd_collective", has_side_effect=True, operand_output_aliases=same)
    *results, token = call(context_with_token, *tensors, token, how=np.array(numbers, np.int64), names=name)
    context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({_ORDERED: token})))
    return results


def _elsewhere(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(
        "hvd: a program for a GPU or TPU cannot call hvd's collectives; compile it for CPUs"
        ' (with jax.default_device(jax.devices("cpu")[0])), or call them outside of jit'
    )


def _batched(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(
        "hvd: jax.vmap cannot map over hvd's collectives; call the collective on the whole array outside of it"
    )


batching.primitive_batchers[_primitive] = _batched
mlir.register_lowering(_primitive, _elsewhere)
mlir.register_lowering(_primitive, _lowered, platform="cpu")
jax.ffi.register_ffi_target("hvd_collective", _core.xla_handler(), platform="cpu")


def is_traced(tensors: Sequence[Any]) -> bool:
    """Whether a call on these arrays becomes a part of a program, or of what JAX differentiates."""
    return not isinstance(core.trace_ctx.trace, core.EvalTrace) or any(isinstance(t, jax.core.Tracer) for t in tensors)


def wait_for_programs() -> None:
    """Waits for the programs of this thread. See hvd.jax.synchronize."""
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as e:
        for text, kind, rank, refused in _core.xla_failures():
            if text in str(e):
                raise ValueError(text) if refused else HorovodInternalError(text, kind, rank) from e
        raise HorovodInternalError(str(e)) from e
    finally:
        dispatch.runtime_tokens.clear()  # else the thread's later programs fail, too


def wait_before_exit(seconds: float = 5.0) -> None:
    """Waits for the programs of this thread, but not for ever: other ranks may not come."""
    until = time.monotonic() + seconds
    for token in list(dispatch.runtime_tokens.current_tokens.values()):
        while isinstance(token, core.Token) and not token._buf.is_ready():
            if time.monotonic() > until:
                return
            time.sleep(0.001)
    with contextlib.suppress(HorovodInternalError, ValueError):
        wait_for_programs()


def collective(
    kind: str, tensors: Sequence[Any], name: str | None, shapes: Sequence[tuple[int, ...]], process_set: int,
    how: Reduction, root: int = 0,
) -> list[Any]:
    """Calls of the engine, at run time, as one operation; ``shapes`` are those of its results."""
    name = UNNAMED if name is None else f"{kind}.{name}"
    return list(
        _primitive.bind(
            *tensors, kind=kind, name=name, how=how, process_set=process_set, root=root, shapes=tuple(shapes)
        )
    )
