"""Pickles from strangers: data arrives as it was sent, and nothing that is named in one is imported or called."""

import builtins
import codecs
import copyreg
import functools
import io
import os
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from keystone_robotics.serve.unpickle import RefusedPickle, loads


class Kind(str, Enum):
    STATE = "STATE"


@dataclass
class Sample:
    kind: Kind
    data: dict = field(default_factory=dict)


TYPES = (Kind, Sample)


class Calls:
    """Pickled as a call."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def equal(one, other):
    """Same types, same bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        flags = ("C_CONTIGUOUS", "F_CONTIGUOUS", "WRITEABLE")
        same = (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        return same and all(one.flags[flag] == other.flags[flag] for flag in flags)
    if isinstance(one, np.generic):
        return (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())
    if isinstance(one, torch.Tensor):
        same = (one.dtype, one.shape, one.stride(), one.requires_grad) == (
            other.dtype, other.shape, other.stride(), other.requires_grad,
        )  # fmt: skip
        return same and one.detach().contiguous().view(-1).view(torch.uint8).equal(
            other.detach().contiguous().view(-1).view(torch.uint8)
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, Sample):
        return equal(vars(one), vars(other))
    return one == other or one != one


leaves = (
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats() | st.text(max_size=9) | st.binary(max_size=9)
    | arrays.arrays(
        arrays.boolean_dtypes() | arrays.integer_dtypes() | arrays.floating_dtypes() | arrays.unicode_string_dtypes(max_len=4),
        arrays.array_shapes(min_dims=0, min_side=0, max_side=4),
    )
    | arrays.arrays(np.float32, (3, 4)).map(np.asfortranarray)
    | st.sampled_from([np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("ü"), np.array(3.0)])
    | st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
    .map(lambda dtype: torch.arange(12).to(dtype).view(3, 4))
    | st.sampled_from([torch.arange(6.0).view(2, 3).T, torch.arange(6)[2:4], torch.zeros(0, 2), torch.ones(2).requires_grad_()])
    | st.just(Kind.STATE)
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(-(2**31) + 1, 2**31 - 1), inner, max_size=4)
        | st.builds(Sample, st.just(Kind.STATE), st.dictionaries(st.text(max_size=5), inner, max_size=3))
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(values, st.sampled_from([3, 4, 5]))
def test_data_arrives_bit_for_bit(value, protocol):
    assert equal(loads(pickle.dumps(value, protocol), TYPES), value)


def test_numpy_1_names():
    data = pickle.dumps(np.arange(3), 4).replace(b"\x8c\x16numpy._core.multiarray", b"\x8c\x15numpy.core.multiarray")
    np.testing.assert_array_equal(loads(data), np.arange(3))


def storage_with(payload: bytes) -> bytes:
    """The pickle of a tensor whose storage is somebody else's bytes."""
    return pickle.dumps(Calls(torch.storage._load_from_bytes, payload))


def hostile(folder):
    """Pickles that write into a folder when `pickle.loads` reads them."""
    shell = f"echo x > {folder}/pwned"
    system = Calls(os.system, shell)
    zipped, legacy = io.BytesIO(), io.BytesIO()
    torch.save(system, zipped)
    torch.save(system, legacy, _use_new_zipfile_serialization=False)
    return {
        "os.system": pickle.dumps(system),
        "protocol 0": pickle.dumps(system, 0),
        "protocol 2": pickle.dumps(system, 2),
        "subprocess": pickle.dumps(Calls(subprocess.call, ["sh", "-c", shell])),
        "eval": pickle.dumps(Calls(builtins.eval, f"open({f'{folder}/pwned'!r}, 'w').close()")),
        "exec": pickle.dumps(Calls(builtins.exec, f"open({f'{folder}/pwned'!r}, 'w').close()")),
        "partial": pickle.dumps(Calls(functools.partial(os.system, shell))),
        "copyreg": pickle.dumps(Calls(copyreg._reconstructor, Calls, object, None)),
        "extension registry": b"\x80\x04\x82\x01.",
        "in a list": pickle.dumps([1, {"a": (np.zeros(2), system)}]),
        "in a dataclass": pickle.dumps(Sample(Kind.STATE, {"a": system})),
        "in an array of objects": pickle.dumps(np.array([system], dtype=object)),
        "in a zipped storage": storage_with(zipped.getvalue()),
        "in a legacy storage": storage_with(legacy.getvalue()),
        "in the first part of a storage": storage_with(pickle.dumps(system, 2)),
        "__import__": pickle.dumps(Calls(__import__, "os")),
        "INST": b"(S'" + shell.encode() + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'" + shell.encode() + b"'\no.",
        "method of an accepted type": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
        "submodule": b"\x80\x04\x8c\x05numpy\x8c\x0clib.npyio.os\x93.",
        "torch.load": pickle.dumps(Calls(torch.load, f"{folder}/x")),
    }


@pytest.mark.parametrize("name", hostile("x"))
def test_nothing_is_called(tmp_path, name):
    with pytest.raises(RefusedPickle):
        loads(hostile(tmp_path)[name], TYPES)
    assert not list(tmp_path.iterdir())


def test_the_attacks_are_attacks(tmp_path):
    """Or the test above would show nothing."""
    for name in ("os.system", "eval", "in a dataclass", "in a legacy storage", "in a zipped storage", "INST"):
        pickle.loads(hostile(tmp_path)[name])
        (tmp_path / "pwned").unlink()


@pytest.mark.parametrize(
    "names_an_unimported_module", [pickle.PROTO + b"\x04\x8c\x08antigrav\x8c\x01x\x93.", b"cthis\ns\n."]
)
def test_nothing_is_imported(names_an_unimported_module):
    with pytest.raises(RefusedPickle, match="names"):
        loads(names_an_unimported_module)
    assert "this" not in sys.modules


def array_pickle(dtype: bytes, state: bytes) -> bytes:
    """A pickle of one array, from text."""
    return b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR(K\x01" + state + dtype + b"tb."


def nested(levels: int) -> bytes:
    """A tuple of 2^levels values in a few bytes per level."""
    return b"\x80\x04)\x94" + b"".join(b"h" + bytes([level]) + b"\x86\x94" for level in range(levels))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (nested(30) + b".", "more than 100000 values"),
        (b"\x80\x04}" + nested(60)[2:] + b"Ns.", "key of type tuple"),
        (pickle.dumps({2**61 - 1: 0}), "a small int"),  # many such keys have the same hash
        (b"\x80\x04]\x94h\x00a.", "nested more than"),
        (b"\x80\x04" + b"]" * 200_000 + b".", "more than 100000 operations"),
        (b"\x80\x04" + b"]" * 50 + b"a" * 49 + b".", "nested more than 32 levels"),
        (b"\x80\x04\x8e" + (2**60).to_bytes(8, "little") + b".", "not a valid pickle"),
        (b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".", "not a valid pickle"),
        (b"\x80\x04\x95" + (2**60).to_bytes(8, "little") + b"N", "not a valid pickle"),
        (b"\x80\x04N" + b"r" + (2**31).to_bytes(4, "little") + b"0.", "POP"),
        (b"\x80\x04\x8b" + (10**6).to_bytes(4, "little") + b"\x01" * 10**6 + b".", "LONG4"),
        (b"I" + b"9" * 10**6 + b"\n.", "not a valid pickle"),
        (pickle.dumps(np.zeros(4)).replace(b"K\x04\x85", b"K\x05\x85"), "shape does not match"),
        (pickle.dumps(np.zeros(2, dtype=[("a", "f4")])), "expected numbers or text"),
        (pickle.dumps(np.array(["a"])).replace(b"a\0\0\0", b"\xff" * 4), "not Unicode"),
        (pickle.dumps(np.datetime64("2026-01-01")), "expected numbers or text"),
        (pickle.dumps({1, 2}), "EMPTY_SET"),
        (pickle.dumps(Calls(Sample, Kind.STATE))[:-1] + b".", "before it has a state"),
        (pickle.dumps(torch.zeros(2).expand(3, 2)), "more elements than its storage"),
        (pickle.dumps(np.ndarray), "numpy.ndarray as a value"),
        (pickle.dumps(Sample(Kind.STATE)).replace(b"\x04data", b"\x04dato"), "not a valid pickle"),
    ],
)  # fmt: skip
def test_what_would_take_memory_or_time_is_refused_quickly(data, message):
    begin = time.process_time()
    with pytest.raises(RefusedPickle, match=message):
        loads(data, TYPES)
    assert time.process_time() - begin < 5


