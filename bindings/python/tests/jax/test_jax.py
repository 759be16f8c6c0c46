"""hvd.jax on 1 to 3 ranks, with exact values: at once, and in programs that JAX compiles."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any, Callable

import numpy as np
import pytest
from rank_jobs import Job

pytest.importorskip("jax.numpy", reason="SKIP: JAX is not installed")  # a part: this folder has the name of the package
import jax
import jax.numpy as jnp
from jax.experimental.layout import Format, Layout

import hvd.jax as hvd

INTEGERS = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
BOTH = pytest.mark.parametrize("compiled", [False, True], ids=["at_once", "compiled"])


def same(result: Any, expected: Any) -> None:
    assert isinstance(result, jax.Array)
    expected = np.asarray(expected)
    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    assert (np.asarray(result) == expected).all(), (result, expected)


def way(compiled: bool) -> Callable[[Any], Any]:
    """How a function runs."""
    return jax.jit if compiled else lambda function: function


def check_allreduce(dtype: str, compiled: bool) -> None:
    r, n = hvd.rank(), hvd.size()
    run = way(compiled)

    def of(rank: int) -> Any:
        return (jnp.arange(6).reshape(2, 3) + rank).astype(dtype)

    total = sum(np.asarray(of(q)) for q in range(n)).astype(dtype)  # type: ignore[attr-defined]
    same(run(lambda x: hvd.allreduce(x, op=hvd.Sum))(of(r)), total)
    scaled = run(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5))
    if dtype not in INTEGERS:
        same(scaled(of(r)), total)
        same(run(hvd.allreduce)(of(r)), np.asarray((total / n).astype(dtype)))
    if dtype not in COMPLEX:
        same(run(lambda x: hvd.allreduce(x, op=hvd.Min))(of(r)), of(0))
        same(run(lambda x: hvd.allreduce(x, op=hvd.Max))(of(r)), of(n - 1))
    product = np.prod([np.full(3, q + 1) for q in range(n)], axis=0)
    same(run(lambda x: hvd.allreduce(x, op=hvd.Product))(jnp.full(3, r + 1, dtype)), product.astype(dtype))


@BOTH
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS + COMPLEX)
def test_types(two_jax_ranks: Any, dtype: str, compiled: bool) -> None:
    two_jax_ranks.run(check_allreduce, dtype=dtype, compiled=compiled)


@BOTH
def test_allreduce(jax_ranks: Any, compiled: bool) -> None:
    jax_ranks.run(check_allreduce, dtype="float32", compiled=compiled)


def check_others(dtype: str, compiled: bool) -> None:
    """Scalars, empty arrays, odd sizes, and arrays that XLA has stored transposed."""
    r, n = hvd.rank(), hvd.size()
    run = way(compiled)
    last = n - 1

    def of(rank: int, rows: int, columns: int = 3) -> Any:
        return (jnp.arange(rows * columns).reshape(rows, columns) % 2 + (rank == 1)).astype(dtype)

    for rows, columns in ((2, 3), (5, 1), (1, 0), (7, 1001)):
        x = of(r, rows, columns)
        same(run(hvd.allgather)(x), np.concatenate([np.asarray(of(q, rows, columns)) for q in range(n)]))
        same(run(lambda x: hvd.broadcast(x, last))(x), of(last, rows, columns))
        same(run(lambda x: hvd.broadcast(x.T, last))(x), of(last, rows, columns).T)
        if dtype != "bool":
            total = sum(np.asarray(of(q, rows, columns)) for q in range(n)).astype(dtype)  # type: ignore[attr-defined]
            shares = np.array_split(total, n)
            same(run(lambda x: hvd.reducescatter(x, op=hvd.Sum))(x), shares[r])
        many = jnp.concatenate([x] * n)
        same(run(hvd.alltoall)(many), np.concatenate([np.asarray(of(q, rows, columns)) for q in range(n)]))
    same(run(hvd.broadcast)(of(r, 1, 1)[0, 0]), of(0, 1, 1)[0, 0])


@BOTH
@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "complex64"])
def test_others_of_types(two_jax_ranks: Any, dtype: str, compiled: bool) -> None:
    two_jax_ranks.run(check_others, dtype=dtype, compiled=compiled)


@BOTH
def test_others(jax_ranks: Any, compiled: bool) -> None:
    jax_ranks.run(check_others, dtype="float64", compiled=compiled)


def check_other_lengths() -> None:
    """At once, ranks may have other numbers of rows."""
    r, n = hvd.rank(), hvd.size()
    same(hvd.allgather(jnp.full(r + 1, r)), np.repeat(np.arange(n), np.arange(n) + 1))
    splits = [q + 1 for q in range(n)]
    rows, received = hvd.alltoall(jnp.full(sum(splits), r), splits)
    same(rows, np.repeat(np.arange(n), r + 1))
    same(received, np.full(n, r + 1, np.int32))


def test_other_lengths(jax_ranks: Any) -> None:
    jax_ranks.run(check_other_lengths)


def check_trees(compiled: bool) -> None:
    """Structures stay, lists of numbers and NumPy's arrays are trees, too, and all leaves travel as one operation."""
    r, n = hvd.rank(), hvd.size()
    run = way(compiled)
    tree = {"a": jnp.full(3, r, jnp.bfloat16), "b": [np.full((2, 2), r, np.int32), (jnp.float64(r), None)]}
    top = run(lambda t: hvd.allreduce(t, op=hvd.Max))(tree)
    assert jax.tree.structure(top) == jax.tree.structure(tree)
    same(top["a"], np.asarray(jnp.full(3, n - 1, jnp.bfloat16)))
    same(top["b"][0], np.full((2, 2), n - 1, np.int32))
    same(top["b"][1][0], np.float64(n - 1))
    first = run(lambda t: hvd.broadcast(t, 0, name="weights"))(tree)
    same(first["b"][0], np.zeros((2, 2), np.int32))
    same(run(hvd.allgather)([jnp.full((1, 2), r)])[0], np.repeat(np.arange(n), 2).reshape(n, 2))
    assert run(hvd.allreduce)({}) == {} and run(hvd.allgather)([]) == [] and run(hvd.broadcast)(()) == ()
    if not compiled:
        assert [float(x) for x in hvd.allreduce([1.0, 2.0])] == [1.0, 2.0]


