"""Krylov methods: Lanczos eigenvalues and stochastic Lanczos quadrature."""

from hessblocks.linalg.spectra.lanczos import extreme_eigenvalues
from hessblocks.linalg.spectra.spectrum import Spectrum, spectral_density
