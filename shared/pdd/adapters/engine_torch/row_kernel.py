"""Decode attention in one compiled loop: each sequence's keys and values are read once, in place, however its pages lie.

Numba compiles it when an engine warms up and keeps the result on disk, if there is a place for it. Where there is no numba, no CPU or
no such dtype, rows attend as blocks.py does; the tests hold one against the other.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

BLOCK = 64  # tokens whose scores are taken together
LOWEST = np.float32(-87.0)  # e to this is the least normal number


def compiled(function):  # type: ignore[no-untyped-def]
    """Runs without the interpreter's lock. A read-only installation without a home has no place to keep it."""
    try:
        return njit(fastmath=True, nogil=True, cache=True)(function)
    except RuntimeError:
        return njit(fastmath=True, nogil=True)(function)


@intrinsic  # type: ignore[untyped-decorator]
def bits_as_float(typing, bits):  # type: ignore[no-untyped-def]
    def build(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.bitcast(values[0], ir.FloatType())

    return types.float32(types.uint32), build


def load(value):  # type: ignore[no-untyped-def]
    """float32, or bfloat16 as its 16 bits -> float32."""
    raise NotImplementedError


@overload(load, inline="always")  # type: ignore[untyped-decorator]
def _load(value):  # type: ignore[no-untyped-def]
    if value == types.uint16:
        return lambda value: bits_as_float(np.uint32(value) << np.uint32(16))
    return lambda value: value


@intrinsic  # type: ignore[untyped-decorator]
def larger(typing, left, right):  # type: ignore[no-untyped-def]
    """The larger of two, in a form that vectorizes as Python's own does not."""

    def build(context, builder, signature, values):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(ir.FloatType(), (ir.FloatType(), ir.FloatType()))
        function = builder.module.declare_intrinsic("llvm.maxnum", (ir.FloatType(),), kind)
        return builder.call(function, values, fastmath=("fast",))

    return types.float32(types.float32, types.float32), build


@njit(fastmath=True, inline="always")  # type: ignore[untyped-decorator]
def exp(x):  # type: ignore[no-untyped-def]
    """Of x <= 0, to 2 units in the last place, in steps that vectorize (Cephes' expf)."""
    x = max(x, LOWEST)
    n = np.int32(x * np.float32(1.4426950408889634) - np.float32(0.5))
    r = x - np.float32(n) * np.float32(0.693359375) + np.float32(n) * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    return p * bits_as_float(np.uint32((n + np.int32(127)) << np.int32(23)))


@compiled  # type: ignore[untyped-decorator]
def score(query, keys, scores):  # type: ignore[no-untyped-def]
    """query [group, head_dim] . keys [tokens, head_dim] -> scores [group, tokens]."""
    for token in range(keys.shape[0]):
        for g in range(query.shape[0]):
            total = np.float32(0)
            for d in range(query.shape[1]):
                total += query[g, d] * load(keys[token, d])
            scores[g, token] = total


@compiled  # type: ignore[untyped-decorator]
def weigh(scores, first, group, best, total, out):  # type: ignore[no-untyped-def]
    """Row r sees `first + r // group` tokens. Their scores become weights relative to the best so far, the others' become 0;

    what was summed under a lower best shrinks (online softmax).
    """
    for r in range(scores.shape[0]):
        row, seen = scores[r], min(first + r // group, scores.shape[1])
        before = top = best[r]
        for token in range(seen):
            top = larger(top, row[token])
        fresh = np.float32(0)
        for token in range(seen):
            row[token] = exp(row[token] - top)
            fresh += row[token]
        row[seen:] = np.float32(0)
        shrink = exp(before - top)
        best[r], total[r] = top, total[r] * shrink + fresh
        for d in range(out.shape[1]):
            out[r, d] *= shrink


@compiled  # type: ignore[untyped-decorator]
def add(weights, values, out):  # type: ignore[no-untyped-def]
    """weights [group, tokens] times values [tokens, head_dim], onto out [group, head_dim]."""
    for token in range(values.shape[0]):
        for g in range(out.shape[0]):
            weight = weights[g, token]
            for d in range(out.shape[1]):
                out[g, d] += weight * load(values[token, d])


@compiled  # type: ignore[untyped-decorator]
def attend_rows(query, keys, values, first_run, runs, scale, out, begin, end):  # type: ignore[no-untyped-def]
    """query and out [rows, kv_heads, group, head_dim] in float32, keys and values [kv_heads, slots, head_dim] as stored.

    Row r in [begin, end) sees the slots [low, high) that runs[first_run[r]:first_run[r + 1]] name.
    """
    kv_heads, group, _head_dim = query.shape[1:]
    scores = np.empty((group, BLOCK), np.float32)
    best, total = np.empty(group, np.float32), np.empty(group, np.float32)
    for row in range(begin, end):
        for head in range(kv_heads):
            scaled, answer = query[row, head] * scale, out[row, head]
            best[:], total[:], answer[:] = np.float32(-1e30), np.float32(0), np.float32(0)
            for run in range(first_run[row], first_run[row + 1]):
                for low in range(runs[run, 0], runs[run, 1], BLOCK):
                    high = min(low + BLOCK, runs[run, 1])
                    score(scaled, keys[head, low:high], scores)
                    weigh(scores, high - low, group, best, total, answer)
                    add(scores, values[head, low:high], answer)
            for g in range(group):
                answer[g] /= total[g]
