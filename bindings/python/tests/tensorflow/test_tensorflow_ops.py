"""The collectives on TensorFlow's tensors, eager and in tf.function, and their gradients, with exact values."""

from __future__ import annotations

import functools
from typing import Any, Callable

import pytest

pytest.importorskip("tensorflow.data")  # a part: this folder has the name of the package

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import hvd.tensorflow as hvd  # noqa: E402

NUMBERS = [
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128",
]
MOVED = [*NUMBERS, "bool"]
MODES = ["eager", "graph"]
IN_GRAPHS = {"bfloat16", "float32", "int64", "bool"}  # making graphs takes long, and types are handled alike there


def types_and_modes(names: list[str]) -> list[tuple[str, str]]:
    return [(name, "eager") for name in names] + [(name, "graph") for name in names if name in IN_GRAPHS]


def run(mode: str, function: Callable[..., Any], *tensors: Any) -> Any:
    """Calls the function as it is or, with open first dimensions, as a graph."""
    if mode == "eager":
        return function(*tensors)
    open_shapes = [tf.TensorSpec([None, *t.shape[1:]] if t.shape.rank else [], t.dtype) for t in tensors]
    return tf.function(function, input_signature=open_shapes)(*tensors)


def same(result: Any, expected: Any) -> None:
    expected = tf.convert_to_tensor(expected)
    assert tf.is_tensor(result) and result.dtype == expected.dtype, (result, expected)
    np.testing.assert_array_equal(result.numpy(), expected.numpy())
    assert result.shape == expected.shape, (result, expected)


def check_allreduce(name: str, mode: str) -> None:
    r, n = hvd.rank(), hvd.size()
    dtype = tf.dtypes.as_dtype(name)
    base = tf.reshape(tf.range(6), (2, 3))
    mine = tf.cast(base + r, dtype)
    total = tf.cast(n * base + sum(range(n)), dtype)
    same(run(mode, lambda x: hvd.allreduce(x, op=hvd.Sum), mine), total)
    same(run(mode, lambda x: hvd.allreduce(x, average=False), mine), total)
    if not dtype.is_complex:
        same(run(mode, lambda x: hvd.allreduce(x, op=hvd.Min), mine), tf.cast(base, dtype))
        same(run(mode, lambda x: hvd.allreduce(x, op=hvd.Max), mine), tf.cast(base + n - 1, dtype))
    if dtype.is_floating:
        same(run(mode, lambda x: hvd.allreduce(x), mine), tf.cast(tf.cast(total, tf.float64) / n, dtype))
        doubled = run(
            mode, lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), mine
        )
        same(doubled, total * 2)
    first, second = run(mode, lambda x: hvd.grouped_allreduce([x, x[0]], op=hvd.Sum), mine)
    same(first, total)
    same(second, total[0])
    same(run(mode, lambda x: hvd.allreduce(x, op=hvd.Sum), mine[1, 2]), total[1, 2])
    same(run(mode, lambda x: hvd.allreduce(x, op=hvd.Sum), mine[:0]), total[:0])


@pytest.mark.parametrize(("name", "mode"), types_and_modes(NUMBERS))
def test_allreduce(ranks: Any, name: str, mode: str) -> None:
    ranks.run(check_allreduce, name=name, mode=mode)


