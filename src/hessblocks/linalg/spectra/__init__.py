"""Krylov methods: Lanczos eigenvalues, stochastic Lanczos quadrature, condition numbers."""

from hessblocks.linalg.spectra.condition import ConditionNumber, condition_number
from hessblocks.linalg.spectra.lanczos import extreme_eigenvalues
from hessblocks.linalg.spectra.spectrum import Spectrum, spectral_density
