"""Joules of what happened: meters that measure.

with measure() as reading:      # NVML, RAPL, a Jetson's INA3221, a Raspberry Pi 5's PMIC, or none
train()
reading.joules                  # or None, and reading.note says why
"""

from joulegrad.energy.measuring import Meter, NoMeter, Reading, measure

__all__ = ["Meter", "NoMeter", "Reading", "measure"]
