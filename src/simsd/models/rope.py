"""What a configuration says about rotary positions, in every spelling; scaling is refused, never left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simsd.errors import ModelError
from simsd.models.values import given, kind, number

_PLACES = ("rope_scaling", "rope_parameters")  # older and newer versions of transformers
_TYPES = ("rope_type", "type")
_UNSCALED = ("default", "none")


@dataclass(frozen=True)
class Rope:
    """theta: the base of the wavelengths. partial_factor: the part of each head that is rotated."""

    theta: float
    partial_factor: float

    def __post_init__(self) -> None:
        if self.theta <= 0:
            raise ModelError(f"config.json says rope_theta = {self.theta}; it must be a number above 0.")

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], partial_factor: float = 1.0) -> Rope:
        """From parsed JSON; partial_factor: where it is silent.

        Raises: ModelError where positions would be scaled, or are told in two ways; ValueError, TypeError.
        """
        said = {place: given(kind(raw, place, dict, {})) for place in _PLACES}
        for place, parameters in said.items():
            _refuse_scaling(place, parameters)
        everywhere = [given(raw), *said.values()]
        theta = _one("rope_theta", everywhere, 10000.0)
        return cls(theta, _one("partial_rotary_factor", everywhere, partial_factor))


def _refuse_scaling(place: str, parameters: Mapping[str, Any]) -> None:
    for key in _TYPES:
        if parameters.get(key, "default") not in _UNSCALED:
            raise ModelError(
                f"{place} of type {parameters[key]!r} is not supported; remove it from config.json to run unscaled."
            )
    for key, value in parameters.items():
        if key not in (*_TYPES, "rope_theta", "partial_rotary_factor"):
            raise ModelError(
                f"{place} has {key} = {value!r}; only unscaled positions, the same in all layers, are supported: "
                "remove it from config.json to run so."
            )


def _one(key: str, places: list[dict[str, Any]], default: float) -> float:
    """What all places that say it agree on."""
    values = {number(place, key) for place in places if key in place}
    if len(values) > 1:
        told = " and ".join(map(str, sorted(values)))
        raise ModelError(f"config.json says {key} = {told}; remove the wrong one.")
    return values.pop() if values else default
