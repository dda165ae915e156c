"""Krylov methods: Lanczos eigenvalues, stochastic Lanczos quadrature, condition numbers."""

from hessblocks.linalg.spectra.lanczos import ConditionNumber, condition_number, extreme_eigenvalues
from hessblocks.linalg.spectra.spectrum import Spectrum, jensen_shannon_distance, spectral_density
