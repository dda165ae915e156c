"""Verification of the closed forms against automatic differentiation, case by case."""

from hessblocks.theory.verification.cases import CASES, Case, arguments
from hessblocks.theory.verification.sweep import Check, attention_output, verify_closed_forms
