"""Lists become arrays as numpy would make them, or are refused with a sentence."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from skysail.runtimes.model_server import tensors
from skysail.runtimes.model_server.errors import RequestError
from skysail.runtimes.model_server.tensors import TYPES, Spec

SHAPES = arrays.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4)


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    """As in the server."""
    with np.errstate():
        tensors.quietly()
        yield


@given(st.data(), st.sampled_from(sorted(TYPES)), SHAPES)
def test_lists_become_what_numpy_makes_of_them(data, name, shape):
    dtype = TYPES[name]
    numbers = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else None
    wanted = data.draw(arrays.arrays(dtype, shape, elements=numbers))
    made = tensors.of_lists(wanted.tolist(), len(shape), dtype)
    assert made.dtype == dtype
    assert made.flags.writeable
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("values", [[[1.0], [1.0, 2.0]], [[], [1.0]], [[1.0, 2.0], [3.0]]])
def test_rows_of_different_lengths_are_refused(values):
    with pytest.raises(RequestError, match=r"^The rows have different lengths \(\d and \d\)"):
        tensors.of_lists(values, 2, TYPES["FP32"])


def test_a_hole_deep_inside_is_refused():
    with pytest.raises(RequestError, match="different lengths"):
        tensors.of_lists([[[1.0], [2.0]], [[3.0], []]], 3, TYPES["FP32"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("FP32", 1e39), ("FP32", -1e39), ("FP16", 70000.0), ("FP64", float("inf")), ("FP64", float("nan"))],
)
def test_what_is_not_finite_is_refused(name, value):
    with pytest.raises(RequestError, match=f"^A value is too large for {name}, or is not a number"):
        tensors.of_lists([[0.0, value]], 2, TYPES[name])


@pytest.mark.parametrize(("name", "value"), [("INT8", 128), ("UINT8", -1), ("UINT64", 2**64), ("INT64", -(2**63) - 1)])
def test_what_is_out_of_range_is_refused(name, value):
    with pytest.raises(RequestError, match=f"^A value is outside the range of {name}"):
        tensors.of_lists([value], 1, TYPES[name])


@pytest.mark.parametrize("value", [3e38, -3e38, 1e30])
def test_large_numbers_are_not_mistaken_for_infinite_ones(value):
    array = tensors.of_lists([[value] * 50], 2, TYPES["FP32"])
    assert np.isfinite(array).all()


@pytest.mark.parametrize(
    ("shape", "fits"), [((1, 16), True), ((9, 16), True), ((1, 15), False), ((16,), False), ((1, 1, 16), False)]
)
def test_a_spec_knows_what_fits(shape, fits):
    assert Spec(name="x", datatype="FP32", shape=(-1, 16)).fits(shape) is fits
