"""float8_e4m3fn in integer and float arithmetic, for devices without the type and with it.

One sign bit, four bits of exponent with bias 7, three of mantissa; no infinities, and
only 0x7F and 0xFF are NaN. Triton's own type does not compile for sm_80, so kernels
see the bits as uint8.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

_MAX = tl.constexpr(448.0)
_LEAST_NORMAL = tl.constexpr(0.015625)
"""2**-6; below it codes are multiples of 2**-9."""
_ROUNDS_TO_UNITS = tl.constexpr(16384.0)
"""2**14: a sum with it has units of 2**-9, so the adder rounds to the nearest code."""
_SUM_BITS = tl.constexpr(0x46800000)
"""The bits of that number as float32."""
_NAN = tl.constexpr(0x7F)


@triton.jit
def to_fp8(x):
    """Bits (uint8) of the float32 values `x`: to the nearest, ties to even, saturated at 448.

    NaN stays NaN; its sign is kept, nothing else of it.
    """
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = tl.abs(x)
    limited = tl.where(magnitude < _MAX, magnitude, _MAX)
    kept = limited.to(tl.uint32, bitcast=True)
    # 20 bits of mantissa go; a carry runs on into the exponent, as it must.
    normal = ((kept + 0x7FFFF + ((kept >> 20) & 1)) >> 20) - (120 << 3)
    small = (limited + _ROUNDS_TO_UNITS).to(tl.uint32, bitcast=True) - _SUM_BITS
    code = tl.where(limited < _LEAST_NORMAL, small, normal)
    code = tl.where(x == x, code, _NAN)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def from_fp8(bits):
    """What the codes `bits` (uint8) stand for, as float16, which holds all of them exactly.

    As float32 and bfloat16 do: convert the result to whatever is computed in.
    """
    wide = bits.to(tl.uint16)
    # As the bits of a float16 they read 2**-8 of what they are, subnormal codes included.
    moved = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    value = moved.to(tl.float16, bitcast=True) * 256.0
    return tl.where((wide & 0x7F) == _NAN, float("nan"), value)