@BOTH
def test_trees(jax_ranks: Any, compiled: bool) -> None:
    jax_ranks.run(check_trees, compiled=compiled)


def check_compression(compiled: bool) -> None:
    """What travels is rounded to the type, and the result is one of the type."""
    r, n = hvd.rank(), hvd.size()
    for compression, dtype in ((hvd.Compression.bf16, jnp.bfloat16), (hvd.Compression.fp16, jnp.float16)):
        mine = jnp.array([1.0001 + r, 3.0], jnp.float32)
        got = way(compiled)(lambda x, c=compression: hvd.allreduce(x, op=hvd.Max, compression=c))(mine)
        same(got, np.asarray(jnp.array([1.0001 + n - 1, 3.0], jnp.float32).astype(dtype).astype(jnp.float32)))


@BOTH
def test_compression(jax_ranks: Any, compiled: bool) -> None:
    jax_ranks.run(check_compression, compiled=compiled)


def check_gradients(compiled: bool) -> None:
    """Each is the sum over ranks of what a rank's loss gains from this rank's input."""
    r, n = hvd.rank(), hvd.size()
    run = way(compiled)
    x = jnp.arange(2.0 * n).reshape(n, 2) + r
    weight = jnp.arange(2.0 * n * n).reshape(n * n, 2) * (r + 1)
    weights = sum(np.asarray(weight) / (r + 1) * (q + 1) for q in range(n))

    def gradient(function: Callable[[Any], Any]) -> Any:
        return run(jax.grad(lambda x: (function(x) * weight[: function(x).shape[0]]).sum()))(x)

    same(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)), weights[:n])
    same(gradient(hvd.allgather), weights[r * n : (r + 1) * n])
    same(gradient(lambda x: hvd.broadcast(x, n - 1)), weights[:n] if r == n - 1 else np.zeros((n, 2)))
    same(gradient(hvd.alltoall), np.concatenate([np.asarray(weight / (r + 1) * (q + 1))[r : r + 1] for q in range(n)]))
    gathered = np.concatenate([np.asarray(weight / (r + 1) * (q + 1))[:1] for q in range(n)])
    same(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum)), gathered * n)


@BOTH
def test_gradients(jax_ranks: Any, compiled: bool) -> None:
    jax_ranks.run(check_gradients, compiled=compiled)


