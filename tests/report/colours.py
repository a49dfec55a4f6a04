"""Colours as others see them: contrast, and differences for those who lack a kind of cone."""

import math
import re
from collections.abc import Mapping

Colour = tuple[float, float, float]

# Machado, Oliveira and Fernandes 2009 (doi:10.1109/TVCG.2009.113), severity 1.0, linear RGB.
_EYES: Mapping[str, tuple[Colour, Colour, Colour]] = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
EYES = tuple(_EYES)

# sRGB to XYZ, IEC 61966-2-1, with the white of D65.
_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
_WHITE = (0.95047, 1.0, 1.08883)


def linear(colour: str) -> Colour:
    """`#rrggbb` or `rgb(...)` as linear RGB, 0 to 1."""
    if colour.startswith("#"):
        parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    else:
        parts = [int(float(part)) for part in re.findall(r"[\d.]+", colour)[:3]]
    red, green, blue = (_linear(part / 255) for part in parts)
    return red, green, blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2.2, from 1 to 21."""
    lights = sorted(_times(_XYZ, linear(colour))[1] for colour in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def difference(one: str, other: str, eyes: str) -> float:
    """Difference of CIE 1976 (the distance in L*a*b*) as some eyes see it."""
    return math.dist(*(_lab(_times(_EYES[eyes], linear(colour))) for colour in (one, other)))


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _times(matrix: tuple[Colour, Colour, Colour], colour: Colour) -> Colour:
    first, second, third = (sum(a * b for a, b in zip(row, colour, strict=True)) for row in matrix)
    return first, second, third


def _lab(colour: Colour) -> Colour:
    red, green, blue = (min(1.0, max(0.0, part)) for part in colour)
    x, y, z = (
        _root(part / white)
        for part, white in zip(_times(_XYZ, (red, green, blue)), _WHITE, strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _root(part: float) -> float:
    return part ** (1 / 3) if part > 216 / 24389 else (24389 / 27 * part + 16) / 116
