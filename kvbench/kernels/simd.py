"""Vectors of float32 in jitted code: as wide as the CPU's registers, written as LLVM IR.

    p = pointer(array)      to the first element of a C-contiguous array; p[i] reads and writes one element
    q = at(p, i)            the pointer i elements further
    v = load(p, i)          LANES elements from i on: float32, bf16 bits (uint16) or int8, as float32
    store(p, i, v)          float32 only;  stream(p, i, v) goes past the caches, to an address that is a multiple
                            of the vector's bytes
    splat(x)  add(a, b)  sub(a, b)  mul(a, b)  fma(a, b, c)  greater(a, b)  exp2(v)  power_of_two(x)
    total(v)  greatest(v)
    soon(p, i)  later(p, i) prefetch the cache line of element i into L1; into L2. The address need not be valid.

A pointer holds no reference: an array that jitted code allocates may be freed after its last use by name, so scratch
comes from the caller. No index is checked; callers check shapes once, in Python. Indices are int64.

Products of matrices are in `products`, made of the same parts.

Lanes: 16 with AVX-512, 8 with AVX2 and FMA, 4 with NEON. On any other CPU 4 lanes and a product that is rounded before
the sum: LLVM makes plain instructions of it. Under NUMBA_DISABLE_JIT a pointer is a flat array and a vector a NumPy
array; that is the reference, and slow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import config as numba_config
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic, models, register_model

from ..core.jit import PLAIN

F32, I8, I16, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)


def _machine() -> tuple[int, bool, int]:
    """Lanes of a vector, whether the CPU multiplies and adds in one instruction, vector registers."""
    features = numba_config.CPU_FEATURES
    if features is None:
        features = binding.get_host_cpu_features().flatten()
    found = {f[1:] for f in features.split(",") if f.startswith("+")}
    if "avx512f" in found:
        return 16, True, 32
    if {"avx2", "fma"} <= found:
        return 8, True, 16
    if "neon" in found:
        return 4, True, 32
    return 4, False, 16


LANES, FUSED, REGISTERS = _machine()

VECTOR = ir.VectorType(F32, LANES)


class _Vector(types.Type):
    def __init__(self) -> None:
        super().__init__(name=f"Float32x{LANES}")


vector_type = _Vector()


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, data_model_manager: Any, numba_type: Any) -> None:
        super().__init__(data_model_manager, numba_type, VECTOR)


# ---- LLVM IR ---------------------------------------------------------------------------------------------------------


def lanes_of(scalar: Any, value: Any) -> Any:
    """A constant vector."""
    return ir.Constant(ir.VectorType(scalar, LANES), [value] * LANES)


def element(builder: Any, pointer: Any, index: Any) -> Any:
    """The address of an element, index an int64 value or a Python integer."""
    return builder.gep(pointer, [I64(index) if isinstance(index, int) else index])


def read_vector(builder: Any, pointer: Any, index: Any) -> Any:
    """LANES elements as float32; the pointer's type says how they are stored."""
    stored = pointer.type.pointee
    place = builder.bitcast(element(builder, pointer, index), ir.VectorType(stored, LANES).as_pointer())
    if stored == F32:
        return builder.load(place, align=4)
    if stored == I16:
        wide = builder.zext(builder.load(place, align=2), ir.VectorType(I32, LANES))
        return builder.bitcast(builder.shl(wide, lanes_of(I32, 16)), VECTOR)
    return builder.sitofp(builder.load(place, align=1), VECTOR)


def write_vector(builder: Any, pointer: Any, index: Any, value: Any) -> Any:
    place = builder.bitcast(element(builder, pointer, index), value.type.as_pointer())
    return builder.store(value, place, align=4)


def spread(builder: Any, scalar: Any) -> Any:
    """The scalar in every lane."""
    first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(first, ir.Constant(VECTOR, ir.Undefined), lanes_of(I32, 0))


