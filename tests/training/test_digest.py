import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertjax.training import digest
from bertjax.training.digest import ArrayDigest, digest_arrays

P = PartitionSpec
WORDS = np.random.default_rng(0).integers(0, 2**32, (64,), dtype=np.uint32)


def of(array) -> ArrayDigest:
    return digest_arrays({"x": jnp.asarray(array)})["x"]


def plain_digest(array: np.ndarray) -> str:
    """The definition of the digest, one element at a time in Python's integers."""

    def mix(x: int) -> int:
        x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
        x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
        return x ^ x >> 16

    lanes = [0, 0, 0, 0]
    bits = array.reshape(-1).view(f"u{array.dtype.itemsize}")
    for index, word in enumerate(bits.tolist()):
        place = mix(index)
        for k in range(4):
            turned = (place << 8 * k | place >> (32 - 8 * k)) % 2**32
            lanes[k] = (lanes[k] + mix(word ^ place) * (turned | 1)) % 2**32
    return "".join(f"{lane:08x}" for lane in lanes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool"])
def test_digest_equals_its_definition(dtype):
    values = np.asarray(jnp.asarray(WORDS % 251).astype(dtype)).reshape(4, 2, 8)
    assert of(values).hex == plain_digest(values)


def test_digest_of_a_scalar():
    assert of(np.int32(7)).hex == plain_digest(np.array([7], np.int32))


def meshes() -> list[tuple[Mesh, PartitionSpec]]:
    three = ("data", "fsdp", "tensor")
    return [
        (jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,)), P("data")),
        (jax.make_mesh((2, 2, 2), three, axis_types=(AxisType.Auto,) * 3), P()),
        (jax.make_mesh((2, 2, 2), three, axis_types=(AxisType.Auto,) * 3), P("fsdp", "tensor")),
        (jax.make_mesh((2, 2, 2), three, axis_types=(AxisType.Auto,) * 3), P(("data", "fsdp"), None, "tensor")),
        (jax.make_mesh((1, 4, 2), three, axis_types=(AxisType.Auto,) * 3), P(None, "fsdp")),
    ]


@pytest.mark.parametrize(("mesh", "spec"), meshes())
def test_digest_is_equal_on_every_mesh_without_gathers(mesh, spec):
    values = np.random.default_rng(1).normal(size=(32, 16, 8)).astype(np.float32)
    sharded = jax.device_put(values, NamedSharding(mesh, spec))
    assert digest_arrays({"x": sharded, "y": sharded}) == {"x": of(values), "y": of(values)}
    text = digest._digest_on(NamedSharding(mesh, P())).lower([sharded]).compile().as_text()
    moved = [np.prod([int(n) for n in dims.split(",") if n]) for dims in re.findall(r"\w+\[([\d,]*)\]\S* all-", text)]
    assert max(moved, default=0) <= 64, "at most a partial sum per device may travel"


@settings(max_examples=100)
@given(st.integers(0, 63), st.integers(0, 31))
def test_flipped_bit_changes_the_first_lane(element, bit):
    changed = WORDS.copy()
    changed[element] ^= np.uint32(1 << bit)
    assert of(changed).hex[:8] != of(WORDS).hex[:8]


@settings(max_examples=100)
@example({3, 40}, 31)
@given(st.sets(st.integers(0, 63), min_size=2, max_size=8), st.integers(0, 31))
def test_equal_bit_flips_do_not_cancel_in_the_digest(elements, bit):
    changed = WORDS.copy()
    changed[sorted(elements)] ^= np.uint32(1 << bit)
    assert of(changed).hex != of(WORDS).hex


@settings(max_examples=50)
@given(st.permutations(range(64)))
def test_digest_depends_on_the_order_of_elements(order):
    moved = WORDS[list(order)]
    assert (of(moved).hex == of(WORDS).hex) == bool((moved == WORDS).all())


def test_nan_and_infinity_are_counted():
    values = np.zeros((3, 5), np.float32)
    values[0, 1], values[2, 4], values[1, 1] = np.nan, np.inf, -np.inf
    assert of(values).nonfinite == 3
    assert of(values.astype(jnp.bfloat16)).nonfinite == 3
    assert of(np.full(4, 0x7FC00000, np.int32)).nonfinite == 0  # the bits of NaN, but integers


def test_elements_of_eight_bytes_are_refused():
    with pytest.raises(ValueError, match=r"cannot digest an array of complex64; its elements must have 1, 2 or 4"):
        of(np.zeros(3, np.complex64))


def test_no_arrays_give_no_digests():
    assert digest_arrays({}) == {}


def test_compiled_ahead_digest_is_equal_and_compiles_once(monkeypatch):
    mesh, spec = meshes()[2]
    arrays = {"x": jax.device_put(WORDS.reshape(8, 8), NamedSharding(mesh, spec)), "n": jnp.int32(3)}
    arrays["n"] = jax.device_put(arrays["n"], NamedSharding(mesh, P()))
    expected = digest_arrays(arrays)
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in arrays.items()}
    digest.compile_ahead(shapes)
    monkeypatch.setattr(digest, "_digest_on", lambda sharding: pytest.fail("it was compiled again"))
    assert digest_arrays(arrays) == expected
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        digest_arrays({"x": arrays["x"]})


def test_compile_ahead_error_is_raised_at_the_digest():
    array = jnp.zeros(2, jnp.complex64)
    digest.compile_ahead({"x": jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)})
    with pytest.raises(ValueError, match="cannot digest an array of complex64"):
        digest_arrays({"x": array})
