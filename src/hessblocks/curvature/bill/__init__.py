"""Forecast the KL divergence of weight changes, check the forecasts, and allocate bits."""

from hessblocks.curvature.bill.allocation import Allocation
from hessblocks.curvature.bill.bill import Bill, price
from hessblocks.curvature.bill.changes import Change, change_each
from hessblocks.curvature.bill.draws import Draws
from hessblocks.curvature.bill.edits import Edit, merged, pruned, removed, rounded
from hessblocks.curvature.bill.measured import BillCheck
from hessblocks.curvature.bill.prices import Price