def call_vector(builder: Any, name: str, *arguments: Any) -> Any:
    """One of LLVM's own functions on vectors, such as floor."""
    shape = ir.FunctionType(VECTOR, [VECTOR] * len(arguments))
    function = cgutils.get_or_insert_function(builder.module, shape, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, list(arguments))


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c: rounded once where the CPU can."""
    return call_vector(builder, "fma", a, b, c) if FUSED else builder.fadd(builder.fmul(a, b), c)


def ask_for(builder: Any, pointer: Any, index: Any, locality: int) -> None:
    """Prefetch: locality 3 is L1, 2 is L2."""
    place = builder.bitcast(element(builder, pointer, index), I8.as_pointer())
    shape = ir.FunctionType(ir.VoidType(), [place.type, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
    builder.call(function, [place, I32(0), I32(locality), I32(1)])


def fold(builder: Any, value: Any, join: Any) -> Any:
    """One scalar of all lanes: halves joined until one lane is left, so the order never changes."""
    width = LANES
    while width > 1:
        width //= 2
        part = ir.VectorType(I32, width)
        low = builder.shuffle_vector(value, value, ir.Constant(part, list(range(width))))
        high = builder.shuffle_vector(value, value, ir.Constant(part, list(range(width, 2 * width))))
        value = join(low, high)
    return builder.extract_element(value, I32(0))


def larger(builder: Any, a: Any, b: Any) -> Any:
    """The larger of each lane; b where a is not a number."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def count_up(builder: Any, number: Any, values: list[Any], turn: Any) -> list[Any]:
    """A loop for k = 0 to number - 1, at least once; values = turn(k, values) each time, kept in registers."""
    before, loop = builder.block, builder.append_basic_block("turn")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    k.add_incoming(I64(0), before)
    carried = [builder.phi(value.type) for value in values]
    for phi, value in zip(carried, values, strict=True):
        phi.add_incoming(value, before)
    turned = turn(k, carried)
    following = builder.add(k, I64(1))
    end, after = builder.block, builder.append_basic_block("after")
    k.add_incoming(following, end)
    for phi, value in zip(carried, turned, strict=True):
        phi.add_incoming(value, end)
    builder.cbranch(builder.icmp_signed("<", following, number), loop, after)
    builder.position_at_end(after)
    return turned


# ---- Numba functions -------------------------------------------------------------------------------------------------


@intrinsic
def _pointer(typing_context: Any, array: Any) -> Any:
    if not isinstance(array, types.Array) or array.layout != "C":
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(array)(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), generate


@intrinsic
def _at(typing_context: Any, pointer: Any, index: Any) -> Any:
    return pointer(pointer, types.int64), lambda c, builder, s, args: element(builder, args[0], args[1])


@intrinsic
def _load(typing_context: Any, pointer: Any, index: Any) -> Any:
    return vector_type(pointer, types.int64), lambda c, builder, s, args: read_vector(builder, *args)


@intrinsic
def _store(typing_context: Any, pointer: Any, index: Any, value: Any) -> Any:
    if pointer != types.CPointer(types.float32):
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        write_vector(builder, *args)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, vector_type), generate


@intrinsic
def _stream(typing_context: Any, pointer: Any, index: Any, value: Any) -> Any:
    if pointer != types.CPointer(types.float32):
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        written = write_vector(builder, *args)
        written.align = 4 * LANES
        written.set_metadata("nontemporal", builder.module.add_metadata([I32(1)]))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, vector_type), generate


