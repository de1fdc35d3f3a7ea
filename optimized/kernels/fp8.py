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
_EXPONENT = tl.constexpr(0x7F800000)
"""Where float32 has its exponent."""
_LEAST_NORMAL = tl.constexpr(0x3C800000)
"""2**-6 as bits of float32: the exponent of all smaller codes."""
_NAN = tl.constexpr(0x7F)


@triton.jit
def to_fp8(x):
    """Bits (uint8) of the float32 values `x`: to the nearest, ties to even, saturated at 448.

    NaN stays NaN; its sign is kept, nothing else of it.
    """
    magnitude = tl.abs(x)
    magnitude = tl.where(magnitude < _MAX, magnitude, _MAX)  # NaN too, the last bit is added below
    exponent = tl.maximum(magnitude.to(tl.int32, bitcast=True) & _EXPONENT, _LEAST_NORMAL)
    # 2**20 times that power of two: a sum with it has no room for more than three bits of
    # fraction behind the leading one, so the adder rounds to the nearest code.
    rounder = exponent + (20 << 23)
    total = (magnitude + rounder.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)
    # The sum's last bits count steps of the code, 8 to 16 of them above the least normal
    # number and 0 to 8 below it; 121 is the exponent of that number, 127 - 6.
    code = (total - rounder) + ((exponent >> 20) - (121 << 3))
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (code | (x != x).to(tl.int32) | sign).to(tl.uint8)


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