def test_content_that_is_referenced_often_is_not_copied_often():
    content = b"\x80\x04B" + (10**6).to_bytes(4, "little") + bytes(10**6) + b"\x94"
    array = (
        b"\x8c\x16numpy._core.multiarray\x8c\x0c_reconstruct\x93\x8c\x05numpy\x8c\x07ndarray\x93K\x00\x85C\x01b\x87R"
        b"(K\x01J" + (10**6).to_bytes(4, "little") + b"\x85\x8c\x05numpy\x8c\x05dtype\x93\x8c\x02u1\x89\x88\x87R"
        b"(K\x03\x8c\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89h\x00tb"
    )  # fmt: skip
    assert loads(content + array + b".").shape == (10**6,)
    with pytest.raises(RefusedPickle, match="more bytes than itself"):
        loads(content + b"]" + b"".join(array + b"a" for _ in range(5)) + b".")


VALID = [
    pickle.dumps(value, protocol)
    for protocol in (4, 5)
    for value in (
        Sample(Kind.STATE, {"image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3), "x": 1.5, "task": "push"}),
        {"tensor": torch.arange(6.0).view(2, 3), "scalar": np.float32(2), "list": [1, (2, 3), None]},
    )
]
HARMLESS = (type(None), bool, int, float, str, bytes, bytearray, np.ndarray, np.generic, torch.Tensor, Kind)


def only_data(value):
    if isinstance(value, dict):
        return all(map(only_data, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(only_data, value))
    return only_data(value.data) if isinstance(value, Sample) else isinstance(value, HARMLESS)


#: Pieces of hostile pickles, to be put anywhere.
PIECES = [b"cos\nsystem\n", b"R", b"b", b"o", b"\x81", b"\x92", b"\x93", b"Q", b"(", b"t", b"\x85", b"h\x00", b"\x94", b"0",
          b"2", b"\x8c\x05posix\x8c\x06system\x93", b"C\x02ls\x85R", b"\x8c\x08builtins\x8c\x04eval\x93", b"."]  # fmt: skip


@settings(max_examples=400, deadline=2000)
@given(
    st.sampled_from(VALID),
    st.lists(
        st.tuples(st.integers(0, 2000), st.integers(0, 3), st.binary(max_size=4) | st.sampled_from(PIECES)),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
@example(VALID[0], [(2, 0, b"cos\nsystem\nC\x02ls\x85R")])
def test_mutations_run_nothing_and_end(data, edits):
    for place, removed, inserted in edits:
        place %= len(data)
        data = data[:place] + inserted + data[place + removed :]
    with audited() as events:
        try:
            value = loads(data, TYPES)
        except RefusedPickle:
            value = None
    assert not events
    assert only_data(value)


class audited:
    """Collects imports, files and processes of its block; Python's audit hooks cannot be removed, so there is one."""

    active: list | None = None
    installed = False
    WATCHED = ("import", "open", "os.", "subprocess.", "exec", "compile", "pickle.find_class", "socket.", "ctypes.")

    def __enter__(self):
        if not audited.installed:
            codecs.lookup("raw_unicode_escape")  # Python imports its own codec for text of protocol 0
            sys.addaudithook(audited.hook)
            audited.installed = True
        audited.active = []
        return audited.active

    def __exit__(self, *_):
        audited.active = None

    @staticmethod
    def hook(event, args):
        if audited.active is not None and event.startswith(audited.WATCHED):
            audited.active.append((event, args))


@pytest.mark.parametrize("kind", ["S0", "U0"])
def test_an_array_of_items_without_bytes_is_refused(kind):
    """Its shape could claim any number of them."""
    data = pickle.dumps(np.ndarray((7,), kind, b""), 4)
    with pytest.raises(RefusedPickle, match="expected numbers or text"):
        loads(data)
