"""Kernels are interpreted with an eye on races."""

from tests.pallas_kernels.races import no_races as no_races