def check_moves(name: str, mode: str) -> None:
    r, n = hvd.rank(), hvd.size()
    dtype = tf.dtypes.as_dtype(name)

    def full(shape: Any, value: int) -> Any:
        return tf.cast(tf.fill(shape, value), dtype)

    rows = [full((q + 1, 2), q % 2) for q in range(n)]
    same(run(mode, lambda x: hvd.allgather(x), rows[r]), tf.concat(rows, 0))
    first, second = run(mode, lambda x: hvd.grouped_allgather([x, x[:1]]), rows[r])
    same(first, tf.concat(rows, 0))
    same(second, tf.concat([x[:1] for x in rows], 0))
    same(run(mode, lambda x: hvd.allgather(x[:0]), rows[r]), rows[0][:0])
    for root in range(n):
        same(run(mode, lambda x: hvd.broadcast(x, root), rows[r][:1]), rows[root][:1])  # noqa: B023
    even = tf.cast(tf.repeat(tf.range(n) % 2, 2), dtype)
    same(run(mode, lambda x: hvd.alltoall(x), even), full((2 * n,), r % 2))
    many = full((n * (n + 1) // 2,), r % 2)
    output, received = run(mode, lambda x, s: hvd.alltoall(x, s), many, tf.range(1, n + 1))
    same(output, tf.cast(tf.repeat(tf.range(n) % 2, r + 1), dtype))
    same(received, tf.fill((n,), r + 1))
    output, received = run(mode, lambda x: hvd.alltoall(x, list(range(1, n + 1))), many)
    same(output, tf.cast(tf.repeat(tf.range(n) % 2, r + 1), dtype))


@pytest.mark.parametrize(("name", "mode"), types_and_modes(MOVED))
def test_moves(ranks: Any, name: str, mode: str) -> None:
    ranks.run(check_moves, name=name, mode=mode)


def check_reducescatter(mode: str) -> None:
    r, n = hvd.rank(), hvd.size()
    for rows in (n, 2 * n + 1):
        mine = tf.reshape(tf.range(rows * 2, dtype=tf.float32), (rows, 2)) * (r + 1)
        total = tf.reshape(tf.range(rows * 2, dtype=tf.float32), (rows, 2)) * (n * (n + 1) / 2)
        counts = [rows // n + (q < rows % n) for q in range(n)]
        part = total[sum(counts[:r]) : sum(counts[: r + 1])]
        same(run(mode, lambda x: hvd.reducescatter(x, op=hvd.Sum), mine), part)
        same(run(mode, lambda x: hvd.reducescatter(x, op=hvd.Sum, compression=hvd.Compression.fp16), mine), part)
        two = run(mode, lambda x: hvd.grouped_reducescatter([x, 2 * x], op=hvd.Sum), mine)
        same(two[0], part)
        same(two[1], 2 * part)
    try:
        hvd.reducescatter(tf.ones((n, 2)), op=hvd.Adasum)
    except RuntimeError:
        pass
    else:
        raise AssertionError("Adasum")


@pytest.mark.parametrize("mode", MODES)
def test_reducescatter(ranks: Any, mode: str) -> None:
    ranks.run(check_reducescatter, mode=mode)


def gradient(mode: str, function: Callable[[Any], Any], x: Any, above: Any) -> Any:
    """The gradient of ``sum(function(x) * above)`` with respect to x."""

    def of(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = tf.reduce_sum(function(x) * above)
        return tape.gradient(result, x)

    return run(mode, of, x)


def check_gradients(mode: str) -> None:
    r, n = hvd.rank(), hvd.size()
    ones = sum(range(1, n + 1))
    x = tf.constant([1.0, 2.0, 4.0]) * (r + 1)
    above = tf.constant(float(r + 1))
    same(gradient(mode, lambda x: hvd.allreduce(x, op=hvd.Sum), x, above), tf.fill([3], float(ones)))
    same(gradient(mode, lambda x: hvd.allreduce(x), x, n * above), tf.fill([3], float(ones)))
    scaled = gradient(mode, lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0), x, above)
    same(scaled, tf.fill([3], 2.0 * ones))
    same(
        gradient(mode, lambda x: tf.add_n(hvd.grouped_allreduce([x, 3 * x], op=hvd.Sum)), x, above),
        tf.fill([3], 4.0 * ones),
    )
    twice = gradient(mode, lambda x: hvd.allreduce(hvd.allreduce(x, op=hvd.Sum), op=hvd.Sum), x, above)
    same(twice, n * tf.fill([3], float(ones)))
    # Of gathered rows each rank gets the sum of what all ranks have for its own.
    rows = tf.ones((r + 1, 2))
    same(gradient(mode, lambda x: hvd.allgather(x), rows, above), tf.fill((r + 1, 2), float(ones)))
    first = gradient(mode, lambda x: hvd.grouped_allgather([x[:1], x])[1], rows, above)
    same(first, tf.fill((r + 1, 2), float(ones)))
    root = gradient(mode, lambda x: hvd.broadcast(x, n - 1), x, above)
    same(root, tf.fill([3], float(ones if r == n - 1 else 0)))
    # Rows go back to where they came from; one more went nowhere.
    sent = tf.ones(2 * n + 1)
    back = gradient(mode, lambda x: hvd.alltoall(x, [2] * n)[0], sent, above)
    same(back, tf.concat([tf.repeat(tf.range(1.0, n + 1), 2), [0.0]], 0))
    whole = tf.ones((n, 2))
    gathered = tf.repeat(tf.range(1.0, n + 1)[:, None], 2, axis=1)
    same(gradient(mode, lambda x: hvd.reducescatter(x), whole, above), gathered)
    same(gradient(mode, lambda x: hvd.reducescatter(x, op=hvd.Sum), whole, above), n * gathered)


@pytest.mark.parametrize("mode", MODES)
def test_gradients(ranks: Any, mode: str) -> None:
    ranks.run(check_gradients, mode=mode)


def check_results_are_new() -> None:
    """Neither an input nor what TensorFlow lets share its memory changes."""
    n = hvd.size()
    x = tf.constant([1.0, 2.0])
    alias = tf.reshape(x, (2, 1))
    result = hvd.allreduce(x, op=hvd.Sum)
    same(x, [1.0, 2.0])
    same(alias, [[1.0], [2.0]])
    same(result, [1.0 * n, 2.0 * n])
    variable = tf.Variable(x)
    same(hvd.allreduce(variable, op=hvd.Sum), [1.0 * n, 2.0 * n])
    same(variable.read_value(), [1.0, 2.0])
    kept = [hvd.allreduce(tf.fill([1000], float(i)), op=hvd.Sum) for i in range(50)]
    later = [tf.reduce_sum(k + 1) for k in kept]  # reads the memory, aligned as TensorFlow asserts
    assert [float(v) for v in later] == [1000.0 * (i * n + 1) for i in range(50)]
    # Memory of large results is used again when the last tensor over it is gone, and not before.
    held: dict[int, Any] = {}
    for i in range(60):
        held[i] = tf.reshape(hvd.allreduce(tf.fill([30_000 + 20_000 * (i % 3)], float(i)), op=hvd.Sum), [-1, 2])
        if i % 4 == 3:
            del held[i - 2]
    for i, tensor in held.items():
        assert tensor.shape[0] == 15_000 + 10_000 * (i % 3)
        same(tf.reduce_min(tensor), float(i * n))
        same(tf.reduce_max(tensor), float(i * n))
    for length in range(1, 40):
        same(hvd.allreduce(tf.ones(length), op=hvd.Sum) + 1, tf.fill([length], n + 1.0))


def test_results_are_new(ranks: Any) -> None:
    ranks.run(check_results_are_new)


def check_sparse(mode: str) -> None:
    r, n = hvd.rank(), hvd.size()

    def reduced(values: Any, indices: Any, op: Any) -> Any:
        result = hvd.allreduce(tf.IndexedSlices(values, indices, (7, 2)), op=op)
        assert isinstance(result, tf.IndexedSlices)
        return tf.convert_to_tensor(result)

    values, indices = tf.ones((r + 1, 2)), tf.range(r + 1)
    dense = np.zeros((7, 2), np.float32)
    for q in range(n):
        dense[: q + 1] += 1
    same(run(mode, lambda v, i: reduced(v, i, hvd.Sum), values, indices), dense)
    whole = run(mode, lambda v, i: reduced(v, i, hvd.Average), 6 * tf.ones((1, 2), tf.int32), tf.zeros(1, tf.int32))
    assert whole.dtype == tf.int32 and whole.numpy()[0].tolist() == [6 // n * n] * 2
    average = run(mode, lambda v, i: reduced(v, i, hvd.Average), values, indices)
    np.testing.assert_allclose(np.asarray(average), dense / n, rtol=1e-6)
    try:
        reduced(values, indices, hvd.Max)
    except ValueError as e:
        assert "IndexedSlices with op=Max" in str(e)
    else:
        raise AssertionError("Max of slices")


@pytest.mark.parametrize("mode", MODES)
def test_sparse(ranks: Any, mode: str) -> None:
    ranks.run(check_sparse, mode=mode)


def check_numbers_of_ranks() -> None:
    @tf.function
    def numbers() -> Any:
        return [hvd.size_op(), hvd.rank_op(), hvd.local_size_op(), hvd.local_rank_op(), hvd.process_set_included_op()]

    n, r = hvd.size(), hvd.rank()
    assert [int(v) for v in numbers()] == [n, r, n, r, 1]
    assert int(hvd.size_op()) == n
    if n > 1:
        part = hvd.add_process_set([0])
        assert int(hvd.size_op(part.process_set_id)) == 1
        assert int(hvd.process_set_included_op(part.process_set_id)) == int(r == 0)
        if r == 0:
            same(hvd.allreduce(tf.constant([3.0]), process_set=part), [3.0])
            same(tf.function(lambda x: hvd.allgather(x, process_set=part))(tf.constant([3.0])), [3.0])
        assert hvd.remove_process_set(part)


def test_numbers_of_ranks(ranks: Any) -> None:
    ranks.run(check_numbers_of_ranks)


def check_compression(mode: str) -> None:
    r, n = hvd.rank(), hvd.size()
    x = tf.constant([1.0, 1.0 + 2**-9, 3.0]) * (r + 1)
    for compression, exact in ((hvd.Compression.fp16, True), (hvd.Compression.bf16, False)):
        for dtype in (tf.float32, tf.float64):
            reduced = functools.partial(hvd.allreduce, op=hvd.Sum, compression=compression)
            result = run(mode, reduced, tf.cast(x, dtype))
            assert result.dtype == dtype
            expected = np.array([1, 1 + 2**-9 if exact else 1, 3]) * (n * (n + 1) / 2)
            np.testing.assert_allclose(np.asarray(result), expected, rtol=2**-9 if exact else 2**-7)
    reduced = functools.partial(hvd.allreduce, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert run(mode, reduced, tf.range(3)).dtype == tf.int32


@pytest.mark.parametrize("mode", MODES)
def test_compression(ranks: Any, mode: str) -> None:
    ranks.run(check_compression, mode=mode)


def check_join() -> None:
    r, n = hvd.rank(), hvd.size()
    for step in range(r + 1):
        same(hvd.allreduce(tf.ones(3), op=hvd.Sum, name=f"step{step}"), tf.fill([3], float(n - step)))
    assert hvd.join() == n - 1
    hvd.barrier()


def test_join(ranks: Any) -> None:
    ranks.run(check_join)


def check_objects() -> None:
    r, n = hvd.rank(), hvd.size()
    assert hvd.broadcast_object({"from": r}, n - 1) == {"from": n - 1}
    assert hvd.broadcast_object_fn(0)([r]) == [0]
    assert hvd.allgather_object(r * "x") == [q * "x" for q in range(n)]


def test_objects(ranks: Any) -> None:
    ranks.run(check_objects)


def check_variables() -> None:
    """Variables that share memory before, as TensorFlow lets those that were made from one tensor, get their own."""
    r, n = hvd.rank(), hvd.size()
    value = tf.constant([1.0, 2.0])
    first, second, number = tf.Variable(value), tf.Variable(value), tf.Variable(r, dtype=tf.int64)
    if r == n - 1:
        first.assign([5.0, 6.0])
    hvd.broadcast_variables([first, second, number], n - 1)
    same(first.read_value(), [5.0, 6.0])
    same(second.read_value(), [1.0, 2.0])
    same(value, [1.0, 2.0])
    same(number.read_value(), tf.constant(n - 1, tf.int64))
    first.assign_add([1.0, 1.0])
    same(first.read_value(), [6.0, 7.0])
    hvd.broadcast_variables([], 0)
    number.assign(r)

    @tf.function
    def in_graph() -> None:
        hvd.broadcast_variables([number], 0)

    in_graph()
    same(number.read_value(), tf.constant(0, tf.int64))
    number.assign(r)
    assert hvd.broadcast_([number], 0)[0] is number
    same(number.read_value(), tf.constant(0, tf.int64))
    try:
        hvd.broadcast_global_variables(0)
    except RuntimeError as e:
        assert "eager" in str(e)
    else:
        raise AssertionError("eager")


def test_variables(ranks: Any) -> None:
    ranks.run(check_variables)


def check_different_variables(mode: str) -> None:
    """Ranks that do not broadcast the same all get an error, and the job goes on."""
    r, n = hvd.rank(), hvd.size()
    last = r == n - 1
    one, two, number = tf.Variable([1.0 * r]), tf.Variable([1.0, 2.0]), tf.Variable([r])
    for mine, root, text in (
        ([one, two] if last else [one], 0, f"1 variables on rank 0 and 2 on rank {n - 1}"),
        ([] if last else [one], 0, f"1 variables on rank 0 and 0 on rank {n - 1}"),
        ([one, two if last else one], 0, f"variable 1 is float32 (1,) on rank 0 and float32 (2,) on rank {n - 1}"),
        ([number if last else one], 0, f"variable 0 is float32 (1,) on rank 0 and int32 (1,) on rank {n - 1}"),
        ([one], n - 1 if last else 0, f"root_rank=0 on rank 0 and root_rank={n - 1} on rank {n - 1}"),
    ):
        for broadcast in (hvd.broadcast_variables, hvd.broadcast_):
            try:
                run(mode, lambda: [broadcast(mine, root), None][1])  # noqa: B023
            except hvd.HorovodInternalError as e:
                assert e.kind == "mismatch" and text in str(e), e
            else:
                raise AssertionError(text)
        run(mode, lambda: [hvd.broadcast_variables([one], n - 1), None][1])
        same(one.read_value(), [n - 1.0])
        one.assign([1.0 * r])


@pytest.mark.parametrize("mode", MODES)
def test_different_variables(several_ranks: Any, mode: str) -> None:
    several_ranks.run(check_different_variables, mode=mode)


def check_another_size() -> None:
    """A function that was traced in a job of n ranks is right in one of 1 rank, and in one of n again."""
    r, n = hvd.rank(), hvd.size()

    def gradient_of(function: Callable[[Any], Any]) -> Any:
        return tf.function(lambda x: gradient("eager", function, x, tf.constant(1.0)), autograph=False)

    functions = [
        tf.function(hvd.allreduce),
        tf.function(lambda x: tf.convert_to_tensor(hvd.allreduce(tf.IndexedSlices(x, tf.constant([1, 0]), (2, 1))))),
        gradient_of(hvd.allgather), gradient_of(lambda x: hvd.broadcast(x, 0)),
        gradient_of(lambda x: hvd.reducescatter(x, op=hvd.Sum)),
    ]
    received = tf.function(lambda x, s: hvd.alltoall(x, s)[1])

    def check(rank: int, size: int) -> None:
        x = tf.constant([[1.0], [2.0]])
        of_broadcast = size if rank == 0 else 0
        expected = [[[1.0], [2.0]], [[2.0], [1.0]], *([[k], [k]] for k in (size, of_broadcast, size))]
        for function, value in zip(functions, expected):
            np.testing.assert_array_equal(function(x).numpy(), value)
        same(received(tf.ones(size), tf.ones(size, tf.int32)), tf.ones(size, tf.int32))

    check(r, n)
    hvd.shutdown()
    hvd.init([r])
    assert hvd.size() == 1
    check(0, 1)
    hvd.shutdown()
    hvd.init()
    check(r, n)


def test_another_size(several_ranks: Any) -> None:
    several_ranks.run(check_another_size)


def check_refused() -> None:
    """What no rank can send: the sentence names the remedy."""
    for text in (tf.constant(["a"]), tf.constant("a")):
        for mode in MODES:
            with pytest.raises(ValueError, match=r"type string cannot be sent; .*hvd.broadcast_object, hvd.allgather"):
                run(mode, hvd.allgather, text)
    for op in ("sum", "Average", 6, tf.reduce_sum, [1]):
        for function in (hvd.allreduce, hvd.reducescatter, tf.function(lambda x, op: hvd.allreduce(x, op=op))):
            with pytest.raises(ValueError, match=r"is not a reduction; allowed: hvd.Average, hvd.Sum, hvd.Adasum"):
                function(tf.ones(3), op=op)


def test_refused(ranks: Any) -> None:
    ranks.run(check_refused)
