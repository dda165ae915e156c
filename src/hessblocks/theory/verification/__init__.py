"""Verification of the closed forms against automatic differentiation, case by case."""

from hessblocks.theory.verification.cases import CASES, Case, arguments
from hessblocks.theory.verification.reference import attention_output
from hessblocks.theory.verification.sweep import Check, verify_closed_forms