def _prefetch_as(locality: int) -> Any:
    def typed(typing_context: Any, pointer: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            ask_for(builder, args[0], args[1], locality)
            return context.get_dummy_value()

        return types.void(pointer, types.int64), generate

    return typed


@intrinsic
def _soon(typing_context: Any, pointer: Any, index: Any) -> Any:
    return _prefetch_as(3)(typing_context, pointer, index)


@intrinsic
def _later(typing_context: Any, pointer: Any, index: Any) -> Any:
    return _prefetch_as(2)(typing_context, pointer, index)


@intrinsic
def _splat(typing_context: Any, x: Any) -> Any:
    return vector_type(types.float32), lambda c, builder, s, args: spread(builder, args[0])


@intrinsic
def _add(typing_context: Any, a: Any, b: Any) -> Any:
    return vector_type(vector_type, vector_type), lambda c, builder, s, args: builder.fadd(*args)


@intrinsic
def _sub(typing_context: Any, a: Any, b: Any) -> Any:
    return vector_type(vector_type, vector_type), lambda c, builder, s, args: builder.fsub(*args)


@intrinsic
def _mul(typing_context: Any, a: Any, b: Any) -> Any:
    return vector_type(vector_type, vector_type), lambda c, builder, s, args: builder.fmul(*args)


@intrinsic
def _fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    signature = vector_type(vector_type, vector_type, vector_type)
    return signature, lambda context, builder, s, args: multiply_add(builder, *args)


@intrinsic
def _greater(typing_context: Any, a: Any, b: Any) -> Any:
    return vector_type(vector_type, vector_type), lambda c, builder, s, args: larger(builder, *args)


@intrinsic
def _total(typing_context: Any, v: Any) -> Any:
    return types.float32(vector_type), lambda c, builder, s, args: fold(builder, args[0], builder.fadd)


@intrinsic
def _greatest(typing_context: Any, v: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return fold(builder, args[0], lambda a, b: larger(builder, a, b))

    return types.float32(vector_type), generate


_EXP2 = (
    1.0, 0.6931470036506653, 0.2402298003435135, 0.05548352375626564,
    0.009678472764790058, 0.0012443081941455603, 0.00021690608991775662,
)  # fmt: skip
"""2^x on [0, 1] as a polynomial: least squares of the relative error at 400 Chebyshev nodes; 1.1e-8."""
_SMALLEST_EXPONENT = -126.0


def power(builder: Any, x: Any) -> Any:
    """2^x of each lane: the whole part goes into the exponent's bits, the rest through the polynomial."""
    x = larger(builder, x, lanes_of(F32, _SMALLEST_EXPONENT))
    whole = call_vector(builder, "floor", x)
    rest = builder.fsub(x, whole)
    value = lanes_of(F32, _EXP2[-1])
    for coefficient in reversed(_EXP2[:-1]):
        value = multiply_add(builder, value, rest, lanes_of(F32, coefficient))
    exponent = builder.add(builder.fptosi(whole, ir.VectorType(I32, LANES)), lanes_of(I32, 127))
    return builder.fmul(value, builder.bitcast(builder.shl(exponent, lanes_of(I32, 23)), VECTOR))


@intrinsic
def _exp2(typing_context: Any, v: Any) -> Any:
    return vector_type(vector_type), lambda c, builder, s, args: power(builder, args[0])


@intrinsic
def _power_of_two(typing_context: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.extract_element(power(builder, spread(builder, args[0])), I32(0))

    return types.float32(types.float32), generate


# ---- without jit -----------------------------------------------------------------------------------------------------


def floats_of(part: Any) -> Any:
    """Elements of float32, bf16 bits (uint16) or int8 without its scale, as float32."""
    return (part.astype(np.uint32) << 16).view(np.float32) if part.dtype == np.uint16 else part.astype(np.float32)


def _load_plain(pointer: Any, index: int) -> Any:
    return floats_of(pointer[index : index + LANES])


def _store_plain(pointer: Any, index: int, value: Any) -> None:
    pointer[index : index + LANES] = value


def _fold_plain(v: Any, join: Any) -> Any:
    while len(v) > 1:
        v = join(v[: len(v) // 2], v[len(v) // 2 :])
    return v[0]


def _nothing(pointer: Any, index: int) -> None:
    """Without jit there is nothing to ask for."""


def _splat_plain(x: Any) -> Any:
    return np.full(LANES, x, np.float32)


def _exp2_plain(v: Any) -> Any:
    return np.exp2(np.maximum(v, np.float32(_SMALLEST_EXPONENT)))


pointer: Any = np.ravel if PLAIN else _pointer
at: Any = (lambda pointer, index: pointer[index:]) if PLAIN else _at
load: Any = _load_plain if PLAIN else _load
store: Any = _store_plain if PLAIN else _store
stream: Any = _store_plain if PLAIN else _stream
soon: Any = _nothing if PLAIN else _soon
later: Any = _nothing if PLAIN else _later
splat: Any = _splat_plain if PLAIN else _splat
add: Any = np.add if PLAIN else _add
sub: Any = np.subtract if PLAIN else _sub
mul: Any = np.multiply if PLAIN else _mul
fma: Any = (lambda a, b, c: a * b + c) if PLAIN else _fma
power_of_two: Any = _exp2_plain if PLAIN else _power_of_two
greater: Any = np.maximum if PLAIN else _greater
exp2: Any = _exp2_plain if PLAIN else _exp2
total: Any = (lambda v: _fold_plain(v, np.add)) if PLAIN else _total
greatest: Any = (lambda v: _fold_plain(v, np.maximum)) if PLAIN else _greatest