def check_odd_gradients(compiled: bool) -> None:
    """Of rows that do not divide; of trees that have integers; and by way of `jax.vjp` and `jax.checkpoint`."""
    r, n = hvd.rank(), hvd.size()
    run = way(compiled)
    rows = 2 * n + 1
    x = jnp.arange(3.0 * rows).reshape(rows, 3)
    got = run(jax.grad(lambda x: (hvd.reducescatter(x) * (r + 1)).sum()))(x)
    same(got, np.repeat([[q + 1.0] * 3 for q in range(n)], [len(s) for s in np.array_split(x, n)], axis=0))

    def mixed(x: Any) -> Any:
        found = hvd.allreduce({"x": x, "i": jnp.arange(3), "c": x * 1j}, op=hvd.Sum)
        return (found["x"] * found["i"]).sum() + found["c"].imag.sum()

    same(run(jax.grad(mixed))(jnp.ones(3)), n * (n * np.arange(3.0) + 1))
    _, back = jax.vjp(run(lambda x: hvd.allreduce(x, op=hvd.Sum)), jnp.ones(2))
    same(back(jnp.full(2, r + 1.0))[0], np.full(2, n * (n + 1) / 2))
    again = run(jax.grad(jax.checkpoint(lambda x: (hvd.allreduce(x, op=hvd.Sum) ** 2).sum())))
    same(again(jnp.ones(2)), np.full(2, 2.0 * n * n))


@BOTH
def test_odd_gradients(jax_ranks: Any, compiled: bool) -> None:
    jax_ranks.run(check_odd_gradients, compiled=compiled)


def check_control_flow() -> None:
    r, n = hvd.rank(), hvd.size()

    def body(carry: Any, x: Any) -> Any:
        return carry + hvd.allreduce(x, op=hvd.Sum), hvd.allgather(x)

    xs = jnp.stack([jnp.full(2, r + i, jnp.float32) for i in range(4)])
    last, all_of_them = jax.jit(lambda x: jax.lax.scan(body, jnp.zeros(2, jnp.float32), x))(xs)
    same(last, np.full(2, sum(q + i for q in range(n) for i in range(4)), np.float32))
    same(all_of_them, np.array([np.repeat([q + i for q in range(n)], 2) for i in range(4)], np.float32))
    gradient = jax.jit(jax.grad(lambda x: jax.lax.scan(body, jnp.zeros(2, jnp.float32), x)[0].sum()))(xs)
    same(gradient, np.full((4, 2), n, np.float32))
    doubled = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda i, v: hvd.allreduce(v, op=hvd.Sum), x))
    same(doubled(jnp.ones(2)), np.full(2, float(n**5)))
    grown = jax.jit(lambda x: jax.lax.while_loop(lambda v: v.sum() < 50, lambda v: hvd.allreduce(v + 1, op=hvd.Sum), x))
    value = 1.0
    while 2 * value < 50:
        value = (value + 1) * n
    same(grown(jnp.ones(2)), np.full(2, value))
    chosen = jax.jit(lambda x: jax.lax.cond(x.sum() > 0, lambda x: hvd.allreduce(x, op=hvd.Sum), lambda x: x * 0, x))
    same(chosen(jnp.ones(2)), np.full(2, float(n)))
    same(chosen(-jnp.ones(2)), np.zeros(2))


def test_control_flow(jax_ranks: Any) -> None:
    jax_ranks.run(check_control_flow)


def check_order() -> None:
    """Calls that do not need each other's results, in programs that run while the next ones are called, between calls
    at once: each rank is late in another place.
    """
    r, n = hvd.rank(), hvd.size()

    @jax.jit
    def program(x: Any) -> Any:
        parts = [jnp.sin(x[: i + 1]) ** 2 + jnp.cos(x[: i + 1]) ** 2 for i in range(12)]
        results = [hvd.allreduce(part, op=hvd.Sum) for part in parts]
        return sum(result.sum() for result in results), hvd.allgather(x[:1])

    other = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Max))
    for step in range(30):
        if step % n == r:
            time.sleep(0.002)
        total, _ = program(jnp.full(12, float(step)))
        top = other(jnp.full(3, r))
        same(hvd.allreduce(jnp.full(2, r), op=hvd.Min), np.zeros(2, np.int64))
        same(top, np.full(3, n - 1))
        assert abs(float(total) - 78 * n) < 1e-6


def test_order(several_jax_ranks: Any) -> None:
    several_jax_ranks.run(check_order)


