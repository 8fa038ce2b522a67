"""Both ways to ask."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from skysail.runtimes.model_server import tensors
from skysail.runtimes.model_server.errors import RequestError
from skysail.runtimes.model_server.models import Signature
from skysail.runtimes.model_server.protocol.codecs import InferCodec, PredictCodec
from skysail.runtimes.model_server.protocol.input_validation import InputValidator
from skysail.runtimes.model_server.tensors import Spec

PAIR = Spec(name="pair", datatype="FP32", shape=(-1, 2))
COUNT = Spec(name="count", datatype="INT32", shape=(-1,))
SCORE = Spec(name="score", datatype="FP32", shape=(-1, 1))
KNOWN = Signature(inputs=(PAIR,), outputs=(SCORE,))
TWO = Signature(inputs=(PAIR, COUNT), outputs=(SCORE,))
UNKNOWN = Signature(inputs=(Spec(name="x", datatype="FP32", shape=()),), known=False)
ROWS = 4


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    """As in the server."""
    with np.errstate():
        tensors.quietly()
        yield


def predict(content, signature=KNOWN):
    return PredictCodec(signature, InputValidator(signature, ROWS)).read(body_of(content))


def infer(content, signature=KNOWN):
    return InferCodec("net", "v1", signature, InputValidator(signature, ROWS)).read(body_of(content))


def body_of(content):
    return content if isinstance(content, bytes) else json.dumps(content).encode()


def tensor(name="pair", shape=(1, 2), datatype="FP32", data=(1.0, 2.0)):
    return {"name": name, "shape": list(shape), "datatype": datatype, "data": list(data)}


def test_features_are_rows():
    work = predict({"features": [[1, 2.5], [3, 4]]})
    assert work.rows == 2
    assert work.arrays[0].dtype == np.float32
    assert work.arrays[0].tolist() == [[1, 2.5], [3, 4]]


@pytest.mark.parametrize("shape", [(3,), (1, 2), (2, 3, 2), (1, 3, 2, 2)])
def test_a_model_of_unknown_input_is_given_what_comes(shape):
    wanted = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(predict({"features": wanted.tolist()}, UNKNOWN).arrays[0], wanted)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "cannot be parsed"),
        (b"{", "cannot be parsed"),
        (b"[]", "cannot be parsed"),
        (b'{"features": [[NaN, 1]]}', "cannot be parsed"),
        (b'{"features": [[1, 2]]', "cannot be parsed"),
        ({}, "missing required field `features`"),
        ({"features": 1}, "must be a list of rows"),
        ({"features": "a"}, "must be a list of rows"),
        ({"features": [["a", "b"]]}, "Expected `float`, got `str`"),
        ({"features": [[1, None]]}, "Expected `float`, got `null`"),
        ({"features": [[True, False]]}, "Expected `float`, got `bool`"),
        ({"features": [[1, 2], 3]}, "Expected `array`"),
        ({"features": [[1, 2], [3]]}, "different lengths"),
        ({"features": []}, "is empty"),
        ({"features": [[]]}, "is empty"),
        ({"features": [[1]]}, r"has shape \[1, 1\], but the model takes \[-1, 2\]"),
        ({"features": [1, 2]}, r"has shape \[2\], but the model takes \[-1, 2\]"),
        ({"features": [[[1, 2]]]}, r"has shape \[1, 1, 2\]"),
        ({"features": [[1e39, 1]]}, "too large for FP32"),
        ({"features": [[[[[[[[[1]]]]]]]]]}, "nested 9 deep"),
        (b'{"features": ' + b"[" * 100_000, "cannot be parsed"),
        (b'{"other": ' + b"[" * 100_000, "cannot be parsed"),
        (b'{"features": "\xff"}', "cannot be parsed|must be a list"),
        (b'{"\xff": [[1, 2]]}', "cannot be parsed"),
    ],
)
def test_features_that_cannot_be_are_refused_with_a_sentence(content, sentence):
    with pytest.raises(RequestError, match=sentence) as request_error:
        predict(content)
    assert request_error.value.status == 400


def test_too_many_rows_are_refused():
    with pytest.raises(RequestError, match="has 5 rows: send at most 4") as request_error:
        predict({"features": [[1, 2]] * 5})
    assert request_error.value.status == 413


def test_several_inputs_need_the_protocol():
    with pytest.raises(RequestError, match=r"several inputs \(pair, count\): send them to /v2"):
        predict({"features": [[1, 2]]}, TWO)


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [1.0, 2, 3, 4.0]])
def test_tensors_are_flat_or_nested(data):
    work = infer({"inputs": [tensor(shape=(2, 2), data=data)]})
    assert work.arrays[0].tolist() == [[1, 2], [3, 4]]
    assert work.rows == 2


@pytest.mark.parametrize("datatype", ["FP64", "FP16", "INT8", "UINT16"])
def test_a_number_of_another_type_is_cast_if_nothing_is_lost(datatype):
    work = infer({"inputs": [tensor(datatype=datatype, data=[1, 2])]})
    assert (work.arrays[0].dtype, work.arrays[0].tolist()) == (np.float32, [[1, 2]])


def test_several_inputs_come_in_any_order():
    work = infer({"inputs": [tensor("count", (1,), "INT32", [7]), tensor(data=[[1, 2]])]}, TWO)
    assert [array.tolist() for array in work.arrays] == [[[1, 2]], [7]]


def test_one_input_may_have_any_name():
    assert infer({"inputs": [tensor("x")]}).arrays[0].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("content", "signature", "sentence"),
    [
        (b"{", KNOWN, "cannot be parsed"),
        (b'{"inputs": ' + b"[" * 100_000, KNOWN, "cannot be parsed"),
        ({"id": "\ud800", "inputs": [tensor()]}, KNOWN, "cannot be parsed"),
        ({}, KNOWN, "missing required field `inputs`"),
        ({"inputs": []}, KNOWN, "has inputs none, but the model takes pair, each once"),
        ({"inputs": [tensor()]}, TWO, "has inputs pair, but the model takes pair, count"),
        ({"inputs": [tensor(), tensor()]}, KNOWN, "each once"),
        ({"inputs": [tensor(), tensor("more")]}, KNOWN, "has inputs pair, more, but the model takes pair"),
        ({"inputs": [tensor(datatype="BYTES", data=["a", "b"])]}, KNOWN, "`BYTES` is unknown: use one of BOOL, UINT8"),
        ({"inputs": [tensor(shape=(1, 3))]}, KNOWN, r"`pair` has 2 values, which do not fit its shape \[1, 3\]"),
        ({"inputs": [tensor(shape=(-1, -2))]}, KNOWN, "not fit its shape"),
        ({"inputs": [tensor(shape=(2**40, 2**40))]}, KNOWN, "not fit its shape"),
        ({"inputs": [tensor(shape=())]}, KNOWN, "not fit its shape"),
        ({"inputs": [tensor(shape=(1, 1), data=[1])]}, KNOWN, r"has shape \[1, 1\], but the model takes \[-1, 2\]"),
        ({"inputs": [tensor(shape=(2, 1), data=[[1, 2]])]}, KNOWN, r"has shape \[1, 2\], but `shape` is \[2, 1\]"),
        ({"inputs": [tensor(shape=(0, 2), data=[])]}, KNOWN, "is empty"),
        ({"inputs": [tensor(data=[1, "a"])]}, KNOWN, "Expected `float`, got `str`"),
        ({"inputs": [tensor(datatype="INT32", data=[1, 1.5])]}, KNOWN, "Expected `int`, got `float`"),
        ({"inputs": [tensor(datatype="FP64", data=[1, 1e39])]}, KNOWN, "too large for FP32"),
        ({"inputs": [tensor(), tensor("count", (1,), "FP32", [1])]}, TWO, "`count` is FP32: send INT32"),
        ({"inputs": [tensor(), tensor("count", (1,), "INT64", [2**40])]}, TWO, "does not fit into INT32"),
        ({"inputs": [tensor(shape=[1] * 70, data=[1.0])]}, KNOWN, "`pair` has 70 dimensions: send at most 32"),
        ({"inputs": [tensor(shape=[1] * 70, data=[[1.0]])]}, KNOWN, "`pair` has 70 dimensions: send at most 32"),
        ({"inputs": [tensor(shape=[2**62] * 9999, data=[1.0])]}, KNOWN, "`pair` has 9999 dimensions"),
        ({"inputs": [tensor(shape=[0, 2**62], data=[])]}, KNOWN, "`pair` is empty: send at least one row"),
        ({"inputs": [tensor(shape=[0, 10**24], data=[])]}, KNOWN, "`pair` is empty: send at least one row"),
        (
            {"inputs": [tensor(shape=[0, 2**62], datatype="INT8", data=[])]},
            KNOWN,
            "`pair` is empty: send at least one row",
        ),
        (
            {"inputs": [tensor(shape=[0, 2**63], datatype="INT8", data=[])]},
            KNOWN,
            "`pair` is empty: send at least one row",
        ),
        (
            {"inputs": [tensor(shape=[2**62, 2**62], data=[1.0])]},
            KNOWN,
            "`pair` has 1 values, which do not fit its shape",
        ),
        ({"inputs": [tensor(shape=[-1, -1], data=[1.0])]}, KNOWN, "`pair` has 1 values, which do not fit its shape"),
        ({"inputs": [tensor()], "outputs": [{"name": "x"}]}, KNOWN, "no output `x`: use score"),
    ],
)
def test_tensors_that_cannot_be_are_refused_with_a_sentence(content, signature, sentence):
    with pytest.raises(RequestError, match=sentence) as request_error:
        infer(content, signature)
    assert request_error.value.status == 400


def test_large_whole_numbers_stay_exact():
    spec = Spec(name="key", datatype="UINT64", shape=(-1,))
    work = infer({"inputs": [tensor("key", (1,), "UINT64", [2**64 - 1])]}, Signature(inputs=(spec,)))
    assert work.arrays[0].tolist() == [2**64 - 1]


def test_the_short_answer():
    form = PredictCodec(KNOWN, InputValidator(KNOWN, ROWS))
    work = predict({"features": [[1, 2]]})
    assert json.loads(form.write(work, [np.array([[0.1]], np.float32)])) == {"predictions": [[0.1]]}
    both = [np.array([1], np.int64), np.array([[True]])]
    assert json.loads(form.write(work, both)) == {"predictions": {"output0": [1], "output1": [[True]]}}


def test_the_protocol_s_answer_names_what_was_asked():
    form = InferCodec("net", "v1", KNOWN, InputValidator(KNOWN, ROWS))
    work = infer({"id": "42", "inputs": [tensor()], "outputs": [{"name": "score"}]})
    assert json.loads(form.write(work, [np.array([[1.5], [2.5]], np.float32)])) == {
        "model_name": "net",
        "model_version": "v1",
        "id": "42",
        "outputs": [{"name": "score", "datatype": "FP32", "shape": [2, 1], "data": [1.5, 2.5]}],
    }


def test_only_wanted_outputs_are_told():
    two = Signature(inputs=(PAIR,), outputs=(SCORE, Spec(name="rank", datatype="INT64", shape=(-1,))))
    form = InferCodec("net", "", two, InputValidator(two, ROWS))
    inference_input = form.read(body_of({"inputs": [tensor()], "outputs": [{"name": "rank"}]}))
    told = json.loads(form.write(inference_input, [np.zeros((1, 1), np.float32), np.array([3])]))
    assert "model_version" not in told
    assert [(output["name"], output["data"]) for output in told["outputs"]] == [("rank", [3])]


def test_columns_of_a_larger_array_are_told_as_they_are():
    wide = np.arange(6, dtype=np.float32).reshape(2, 3)
    told = PredictCodec(KNOWN, InputValidator(KNOWN, ROWS)).write(predict({"features": [[1, 2]]}), [wide[:, 1:]])
    assert json.loads(told) == {"predictions": [[1, 2], [4, 5]]}


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ([[1, 2]], [[3, 4], [5, 6]], True),
        ([[1, 2]], [[3, 4, 5]], False),
        ([[1, 2]], [[[3, 4]]], False),
        ([1], [2, 3], True),
    ],
)
def test_rows_of_one_kind_may_go_together(one, other, together):
    kinds = [predict({"features": rows}, UNKNOWN).kind for rows in (one, other)]
    assert (kinds[0] == kinds[1]) is together
    assert None not in kinds


def test_the_usual_rows_are_of_one_kind():
    assert predict({"features": [[1, 2]]}).kind == infer({"inputs": [tensor()]}).kind is not None


def test_what_holds_for_a_whole_request_keeps_it_alone():
    two_rows = tensor(shape=(2, 2), data=[1, 2, 3, 4])
    assert infer({"inputs": [two_rows, tensor("count", (2,), "INT32", [7, 8])]}, TWO).kind is not None
    assert infer({"inputs": [two_rows, tensor("count", (1,), "INT32", [7])]}, TWO).kind is None
    assert infer({"inputs": [tensor("x", (), "FP32", [7])]}, UNKNOWN).kind is None


def test_the_bytes_are_counted_as_the_model_takes_them():
    assert predict({"features": [[1, 2], [3, 4]]}).size == 16
    assert predict({"features": [[1, 2, 3]]}, UNKNOWN).size == 12
    pair = [tensor(), tensor("count", (1,), "INT32", [7])]
    assert infer({"inputs": pair}, TWO).size == sum(array.nbytes for array in infer({"inputs": pair}, TWO).arrays) > 4
