"""Forecast the KL divergence of weight changes, check the forecasts, and allocate bits."""

from hessblocks.bill.activations import (
    ActivationPrice,
    activation_changes,
    activations_of,
    cache_changes,
)
from hessblocks.bill.allocation import Allocation, allocate
from hessblocks.bill.bill import Bill, price, quantise
from hessblocks.bill.changes import Change, change_each
from hessblocks.bill.draws import Draws
from hessblocks.bill.edits import Edit, in_format, merged, pruned, removed, rounded
from hessblocks.bill.grids import BLOCK
from hessblocks.bill.measured import BillCheck
from hessblocks.bill.prices import Price
from hessblocks.bill.secant import growth_passes

__all__ = [
    "ActivationPrice",
    "Allocation",
    "Bill",
    "BillCheck",
    "Change",
    "Draws",
    "Edit",
    "Price",
    "activation_changes",
    "cache_changes",
    "change_each",
    "in_format",
    "merged",
    "price",
    "pruned",
    "quantise",
    "removed",
    "rounded",
]