def check_constants() -> None:
    """An array from around a function is reduced when the program runs, not while it is traced."""
    r, n = hvd.rank(), hvd.size()
    constant = jnp.full(2, float(r))
    add = jax.jit(lambda x: x + hvd.allreduce(constant, op=hvd.Sum))
    text = str(jax.make_jaxpr(lambda x: x + hvd.allreduce(constant))(jnp.zeros(2)))
    assert "hvd_collective" in text
    for _ in range(2):
        same(add(jnp.zeros(2)), np.full(2, n * (n - 1) / 2))
    never = jax.jit(lambda x: jax.lax.cond(x[0] > 1, lambda: hvd.allreduce(constant), lambda: constant * 0))
    same(never(jnp.zeros(2)), np.zeros(2))
    gradient = jax.grad(lambda x: (x * hvd.allreduce(constant, op=hvd.Sum)).sum())
    same(gradient(jnp.zeros(2)), np.full(2, n * (n - 1) / 2))


def test_constants(jax_ranks: Any) -> None:
    jax_ranks.run(check_constants)


def check_second_derivatives(compiled: bool) -> None:
    n = hvd.size()

    def slope(y: Any) -> Any:
        return jax.grad(lambda x: (hvd.allreduce(x, op=hvd.Sum) ** 3).sum())(y).sum()

    same(way(compiled)(jax.grad(slope))(jnp.ones(2)), np.full(2, 6.0 * n**3))


@BOTH
def test_second_derivatives(jax_ranks: Any, compiled: bool) -> None:
    jax_ranks.run(check_second_derivatives, compiled=compiled)


def check_gradients_of_both_kinds() -> None:
    """A call at once whose gradient would be compiled is refused, because ranks may have other numbers of rows."""
    r, n = hvd.rank(), hvd.size()
    for call in (hvd.allgather, lambda x: hvd.alltoall(x)):
        out, back = jax.vjp(call, jnp.ones(n))
        fails(lambda back=back, out=out: jax.jit(back)(out), ValueError, f"rank {r}: the gradient of an all")
    x = jax.device_put(jnp.arange(6.0).reshape(2, 3).T)
    transposed = jax.jit(lambda x: x, out_shardings=Format(Layout((1, 0)), x.sharding))(x)
    same(hvd.allreduce(transposed, op=hvd.Max), np.asarray(x))


def test_gradients_of_both_kinds(several_jax_ranks: Any) -> None:
    several_jax_ranks.run(check_gradients_of_both_kinds)


def check_process_sets() -> None:
    r, n = hvd.rank(), hvd.size()
    pair = hvd.add_process_set([0, n - 1])
    if r in (0, n - 1):
        place = 0 if r == 0 else 1
        same(jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=pair))(jnp.full(2, r)), np.full(2, n - 1))
        same(jax.jit(lambda x: hvd.allgather(x, process_set=pair))(jnp.full(1, r)), np.array([0, n - 1]))
        same(jax.jit(lambda x: hvd.broadcast(x, n - 1, process_set=pair))(jnp.full(1, r)), np.array([n - 1]))
        got = jax.jit(lambda x: hvd.reducescatter(x, op=hvd.Sum, process_set=pair))(jnp.arange(3))
        same(got, (np.arange(3) * 2)[2 * place : 2 * place + 2])
        with pytest.raises(ValueError, match="hvd: broadcast from rank 5, which is not one of the ranks"):
            jax.jit(lambda x: hvd.broadcast(x, 5, process_set=pair))(jnp.ones(1))
    else:
        with pytest.raises(ValueError):
            hvd.allreduce(jnp.ones(1), process_set=pair)
    hvd.remove_process_set(pair)


def test_process_sets(three_jax_ranks: Any) -> None:
    three_jax_ranks.run(check_process_sets)


def fails(function: Callable[[], Any], kind: type[Exception], text: str) -> None:
    """With this error; afterwards the job works, at once and in programs."""
    with pytest.raises(kind, match=text):
        jax.block_until_ready(function())
    same(hvd.allreduce(jnp.ones(2), op=hvd.Sum), np.full(2, float(hvd.size())))
    same(jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(jnp.ones(2)), np.full(2, float(hvd.size())))


