"""hvd.keras.DistributedOptimizer against one process with all data, on both backends, and what may not be done."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("keras.layers")  # a part: this folder has the name of the package

import keras  # noqa: E402
import numpy as np  # noqa: E402

import hvd.keras as hvd  # noqa: E402
from hvd.keras.backend import BACKEND  # noqa: E402

STEPS, ROWS = 3, 4
TENSORFLOW = keras.backend.backend() == "tensorflow"
OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "AdamW": lambda: keras.optimizers.AdamW(0.01, amsgrad=True, clipnorm=0.1),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1, clipvalue=0.01),
    "Adamax": lambda: keras.optimizers.Adamax(0.01, use_ema=True, ema_overwrite_frequency=2),
    "Accumulating": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1, gradient_accumulation_steps=2),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "groups": {"groups": 2},
    "num_groups": {"num_groups": 3},
    "predivide": {"gradient_predivide_factor": 4.0, "groups": 1},
    "sum": {"op": hvd.Sum},
}


def new_model(seed: int = 3) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(units, "tanh", dtype="float64") for units in (6, 5, 2)]
    return keras.Sequential([keras.Input((4,), dtype="float64"), *layers])


def data(seed: int = 5) -> tuple[Any, Any]:
    """Of all ranks, by step and row, and of this one."""
    n = hvd.size()
    whole = np.random.default_rng(seed).standard_normal((STEPS, n, ROWS, 4))
    return whole.reshape(-1, 4), whole[:, hvd.rank()].reshape(-1, 4)


def train(model: Any, optimizer: Any, rows: Any, batch: int, how: str, factor: float = 1.0) -> None:
    def loss_of(target: Any, prediction: Any) -> Any:
        return keras.ops.mean(keras.ops.square(prediction)) * factor

    if how.startswith("fit"):
        model.compile(optimizer, loss_of, run_eagerly=how == "fit_eagerly", jit_compile=how == "fit_jit")
        model.fit(rows, rows[:, :2], batch_size=batch, shuffle=False, verbose=0)
        return
    batches = rows.reshape(-1, batch, 4)
    if TENSORFLOW:
        import tensorflow as tf

        def step(one: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(None, model(one))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        function = tf.function(step) if how == "function" else step
        for one in batches:
            function(tf.constant(one))
        return
    import torch

    for one in batches:
        model.zero_grad()
        loss_of(None, model(torch.from_numpy(one))).backward()
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in model.trainable_variables], model.trainable_variables)


def numbers(variables: Any) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]


def check_alike(variables: Any) -> None:
    for value in numbers(variables):
        everyone = hvd.allgather_object(value.tobytes())
        assert everyone == [value.tobytes()] * hvd.size(), "ranks differ"


def check_against_one_process(how: str, names: list[str], variant: str | None = None) -> None:
    whole, mine = data()
    options = VARIANTS[variant] if variant else {}
    for name in names:
        alone, model = new_model(), new_model()
        optimizer = OPTIMIZERS[name]()
        kind, reference = type(optimizer), OPTIMIZERS[name]()
        assert hvd.DistributedOptimizer(optimizer, **options) is optimizer
        assert isinstance(optimizer, kind) and type(optimizer).__name__ == kind.__name__
        train(alone, reference, whole, ROWS * hvd.size(), how, hvd.size() if variant == "sum" else 1.0)
        train(model, optimizer, mine, ROWS, how)
        for a, b in zip(numbers(model.weights), numbers(alone.weights)):
            # Keras computes losses within fit in float32, and on PyTorch gradients of kernels.
            exact = TENSORFLOW and not how.startswith("fit")
            close = {"rtol": 1e-7, "atol": 1e-10} if exact else {"rtol": 1e-4, "atol": 1e-6}
            np.testing.assert_allclose(a, b, err_msg=name, **close)
        assert int(optimizer.iterations) == int(reference.iterations) == STEPS // (1 + (name == "Accumulating"))
        # What is accumulated for the next step is of each rank's own.
        common = [v for v in optimizer.variables if "accumulator" not in v.path or name != "Accumulating"]
        check_alike([*model.weights, *common])
        moved = [np.abs(a - b).max() for a, b in zip(numbers(model.weights), numbers(new_model().weights))]
        assert min(moved) > 1e-4, f"{name} has not trained"


def test_each_optimizer_in_a_loop(keras_ranks: Any) -> None:
    keras_ranks.run(check_against_one_process, how="loop", names=list(OPTIMIZERS))


@pytest.mark.parametrize("how", ["fit", "fit_eagerly"])
def test_fit(keras_ranks: Any, how: str) -> None:
    keras_ranks.run(check_against_one_process, how=how, names=["SGD", "Accumulating"] if how == "fit" else ["Adam"])


def test_tf_function(tensorflow_ranks: Any) -> None:
    tensorflow_ranks.run(check_against_one_process, how="function", names=["Accumulating"])


def test_fit_compiled_by_xla(tensorflow_ranks: Any) -> None:
    if not BACKEND.xla_works():
        pytest.skip("SKIP: XLA cannot call hvd with this TensorFlow")
    tensorflow_ranks.run(check_against_one_process, how="fit_jit", names=["SGD"])


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_variants(several_keras_ranks: Any, variant: str) -> None:
    several_keras_ranks.run(check_against_one_process, how="loop", names=["SGD"], variant=variant)


# --- Exact values -----------------------------------------------------------------------------------------------------


def tensor(value: Any) -> Any:
    return keras.ops.convert_to_tensor(np.asarray(value, "float32"))


def variable(*values: float) -> Any:
    return keras.Variable(np.array(values, "float32"))


def apply(optimizer: Any, gradients: list[Any], variables: list[Any], graph: bool = False) -> None:
    """On any backend; with ``graph`` in a tf.function."""
    if graph and TENSORFLOW:
        import tensorflow as tf

        function = optimizer.__dict__.setdefault("_of_test", tf.function(lambda g: optimizer.apply(g, variables)))
        function([tensor(g) for g in gradients])
        return
    optimizer.apply([tensor(g) for g in gradients], variables)


def sgd(rate: float = 1.0, **options: Any) -> Any:
    return keras.optimizers.SGD(rate, **options)


def count_calls(optimizer: Any) -> list[int]:
    """How often it will have communicated: a list of one for each time."""
    calls: list[int] = []
    gradients = optimizer._hvd.gradients
    reduce = gradients.reduce

    def counted(*args: Any) -> Any:
        calls.append(1)
        return reduce(*args)

    gradients.reduce = counted
    return calls


def check_backward_passes(graph: bool) -> None:
    r, n = hvd.rank(), hvd.size()
    across = (n + 1) / 2  # the average of r + 1
    for options, own, expected in [
        ({"backward_passes_per_step": 3}, {}, 1 + 2 + 4),
        ({"backward_passes_per_step": 3, "op": hvd.Sum}, {}, n * (1 + 2 + 4)),
        ({"backward_passes_per_step": 3, "average_aggregated_gradients": True}, {}, (1 + 2 + 4) / 3),
        ({}, {"gradient_accumulation_steps": 3}, (1 + 2 + 4) / 3),
        ({"backward_passes_per_step": 3}, {"gradient_accumulation_steps": 3}, 1 + 2 + 4),
    ]:
        v = variable(0.0)
        optimizer = hvd.DistributedOptimizer(sgd(**own), **options)
        calls = count_calls(optimizer)
        for step in range(2):
            for i, factor in enumerate([1.0, 2.0, 4.0]):
                before = float(v[0])
                apply(optimizer, [[factor * (r + 1)]], [v], graph)
                assert i == 2 or float(v[0]) == before
            np.testing.assert_allclose(float(v[0]), -(step + 1) * expected * across, rtol=1e-6)
        assert int(optimizer.iterations) == 2
        if not (graph and TENSORFLOW):
            assert len(calls) == 2


@pytest.mark.parametrize("graph", [False, True])
def test_backward_passes(keras_ranks: Any, graph: bool) -> None:
    keras_ranks.run(check_backward_passes, graph=graph)


def check_compression() -> None:
    r, n = hvd.rank(), hvd.size()
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        v = variable(0.0, 0.0)
        optimizer = hvd.DistributedOptimizer(sgd(), compression=compression, op=hvd.Sum)
        apply(optimizer, [[r + 1.0, 1 + 2**-12]], [v])
        sent = n if n > 1 else 1 + 2**-12  # one rank sends nothing
        assert numbers([v])[0].tolist() == [-n * (n + 1) / 2, -sent] and str(v.dtype).endswith("float32")


def test_compression(keras_ranks: Any) -> None:
    keras_ranks.run(check_compression)


def check_missing_gradients() -> None:
    r, n = hvd.rank(), hvd.size()
    a, b = variable(0.0), variable(0.0)
    optimizer = hvd.DistributedOptimizer(sgd())
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([None, tensor([r + 1.0])], [a, b])
    assert (float(a[0]), float(b[0])) == (0, -(n + 1) / 2)
    with pytest.raises(ValueError, match="No gradients"):
        optimizer.apply([None, None], [a, b])
    optimizer.apply([tensor([1.0]), tensor([1.0])])  # those that it was built with
    assert float(a[0]) == -1
    # One tensor may be the gradient of two variables.
    c, d = variable(0.0), variable(0.0)
    one = tensor([r + 1.0])
    hvd.DistributedOptimizer(sgd(), op=hvd.Sum).apply([one, one], [c, d])
    assert (float(c[0]), float(d[0]), float(one[0])) == (-n * (n + 1) / 2, -n * (n + 1) / 2, r + 1)


def test_missing_and_shared_gradients(keras_ranks: Any) -> None:
    keras_ranks.run(check_missing_gradients)


def check_embedding(dense: bool) -> None:
    r, n = hvd.rank(), hvd.size()

    def model_of() -> Any:
        keras.utils.set_random_seed(7)
        layers = [keras.layers.Embedding(20, 2), keras.layers.Flatten()]
        return keras.Sequential([keras.Input((3,), dtype="int32"), *layers])

    rows = np.random.default_rng(2).integers(0, 20, (2, n, 4, 3)).astype("int32")
    alone, model = model_of(), model_of()
    alone.compile(sgd(0.5, momentum=0.5), "mse", jit_compile=False)
    model.compile(hvd.DistributedOptimizer(sgd(0.5, momentum=0.5), sparse_as_dense=dense), "mse", jit_compile=False)
    kinds = []
    checked = model.optimizer._hvd.gradients.reduce
    model.optimizer._hvd.gradients.reduce = lambda g, v: kinds.append(type(g[0]).__name__) or checked(g, v)
    whole, mine = rows.reshape(-1, 3), rows[:, r].reshape(-1, 3)
    alone.fit(whole, np.ones((len(whole), 6)), batch_size=4 * n, shuffle=False, verbose=0)
    model.fit(mine, np.ones((len(mine), 6)), batch_size=4, shuffle=False, verbose=0)
    assert kinds and (kinds[0] == "IndexedSlices") == TENSORFLOW
    np.testing.assert_allclose(numbers(model.weights)[0], numbers(alone.weights)[0], rtol=1e-5, atol=1e-6)
    check_alike(model.weights)


@pytest.mark.parametrize("dense", [False, True])
def test_embedding(keras_ranks: Any, dense: bool) -> None:
    keras_ranks.run(check_embedding, dense=dense)


def check_local_layers() -> None:
    r, n = hvd.rank(), hvd.size()
    for scaled in (True, False):
        shared, local = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
        for layers in (local, [local]):
            optimizer = hvd.PartialDistributedOptimizer(sgd(), local_layers=layers, scale_local_gradients=scaled)
            if not shared.built:  # layers may be built after
                shared.build((None, 1)), local.build((None, 1))
            variables = [shared.kernel, local.kernel]
            for v in variables:
                v.assign([[0.0]])
            apply(optimizer, [[[r + 1.0]], [[r + 1.0]]], variables)
            assert float(shared.kernel[0, 0]) == -(n + 1) / 2
            assert float(local.kernel[0, 0]) == pytest.approx(-(r + 1) / (n if scaled else 1))
    v = variable(0.0)
    optimizer = hvd.DistributedOptimizer(sgd())
    optimizer.register_local_var(v)
    apply(optimizer, [[r + 1.0]], [v])
    assert float(v[0]) == pytest.approx(-(r + 1) / n)


def test_local_layers(keras_ranks: Any) -> None:
    keras_ranks.run(check_local_layers)


# --- Loss scaling -----------------------------------------------------------------------------------------------------


def check_infinite_on_one_rank(graph: bool) -> None:
    r, n = hvd.rank(), hvd.size()
    for passes in (1, 2):
        v = variable(0.0)
        inner = keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=4.0)
        optimizer = hvd.DistributedOptimizer(inner, backward_passes_per_step=passes)
        assert optimizer is inner and isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        apply(optimizer, [[np.inf if r == n - 1 else 4.0]], [v], graph)
        assert (float(v[0]), float(optimizer.dynamic_scale), int(optimizer.iterations)) == (0, 2, 0)
        for _ in range(passes):
            apply(optimizer, [[2.0 * (r + 1)]], [v], graph)
        assert (float(v[0]), float(optimizer.dynamic_scale)) == (-passes * (n + 1) / 2, 2)
        assert int(optimizer.iterations) == 1


@pytest.mark.parametrize("graph", [False, True])
def test_an_infinite_gradient_of_one_rank_is_one_of_all(keras_ranks: Any, graph: bool) -> None:
    keras_ranks.run(check_infinite_on_one_rank, graph=graph)


def check_mixed_precision(policy: str, broadcast: bool) -> None:
    """With mixed_float16 for all, or for this model, compile puts a LossScaleOptimizer around the optimizer."""
    from hvd.keras.optimizer import is_distributed

    r, n = hvd.rank(), hvd.size()
    if policy == "all":
        keras.config.set_dtype_policy("mixed_float16")
    try:
        keras.utils.set_random_seed(4)
        layers = [keras.layers.Dense(units, "tanh", dtype="mixed_float16") for units in (3, 2)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.dtype_policy = keras.DTypePolicy("mixed_float16")
        optimizer = hvd.DistributedOptimizer(sgd(0.1), backward_passes_per_step=2)
        model.compile(optimizer, "mse", jit_compile=False)
        outer = model.optimizer
        assert isinstance(outer, keras.optimizers.LossScaleOptimizer) and outer.inner_optimizer is optimizer
        assert is_distributed(outer) and type(outer).__name__ == "LossScaleOptimizer"
        assert type(keras.optimizers.LossScaleOptimizer(sgd())) is keras.optimizers.LossScaleOptimizer
        with pytest.raises(ValueError, match="is distributed already"):
            hvd.DistributedOptimizer(outer)
        _, mine = data()
        targets = mine[:, :2] * 3
        if r == n - 1:
            targets[:ROWS] *= 1e30  # an infinite gradient, on one rank alone
        before = numbers(model.weights)
        calls = count_calls(optimizer)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if broadcast else []
        options = {"batch_size": ROWS, "shuffle": False, "verbose": 0, "epochs": 6}
        model.fit(mine, targets, callbacks=callbacks, **options)
        assert calls and (TENSORFLOW or len(calls) == 6 * STEPS)
        common = [v for v in outer.variables if "accumulator" not in v.path]
        check_alike([*model.weights, *common])
        # In the first steps the scale is too large, and in the first of each epoch a gradient.
        assert 0 < int(outer.iterations) <= 6 * (STEPS - 1) // 2 and float(outer.dynamic_scale) < 2**15
        assert np.abs(before[0] - numbers(model.weights)[0]).max() > 1e-4
        optimizer.register_local_var(model.weights[0])  # of what is around it, too
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize(("policy", "broadcast"), [("all", True), ("all", False), ("of the model", False)])
def test_mixed_precision(several_keras_ranks: Any, policy: str, broadcast: bool) -> None:
    several_keras_ranks.run(check_mixed_precision, policy=policy, broadcast=broadcast)


def check_infinite_local(graph: bool, outside: bool) -> None:
    """An infinite gradient of a local variable on one rank is one of all: no rank makes the step."""
    r, n = hvd.rank(), hvd.size()
    for op in (hvd.Average, hvd.Min):
        for of_rank, infinite in ((0, np.inf), (n - 1, np.nan), (n, 1.0)):
            shared, local = variable(0.0), variable(0.0)
            inner = sgd()
            if outside:
                optimizer = hvd.DistributedOptimizer(inner, op=op, scale_local_gradients=False)
                optimizer.register_local_var(local)
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
            else:
                optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0)
                optimizer = hvd.DistributedOptimizer(optimizer, op=op, scale_local_gradients=False)
                optimizer.register_local_var(local.value)
            mine = infinite if r == of_rank else 4.0 * (r + 1)
            apply(optimizer, [[4.0], [mine]], [shared, local], graph)
            made = of_rank == n
            assert int(optimizer.iterations) == made and float(optimizer.dynamic_scale) == (4 if made else 2)
            assert (float(shared[0]), float(local[0])) == ((-1.0, -(r + 1.0)) if made else (0.0, 0.0))


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_an_infinite_local_gradient(several_keras_ranks: Any, graph: bool, outside: bool) -> None:
    several_keras_ranks.run(check_infinite_local, graph=graph, outside=outside)


# --- Wrong uses, and errors -------------------------------------------------------------------------------------------


def check_wrong_uses() -> None:
    def refuse(text: str, *args: Any, **options: Any) -> None:
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(*args, **options)

    done = hvd.DistributedOptimizer(sgd())
    refuse("is distributed already", done)
    refuse("is distributed already", keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(sgd())))
    refuse("not an optimizer of Keras 3; pass", "sgd")
    refuse("not an optimizer of Keras 3", object())
    refuse("backward_passes_per_step=0", sgd(), backward_passes_per_step=0)
    refuse("gradient_predivide_factor", sgd(), gradient_predivide_factor=2.0, op=hvd.Sum)
    refuse("groups=-1", sgd(), groups=-1)
    refuse("compression is 'fp16'; allowed", sgd(), compression="fp16")
    refuse("set one of them", sgd(gradient_accumulation_steps=2), backward_passes_per_step=3)
    built = sgd()
    built.build([variable(1.0)])
    refuse("is built already", built, backward_passes_per_step=2)
    assert type(built) is type(sgd())  # refused ones stay as they are
    if TENSORFLOW:
        import tensorflow as tf

        refuse("hvd.tensorflow.DistributedOptimizer takes", tf.compat.v1.train.GradientDescentOptimizer(1.0))
    else:
        import torch

        refuse("hvd.torch.DistributedOptimizer takes", torch.optim.SGD([torch.ones(1)], lr=1.0))
    with pytest.raises(RuntimeError, match=r"callbacks.BroadcastGlobalVariablesCallback\(root_rank\)"):
        hvd.broadcast_global_variables(0)


def test_wrong_uses(keras_ranks: Any) -> None:
    keras_ranks.run(check_wrong_uses)


def check_errors_in_fit() -> None:
    r, n = hvd.rank(), hvd.size()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3 + (r == n - 1)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(sgd()), "mse", jit_compile=False)
    with pytest.raises(hvd.HorovodInternalError) as caught:
        model.fit(np.ones((4, 4)), np.ones((4, 1)), verbose=0)
    assert type(caught.value) is hvd.HorovodInternalError and caught.value.kind == "mismatch"
    text = rf"number 0 is \S+/kernel float32 \(4, 3\) on rank 0 and .* \(4, 4\) on rank {n - 1}; build the same"
    assert re.search(text, str(caught.value)), caught.value
    assert hvd.allreduce(float(r), op=hvd.Sum) == n * (n - 1) / 2
    check_against_one_process("fit", ["SGD"])


def test_errors_in_fit_are_the_original_ones(several_keras_ranks: Any) -> None:
    several_keras_ranks.run(check_errors_in_fit)


def check_other_gradients() -> None:
    """A gradient that one rank lacks, or cannot reduce: an error on all ranks; the next step is right."""
    r, n = hvd.rank(), hvd.size()
    last = r == n - 1
    variables = [variable(0.0), variable(0.0)]
    optimizer = hvd.DistributedOptimizer(sgd(), op=hvd.Sum)
    reduce = optimizer._hvd.gradients.reduce
    assert float(reduce([tensor([1.0]), tensor([2.0])], variables)[1][0]) == 2 * n
    with pytest.raises(hvd.HorovodInternalError, match=f"number 1 is .* on rank 0 and missing on rank {n - 1}"):
        reduce([tensor([1.0]), None if last else tensor([2.0])], variables)
    assert float(reduce([tensor([1.0]), tensor([2.0])], variables)[1][0]) == 2 * n
    bad = keras.ops.cast(tensor([1.0]), "int32")
    with pytest.raises(ValueError if last else hvd.HorovodInternalError, match=rf"rank {n - 1}\b.*int32"):
        reduce([bad if last else tensor([1.0]), tensor([2.0])], variables)
    assert float(reduce([tensor([1.0]), tensor([2.0])], variables)[0][0]) == n
    # Without any: the error of Keras on the rank that has none.
    optimizer.build(variables)
    mine = [None, None] if last else [tensor([1.0]), tensor([2.0])]
    with pytest.raises(hvd.HorovodInternalError, match=f"missing on rank {n - 1}"):
        optimizer.apply(mine, variables)
    optimizer.apply([tensor([1.0]), tensor([2.0])], variables)
    assert float(variables[1][0]) == -2 * n


def test_other_gradients(several_keras_ranks: Any) -> None:
    several_keras_ranks.run(check_other_gradients)
