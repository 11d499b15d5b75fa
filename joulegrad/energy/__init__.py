"""Joules of what happened: meters that measure, and a ledger that says where each figure comes from.

with measure() as reading:                          # NVML, RAPL, a Jetson's INA3221, a Raspberry Pi 5's PMIC, or none
train()
ledger = Ledger(device="rpi4", link="wifi-rpi4")    # profiles: joulegrad.profiles
rows = [Row.measured("train", reading), *ledger.uplink(len(payload))]
totals(rows)                                        # measured, coded, modelled: never mixed
"""

from joulegrad.energy.battery import Battery
from joulegrad.energy.carbon import Carbon, carbon
from joulegrad.energy.ledger import PHASES, SOURCES, Ledger, Row, totals
from joulegrad.energy.measuring import Meter, NoMeter, Reading, measure

__all__ = [
    "PHASES",
    "SOURCES",
    "Battery",
    "Carbon",
    "Ledger",
    "Meter",
    "NoMeter",
    "Reading",
    "Row",
    "carbon",
    "measure",
    "totals",
]