def check_errors() -> None:
    r, n = hvd.rank(), hvd.size()
    add = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    in_program = jax.errors.JaxRuntimeError
    shapes = r"do not agree: shape \[3\] on rank 0, \[4\] on rank 1"
    fails(lambda: add(jnp.ones(3 if r == 0 else 4)), in_program, shapes)
    fails(lambda: hvd.allreduce(jnp.ones(3 if r == 0 else 4)), hvd.HorovodInternalError, shapes)
    types = "do not agree: element type float32 on rank 0, int32 on rank 1"
    fails(lambda: add(jnp.ones(3, jnp.float32 if r == 0 else jnp.int32)), in_program, types)
    # Without names, ranks that make different calls do not wait for each other.
    other = jax.jit(lambda x: hvd.allgather(x))
    fails(lambda: (add if r == 0 else other)(jnp.ones(2)), in_program, "do not agree: operation allreduce on rank 0")
    rows = r"do not agree: shape \[1\] on rank 0, \[2\] on rank 1"
    fails(lambda: other(jnp.ones(r + 1)), in_program, rows)
    rows = rf"do not agree: shape \[{n}\] on rank 0, \[{2 * n}\] on rank 1"
    fails(lambda: jax.jit(hvd.alltoall)(jnp.ones(n * (r + 1))), in_program, rows)
    fails(lambda: jax.jit(hvd.alltoall)(jnp.ones(n + 1)), ValueError, f"rank {r}: alltoall with the shape")
    fails(lambda: jax.jit(lambda x: hvd.alltoall(x, [1] * n))(jnp.ones(n)), ValueError, "alltoall with splits")
    for call in (hvd.allgather, hvd.reducescatter):
        fails(lambda call=call: jax.jit(call)(jnp.float32(1)), ValueError, "of a scalar.*; reshape it to one element")
        fails(lambda call=call: call(jnp.float32(1)), ValueError, "is a scalar.*; reshape it to one element")
    fails(lambda: jax.jit(lambda x: hvd.reducescatter(x, op=hvd.Max))(jnp.ones(2)), hvd.HorovodInternalError, "op=Max")
    fails(lambda: jax.vmap(hvd.allreduce)(jnp.ones((2, 2))), NotImplementedError, "hvd: jax.vmap cannot")
    fails(lambda: jax.jvp(jax.jit(hvd.allreduce), (jnp.ones(2),), (jnp.ones(2),)), TypeError, "custom_vjp")
    fails(lambda: hvd.allreduce(jax.random.key(0)), ValueError, "pass jax.random.key_data")
    fails(lambda: hvd.allreduce(jnp.ones(2, jnp.float8_e4m3fn)), ValueError, "type float8_e4m3fn cannot be sent")
    fails(lambda: jax.jit(hvd.allreduce)(jnp.ones(2, jnp.int4)), ValueError, "type int4 cannot be sent")
    fails(lambda: hvd.allreduce("a"), (TypeError, ValueError), "")  # type: ignore[arg-type]
    fails(lambda: hvd.DistributedOptimizer(7), ValueError, "allowed: an optimizer of Optax")


def test_errors(several_jax_ranks: Any) -> None:
    several_jax_ranks.run(check_errors)


@jax.jit
def late(x: Any) -> Any:
    """A program that is still under way when the call returns."""
    y = jnp.ones((300, 300)) * x[0]
    for _ in range(20):
        y = y @ y / 300
    return hvd.allreduce(x + 0 * y[0, 0], op=hvd.Sum)


def check_late_errors() -> None:
    """After an error in a program that ran behind, `synchronize` raises it, and then programs work."""
    r, n = hvd.rank(), hvd.size()
    shapes = r"do not agree: shape \[3\] on rank 0, \[4\] on rank 1"
    for _ in range(2):
        result = late(jnp.ones(3 if r == 0 else 4))
        with pytest.raises(hvd.HorovodInternalError, match=shapes) as seen:
            hvd.synchronize()
        assert seen.value.kind == "mismatch"
        with pytest.raises(jax.errors.JaxRuntimeError, match=shapes):
            result.block_until_ready()
        same(late(jnp.ones(2)), np.full(2, float(n)))
        hvd.synchronize()
    late(jnp.ones(3 if r == 0 else 4))
    hvd.shutdown()
    hvd.init()
    same(late(jnp.ones(2)), np.full(2, float(n)))


def test_late_errors(several_jax_ranks: Any) -> None:
    several_jax_ranks.run(check_late_errors)


def check_join() -> int:
    """A program that is still under way is not left behind."""
    results = [late(jnp.ones(2)) for _ in range(1 + hvd.rank())]
    last = hvd.join()
    same(results[0], np.full(2, float(hvd.size())))
    same(results[-1], np.full(2, float(hvd.size() - hvd.rank())))
    return last


def test_join(several_jax_ranks: Any) -> None:
    found = several_jax_ranks.run(check_join)
    assert found == [len(found) - 1] * len(found)


