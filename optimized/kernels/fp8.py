"""Convert to and from float8_e4m3fn by integer and float arithmetic.

The format has one sign bit, four exponent bits with bias 7 and three mantissa bits; no
infinities, and only 0x7F and 0xFF are NaN. Triton's own type does not compile for sm_80,
so kernels read and write the bits as uint8.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

_MAX = tl.constexpr(448.0)
_EXPONENT = tl.constexpr(0x7F800000)
"""Mask of the exponent bits of float32."""
_LEAST_NORMAL = tl.constexpr(0x3C800000)
"""Bits of 2**-6 in float32, the smallest normal number; smaller codes use its exponent."""
_NAN = tl.constexpr(0x7F)


@triton.jit
def to_fp8(x):
    """Return the bits (uint8) of float32 values: to nearest, ties to even, saturated at 448.

    NaN stays NaN with its sign, without its payload.
    """
    magnitude = tl.abs(x)
    # NaN becomes 448 too, whose code is 0x7E; the return statement sets its last bit.
    magnitude = tl.where(magnitude < _MAX, magnitude, _MAX)
    exponent = tl.maximum(magnitude.to(tl.int32, bitcast=True) & _EXPONENT, _LEAST_NORMAL)
    # 2**20 times the power of two in `exponent`. A float32 of that size has a resolution of
    # 1/8 of the power, as the code has, so the addition rounds to the nearest code.
    rounder = exponent + (20 << 23)
    total = (magnitude + rounder.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)
    # `total - rounder` is the magnitude in eighths of the power: 8 to 16 for a normal number,
    # 0 to 8 for a subnormal one. 121 is the smallest normal exponent, 127 - 6.
    code = (total - rounder) + ((exponent >> 20) - (121 << 3))
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (code | (x != x).to(tl.int32) | sign).to(tl.uint8)


@triton.jit
def from_fp8(bits):
    """Return the values of codes (uint8) as float16, which represents all of them exactly.

    float32 and bfloat16 do so too: the caller converts the result to its own dtype.
    """
    wide = bits.to(tl.uint16)
    # As a float16 the moved bits are 2**-8 of the value: its exponent bias is 15, not 7.
    moved = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    value = moved.to(tl.float16, bitcast=True) * 256.0
    return tl.where((wide & 0x7F) == _NAN, float("nan"), value)