EXIT = """
import jax, jax.numpy as jnp, os, sys
import hvd.jax as hvd
hvd.init()
late = jax.jit(lambda x: hvd.allreduce(x + 0 * (jnp.ones((300, 300)) @ jnp.ones((300, 300)))[0, 0], op=hvd.Sum))
result = late(jnp.ones(2))
result = late(result)
if hvd.rank() == 0:
    os.write(1, f"{result.tolist()}\\n".encode())
"""


def test_the_end_of_a_process(tmp_path: Any) -> None:
    """Python's end waits for programs under way, on which another rank waits."""
    (tmp_path / "train.py").write_text(EXIT)
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0]<stdout>: [4.0, 4.0]\n", "")


def check_another_rank() -> None:
    """After a shutdown, JAX compiles programs again, for the ranks of the next job."""
    gradient = jax.jit(jax.grad(lambda x: hvd.broadcast(x, 0).sum()))
    x = jnp.ones(2)
    same(gradient(x), np.full(2, float(hvd.size()) if hvd.rank() == 0 else 0.0))
    was = hvd.rank()
    hvd.shutdown()
    hvd.init([was])
    same(gradient(x), np.ones(2))
    same(jax.jit(hvd.allgather)(x), np.ones(2))
    hvd.shutdown()
    hvd.init()


def test_another_rank(several_jax_ranks: Any) -> None:
    several_jax_ranks.run(check_another_rank)


def check_shutdown() -> None:
    """A program of an earlier job works in the next one, and says what it needs without one."""
    add = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    waited = add(jnp.ones(4 << 20))
    hvd.shutdown()
    same(waited[:1], np.full(1, float(_size())))
    with pytest.raises(jax.errors.JaxRuntimeError, match="has not been initialized"):
        add(jnp.ones(4 << 20)).block_until_ready()
    with pytest.raises(ValueError, match="has not been initialized"):
        jax.jit(hvd.allgather)(jnp.ones(2))
    hvd.init()
    same(add(jnp.ones(4 << 20))[:1], np.full(1, float(hvd.size())))


def _size() -> int:
    return int(os.environ["HOROVOD_SIZE"])


def test_shutdown(several_jax_ranks: Any) -> None:
    several_jax_ranks.run(check_shutdown)


def check_a_lost_rank() -> str:
    add = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    add(jnp.ones(2)).block_until_ready()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(jax.errors.JaxRuntimeError) as seen:
        add(jnp.ones(2)).block_until_ready()
    return str(seen.value)


def test_a_lost_rank() -> None:
    job = Job(3)
    said = job.run(check_a_lost_rank, dead=[1])
    assert job.stop() == [0, -signal.SIGKILL, 0]
    for rank in (0, 2):
        assert "rank 1 has exited or was killed" in said[rank], said


def check_training() -> None:
    """A step of n ranks is a step of one with the whole batch."""
    optax = pytest.importorskip("optax", reason="SKIP: Optax is not installed")
    r, n = hvd.rank(), hvd.size()
    inputs = jnp.sin(jnp.arange(6.0 * 4 * n)).reshape(4 * n, 6)
    targets = jnp.cos(jnp.arange(4.0 * n))

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return ((jnp.tanh(x @ weights["w"]) @ weights["v"] - y) ** 2).mean()

    def train(optimizer: Any, x: Any, y: Any, weights: Any) -> Any:
        @jax.jit
        def step(weights: Any, state: Any) -> Any:
            changes, state = optimizer.update(jax.grad(loss)(weights, x, y), state, weights)
            return optax.apply_updates(weights, changes), state

        state = optimizer.init(weights)
        for _ in range(10):
            weights, state = step(weights, state)
        return weights

    start = {"w": jnp.sin(jnp.arange(12.0) + 1).reshape(6, 2), "v": jnp.ones(2)}
    whole = train(optax.adam(0.1), inputs, targets, start)
    mine = {key: value + r for key, value in start.items()}
    part = slice(4 * r, 4 * r + 4)
    weights = hvd.broadcast(mine, 0)
    parts = train(hvd.DistributedOptimizer(optax.adam(0.1)), inputs[part], targets[part], weights)
    for key, value in whole.items():
        np.testing.assert_allclose(parts[key], value, rtol=1e-9)
        gathered = hvd.allgather(parts[key][None])
        assert (np.asarray(gathered) == np.asarray(gathered[:1])).all()  # the same bits on all ranks


def test_training(jax_ranks: Any) -> None:
    jax_ranks.run(check_training)
